// The kernel of small_n_units_sm90: few columns, in as few instructions as can be.
//
// A thread block owns 16 rows of one block row by up to 16 columns of C. Its warps take the block
// row's units in turn: 64 k, which is one block of 64, two of 32 or four of 16.
// Data path: values and B straight from global memory to the registers of mma.sync -> fp32 sums,
// one for each warp, in shared memory -> added up in the order of the warps -> C.
// As many units of values are on their way as registers hold, their columns and B's pieces with
// them. That a block's side is known to the compiler is what spares the instructions: all places in
// a unit are constants.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/gathered_sums.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/small_n_kernel.cuh"
#include "variant.h"

namespace sparse_autotune {

// Blocks of kSide x kSide; columns of C, by eights; warps; how many units of values, and of B, are
// on their way; thread blocks a multiprocessor.
template <int kSide, int kColumnEights, int kWarpCount, int kValuesAhead, int kColumnsAhead,
          int kBlocksAtOnce>
struct UnitTile {
  static constexpr int kBlockSide = kSide, kColumnTiles = kColumnEights;
  static constexpr int kGroups = kWarpCount, kThreads = 32 * kGroups, kResident = kBlocksAtOnce;
  static constexpr int kAhead = kValuesAhead, kAheadB = kColumnsAhead;
  static constexpr int kRows = 16, kWidth = 8 * kColumnTiles;
  static constexpr int kStrips = kSide / kRows;  // of a block row
  static constexpr int kBlocks = 64 / kSide;     // of a unit
  static constexpr int kBlockBytes = kSide * kSide * 2, kLine = kSide * 2;
  // Column indices that a lane looks up for a unit: half a unit's 64 k are a slice.
  static constexpr int kLookUps = kSide == 64 ? 1 : 2;
  static constexpr int kSliceBytes = kSide == 64 ? 64 : kSide == 32 ? kBlockBytes : 2 * kBlockBytes;
  // Sums are gathered column by column, 16-byte aligned.
  static constexpr int kPitch = kRows + 4, kSumBytes = kWidth * kPitch * 4;
  static_assert(kSide == 16 || kSide == 32 || kSide == 64);
  static_assert(kAhead % kAheadB == 0);
};

struct UnitArguments : SmallNArguments {
  int index_bytes;
  bool stores_quads;  // 8 bytes of a column of C at a time
};

// 16 bytes, which are read without a condition.
template <bool kOnce>
__device__ __forceinline__ void load_piece(uint32_t (&to)[4], const char* from) {
  if constexpr (kOnce) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  } else {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "l"(from));
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_n_units_kernel(const __grid_constant__ UnitArguments args) {
  constexpr int kSide = Tile::kBlockSide, kBlocks = Tile::kBlocks, kLookUps = Tile::kLookUps;
  constexpr int kColumnTiles = Tile::kColumnTiles, kStep = Tile::kGroups;
  constexpr int kAhead = Tile::kAhead, kAheadB = Tile::kAheadB;
  __shared__ __align__(16) float sums[Tile::kGroups * Tile::kSumBytes / 4];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int part = static_cast<int>(threadIdx.x) / 32;
  const unsigned block_row = blockIdx.x / Tile::kStrips;
  const int m0 = static_cast<int>(blockIdx.x % Tile::kStrips) * Tile::kRows;
  const auto batch = static_cast<int>(blockIdx.y);

  // A slice is 32 k, of which lane 4 * g + t has the piece 8t ... 8t + 7 of rows g and 8 + g and of
  // columns g and 8 + g: of blocks of 16, half a row of the slice's first or second block.
  // Columns beyond the last are read as the last, and their sums dropped.
  const int own_block = kSide == 16 ? t / 2 : 0, own_bytes = (kSide == 16 ? t % 2 : t) * 16;
  const char* const crow = static_cast<const char*>(args.crow_indices) +
                           static_cast<int64_t>(block_row) * args.index_bytes;
  const char* const own_values = static_cast<const char*>(args.values) +
                                 own_block * Tile::kBlockBytes + (m0 + g) * Tile::kLine + own_bytes;
  const char* const b_matrix =
      reinterpret_cast<const char*>(static_cast<const T*>(args.b) + batch * args.b_batch);
  uint32_t own_b[kColumnTiles];
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    own_b[j] = static_cast<uint32_t>(min(j * 8 + g, args.n - 1) * args.b_column) * 2 + own_bytes;
  }
  ask_ahead<T>(args);
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");

  // Of an index below 2^31, the low word.
  const int begin = __ldg(reinterpret_cast<const int*>(crow));
  const int length = __ldg(reinterpret_cast<const int*>(crow + args.index_bytes)) - begin;
  const int units = (length + kBlocks - 1) / kBlocks;
  const int64_t first = begin + part * kBlocks;
  const char* values = own_values + first * Tile::kBlockBytes;
  const char* columns =
      static_cast<const char*>(args.col_indices) + (first + own_block) * args.index_bytes;

  // The last unit may lack blocks. These are zeros: loads under a condition, not branches, which
  // would keep the loads behind them waiting.
  const auto has_block = [&](int unit, int slice) {
    return unit * kBlocks + slice * (kBlocks / 2) + own_block < length;
  };
  const auto load = [&]<bool kOnce>(uint32_t(&to)[4], const char* from, bool present) {
    if constexpr (kSide == 64) {
      load_piece<kOnce>(to, from);
    } else {
#pragma unroll
      for (int word = 0; word < 4; ++word) to[word] = 0;
      load_words<kOnce, 4>(to, from, present);
    }
  };
  uint32_t a[kAhead][2][2][4], b[kAheadB][2][kColumnTiles][4];
  const auto look_up = [&](int unit, int(&to)[kLookUps]) {
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      if (kSide == 64 || has_block(unit, i)) {
        to[i] = __ldg(reinterpret_cast<const int*>(columns + i * (kBlocks / 2) * args.index_bytes));
      }
    }
    columns += static_cast<int64_t>(kStep * kBlocks) * args.index_bytes;
  };
  const auto load_a = [&](int unit, uint32_t(&to)[2][2][4]) {
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        load.template operator()<true>(to[slice][i],
                                       values + slice * Tile::kSliceBytes + i * 8 * Tile::kLine,
                                       has_block(unit, slice));
      }
    }
    values += kStep * kBlocks * Tile::kBlockBytes;
  };
  const auto load_b = [&](int unit, const int(&of)[kLookUps], uint32_t(&to)[2][kColumnTiles][4]) {
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
      const uint32_t at = static_cast<uint32_t>(of[kSide == 64 ? 0 : slice]) * Tile::kLine;
#pragma unroll
      for (int j = 0; j < kColumnTiles; ++j) {
        load.template operator()<false>(to[slice][j],
                                        b_matrix + (own_b[j] + at) + (kSide == 64 ? slice * 64 : 0),
                                        has_block(unit, slice));
      }
    }
  };

  // B's pieces before all but the first values, which would keep them waiting.
  int column[kAheadB + 1][kLookUps];
#pragma unroll
  for (int i = 0; i <= kAheadB; ++i) {
    if (part + i * kStep < units) look_up(part + i * kStep, column[i]);
  }
  if (part < units) load_a(part, a[0]);
#pragma unroll
  for (int i = 0; i < kAheadB; ++i) {
    if (part + i * kStep < units) load_b(part + i * kStep, column[i], b[i]);
  }
#pragma unroll
  for (int i = 1; i < kAhead; ++i) {
    if (part + i * kStep < units) load_a(part + i * kStep, a[i]);
  }
  int(&next_column)[kLookUps] = column[kAheadB];
  float sum[kColumnTiles][4] = {};
#pragma unroll 1
  for (int turn = part; turn < units; turn += kAhead * kStep) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int unit = turn + i * kStep;
      if (unit >= units) break;
#pragma unroll
      for (int slice = 0; slice < 2; ++slice) {
#pragma unroll
        for (int word = 0; word < 4; word += 2) {
          const uint32_t rows[4] = {a[i][slice][0][word], a[i][slice][1][word],
                                    a[i][slice][0][word + 1], a[i][slice][1][word + 1]};
#pragma unroll
          for (int j = 0; j < kColumnTiles; ++j) {
            mma<T>(sum[j], rows, b[i % kAheadB][slice][j] + word);
          }
        }
      }
      const int next = unit + kAheadB * kStep;
      if (unit + kAhead * kStep < units) load_a(unit + kAhead * kStep, a[i]);
      if (next < units) load_b(next, next_column, b[i % kAheadB]);
      if (next + kStep < units) look_up(next + kStep, next_column);
    }
  }

#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
#pragma unroll
    for (int s = 0; s < 4; ++s) {
      sums[part * (Tile::kSumBytes / 4) + (j * 8 + t * 2 + s % 2) * Tile::kPitch + g + s / 2 * 8] =
          sum[j][s];
    }
  }
  __syncthreads();
  finish_gathered<T, Tile>(args, sums, static_cast<int64_t>(block_row) * kSide + m0, 0, batch);
}

}  // namespace sparse_autotune
