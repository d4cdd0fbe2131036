// Device memory that is ours alone: plans, frozen copies and the tuner's scratch. Memory kept from
// torch's allocator would end up in the private pools of its CUDA graphs.
#pragma once

#include <cstdint>

#include "variant.h"

namespace sparse_autotune {

// From one private cudaMemPool a device, in stream order. Not while `stream` is capturing.
Status pool_allocate(int ordinal, int64_t bytes, void* stream, void** memory);
// Likewise; where the device has no memory left, the process is first asked to give some back.
Status pool_require(int ordinal, int64_t bytes, void* stream, void** memory);
void pool_free(void* memory, void* stream);

// How to ask: torch's allocator keeps what nobody uses. Called without any lock of the pool's.
using Reclaim = void (*)(int ordinal);
void set_reclaim(Reclaim reclaim);

// Gives back what the pool holds beyond what is in use.
void pool_trim(int ordinal);

struct PoolUse {
  int64_t used = 0;      // bytes in use
  int64_t reserved = 0;  // bytes held from the driver
};
PoolUse pool_use(int ordinal);

}  // namespace sparse_autotune
