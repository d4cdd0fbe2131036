// What a launch works in: its workspace and, where no copy of the values is kept, the prepared one
// behind it, in one piece of memory.
#pragma once

#include <cstdint>

#include "exported.h"
#include "variant.h"

namespace sparse_autotune {

class ScratchLayout {
 public:
  // Of so many bytes each, 0 where there is to be none.
  ScratchLayout(int64_t workspace, int64_t prepared);

  // 0: no memory is needed.
  int64_t bytes() const { return bytes_; }
  // What an allocator has to give, whose memory is aligned to less than a launch's.
  SPARSE_AUTOTUNE_API int64_t bytes_anywhere() const;
  // The first aligned address of such memory; null stays null.
  SPARSE_AUTOTUNE_API static void* aligned(void* anywhere);
  // Lets the launch work in bytes() of aligned memory.
  SPARSE_AUTOTUNE_API void put(void* memory, AnyLaunch* launch) const;

 private:
  int64_t prepared_at_, bytes_;
};

// This thread's, for one launch at a time, aligned; it is kept. Null: there is no memory, or more
// is wanted than is worth keeping.
SPARSE_AUTOTUNE_API void* cpu_scratch(int64_t bytes);

}  // namespace sparse_autotune
