// The walk of a warpgroup along the terms of its sums, through a ring that both operands share.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"

namespace sparse_autotune {

// That ring in shared memory, its barriers, and notes of tasks. A Tile has kStages of kStageBytes;
// the kernel may have `kMore` barriers of its own, behind the ring's. The last one is for the tasks
// that were found before the launch ahead was over: NotesOf::confirmed tells whether they are
// right.
template <typename Tile, typename NotesOf, int kMore>
struct WalkShared {
  using Notes = NotesOf;
  static constexpr int kStages = Tile::kStages, kBarriers = 2 * kStages + kMore + 1;
  static constexpr int kBytes = kSwizzleAlignment + kStages * Tile::kStageBytes + kBarriers * 8 +
                                static_cast<int>(sizeof(Notes));
  static_assert(
      kBytes <= 227 * 1024,
      "more shared memory than a thread block of Hopper may have");  // a Hopper multiprocessor's

  uint32_t ring, barriers;
  Notes* notes;

  __device__ __forceinline__ explicit WalkShared(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    ring = align_swizzled(begin);
    barriers = ring + kStages * Tile::kStageBytes;
    notes = reinterpret_cast<Notes*>(memory + (barriers + kBarriers * 8 - begin));
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const {
    return ring + i * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(kStages + i); }
  __device__ __forceinline__ uint32_t more(uint32_t i) const { return full(2 * kStages + i); }
  __device__ __forceinline__ uint32_t checked() const { return full(kBarriers - 1); }
  __device__ __forceinline__ bool confirmed() const {
    mbarrier_wait(checked(), 0);
    return notes->confirmed;
  }
  // All but those of the kernel's own. `checkers`: threads that confirm.
  __device__ __forceinline__ void init_barriers(int checkers) const {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), 4 * kConsumers);
    }
    mbarrier_init(checked(), checkers);
    mbarrier_init_fence();
  }
};

// By so many steps the first consumer is through with its task before the second.
constexpr int kApart = 3, kApartBarrier = 1;

// Calls `before` with each step's number, then `multiply` with where its stage begins. Returns the
// last stage, which end_walk() gives back.
template <int kStages, typename Shared, typename Before, typename Multiply>
__device__ __forceinline__ uint32_t walk_stages(const Shared& shared, int steps,
                                                RingPlace<kStages>& at, Before&& before,
                                                Multiply&& multiply) {
  uint32_t last = 0;
  // Left to itself the compiler copies the step several times over: no faster, and compiled for
  // twice as long.
#pragma unroll 1
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
template <typename T, int kStages, bool kTerms, int kStrips, int kWidth, typename Shared>
__device__ __forceinline__ void walk_terms(const Shared& shared, int consumer, uint32_t rows,
                                           uint32_t columns, int steps, RingPlace<kStages>& at,
                                           float (&sum)[kStrips * kWidth / 2]) {
  // The first needs no stage that the second has still to give back, and cannot be a task ahead.
  static_assert(kApart < kStages, "the first consumer must need no stage that the second holds");
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
      wgmma::multiply_lines<T, kWidth, !kTerms, !kTerms>(
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
