// The walk of a warpgroup along the terms of its sums, through a ring that both operands share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/sampled_pipeline.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

// By so many steps the first consumer is through with its task before the second.
constexpr int kApart = 3, kApartBarrier = 1;

// Calls `before` with each step's number, then `multiply` with where its stage begins. Returns the
// last stage, which end_walk() gives back.
template <int kStages, typename Shared, typename Before, typename Multiply>
__device__ __forceinline__ uint32_t walk_stages(const Shared& shared, int steps,
                                                RingPlace<kStages>& at, Before&& before,
                                                Multiply&& multiply) {
  uint32_t last = 0;
  for (int step = 0; step < steps; ++step) {
    before(step);
    mbarrier_wait(shared.full(at.stage), at.parity);
    wgmma::fence();
    multiply(shared.stage(at.stage));
    wgmma::commit();
    // Stages are given back a step later, while the next is multiplied.
    wgmma::wait<1>();
    if (step > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty(last));
    last = at.stage;
    at.advance();
  }
  return last;
}

template <typename Shared, int kSums>
__device__ __forceinline__ void end_walk(const Shared& shared, uint32_t last, float (&sum)[kSums]) {
  wgmma::wait<0>();
  wgmma::pin(sum);
  if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty(last));
}

// Adds up 64 rows of C, or of each of two strips, by kWidth columns of B. `rows` and `columns`:
// where its own begin in a stage.
//
// Before its last kApart steps, whose operands are under way by then, the second consumer lets the
// first finish. A warpgroup alone keeps the tensor cores as busy as two do, so nothing is lost, and
// the first stores its sums while the second multiplies.
template <typename T, int kStages, bool kTermsC, bool kTermsB, int kStrips, int kWidth,
          typename Shared>
__device__ __forceinline__ void walk_terms(const Shared& shared, int consumer, uint32_t rows,
                                           uint32_t columns, int steps, RingPlace<kStages>& at,
                                           float (&sum)[kStrips * kWidth / 2]) {
  // The first needs no stage that the second has still to give back, and cannot be a task ahead.
  static_assert(kApart < kStages);
  const bool apart = steps >= 2 * kStages;
  const int pause = apart && consumer == 1 ? steps - kApart : -1;
  const auto let_pass = [&](int step) {
    if (step == pause) {
      asm volatile("bar.sync %0, %1;\n" ::"n"(kApartBarrier), "n"(kConsumers * kWarpgroup)
                   : "memory");
    }
  };
  const uint32_t last = walk_stages(shared, steps, at, let_pass, [&](uint32_t stage) {
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      wgmma::multiply_lines<T, kWidth, !kTermsB, !kTermsC>(
          reinterpret_cast<float(&)[kWidth / 2]>(sum[i * kWidth / 2]),
          stage + rows + i * kPieceBytes, stage + columns);
    }
  });
  if (apart && consumer == 0) {
    asm volatile("bar.arrive %0, %1;\n" ::"n"(kApartBarrier), "n"(kConsumers * kWarpgroup)
                 : "memory");
  }
  end_walk(shared, last, sum);
}

}  // namespace sparse_autotune
