// Everything that holds while a product of a C program is looked at or runs.
#pragma once

#include "c_api/handles.h"
#include "c_api/thread_pool.h"
#include "plan/current_device.h"

namespace sparse_autotune {

class Surroundings {
 public:
  Surroundings(const sparse_autotune_pattern& pattern, void* stream)
      : current_(pattern.context.ordinal()),
        pool_(pattern.context.threads),
        caller_(pattern.context, pool_.parallel(), stream) {}
  Caller& caller() { return caller_; }

 private:
  const CurrentDevice current_;
  const PoolScope pool_;
  CCaller caller_;
};

}  // namespace sparse_autotune
