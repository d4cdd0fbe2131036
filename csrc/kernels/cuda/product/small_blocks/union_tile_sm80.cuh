// What the warps of union_sm80 do with one tile of C: some copy B's tiles to a ring in shared
// memory, each of the others multiplies one block row's blocks by them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/swizzle.cuh"
#include "kernels/cuda/device/tile_loader.cuh"
#include "kernels/cuda/product/small_blocks/block_stream.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// A tile's block rows, block_m, block_k, columns; block columns of a stage, stages; blocks ahead of
// each warp; warps that copy B; thread blocks that a multiprocessor should hold.
template <int kRows, int kSideM, int kSideK, int kWidth, int kStage, int kDepth, int kAhead,
          int kCopiers, int kBlocks, bool kRowMajor>
struct UnionTileSm80 {
  static constexpr bool kRowMajorB = kRowMajor;
  static constexpr int kGroup = kRows, kBlockM = kSideM, kBlockK = kSideK, kN = kWidth;
  static constexpr int kColumns = kStage, kStages = kDepth, kBlockSlots = kAhead;
  static constexpr int kProducers = kCopiers, kResident = kBlocks;
  // Of the warps that multiply, each a block row and all of the tile's columns.
  static constexpr int kWarps = kGroup, kThreads = kWarps * 32, kWarpsN = 1;
  static constexpr int kWarpM = kBlockM, kWarpN = kN, kM = kGroup * kBlockM;
  static constexpr int kLaunched = kThreads + kProducers * 32;

  // A tile of B has block_k lines of the columns, or a line of block_k for each column.
  static constexpr int kLineBytes = (kRowMajor ? kN : kBlockK) * 2;
  static constexpr int kTileBytes = kBlockK * kN * 2, kStageBytes = kColumns * kTileBytes;
  static constexpr int kBlockBytes = kBlockM * kBlockK * 2;
  static constexpr int kStreamBytes = kBlockSlots * kBlockBytes;  // of a warp
  static_assert(32 % kColumns == 0 && kColumns % kProducers == 0 && kGroup <= 32,
                "stages divide a batch of 32; a bit for each row");
};

struct UnionArgumentsSm80 : ProductArguments {
  const GroupColumn* columns;
  Panels panels;
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  uint32_t line_b;  // bytes from one line of B to the next
  int m, block_rows, c_alignment;
  bool c_rows;
};

// What a thread block keeps in shared memory.
template <typename Tile>
struct UnionLayoutSm80 {
  std::byte stages[Tile::kStages][Tile::kStageBytes];  // of B
  std::byte streams[Tile::kWarps][Tile::kStreamBytes];
  RingBarriers<Tile::kStages> barriers;
};

// The same by address.
template <typename Tile>
struct UnionSharedSm80 : RingBarriersAt<Tile::kStages> {
  using Layout = UnionLayoutSm80<Tile>;
  static_assert(sizeof(Layout) <= 163 * 1024, "what an A100's multiprocessor has for one");
  uint32_t begin;

  __device__ __forceinline__ explicit UnionSharedSm80(uint32_t memory) : begin(memory) {
    this->barriers = begin + offsetof(Layout, barriers);
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const {
    return begin + i * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t stream(int warp) const {
    return begin + offsetof(Layout, streams) + warp * Tile::kStreamBytes;
  }
  __device__ __forceinline__ void init_barriers() const {
    this->init(32 * Tile::kProducers, 32 * Tile::kWarps);
  }
};

// Copies of B's tiles, by one warp.
template <typename T, typename Tile>
class CopiesOfTiles {
 public:
  // `b`: k = 0 of the tile's first column; `columns`: how many it has.
  __device__ __forceinline__ CopiesOfTiles(const T* b, uint32_t line_bytes, int columns)
      : line_bytes_(line_bytes), columns_(columns) {
    const int line = threadIdx.x % 32 / kChunks, chunk = threadIdx.x % kChunks;
    to_ = chunk_offset<Tile::kLineBytes>(line, chunk);
    from_ = ahead(b, line_bytes, line) + chunk * kChunk<T>;
    const int left = Tile::kRowMajorB ? columns - chunk * kChunk<T> : kChunk<T>;
    bytes_ = min(max(left, 0), kChunk<T>) * static_cast<int>(sizeof(T));
  }

  // The tile of the rows of B from `k` on. Columns that C does not have stay as they are.
  __device__ __forceinline__ void start(uint32_t tile, uint32_t k) const {
    const T* from = Tile::kRowMajorB ? ahead(from_, line_bytes_, k) : from_ + k;
    const uint32_t to = tile + to_;
    const bool part = bytes_ > 0 && bytes_ < kChunkBytes;
#pragma unroll
    for (int i = 0; i < kLines; i += kApart) {
      const uint32_t at = (to ^ swizzle<Tile::kLineBytes>(i) << 4) + i * Tile::kLineBytes;
      const int line = i + static_cast<int>(threadIdx.x % 32) / kChunks;
      const bool wanted = Tile::kRowMajorB ? bytes_ == kChunkBytes : line < columns_;
      cp_async_16_if(wanted, at, ahead(from, line_bytes_, i));
      if (Tile::kRowMajorB && part) cp_async_16(at, ahead(from, line_bytes_, i), bytes_);
    }
  }

 private:
  static constexpr int kLines = Tile::kRowMajorB ? Tile::kBlockK : Tile::kN;
  static constexpr int kChunks = Tile::kLineBytes / kChunkBytes, kApart = 32 / kChunks;

  const T* from_;
  uint32_t line_bytes_, to_;
  int columns_, bytes_;
};

// Warp `which` of Tile::kProducers keeps its share of each stage's columns coming: block columns
// `begin` to `end` of the grouping.
template <typename T, typename Tile>
__device__ __forceinline__ void produce_tiles(const UnionArgumentsSm80& args,
                                              const UnionSharedSm80<Tile>& shared,
                                              const CopiesOfTiles<T, Tile>& copies, int which,
                                              int begin, int end) {
  constexpr int kShare = Tile::kColumns / Tile::kProducers;
  const int lane = threadIdx.x % 32;
  RingPlace<Tile::kStages> at;
  int column = load_group_column(args.columns, begin + lane, end).x;
  for (; begin < end; begin += 32) {
    const int following = load_group_column(args.columns, begin + 32 + lane, end).x;
    for (int first = 0; first < min(end - begin, 32); first += Tile::kColumns) {
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        const int own = which * kShare + i;
        const int k = __shfl_sync(~0u, column, first + own) * Tile::kBlockK;
        if (begin + first + own < end) {
          copies.start(shared.stage(at.stage) + own * Tile::kTileBytes, k);
        }
      }
      mbarrier_arrive_copied(shared.full(at.stage));
      at.advance();
    }
    column = following;
  }
}

// Multiplies a block with its tile of B: all of the warp's columns. `address`: the tile's, plus
// where this lane reads it.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_tile(
    float* sum, const uint32_t (&a)[Tile::kBlockK / 16][Tile::kBlockM / 16][4], uint32_t address) {
  constexpr int kTall = Tile::kBlockM / 16, kWide = Tile::kWarpN / 8;
#pragma unroll
  for (int step = 0; step < Tile::kBlockK / 16; ++step) {
#pragma unroll
    for (int j = 0; j < kWide / 2; ++j) {
      uint32_t b[4];
      if constexpr (Tile::kRowMajorB) {
        ldmatrix_transposed(b, (address ^ j * 32) + step * 16 * Tile::kLineBytes);
      } else {
        ldmatrix(b, (address ^ step * 32) + j * 16 * Tile::kLineBytes);
      }
#pragma unroll
      for (int i = 0; i < kTall; ++i) {
        mma<T>(sum + (i * kWide + 2 * j) * 4, a[step][i], b);
        mma<T>(sum + (i * kWide + 2 * j + 1) * 4, a[step][i], b + 2);
      }
    }
  }
}

// Warp `row` of the group: its block row's blocks, the others' columns left out.
template <typename T, typename Tile, bool kTransposedA>
__device__ __forceinline__ void consume_tiles(const UnionArgumentsSm80& args,
                                              const UnionSharedSm80<Tile>& shared, int block_row,
                                              int row, int begin, int end, float* sum) {
  using Stream = BlockStream<Tile, kTransposedA>;
  const int lane = threadIdx.x % 32;
  const uint32_t offset =
      Tile::kRowMajorB ? chunk_offset<Tile::kLineBytes>(lane % 16, lane / 16)
                       : chunk_offset<Tile::kLineBytes>(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  Stream stream(shared.stream(row));
  const int first_block =
      load_narrow_index(args.crow_indices, min(block_row, args.block_rows), args.wide_indices);
  const int last_block =
      load_narrow_index(args.crow_indices, min(block_row + 1, args.block_rows), args.wide_indices);
  stream.start(args, first_block, last_block);

  RingPlace<Tile::kStages> at;
  int rows = load_group_column(args.columns, begin + lane, end).y;
  for (; begin < end; begin += 32) {
    const uint32_t present = __ballot_sync(~0u, rows >> row & 1);
    rows = load_group_column(args.columns, begin + 32 + lane, end).y;
    for (int first = 0; first < min(end - begin, 32); first += Tile::kColumns) {
      mbarrier_wait(shared.full(at.stage), at.parity);
      uint32_t left = present & ((1u << Tile::kColumns) - 1) << first;
      while (left != 0) {
        const int i = __ffs(static_cast<int>(left)) - 1 - first;
        left &= left - 1;
        uint32_t a[Tile::kBlockK / 16][Tile::kBlockM / 16][4];
        stream.take(a);
        multiply_tile<T, Tile>(sum, a, shared.stage(at.stage) + i * Tile::kTileBytes + offset);
        stream.refill(args);
      }
      // Each lane for itself: racecheck does not see that one may speak for its warp.
      mbarrier_arrive(shared.empty(at.stage));
      at.advance();
    }
  }
  cp_async_wait<0>();
}

}  // namespace sparse_autotune
