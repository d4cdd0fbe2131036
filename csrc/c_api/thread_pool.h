// The process's own threads, for products of C programs on the CPU: PyTorch's operators use
// PyTorch's.
#pragma once

#include "variant.h"

namespace sparse_autotune {

// As many as the process may run on.
int usable_threads();

// While it lives, products of this thread share their work among so many, this one included. Where
// another thread is using the pool, they do it alone.
class PoolScope {
 public:
  explicit PoolScope(int threads);
  ~PoolScope();
  PoolScope(const PoolScope&) = delete;
  PoolScope& operator=(const PoolScope&) = delete;

  Parallel parallel() const;

 private:
  int before_;
};

}  // namespace sparse_autotune
