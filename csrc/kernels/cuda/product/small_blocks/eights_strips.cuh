// How a warp of mma_eights_sm80 multiplies: 4 strips of 8 rows of A by 64 columns of B.
//
// A strip's blocks are a stream of pieces of 8 x 8, in the order of their columns. mma.sync gets
// B's rows, transposed, as its operand of 16 rows, and a piece, as it lies in memory, as the one of
// 8 columns: what it computes is C^T. Two pieces of a strip, whose columns need not be neighbours,
// make a k of 16.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/transpose_word.cuh"
#include "kernels/cuda/product/small_blocks/eights_tile.cuh"

namespace sparse_autotune {

// mma() over a k of 8: a[0] and a[1] are rows g and g + 8.
template <typename T>
__device__ __forceinline__ void mma_of_8(float (&c)[4], const uint32_t* a, uint32_t b) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  } else {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};\n"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(b));
  }
}

// `bits` without the lowest `count`, of which there are at most 4.
__device__ __forceinline__ uint32_t bits_from(uint32_t bits, int count) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < count) bits &= bits - 1;
  }
  return bits;
}

// The pieces of a warp's four strips. Their columns are the lanes' own: eight lanes for each strip,
// of which lane i has the next piece whose number is i modulo 8, and the one 8 further on. The
// values of the former are in the lane's place in shared memory.
template <bool kTransposedA>
class Pieces {
 public:
  static constexpr int kBlockK = 8, kPieceBytes = 128, kBytes = 32 * kPieceBytes;

  __device__ __forceinline__ Pieces(uint32_t places, uint32_t barriers)
      : turns_(barriers), places_(places) {}

  // Where this lane's strip of four, from `strip` on, begins and ends in the pattern.
  struct Ends {
    int first, end;
  };
  static __device__ __forceinline__ Ends look(const EightsArguments& args, int strip) {
    const int own = strip + static_cast<int>(threadIdx.x % 32) / 8;
    const int row = min(own, args.strips) / args.tall;
    return {load_narrow_index(args.crow_indices, row, args.wide_indices),
            load_narrow_index(args.crow_indices, min(row + 1, args.block_rows), args.wide_indices)};
  }

  __device__ __forceinline__ void begin(const EightsArguments& args, int strip, Ends ends) {
    const int lane = threadIdx.x % 32, first = ends.first << args.wide_log;
    end_ = ends.end << args.wide_log;
    piece_ = first + (lane - first & 7);
    column_ = load_column(args, piece_, &place_);
    following_ = load_column(args, piece_ + 8, &following_place_);
    // A lane copies one row of a piece, as it is stored.
    values_ = static_cast<const char*>(args.values) + lane % 8 * args.line_a +
              (strip & args.tall - 1) * args.strip_bytes;
    asm volatile("" : "+l"(values_));  // one register, not a sum at each copy
#pragma unroll
    for (int r = 0; r < 4; ++r) next_[r] = __shfl_sync(~0u, first, r * 8);
    turns_.wait(2);
    turns_.wait(1);
    __syncwarp();
    copy(args, ~0u);
  }

  // A bit for each lane whose piece has a column, in eights, before `column`. Their values are
  // there.
  __device__ __forceinline__ uint32_t before(int column) const {
    const uint32_t ready = __ballot_sync(~0u, column_ < column);
    turns_.wait(2);
    if ((ready & newest_) != 0) turns_.wait(1);
    return ready;
  }
  // The marked lanes' pieces are used up: they look for others.
  __device__ __forceinline__ void replace(const EightsArguments& args, uint32_t used) {
    if ((used >> threadIdx.x % 32 & 1) != 0) {
      piece_ += 8;
      column_ = following_;
      place_ = following_place_;
      following_ = load_column(args, piece_ + 8, &following_place_);
    }
    __syncwarp();
    copy(args, used);
  }
  // Of the i-th piece from here on of strip r; each lane may ask for another.
  __device__ __forceinline__ int column(int r, int i) const {
    return __shfl_sync(~0u, column_, r * 8 + (next_[r] + i & 7));
  }
  __device__ __forceinline__ uint32_t value(int r, int i) const {
    const auto word = load_shared<uint32_t>(places_ + (r * 8 + (next_[r] + i & 7)) * kPieceBytes +
                                            threadIdx.x % 32 * 4);
    return kTransposedA ? transpose_word(word) : word;
  }
  __device__ __forceinline__ void advance(int r, int count) { next_[r] += count; }

 private:
  // And, of A^T, the piece's place among the values, in units of 128 bytes.
  __device__ __forceinline__ int load_column(const EightsArguments& args, int piece,
                                             uint32_t* place) const {
    if (piece >= end_) return INT32_MAX;
    const int block = piece >> args.wide_log, in_block = piece - (block << args.wide_log);
    if constexpr (kTransposedA) {
      const int position = load_narrow_index(args.positions, block, args.wide_indices);
      *place = position * (args.block_bytes >> 7) + in_block * (args.line_a >> 4);
    }
    const int column = load_narrow_index(args.col_indices, block, args.wide_indices);
    return (column << args.wide_log) + in_block;
  }

  // The values of the marked lanes' pieces, of four at a time. What is behind a strip's end is not
  // used.
  __device__ __forceinline__ void copy(const EightsArguments& args, uint32_t wanted) {
    const int lane = threadIdx.x % 32;
    newest_ = wanted;
#pragma unroll 1
    while (wanted != 0) {
      const uint32_t owners = bits_from(wanted, lane / 8);
      wanted = bits_from(wanted, 4);
      const int owner = owners == 0 ? 0 : __ffs(static_cast<int>(owners)) - 1;
      const uint32_t piece =
          __shfl_sync(~0u, kTransposedA ? place_ : min(piece_, args.last_piece), owner);
      const char* from;
      if constexpr (kTransposedA) {
        from = ahead(values_, kPieceBytes, piece);
      } else {
        const uint32_t block = piece >> args.wide_log;
        from = ahead(values_, args.block_bytes, block) + (piece - (block << args.wide_log)) * 16;
      }
      from += (owner / 8 & args.tall - 1) * args.strip_bytes;
      cp_async_16_if(owners != 0, places_ + owner * kPieceBytes + lane % 8 * kChunkBytes, from);
    }
    turns_.end();
  }

  CopyTurns turns_;
  const char* values_;
  uint32_t places_, newest_ = 0;
  int piece_, end_, column_, following_;
  uint32_t place_ = 0, following_place_ = 0;
  int next_[4];  // of each strip
};

// Where a lane reads the operand of 16 rows for a piece: `chunk` counts eights of columns.
template <typename Tile>
__device__ __forceinline__ uint32_t lane_offset(int chunk) {
  const int row = threadIdx.x % 8;
  return Tile::kRowMajorB ? chunk_offset<Tile::kLineBytes>(row, chunk)
                          : (chunk * 8 + row) * Tile::kLineBytes;
}
template <typename Tile>
__device__ __forceinline__ uint32_t address_of_eight(uint32_t offset, int column) {
  return Tile::kRowMajorB ? offset + column * (8 * Tile::kLineBytes)
                          : offset + ((column ^ swizzle<Tile::kLineBytes>(threadIdx.x % 8)) << 4);
}
// The operand of columns 8 * kChunk and on.
template <typename Tile, int kChunk>
__device__ __forceinline__ void load_operand(uint32_t (&word)[4], uint32_t address) {
  if constexpr (Tile::kRowMajorB) {
    ldmatrix_transposed(word, address ^ kChunk * 16);
  } else {
    ldmatrix(word, address + kChunk * 8 * Tile::kLineBytes);
  }
}

// The next `count` pieces of strip r. sum[i]: columns 16 i to 16 i + 15.
template <typename T, typename Tile, typename Strips>
__device__ __forceinline__ void multiply_pieces(Strips& pieces, int r, int count, uint32_t stage,
                                                int first, float (&sum)[4][4]) {
  const int lane = threadIdx.x % 32;
  const uint32_t offset = stage + lane_offset<Tile>(lane / 8 % 2);
#pragma unroll 1
  for (; count >= 2; count -= 2) {
    // Half of the lanes read each piece.
    const uint32_t from = address_of_eight<Tile>(offset, pieces.column(r, lane / 16) - first);
    const uint32_t a[2] = {pieces.value(r, 0), pieces.value(r, 1)};
    uint32_t b[4][4];
    load_operand<Tile, 0>(b[0], from);
    load_operand<Tile, 2>(b[1], from);
    load_operand<Tile, 4>(b[2], from);
    load_operand<Tile, 6>(b[3], from);
#pragma unroll
    for (int i = 0; i < 4; ++i) mma<T>(sum[i], b[i], a);
    pieces.advance(r, 2);
  }
  if (count > 0) {
    const uint32_t from =
        address_of_eight<Tile>(stage + lane_offset<Tile>(lane / 8), pieces.column(r, 0) - first);
    const uint32_t a = pieces.value(r, 0);
    uint32_t b[2][4];
    load_operand<Tile, 0>(b[0], from);
    load_operand<Tile, 4>(b[1], from);
#pragma unroll
    for (int i = 0; i < 4; ++i) mma_of_8<T>(sum[i], b[i / 2] + i % 2 * 2, a);
    pieces.advance(r, 1);
  }
}

// What a stage holds, rows of B from 8 * first on, with all strips.
template <typename T, typename Tile, bool kTransposedA>
__device__ __forceinline__ void multiply_stage(const EightsArguments& args,
                                               Pieces<kTransposedA>& pieces, uint32_t stage,
                                               int first, float (&sum)[4][4][4]) {
  bool more = true;
  while (more) {
    const uint32_t ready = pieces.before(first + Tile::kStageK / 8);
    more = false;
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int count = __popc(ready >> 8 * r & 0xff);
      multiply_pieces<T, Tile>(pieces, r, count, stage, first, sum[r]);
      more |= count == 8;
    }
    pieces.replace(args, ready);
  }
}

}  // namespace sparse_autotune
