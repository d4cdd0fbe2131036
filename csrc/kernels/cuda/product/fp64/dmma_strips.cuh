// How a warp of dmma_strips_sm90 multiplies: two strips of 8 rows of A by 64 columns of B.
//
// A strip's blocks are a stream of pieces of 8 x 8, in the order of their columns. mma.sync
// computes C^T: 16 columns of C by 8 rows of a piece, whose values come straight from global
// memory: a thread's are 16 bytes of a row, or, of A^T, in two columns.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/dmma.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "variant.h"

namespace sparse_autotune {

template <bool kTransposed, bool kRowMajor>
struct StripsTile {
  static constexpr bool kTransposedA = kTransposed, kRowMajorB = kRowMajor;
  static constexpr int kRows = 8, kOwn = 2;  // of a strip; strips of a warp
  static constexpr int kWarps = 16, kM = kWarps * kOwn * kRows, kN = 64;
  static constexpr int kThreads = 32 * kWarps;
  // A stage of B is four boxes of 16 columns by 64 k, or of 16 k by 64 columns.
  static constexpr int kStageK = 64, kSlabs = kStageK / 8, kBoxes = 4;
  static constexpr int kStages = 5, kBoxBytes = 16 * 64 * 8, kStageBytes = kBoxes * kBoxBytes;
  // Of each strip the values of some pieces.
  static constexpr int kSlots = 4, kPieceBytes = kRows * 64;
  static constexpr int kWarpBytes = kOwn * kSlots * kPieceBytes;
  static constexpr int kSlotsAt = kStages * kStageBytes;
  static constexpr int kBarriersAt = kSlotsAt + kWarps * kWarpBytes;
  static constexpr int kSharedBytes = kSwizzleAlignment + kBarriersAt + 16 + kStages * (8 + 8 + 4);
  static constexpr int kLanes = 32 / kOwn;  // of each strip
  static constexpr int kTilesM = kN / 16;
  static_assert(kLanes > kSlabs && kSharedBytes <= 227 * 1024,
                "a lane for each slab, and no more shared memory than there is");
};

struct StripsArguments : ProductArguments {
  Panels panels;
  int64_t n, ldc, c_batch_stride;
  int m, stages, strips, block_rows;  // stages: of B for a tile
  int tall, wide;                     // strips of a block, its pieces side by side
  uint32_t line_a;  // bytes from one line of a block, as it is stored, to the next
  // In units of 64 bytes: a block, and from a strip of it, or a piece, to the next.
  uint32_t block_units, strip_units, piece_units;
  bool c_rows, pairs, batched;  // pairs: C is aligned to 16 bytes
};

struct TmaStripsArguments {
  CUtensorMap b;
  StripsArguments rest;
};

__device__ __forceinline__ void store_shared_32(uint32_t to, uint32_t x) {
  asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(to), "r"(x) : "memory");
}

// The pieces of a warp's strips. Columns are the lanes' own: of the kLanes of each strip, lane i
// has the next piece whose number is i modulo kLanes, and where to find the one kLanes further on.
template <typename Tile>
class StripPieces {
 public:
  // `slots`: the warp's.
  __device__ __forceinline__ StripPieces(const StripsArguments& args, char* slots)
      : slots_(slots), to_(static_cast<uint32_t>(__cvta_generic_to_shared(slots))) {
    const int lane = threadIdx.x % 32, line = lane / 4;
    values_ = static_cast<const char*>(args.values) + line * args.line_a + lane % 4 * 16;
  }

  // With the strips from `strip` on.
  __device__ __forceinline__ void begin(const StripsArguments& args, int strip) {
    const int lane = threadIdx.x % 32, own = strip + lane / Tile::kLanes;
    const int row = min(own, args.strips) / args.tall;
    const int first = load_narrow_index(args.crow_indices, row, args.wide_indices) * args.wide;
    end_ = load_narrow_index(args.crow_indices, min(row + 1, args.block_rows), args.wide_indices) *
           args.wide;
    in_strip_ = static_cast<uint32_t>(own % args.tall) * args.strip_units;
    piece_ = first + (lane - first & Tile::kLanes - 1);
    look(args, piece_);
    settle(args);
    look(args, piece_ + Tile::kLanes);
    cp_async_wait<0>();
    __syncwarp();
#pragma unroll
    for (int r = 0; r < Tile::kOwn; ++r) {
      next_[r] = __shfl_sync(~0u, first, r * Tile::kLanes);
      newest_[r] = Tile::kSlots;
#pragma unroll 1
      for (int i = 0; i < Tile::kSlots; ++i) copy(args, r, next_[r] + i);
    }
    cp_async_commit();
  }

  // A bit for each lane whose piece has a column, in eights, before `column`.
  __device__ __forceinline__ uint32_t before(int column) const {
    return __ballot_sync(~0u, column_ < column);
  }
  // Until so many of each strip's next pieces have landed.
  __device__ __forceinline__ void await(const int (&count)[Tile::kOwn]) const {
    bool newest = false;
#pragma unroll
    for (int r = 0; r < Tile::kOwn; ++r) newest |= count[r] + newest_[r] > Tile::kSlots;
    if (newest) {
      cp_async_wait<0>();
    } else {
      cp_async_wait<1>();
    }
    __syncwarp();
  }
  __device__ __forceinline__ int column(int r) const {
    return __shfl_sync(~0u, column_, lane_of(r, next_[r]));
  }
  // Of strip r's next piece.
  __device__ __forceinline__ void load_values(int r, double (&a)[2]) const {
    const auto x =
        *reinterpret_cast<const double2*>(slots_ + slot_of(r, next_[r]) + threadIdx.x % 32 * 16);
    a[0] = x.x;
    a[1] = x.y;
  }
  __device__ __forceinline__ void advance(int r) { ++next_[r]; }
  // Behind the last so many pieces of each strip, which are used up: others take their places.
  __device__ __forceinline__ void replace(const StripsArguments& args,
                                          const int (&count)[Tile::kOwn]) {
    int next = next_[0];
    if (threadIdx.x % 32 >= Tile::kLanes) next = next_[1];
    __syncwarp();
    if (piece_ < next) {
      piece_ += Tile::kLanes;
      settle(args);
      look(args, piece_ + Tile::kLanes);
    }
    __syncwarp();
#pragma unroll
    for (int r = 0; r < Tile::kOwn; ++r) {
      newest_[r] = count[r];
#pragma unroll 1
      for (int i = count[r]; i > 0; --i) copy(args, r, next_[r] + Tile::kSlots - i);
    }
    cp_async_commit();
  }

 private:
  static __device__ __forceinline__ int lane_of(int r, int piece) {
    return r * Tile::kLanes + (piece & Tile::kLanes - 1);
  }
  static __device__ __forceinline__ int slot_of(int r, int piece) {
    return (r * Tile::kSlots + (piece & Tile::kSlots - 1)) * Tile::kPieceBytes;
  }

  // Loads where a piece is. What comes is not touched before it has had time to.
  __device__ __forceinline__ void look(const StripsArguments& args, int piece) {
    if (piece >= end_) return;
    const int block = args.wide == 1 ? piece : piece / args.wide;
    in_block_ = piece - block * args.wide;
    following_ = load_narrow_index(args.col_indices, block, args.wide_indices);
    stored_ =
        Tile::kTransposedA ? load_narrow_index(args.positions, block, args.wide_indices) : block;
  }
  // And has it as the lane's piece.
  __device__ __forceinline__ void settle(const StripsArguments& args) {
    const bool any = piece_ < end_;
    column_ = any ? following_ * args.wide + in_block_ : INT32_MAX;
    // What is behind a strip's end is copied, too.
    place_ = any ? stored_ * args.block_units + in_block_ * args.piece_units + in_strip_ : 0;
  }

  // The values of strip r's piece of that number.
  __device__ __forceinline__ void copy(const StripsArguments& args, int r, int piece) const {
    const uint32_t place = __shfl_sync(~0u, place_, lane_of(r, piece));
    const int lane = threadIdx.x % 32, line = lane / 4;
    const uint32_t to = to_ + slot_of(r, piece);
    const char* from = values_ + static_cast<uint64_t>(place) * 64;
    if constexpr (Tile::kTransposedA) {
      // A line is of one k, and turned: rows of a piece lie one behind the other.
      cp_async_narrow<8>(to + lane % 4 * 128 + line * 8, from, 8);
      cp_async_narrow<8>(to + lane % 4 * 128 + line * 8 + 64, from + 8, 8);
    } else {
      cp_async_16(to + lane * 16, from);
    }
  }

  const char* values_;
  char* slots_;
  uint32_t to_;  // the same, as copies take it
  int piece_, end_, column_;
  uint32_t place_, in_strip_;
  int following_ = 0, stored_ = 0, in_block_ = 0;
  int next_[Tile::kOwn];
  int newest_[Tile::kOwn];  // copies of the last turn
};

// What a stage holds, `first` * 8 k and on, with all strips of a warp.
template <typename Tile>
__device__ __forceinline__ void multiply_strips(const StripsArguments& args,
                                                StripPieces<Tile>& pieces, const char* stage,
                                                int first,
                                                double (&sum)[Tile::kOwn][Tile::kTilesM][4]) {
  const int lane = threadIdx.x % 32, group = lane / 4, pair = lane % 4;
  const char* at_lane = stage;
  int other;  // from this lane's first column or k to its other
  if constexpr (Tile::kRowMajorB) {
    const int turned = pair * 256 + ((group ^ pair * 2) << 4);
    at_lane += turned;
    other = (turned ^ 16) - turned + 128;
  } else {
    at_lane += line_of(group) * 128;
    other = 1024;
  }
  bool more = true;
  while (more) {
    const uint32_t ready = pieces.before(first + Tile::kSlabs);
    if (ready == 0) return;
    more = false;
    int count[Tile::kOwn];
#pragma unroll
    for (int r = 0; r < Tile::kOwn; ++r) {
      const int all = __popc(ready >> r * Tile::kLanes & 0xffff);
      count[r] = min(all, Tile::kSlots);
      more |= all > Tile::kSlots;
    }
    pieces.await(count);
#pragma unroll
    for (int r = 0; r < Tile::kOwn; ++r) {
#pragma unroll 1
      for (int i = count[r]; i > 0; --i) {
        const int slab = pieces.column(r) - first;
        double a[2];
        pieces.load_values(r, a);
        const char* from = at_lane;
        if constexpr (Tile::kRowMajorB) {
          from += slab * 1024;
        } else {
          from += slab / 2 * Tile::kBoxBytes + ((pair + slab % 2 * 4 ^ line_of(group)) << 4);
        }
        pieces.advance(r);
        double b[Tile::kTilesM][4];
#pragma unroll
        for (int j = 0; j < Tile::kTilesM; ++j) {
          const char* at = from + j * (Tile::kRowMajorB ? Tile::kBoxBytes : 2048);
          load_pairs<Tile::kRowMajorB>(at, at + other, b[j]);
        }
#pragma unroll
        for (int j = 0; j < Tile::kTilesM; ++j) multiply_fp64(sum[r][j], b[j], a);
      }
    }
    pieces.replace(args, count);
  }
}

}  // namespace sparse_autotune
