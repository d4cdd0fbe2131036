// The union family's warps that see to it that the others have something to multiply: one finds
// tiles of C, some keep copies of B's tiles under way.
#pragma once

#include <cstdint>

#include <type_traits>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/swizzle.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/product/small_blocks/union_tile.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// One warp: finds the next tile when it is asked to. With it go its first 32 block columns and its
// block rows.
template <typename Tile>
__device__ __forceinline__ void schedule(const UnionArguments& args,
                                         const UnionShared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  typename Tile::Queue queue(shared.queue());
  TileTask task{.valid = true};
  for (unsigned turn = 0; task.valid; ++turn) {
    if (turn > 0) mbarrier_wait(shared.asked(), (turn - 1) % 2);
    unsigned tile = lane == 0 ? next_tile(args.panels, turn) : 0;
    tile = __shfl_sync(~0u, tile, 0);
    task.valid = tile < args.panels.tiles;
    UnionPlace place;
    if (task.valid) {
      const TilePlace at = locate(args.panels, tile);
      const OrderedRow group = load_entry(args.panels.order, at.row);
      task.begin = group.begin;
      task.end = group.end;
      task.column = static_cast<int>(at.column) * Tile::kN;
      task.batch = static_cast<int>(at.batch);
      place.column = load_group_column(args.columns, task.begin + lane, task.end).x;
      if (lane < Tile::kGroup) {
        place.row = group.row * Tile::kGroup + lane;
        if (args.rows != nullptr) place.row = __ldg(args.rows + place.row);
        if (place.row >= args.block_rows) place.row = -1;
        if (place.row >= 0) {
          place.begin = load_narrow_index(args.crow_indices, place.row, args.wide_indices);
          place.end = load_narrow_index(args.crow_indices, place.row + 1, args.wide_indices);
        }
      }
    }
    queue.push(task, place);
  }
}

// Copies of B's tiles into the ring. A stage is begun once it is empty, and full when all that its
// tile of C needs of it has landed. What each class calls a batch are 32 block columns, one a lane.

// By TMA, each producer warp with its share of a stage's columns, as issuing copies takes time.
template <typename Tile>
class TileCopies {
 public:
  __device__ __forceinline__ TileCopies(const UnionArguments& args, const UnionShared<Tile>& shared,
                                        int which)
      : args_(args), shared_(shared), which_(which) {}

  __device__ __forceinline__ void begin(const TileTask& task) {
    column_ = task.column;
    batch_ = args_.b_batched ? task.batch : 0;
  }

  // `ask(i)` is called before the batch's column i is.
  template <typename Ask>
  __device__ __forceinline__ void copy(int columns, int many, const Ask& ask) {
    for (int first = 0; first < many; first += Tile::kColumns) {
      ask(first);
      const int count = min(many - first, Tile::kColumns);
      int k[kShare];
#pragma unroll
      for (int i = 0; i < kShare; ++i) {
        k[i] = __shfl_sync(~0u, columns, first + which_ * kShare + i) * Tile::kBlockK;
      }
      const uint32_t full = shared_.full(at_.stage);
      const uint32_t to = shared_.stage(at_.stage) + which_ * kShare * Tile::kTileBytes;
      mbarrier_wait(shared_.empty(at_.stage), at_.parity ^ 1);
      __syncwarp();
      if (elect_one()) {
        // The stage is not full before this, even if another's copies have landed.
        if (which_ == 0) mbarrier_arrive_expect(full, count * Tile::kTileBytes);
#pragma unroll
        for (int i = 0; i < kShare; ++i) {
          if (which_ * kShare + i >= count) break;
          load(to + i * Tile::kTileBytes, full, k[i]);
        }
      }
      at_.advance();
    }
  }

  __device__ __forceinline__ void end() {}

 private:
  static constexpr int kShare = Tile::kColumns / Tile::kProducers;

  __device__ __forceinline__ void load(uint32_t to, uint32_t full, int k) const {
    if constexpr (!Tile::kRowMajorB) {
      tma_load(to, args_.b_map, full, k, column_, batch_);
      return;
    }
    if (args_.b_whole) {
      tma_load(to, args_.b_map, full, 0, k, column_ / kLineHalves, batch_);
      return;
    }
#pragma unroll
    for (int n = 0; n < Tile::kN; n += kLineHalves) {
      tma_load(to + n * Tile::kBlockK * 2, args_.b_map, full, column_ + n, k, batch_);
    }
  }

  const UnionArguments& args_;
  const UnionShared<Tile>& shared_;
  const int which_;
  RingPlace<Tile::kStages> at_;
  int column_ = 0, batch_ = 0;
};

// By TMA, in spans of 64 k: 128 lines of 32 bytes take 160 ns, of 128 bytes 240. A span is copied
// once, with those of its block columns that nobody needs.
template <typename Tile>
class SpanCopies {
 public:
  __device__ __forceinline__ SpanCopies(const UnionArguments& args, const UnionShared<Tile>& shared,
                                        int)
      : args_(args), shared_(shared) {}

  __device__ __forceinline__ void begin(const TileTask& task) {
    column_ = task.column;
    batch_ = args_.b_batched ? task.batch : 0;
    last_ = -1;
  }

  template <typename Ask>
  __device__ __forceinline__ void copy(int columns, int many, const Ask& ask) {
    const int lane = threadIdx.x % 32, span = columns / Tile::kSpan;
    const int before = __shfl_up_sync(~0u, span, 1);
    uint32_t starts = __ballot_sync(~0u, lane < many && span != (lane == 0 ? last_ : before));
    last_ = __shfl_sync(~0u, span, many - 1);
    while (starts != 0) {
      const int i = __ffs(static_cast<int>(starts)) - 1;
      starts &= starts - 1;
      ask(i);
      const int k = __shfl_sync(~0u, span, i) * kLineHalves;
      const uint32_t full = shared_.full(at_.stage);
      if (filled_ == 0) mbarrier_wait(shared_.empty(at_.stage), at_.parity ^ 1);
      __syncwarp();
      if (elect_one()) {
        mbarrier_expect(full, Tile::kSpanBytes);
        tma_load(shared_.stage(at_.stage) + filled_ * Tile::kSpanBytes, args_.b_map, full, k,
                 column_, batch_);
      }
      if (++filled_ == Tile::kSpans) end();
    }
  }

  // Of the tile, or of a stage.
  __device__ __forceinline__ void end() {
    if (filled_ == 0) return;
    __syncwarp();
    if (elect_one()) mbarrier_arrive(shared_.full(at_.stage));
    filled_ = 0;
    at_.advance();
  }

 private:
  const UnionArguments& args_;
  const UnionShared<Tile>& shared_;
  RingPlace<Tile::kStages> at_;
  int column_ = 0, batch_ = 0;
  int filled_ = 0, last_ = -1;  // spans in the stage, and the last one's number
};

// By cp.async, each producer warp with its share of B's columns: 128 lines of 32 bytes take 130 ns,
// of 64 bytes 170.
template <typename Tile>
class ChunkCopies {
 public:
  __device__ __forceinline__ ChunkCopies(const UnionArguments& args,
                                         const UnionShared<Tile>& shared, int which)
      : args_(args),
        shared_(shared),
        first_line_(which * Tile::kN / Tile::kProducers + threadIdx.x % 32 / kChunksOfLine),
        to_(which * Tile::kTileBytes / Tile::kProducers +
            chunk_offset<Tile::kBlockK * 2>(threadIdx.x % 32 / kChunksOfLine,
                                            threadIdx.x % kChunksOfLine)) {}

  __device__ __forceinline__ void begin(const TileTask& task) {
    const int line = task.column + first_line_;
    const int64_t at = (args_.b_batched ? task.batch : 0) * args_.b_batch_stride +
                       line * args_.ldb + threadIdx.x % kChunksOfLine * 8;
    from_ = static_cast<const char*>(args_.b) + at * 2;
    lines_ = args_.n - line;
  }

  template <typename Ask>
  __device__ __forceinline__ void copy(int columns, int many, const Ask& ask) {
    const int64_t stride = args_.ldb * (2 * kLinesEach);
    for (int first = 0; first < many; first += Tile::kColumns) {
      ask(first);
      const int count = min(many - first, Tile::kColumns);
      mbarrier_wait(shared_.empty(at_.stage), at_.parity ^ 1);
      const uint32_t to = shared_.stage(at_.stage) + to_;
#pragma unroll
      for (int i = 0; i < Tile::kColumns; i += 4) {
        int k[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          k[u] = __shfl_sync(~0u, columns, first + i + u) * (Tile::kBlockK * 2);
        }
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          if (i + u >= count) break;
          const char* from = from_ + k[u];
#pragma unroll
          for (int j = 0; j < Tile::kTileBytes / (512 * Tile::kProducers); ++j, from += stride) {
            // What stays away leaves columns wrong that are never stored.
            if (j * kLinesEach < lines_) {
              cp_async_16(to + (i + u) * Tile::kTileBytes + j * 512, from, 16);
            }
          }
        }
      }
      mbarrier_arrive_copied(shared_.full(at_.stage));
      at_.advance();
    }
  }

  __device__ __forceinline__ void end() {}

 private:
  static constexpr int kChunksOfLine = Tile::kBlockK / 8, kLinesEach = 32 / kChunksOfLine;

  const UnionArguments& args_;
  const UnionShared<Tile>& shared_;
  const int first_line_;
  const uint32_t to_;
  RingPlace<Tile::kStages> at_;
  const char* from_ = nullptr;  // of the lane's first chunk, of block column 0
  int lines_ = 0;
};

// Warp `which` of Tile::kProducers: keeps the ring full. Columns are fetched a batch ahead.
template <typename Tile>
__device__ __forceinline__ void produce_union(const UnionArguments& args,
                                              const UnionShared<Tile>& shared, int which) {
  using Copies = std::conditional_t<
      Tile::kCopies == UnionCopies::kChunks, ChunkCopies<Tile>,
      std::conditional_t<Tile::kCopies == UnionCopies::kSpans, SpanCopies<Tile>, TileCopies<Tile>>>;
  const int lane = threadIdx.x % 32;
  typename Tile::Queue queue(shared.queue());
  Copies copies(args, shared, which);
  int ask_ahead = INT32_MAX;  // the second tile is asked for at once
  UnionPlace place;
  for (TileTask task = queue.pop(&place); task.valid; task = queue.pop(&place)) {
    bool asks = which == 0;
    const auto ask = [&](int columns_left) {
      if (!asks || columns_left > ask_ahead) return;
      if (lane == 0) mbarrier_arrive(shared.asked());
      asks = false;
    };
    copies.begin(task);
    int columns = place.column;
    for (int begin = task.begin; begin < task.end; begin += 32) {
      const int following = load_group_column(args.columns, begin + 32 + lane, task.end).x;
      copies.copy(columns, min(task.end - begin, 32), [&](int i) { ask(task.end - begin - i); });
      columns = following;
    }
    copies.end();
    ask(0);
    ask_ahead = Tile::kAskAhead;
  }
}

}  // namespace sparse_autotune
