// The kernel of small_n_units_sm90: few columns, in as few instructions as can be.
//
// A thread block owns 16 or 32 rows of one block row by up to 16 columns of C. Its warps take the
// block row's units in turn: 64 k, which is one block of 64, two of 32 or four of 16.
// Data path: values and B straight from global memory to the registers of mma.sync -> fp32 sums,
// one for each warp, in shared memory -> added up in the order of the warps -> C.
// As many units are on their way as registers hold. That a block's side is known to the compiler is
// what spares the instructions: all places in a unit are constants.
// A row of a block of 64 is a line of 128 bytes, of which a lane of mma.sync needs two vectors of
// 16: loads take four whole lines (kLines), and lanes exchange what they hold for each other. In
// halves of lines the same loads take twice as long to issue. The last to end are long rows. What
// they have beyond the others is asked into L2 at the start.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/transpose_word.cuh"
#include "kernels/cuda/product/few_columns/few_columns.cuh"
#include "kernels/cuda/product/few_columns/group_sums.cuh"
#include "kernels/cuda/product/few_columns/small_n_kernel.cuh"
#include "variant.h"

namespace sparse_autotune {

// When the next launch may begin: at once, when the first loads are on their way, when the sums are
// done.
enum class Release { kAtOnce, kLoading, kSummed };

// Blocks of kSide x kSide; columns of C, by eights; its rows, by sixteens; warps; how many units of
// values, and of B, are on their way; thread blocks a multiprocessor; from when on the next launch
// may begin; whether values are loaded in whole lines of 128 bytes, of blocks of 64. Where a
// multiprocessor has room for more thread blocks than its share, those that came early would not be
// spread evenly.
template <int kSide, int kColumnEights, int kRowSixteens, int kWarpCount, int kValuesAhead,
          int kColumnsAhead, int kBlocksAtOnce, Release kNextFrom, bool kWholeLines = false,
          Layout kLayout = Layout::kColMajor>
struct UnitTile {
  static constexpr int kBlockSide = kSide, kColumnTiles = kColumnEights, kRowTiles = kRowSixteens;
  static constexpr int kGroups = kWarpCount, kThreads = 32 * kGroups, kResident = kBlocksAtOnce;
  static constexpr int kAhead = kValuesAhead, kAheadB = kColumnsAhead;
  static constexpr int kRows = 16 * kRowTiles, kWidth = 8 * kColumnTiles;
  static constexpr Release kRelease = kNextFrom;
  static constexpr bool kLines = kWholeLines, kRowMajorB = kLayout == Layout::kRowMajor;
  static constexpr int kStrips = kSide / kRows;  // of a block row
  static constexpr int kBlocks = 64 / kSide;     // of a unit
  static constexpr int kBlockBytes = kSide * kSide * 2, kLine = kSide * 2;
  // Column indices that a lane looks up for a unit: half a unit's 64 k are a slice.
  static constexpr int kLookUps = kSide == 64 ? 1 : 2;
  static constexpr int kSliceBytes = kSide == 64 ? 64 : kSide == 32 ? kBlockBytes : 2 * kBlockBytes;
  // Sums are gathered column by column, 16-byte aligned.
  static constexpr int kPitch = kRows + 4, kSumBytes = kWidth * kPitch * 4;
  static_assert(kSide == 16 || kSide == 32 || kSide == 64, "a unit of 64 k has whole blocks");
  static_assert(!kLines || kLine == 128, "whole lines are rows of blocks of 64");
  static_assert(!kRowMajorB || kColumnTiles == 2, "four columns of a row-major B are one load");
  static constexpr int kFinishers = kRows / 4 * kWidth / 32;  // warps
  static_assert(kSide % kRows == 0 && kAhead % kAheadB == 0 && kFinishers <= kGroups,
                "tiles divide blocks, and warps suffice to finish them");
};

struct UnitArguments : SmallNArguments {
  int index_bytes;
  int excess;  // of a warp's units those from here on are asked into L2 when the row is known
};

// Of two loads that took four lines each, so that lane 8r + p has vector p of the r-th, lanes of an
// even g = lane / 4 get both halves of line g / 2 of the first load, those of an odd one of the
// second: of each half of a line the vector lane % 4.
__device__ __forceinline__ void share_lines(const uint32_t (&first)[4], const uint32_t (&second)[4],
                                            uint32_t (&left)[4], uint32_t (&right)[4]) {
  const bool odd = threadIdx.x / 4 % 2 != 0;
#pragma unroll
  for (int word = 0; word < 4; ++word) {
    const uint32_t other = __shfl_xor_sync(~0u, odd ? first[word] : second[word], 4);
    left[word] = odd ? other : first[word];
    right[word] = odd ? second[word] : other;
  }
}

// What a warp loads: its lanes' vectors of units, of values and of B.
template <typename Tile>
struct UnitLoads {
  static constexpr int kSide = Tile::kBlockSide, kBlocks = Tile::kBlocks;
  static constexpr int kLookUps = Tile::kLookUps, kColumnTiles = Tile::kColumnTiles;
  static constexpr int kRowTiles = Tile::kRowTiles, kStep = Tile::kGroups;
  static constexpr bool kLines = Tile::kLines, kPlain = Tile::kRelease != Release::kAtOnce;
  // To fetch the neighbours of halves of lines costs where loads take whole ones.
  static constexpr LoadOf kValues = kSide == 64 && !kLines ? LoadOf::kHalfLines : LoadOf::kValues;

  const UnitArguments& args;
  const char* const b_matrix;
  const uint32_t (&own_b)[kColumnTiles];
  const int begin, length, units;
  const int own_block, own_block_b;  // within a slice, of values and of B
  const char* values;                // the unit's that is loaded next

  // The last unit may lack blocks. These are zeros: loads under a condition, not branches, which
  // would keep the loads behind them waiting.
  __device__ __forceinline__ bool has_block(int unit, int slice, int own) const {
    return unit * kBlocks + slice * (kBlocks / 2) + own < length;
  }
  // 16 bytes, or zeros.
  template <LoadOf kOf>
  __device__ __forceinline__ void load(uint32_t (&to)[4], const char* from, bool present) const {
#pragma unroll
    for (int word = 0; word < 4; ++word) to[word] = 0;
    load_if<kPlain, kOf, 4>(kSide == 64 || present, to, from);
  }
  __device__ __forceinline__ void look_up(int unit, int (&to)[kLookUps]) const {
#pragma unroll
    for (int i = 0; i < kLookUps; ++i) {
      if (kSide == 64 || has_block(unit, i, own_block_b)) {
        const int64_t block = begin + unit * kBlocks + i * (kBlocks / 2) + own_block_b;
        to[i] = load_index_word<kPlain>(static_cast<const char*>(args.col_indices) +
                                        block * args.index_bytes);
      }
    }
  }
  __device__ __forceinline__ void load_a(int unit, uint32_t (&to)[2][2 * kRowTiles][4]) {
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
#pragma unroll
      for (int i = 0; i < 2 * kRowTiles; ++i) {
        const int from = kLines ? (slice * 2 * kRowTiles + i) * 4 * Tile::kLine
                                : slice * Tile::kSliceBytes + i * 8 * Tile::kLine;
        load<kValues>(to[slice][i], values + from, has_block(unit, slice, own_block));
      }
    }
    values += kStep * kBlocks * Tile::kBlockBytes;
  }
  __device__ __forceinline__ void load_b(int unit, const int (&of)[kLookUps],
                                         uint32_t (&to)[2][kColumnTiles][4]) const {
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
      const uint32_t block = static_cast<uint32_t>(of[kSide == 64 ? 0 : slice]);
      const bool present = has_block(unit, slice, own_block_b);
      if constexpr (Tile::kRowMajorB) {
        const auto row = static_cast<uint32_t>(args.b_k) * 2;  // bytes
        const char* from = b_matrix + (own_b[0] + block * kSide * row);
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          const uint32_t k = (kSide == 64 ? slice * 32 : 0) + word * 2;
          uint32_t quad[2] = {};  // four columns
          load_if<kPlain, LoadOf::kB, 2>(kSide == 64 || present, quad, from + k * row);
          to[slice][0][word] = quad[0];
          to[slice][1][word] = quad[1];
        }
      } else {
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          load<LoadOf::kB>(
              to[slice][j],
              b_matrix + (own_b[j] + block * Tile::kLine) + (kSide == 64 ? slice * 64 : 0),
              present);
        }
      }
    }
  }
  // A lane a unit, whose rows lie together within a block, and of 16 within four.
  __device__ __forceinline__ void ask_excess(int part, int lane, int m0) const {
    if (const int unit = part + (args.excess + lane) * kStep; unit < units) {
      const char* from = static_cast<const char*>(args.values) +
                         static_cast<int64_t>(begin + unit * kBlocks) * Tile::kBlockBytes +
                         m0 * Tile::kLine;
      if constexpr (kSide == 16) {
        ask_bulk(from, min(kBlocks, length - unit * kBlocks) * Tile::kBlockBytes);
      } else {
#pragma unroll
        for (int i = 0; i < kBlocks; ++i) {
          if (unit * kBlocks + i < length) {
            ask_bulk(from + i * Tile::kBlockBytes, Tile::kRows * Tile::kLine);
          }
        }
      }
    }
  }
};

// A unit's values by its columns of B.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_unit(
    const uint32_t (&a)[2][2 * Tile::kRowTiles][4], uint32_t (&b)[2][Tile::kColumnTiles][4],
    float (&sum)[Tile::kRowTiles][Tile::kColumnTiles][4]) {
  constexpr int kRowTiles = Tile::kRowTiles, kColumnTiles = Tile::kColumnTiles;
  if constexpr (Tile::kRowMajorB) {
#pragma unroll
    for (int i = 0; i < 8 * kColumnTiles; ++i) {
      uint32_t& word = b[i / (4 * kColumnTiles)][i / 4 % kColumnTiles][i % 4];
      word = transpose_word(word);
    }
  }
#pragma unroll
  for (int r = 0; r < kRowTiles; ++r) {
    uint32_t low[2][4], high[2][4];  // by slice
    if constexpr (Tile::kLines) {
      const auto& loads = *reinterpret_cast<const uint32_t(*)[4 * kRowTiles][4]>(a);
      share_lines(loads[4 * r], loads[4 * r + 1], low[0], low[1]);
      share_lines(loads[4 * r + 2], loads[4 * r + 3], high[0], high[1]);
    } else {
#pragma unroll
      for (int word = 0; word < 8; ++word) {
        low[word / 4][word % 4] = a[word / 4][2 * r][word % 4];
        high[word / 4][word % 4] = a[word / 4][2 * r + 1][word % 4];
      }
    }
#pragma unroll
    for (int slice = 0; slice < 2; ++slice) {
#pragma unroll
      for (int word = 0; word < 4; word += 2) {
        const uint32_t rows[4] = {low[slice][word], high[slice][word], low[slice][word + 1],
                                  high[slice][word + 1]};
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          mma<T>(sum[r][j], rows, b[slice][j] + word);
        }
      }
    }
  }
}

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_n_units_kernel(const __grid_constant__ UnitArguments args) {
  constexpr int kSide = Tile::kBlockSide, kBlocks = Tile::kBlocks, kLookUps = Tile::kLookUps;
  constexpr int kColumnTiles = Tile::kColumnTiles, kStep = Tile::kGroups;
  constexpr int kAhead = Tile::kAhead, kAheadB = Tile::kAheadB, kRowTiles = Tile::kRowTiles;
  __shared__ __align__(16) float sums[Tile::kGroups * Tile::kSumBytes / 4];
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  // Of one lane, so that the compiler knows it to be the same in all: fewer instructions, for one
  // register more, which the fullest tile does not have.
  constexpr bool kFullest = kSide == 16 && kColumnTiles == 2;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int part = kFullest ? warp : __shfl_sync(~0u, warp, 0);
  const unsigned block_row = blockIdx.x / Tile::kStrips;
  const int m0 = static_cast<int>(blockIdx.x % Tile::kStrips) * Tile::kRows;
  const auto batch = static_cast<int>(blockIdx.y);

  // A slice is 32 k, of which lane 4 * g + t has the vector 8t ... 8t + 7 of rows g and 8 + g and
  // of columns g and 8 + g: of blocks of 16, half a row of the slice's first or second block.
  // Columns beyond the last are read as the last, and their sums dropped. Of a row-major B a lane
  // loads four columns of four k, two of which are a pair of vector g / 2, and lanes exchange them.
  const int own_block = kSide == 16 ? t / 2 : 0, own_bytes = (kSide == 16 ? t % 2 : t) * 16;
  const int own_block_b = Tile::kRowMajorB && kSide == 16 ? g / 4 : own_block;
  const char* const crow = static_cast<const char*>(args.crow_indices) +
                           static_cast<int64_t>(block_row) * args.index_bytes;
  // In whole lines: the vector lane % 8 of every fourth row from row lane / 8 on.
  constexpr bool kLines = Tile::kLines;
  const char* const own_values = static_cast<const char*>(args.values) +
                                 own_block * Tile::kBlockBytes + m0 * Tile::kLine +
                                 (kLines ? lane * 16 : g * Tile::kLine + own_bytes);
  const char* const b_matrix =
      reinterpret_cast<const char*>(static_cast<const T*>(args.b) + batch * args.b_batch_stride);
  uint32_t own_b[kColumnTiles];
#pragma unroll
  for (int j = 0; j < kColumnTiles; ++j) {
    if constexpr (Tile::kRowMajorB) {
      const int k = (kSide == 16 ? g / 2 % 2 : g / 2) * 8 + g % 2;
      own_b[j] = static_cast<uint32_t>(k * args.b_k + min(t * 4, args.n - 4)) * 2;
    } else {
      own_b[j] = static_cast<uint32_t>(min(j * 8 + g, args.n - 1) * args.b_column) * 2 + own_bytes;
    }
  }
  ask_small_n_ahead(args);
  constexpr bool kPlain = Tile::kRelease != Release::kAtOnce;
  if constexpr (kPlain) {
    wait_for_launch_before();
  } else {
    follow_launch_before();
  }
  const auto release = [](Release from) {
    if (kPlain && from == Tile::kRelease) let_next_launch_begin();
  };

  // Of an index below 2^31, the low word.
  const int begin = load_index_word<kPlain>(crow);
  const int length = load_index_word<kPlain>(crow + args.index_bytes) - begin;
  const int units = (length + kBlocks - 1) / kBlocks;
  const char* const values =
      own_values + static_cast<int64_t>(begin + part * kBlocks) * Tile::kBlockBytes;

  UnitLoads<Tile> loads{args,  b_matrix,  own_b,       begin, length,
                        units, own_block, own_block_b, values};
  uint32_t a[kAhead][2][2 * kRowTiles][4], b[kAheadB][2][kColumnTiles][4];

  // B's vectors before all but the first values, which would keep them waiting.
  int column[kAheadB + 1][kLookUps];
#pragma unroll
  for (int i = 0; i <= kAheadB; ++i) {
    if (part + i * kStep < units) loads.look_up(part + i * kStep, column[i]);
  }
  if constexpr (kLines) loads.ask_excess(part, lane, m0);
  if (part < units) loads.load_a(part, a[0]);
#pragma unroll
  for (int i = 0; i < kAheadB; ++i) {
    if (part + i * kStep < units) loads.load_b(part + i * kStep, column[i], b[i]);
  }
#pragma unroll
  for (int i = 1; i < kAhead; ++i) {
    if (part + i * kStep < units) loads.load_a(part + i * kStep, a[i]);
  }
  if constexpr (!kLines) loads.ask_excess(part, lane, m0);
  release(Release::kLoading);
  int(&next_column)[kLookUps] = column[kAheadB];
  float sum[kRowTiles][kColumnTiles][4] = {};
#pragma unroll 1
  for (int turn = part; turn < units; turn += kAhead * kStep) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int unit = turn + i * kStep;
      if (unit >= units) break;
      multiply_unit<T, Tile>(a[i], b[i % kAheadB], sum);
      const int next = unit + kAheadB * kStep;
      if (unit + kAhead * kStep < units) loads.load_a(unit + kAhead * kStep, a[i]);
      if (next < units) loads.load_b(next, next_column, b[i % kAheadB]);
      if (next + kStep < units) loads.look_up(next + kStep, next_column);
    }
  }

  release(Release::kSummed);
  const int row = kLines ? g % 2 * 4 + g / 2 : g;  // see share_lines
  leave_sums<Tile::kPitch>(
      sum, sums + part * (Tile::kSumBytes / 4),
      [&](int i, int high) { return row + i * 16 + high * 8; },
      // Of a row-major B lane t's load has columns 4t to 4t + 3, two for each tile.
      [&](int j, int odd) { return (Tile::kRowMajorB ? t * 4 + j * 2 : j * 8 + t * 2) + odd; });
  // The warps that do not finish the tile need not wait.
  if (part >= Tile::kFinishers) {
    asm volatile("barrier.cta.arrive 1, %0;\n" ::"n"(Tile::kThreads) : "memory");
    return;
  }
  asm volatile("barrier.cta.sync 1, %0;\n" ::"n"(Tile::kThreads) : "memory");
  finish_gathered<T, Tile>(args, sums, static_cast<int64_t>(blockIdx.x) * Tile::kRows, 0, batch);
}

}  // namespace sparse_autotune
