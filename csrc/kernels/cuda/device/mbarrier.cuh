// mbarrier: barriers in shared memory that count arrivals and bytes of asynchronous copies.
//
// A barrier's phases alternate in parity: wait(parity) returns once the phase of that parity is
// over. A new barrier is in phase 0, so waiting for parity 1 returns at once.
// Shared addresses are 32-bit byte addresses, as __cvta_generic_to_shared gives them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace sparse_autotune {

using Barrier = uint64_t;

__device__ __forceinline__ void mbarrier_init(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

// Before a barrier is initialised again.
__device__ __forceinline__ void mbarrier_invalidate(uint32_t barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// After the inits, before any other thread or copy uses the barriers.
__device__ __forceinline__ void mbarrier_init_fence() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// In the name of several.
__device__ __forceinline__ void mbarrier_arrive(uint32_t barrier, uint32_t arrivals) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(arrivals)
               : "memory");
}

// Arrives, and makes the phase wait for that many bytes of copies too.
__device__ __forceinline__ void mbarrier_arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(barrier), "r"(bytes)
               : "memory");
}

// Arrives once what this thread copied by cp.async has landed.
__device__ __forceinline__ void mbarrier_arrive_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}

// Once a warp's lanes have read or written, one of them arrives for all. Racecheck does not follow
// that: in the library that setup.py builds for it each lane arrives, which takes more time.
#ifdef SPARSE_AUTOTUNE_ARRIVE_BY_LANES
constexpr int kWarpArrivals = 32;
#else
constexpr int kWarpArrivals = 1;
#endif

// By a whole warp.
__device__ __forceinline__ void mbarrier_arrive_warp(uint32_t barrier) {
  if (kWarpArrivals > 1 || threadIdx.x % 32 == 0) mbarrier_arrive(barrier);
}

// The same with bytes of copies, which one lane, the elected one, announces.
__device__ __forceinline__ void mbarrier_arrive_expect_warp(uint32_t barrier, uint32_t bytes,
                                                            bool elected) {
  if (elected) {
    mbarrier_arrive_expect(barrier, bytes);
  } else if (kWarpArrivals > 1) {
    mbarrier_arrive(barrier);
  }
}

// Makes the phase wait for that many more bytes of copies.
__device__ __forceinline__ void mbarrier_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;\n" ::"r"(barrier),
               "r"(bytes)
               : "memory");
}

__device__ __forceinline__ void mbarrier_wait(uint32_t barrier, uint32_t parity) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  // Without try_wait, which suspends the thread, it has to sleep itself, or it would keep shared
  // memory busy.
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done nanosleep.u32 20;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#else
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
#endif
}

// Whether the phase of that parity is over; does not wait.
__device__ __forceinline__ bool mbarrier_is_over(uint32_t barrier, uint32_t parity) {
  uint32_t over;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}\n"
      : "=r"(over)
      : "r"(barrier), "r"(parity)
      : "memory");
  return over != 0;
}

// Those of a ring of stages in a layout of shared memory.
template <int kStages>
struct RingBarriers {
  Barrier full[kStages], empty[kStages];
};

// The same by address.
template <int kStages>
struct RingBarriersAt {
  uint32_t barriers;

  __device__ __forceinline__ uint32_t full(uint32_t i) const {
    return barriers + offsetof(RingBarriers<kStages>, full) + i * sizeof(Barrier);
  }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const {
    return barriers + offsetof(RingBarriers<kStages>, empty) + i * sizeof(Barrier);
  }
  // With how many arrivals each phase is over.
  __device__ __forceinline__ void init(uint32_t of_full, uint32_t of_empty) const {
    for (uint32_t i = 0; i < kStages; ++i) {
      mbarrier_init(full(i), of_full);
      mbarrier_init(empty(i), of_empty);
    }
  }
};

// A place in a ring of `kStages`, or of fewer, and the parity that its barrier has there.
template <int kStages>
struct RingPlace {
  uint32_t stage = 0, parity = 0;

  __device__ __forceinline__ void advance(uint32_t stages = kStages) {
    if (++stage == stages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

}  // namespace sparse_autotune
