// How a warp of mma_fours_sm80 multiplies: 4 strips of two block rows of 4 x 4 by 64 columns of B.
//
// A piece of 8 x 8 is a block of the upper block row and one of the lower, in whatever columns they
// are: block-diagonal, its other two quarters are zeros, which rows of B meet, too.
#pragma once

#include <cstdint>

#include "kernels/cuda/product/small_blocks/eights_strips.cuh"

namespace sparse_autotune {

// The blocks of a warp's four strips. Columns are the lanes' own: of the upper and of the lower
// block row of each strip eight lanes have a block each, lane i the next whose number is i modulo
// 8, and the one 8 further on. The values of the former are in the lane's two places in shared
// memory.
template <bool kTransposedA>
class Fours {
 public:
  static constexpr int kBlockK = 4, kBlockBytes = 32, kBytes = 2 * 32 * kBlockBytes;

  __device__ __forceinline__ Fours(uint32_t places, uint32_t barriers)
      : turns_(barriers), places_(places) {}

  // Where the block rows of this lane's strip of four, from `strip` on, begin and end.
  struct Ends {
    int of[3];
  };
  static __device__ __forceinline__ Ends look(const EightsArguments& args, int strip) {
    const int row = 2 * (min(strip, args.strips) + static_cast<int>(threadIdx.x % 32) / 8);
    Ends ends;
#pragma unroll
    for (int i = 0; i < 3; ++i) {
      ends.of[i] =
          load_narrow_index(args.crow_indices, min(row + i, args.block_rows), args.wide_indices);
    }
    return ends;
  }

  __device__ __forceinline__ void begin(const EightsArguments& args, int, Ends ends) {
    const int lane = threadIdx.x % 32;
    turns_.wait(2);
    turns_.wait(1);
    __syncwarp();
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      end_[h] = ends.of[h + 1];
      block_[h] = ends.of[h] + (lane - ends.of[h] & 7);
      column_[h] = load_column(args, h, block_[h], &place_[h]);
      following_[h] = load_column(args, h, block_[h] + 8, &following_place_[h]);
#pragma unroll
      for (int r = 0; r < 4; ++r) next_[r][h] = __shfl_sync(~0u, ends.of[h], r * 8);
    }
    copy(args, 0, ~0u);
    copy(args, 1, ~0u);
    turns_.end();
  }

  // For the upper and the lower rows a bit for each lane whose block has a column before `column`.
  // Their values are there.
  __device__ __forceinline__ uint2 before(int column) const {
    const uint2 ready = {__ballot_sync(~0u, column_[0] < column),
                         __ballot_sync(~0u, column_[1] < column)};
    turns_.wait(2);
    if ((ready.x & newest_[0] | ready.y & newest_[1]) != 0) turns_.wait(1);
    return ready;
  }
  // The marked lanes' blocks are used up: they look for others.
  __device__ __forceinline__ void replace(const EightsArguments& args, uint2 used) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if (((h == 0 ? used.x : used.y) >> threadIdx.x % 32 & 1) == 0) continue;
      block_[h] += 8;
      column_[h] = following_[h];
      place_[h] = following_place_[h];
      following_[h] = load_column(args, h, block_[h] + 8, &following_place_[h]);
    }
    __syncwarp();
    copy(args, 0, used.x);
    copy(args, 1, used.y);
    turns_.end();
  }
  // Of this lane's i-th block from here on of row h of strip r.
  __device__ __forceinline__ int column(int r, int h, int i) const {
    return __shfl_sync(~0u, column_[h], r * 8 + (next_[r][h] + i & 7));
  }
  // This lane's word of the i-th block of its own row, which has `own` of them.
  __device__ __forceinline__ uint32_t value(int r, int i, int own) const {
    const int lane = threadIdx.x % 32, h = lane / 16;
    const int owner = h * 32 + r * 8 + ((h == 0 ? next_[r][0] : next_[r][1]) + i & 7);
    const uint32_t word =
        load_shared_32(places_ + owner * kBlockBytes + lane / 4 % 4 * 8 + lane % 2 * 4);
    const uint32_t wanted = i < own ? word : 0;
    return kTransposedA ? transpose_word(wanted) : wanted;
  }
  __device__ __forceinline__ void advance(int r, int upper, int lower) {
    next_[r][0] += upper;
    next_[r][1] += lower;
  }

 private:
  // And, of A^T, the block's place among the values.
  __device__ __forceinline__ int load_column(const EightsArguments& args, int h, int block,
                                             int* place) const {
    if (block >= end_[h]) return INT32_MAX;
    if constexpr (kTransposedA) {
      *place = load_narrow_index(args.positions, block, args.wide_indices);
    }
    return load_narrow_index(args.col_indices, block, args.wide_indices);
  }

  // The values of the marked lanes' blocks of row h, of 16 at a time. What is behind a row's end is
  // not used.
  __device__ __forceinline__ void copy(const EightsArguments& args, int h, uint32_t wanted) {
    const int lane = threadIdx.x % 32;
    newest_[h] = wanted;
#pragma unroll
    for (int i = 0; i < 32; i += 16) {
      if ((wanted >> i & 0xffff) == 0) continue;
      const int owner = i + lane / 2;
      const int block =
          __shfl_sync(~0u, kTransposedA ? place_[h] : min(block_[h], args.last_piece), owner);
      const char* from = ahead(static_cast<const char*>(args.values) + lane % 2 * kChunkBytes,
                               kBlockBytes, static_cast<uint32_t>(block));
      cp_async_16_if((wanted >> owner & 1) != 0,
                     places_ + (h * 32 + owner) * kBlockBytes + lane % 2 * kChunkBytes, from);
    }
  }

  CopyTurns turns_;
  uint32_t places_, newest_[2] = {};
  int block_[2], end_[2], column_[2], following_[2];
  int place_[2] = {}, following_place_[2] = {};
  int next_[4][2];  // of each strip
};

// The operands of 16 rows for two blocks of the upper block row and two of the lower, whose columns
// `column` gives for this lane's row (0: the upper) and block (0 or 1).
template <typename Tile, typename Column>
__device__ __forceinline__ void load_fours(uint32_t (&b)[4][4], uint32_t stage, Column column) {
  const int lane = threadIdx.x % 32;
  if constexpr (Tile::kRowMajorB) {
    const int row = lane % 4, at = column(lane % 8 / 4, lane / 16);
    const uint32_t offset = stage + chunk_offset<Tile::kLineBytes>(row, lane / 8 % 2);
    const uint32_t from = offset + at * (4 * Tile::kLineBytes) ^ (at & 1) << 4;
    load_operand<Tile, 0>(b[0], from);
    load_operand<Tile, 2>(b[1], from);
    load_operand<Tile, 4>(b[2], from);
    load_operand<Tile, 6>(b[3], from);
  } else {
    // ldmatrix reads 8 k side by side, of which a block has 4.
    const uint32_t offset = stage + lane / 4 * Tile::kLineBytes + lane % 2 * 4;
#pragma unroll
    for (int block = 0; block < 2; ++block) {
      const int at = column(lane % 4 / 2, block);
      const uint32_t from =
          offset + ((at >> 1 ^ swizzle<Tile::kLineBytes>(lane / 4)) << 4) + (at & 1) * 8;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        b[i / 2][block * 2 + i % 2] = load_shared_32(from + i * 8 * Tile::kLineBytes);
      }
    }
  }
}

// The next blocks of strip r, so many of its upper and of its lower block row.
template <typename T, typename Tile, bool kTransposedA>
__device__ __forceinline__ void multiply_fours(Fours<kTransposedA>& fours, int r, int upper,
                                               int lower, uint32_t stage, int first,
                                               float (&sum)[4][4]) {
  const int lane = threadIdx.x % 32;
  // The lanes whose part of a piece is in the quarters that are no zeros.
  const bool of_lower = lane >= 16, diagonal = of_lower == (lane % 4 >= 2);
#pragma unroll 1
  while (upper > 0 || lower > 0) {
    uint32_t b[4][4];
    load_fours<Tile>(b, stage, [&](int row, int block) {
      const int above = fours.column(r, 0, block), below = fours.column(r, 1, block);
      // Where no block is left any row of the stage will do: it is multiplied by zeros.
      const bool exists = block < (row != 0 ? lower : upper);
      return exists ? (row != 0 ? below : above) - first : 0;
    });
    const int own = !diagonal ? 0 : of_lower ? lower : upper;
    const uint32_t a[2] = {fours.value(r, 0, own), fours.value(r, 1, own)};
#pragma unroll
    for (int j = 0; j < 4; ++j) mma<T>(sum[j], b[j], a);
    const int some_upper = min(upper, 2), some_lower = min(lower, 2);
    fours.advance(r, some_upper, some_lower);
    upper -= some_upper;
    lower -= some_lower;
  }
}

// What a stage holds, rows of B from 4 * first on, with all strips.
template <typename T, typename Tile, bool kTransposedA>
__device__ __forceinline__ void multiply_stage(const EightsArguments& args,
                                               Fours<kTransposedA>& fours, uint32_t stage,
                                               int first, float (&sum)[4][4][4]) {
  bool more = true;
  while (more) {
    const uint2 ready = fours.before(first + Tile::kStageK / 4);
    more = false;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int upper = __popc(ready.x >> 8 * r & 0xff), lower = __popc(ready.y >> 8 * r & 0xff);
      multiply_fours<T, Tile>(fours, r, upper, lower, stage, first, sum[r]);
      more |= upper == 8 || lower == 8;
    }
    fours.replace(args, ready);
  }
}

}  // namespace sparse_autotune
