// The walk of a warpgroup along the terms of its sums, through a ring that both operands share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/sampled_pipeline.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

// By so many steps the first consumer is through with its task before the second.
constexpr int kApart = 3, kApartBarrier = 1;

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
  const int lane = threadIdx.x % 32;
  uint32_t last = 0;
  for (int step = 0; step < steps; ++step) {
    if (step == pause) {
      asm volatile("bar.sync %0, %1;\n" ::"n"(kApartBarrier), "n"(kConsumers * kWarpgroup)
                   : "memory");
    }
    mbarrier_wait(shared.full(at.stage), at.parity);
    const uint32_t tile = shared.stage(at.stage);
    const uint64_t b = kTermsB ? wgmma::k_contiguous(tile + columns)
                               : wgmma::n_contiguous<kPieceBytes>(tile + columns);
    constexpr uint64_t kStepC = kTermsC ? wgmma::kContiguousStep : wgmma::kMContiguousStep;
    constexpr uint64_t kStepB = kTermsB ? wgmma::kContiguousStep : wgmma::kNContiguousStep;
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < kStrips; ++i) {
      const uint32_t strip = tile + rows + i * kPieceBytes;
      const uint64_t c = kTermsC ? wgmma::k_contiguous(strip) : wgmma::m_contiguous(strip);
      auto& sums = reinterpret_cast<float(&)[kWidth / 2]>(sum[i * kWidth / 2]);
#pragma unroll
      for (int q = 0; q < kStepK / 16; ++q) {
        wgmma::multiply<T, kWidth, !kTermsB, !kTermsC>(sums, c + q * kStepC, b + q * kStepB, 1);
      }
    }
    wgmma::commit();
    // Stages are given back a step later, while the next is multiplied.
    wgmma::wait<1>();
    if (step > 0 && lane == 0) mbarrier_arrive(shared.empty(last));
    last = at.stage;
    at.advance();
  }
  if (apart && consumer == 0) {
    asm volatile("bar.arrive %0, %1;\n" ::"n"(kApartBarrier), "n"(kConsumers * kWarpgroup)
                 : "memory");
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  if (lane == 0) mbarrier_arrive(shared.empty(last));
}

}  // namespace sparse_autotune
