// A tile of a result that a thread block computes with mma.sync: how its warps share it, the
// fragments that they load from shared memory, and the loop over its steps.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/swizzle.cuh"
#include "kernels/cuda/device/tile_loader.cuh"

namespace sparse_autotune {

// The tile, the bytes of k in one step, the steps in flight, the warps that share the tile, and how
// many thread blocks of it a multiprocessor should hold (which bounds the registers).
template <int kRows, int kColumns, int kBytes, int kDepth, int kWarpRows, int kWarpColumns,
          int kBlocks>
struct MmaTile {
  static constexpr int kM = kRows, kN = kColumns, kStepBytes = kBytes;
  static constexpr int kStages = kDepth, kResident = kBlocks;
  static constexpr int kWarpsN = kWarpColumns, kThreads = 32 * kWarpRows * kWarpColumns;
  static constexpr int kWarpM = kM / kWarpRows, kWarpN = kN / kWarpColumns;
  static constexpr int kSlices = kStepBytes / kSliceBytes;
  static constexpr int kStageBytes = (kM + kN) * kStepBytes;
  // Whether the threads that share a slice can copy a row of B in fp32.
  static constexpr bool kHasTf32 = kThreads / kSlices >= kN / kChunk<float>;
  // Powers of two, so that offsets within a tile can be XORed.
  static_assert(kWarpM % 16 == 0 && kWarpN % 16 == 0 && (kWarpN & (kWarpN - 1)) == 0,
                "warps have whole mma tiles");
  static_assert((kM & (kM - 1)) == 0 && (kN & (kN - 1)) == 0 && kStages >= 2,
                "powers of two, and a ring");
};

// A warp's parts of A and B over one slice, in registers.
template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
struct Fragments {
  static constexpr int kM = Tile::kWarpM / 16, kN = Tile::kWarpN / 16;
  // Of a row of B, and of a k of a transposed A.
  static constexpr int kRowBytes = Tile::kN * sizeof(T), kRowBytesA = Tile::kM * sizeof(T);
  static constexpr bool kTf32 = sizeof(T) == 4;

  uint32_t a[kM][4], b[kN][4];

  // Byte offsets within the tiles of A and B that this lane reads for slice 0.
  static __device__ __forceinline__ uint32_t a_offset() {
    const int lane = threadIdx.x % 32, m = threadIdx.x / 32 / Tile::kWarpsN * Tile::kWarpM;
    if constexpr (!kTransposedA) {
      return chunk_offset<Tile::kStepBytes>(m + lane % 16, lane / 16);
    } else if constexpr (!kTf32) {
      return chunk_offset<kRowBytesA>(lane / 16 * 8 + lane % 8, m / kChunk<T> + lane / 8 % 2);
    } else {
      const int row = m + lane / 4;
      return chunk_offset<kRowBytesA>(lane % 4, row / 4) + row % 4 * 4;
    }
  }
  static __device__ __forceinline__ uint32_t b_offset() {
    const int lane = threadIdx.x % 32, n = threadIdx.x / 32 % Tile::kWarpsN * Tile::kWarpN;
    if constexpr (!kRowMajorB) {
      return chunk_offset<Tile::kStepBytes>(n + lane / 16 * 8 + lane % 8, lane / 8 % 2);
    } else if constexpr (!kTf32) {
      return chunk_offset<kRowBytes>(lane % 16, n / kChunk<T> + lane / 16);
    } else {
      const int column = n + lane / 4;
      return chunk_offset<kRowBytes>(lane % 4, column / 4) + column % 4 * 4;
    }
  }

  __device__ __forceinline__ void load(uint32_t a_address, uint32_t b_address, int slice) {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
      if constexpr (!kTransposedA) {
        ldmatrix(a[i], (a_address ^ slice * kSliceBytes) + i * 16 * Tile::kStepBytes);
      } else if constexpr (!kTf32) {
        ldmatrix_transposed(a[i], (a_address ^ i * 32) + slice * 16 * kRowBytesA);
      } else {
        // ldmatrix transposes halves only. Word j: 8 rows j % 2, k's upper half j / 2.
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t moved = (4 * i + j % 2 * 2) * 16 ^ swizzle<kRowBytesA>(j / 2 * 4) << 4;
          a[i][j] =
              load_shared<uint32_t>((a_address ^ moved) + (slice * 8 + j / 2 * 4) * kRowBytesA);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kN; ++j) {
      if constexpr (!kRowMajorB) {
        ldmatrix(b[j], (b_address ^ slice * kSliceBytes) + j * 16 * Tile::kStepBytes);
      } else if constexpr (!kTf32) {
        ldmatrix_transposed(b[j], (b_address ^ j * 32) + slice * 16 * kRowBytes);
      } else {
        // Word i: 8 columns i / 2, k's upper half i % 2.
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t moved = (4 * j + i / 2 * 2) * 16 ^ swizzle<kRowBytes>(i % 2 * 4) << 4;
          b[j][i] =
              load_shared<uint32_t>((b_address ^ moved) + (slice * 8 + i % 2 * 4) * kRowBytes);
        }
      }
    }
    if constexpr (kTf32) {
#pragma unroll
      for (int i = 0; i < 4 * kM; ++i) a[i / 4][i % 4] = round_to_tf32(a[i / 4][i % 4]);
#pragma unroll
      for (int i = 0; i < 4 * kN; ++i) b[i / 4][i % 4] = round_to_tf32(b[i / 4][i % 4]);
    }
  }

  __device__ __forceinline__ void multiply(float* sum) const {
#pragma unroll
    for (int i = 0; i < kM; ++i) {
#pragma unroll
      for (int j = 0; j < 2 * kN; ++j) {
        mma<T>(sum + (i * 2 * kN + j) * 4, a[i], b[j / 2] + j % 2 * 2);
      }
    }
  }
};

// Multiplies so many steps of a tile, whose operands `copies` brings to a ring in shared memory,
// kStages - 1 steps ahead: load() copies any step, as a whole; start_a() and start_b() those that
// is_straight() is true of, by code that the compiler spreads among the mma, and nothing of others;
// advance() goes on to the next step. Everyone has left the ring at the end.
template <typename Registers, typename Tile, typename Copies>
__device__ __forceinline__ void multiply_steps(uint32_t ring, int steps, Copies& copies,
                                               float (&sum)[Tile::kWarpM * Tile::kWarpN / 32]) {
  uint32_t a_offset = Registers::a_offset();
  uint32_t b_offset = Registers::b_offset() + Tile::kM * Tile::kStepBytes;
  // Keeps them in registers: the compiler would compute them again in every step.
  asm volatile("" : "+r"(a_offset), "+r"(b_offset));
  const auto behind = [&](uint32_t stage) {
    stage += Tile::kStageBytes;
    return stage == ring + Tile::kStages * Tile::kStageBytes ? ring : stage;
  };

  // The step whose copies come next, and the stage of the ring that they go to.
  int copied = 0;
  uint32_t filled = ring;
#pragma unroll 1
  for (; copied < Tile::kStages - 1; ++copied) {
    if (copied < steps) {
      const bool straight = copies.is_straight(copied);
      if (!straight) copies.load(filled);
      copies.start_a(filled, straight);
      copies.start_b(filled, straight);
      copies.advance();
    }
    cp_async_commit();
    filled += Tile::kStageBytes;
  }

  // Between which slices what happens; all of it before the last slice, where `filled` moves on.
  constexpr int kStartB = Tile::kSlices > 2 ? 1 : 0, kAdvance = Tile::kSlices > 2 ? 2 : 0;
  static_assert(Tile::kSlices >= 2 && Tile::kSlices % 2 == 0, "two sets of registers take turns");
  // Slices are loaded one ahead of the mma that use them, the first of a step within the step
  // before. Copies are started between the slices, to the stage of the step before, which everyone
  // has left.
  uint32_t stage = ring;
  Registers registers[2];
  cp_async_wait<Tile::kStages - 2>();
  __syncthreads();
  registers[0].load(stage + a_offset, stage + b_offset, 0);
#pragma unroll 1
  for (int step = 0; step < steps; ++step, ++copied) {
    const bool straight = copies.is_straight(copied);
    if (!straight && copied < steps) copies.load(filled);
#pragma unroll
    for (int slice = 0; slice < Tile::kSlices; ++slice) {
      if (slice + 1 < Tile::kSlices) {
        registers[(slice + 1) % 2].load(stage + a_offset, stage + b_offset, slice + 1);
      } else {
        cp_async_commit();
        cp_async_wait<Tile::kStages - 2>();
        // Everyone's copies for the next step have landed, and everyone has left this one's stage.
        __syncthreads();
        stage = behind(stage);
        filled = behind(filled);
        registers[0].load(stage + a_offset, stage + b_offset, 0);
      }
      if (slice == 0) copies.start_a(filled, straight);
      if (slice == kStartB) copies.start_b(filled, straight);
      if (slice == kAdvance) copies.advance();
      registers[slice % 2].multiply(sum);
    }
  }
  cp_async_wait<0>();
  __syncthreads();
}

}  // namespace sparse_autotune
