// The producer warp of a pipeline of attention_sm90: it takes items, and keeps copies of q, k and v
// under way. The order of the ring is that of the consumers: k 0, k 1, v 0, k 2, v 1, ..., where
// the last v of an item follows the first k of the next.
#pragma once

#include "kernels/cuda/attention/attention_tile_sm90.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

template <typename Tile>
class AttentionProducer {
 public:
  __device__ __forceinline__ AttentionProducer(const AttentionArgumentsSm90& args,
                                               const AttentionShared<Tile>& shared)
      : args_(args), shared_(shared), queue_(shared.queue()) {}

  // By a whole warp.
  __device__ __forceinline__ void run(int pipeline) {
    const ItemCounter counter(args_.counter, args_.items, gridDim.x * Tile::kPipelines);
    counter.for_each(blockIdx.x * Tile::kPipelines + pipeline, [&](int i) {
      AttentionItem item = item_at<Tile::kSplits>(args_, i, Tile::kRows);
      Columns columns(args_.mask, args_.lists, item.batch, item.head, args_.rows, args_.columns,
                      args_.is_causal, item.row, Tile::kRows);
      if (Tile::kSplits && item.part >= 0) {
        columns.take_part(item.part % args_.parts.count, args_.parts.count);
      }
      item.tiles = (columns.pieces + Tile::kPieces - 1) / Tile::kPieces;
      queue_.push(item);
      if (Tile::kCopiesOut || item.tiles > 0) copy_item(item, columns);
    });
    queue_.push({0, 0, 0, -1});
  }

 private:
  using Columns = TileColumns<Tile::kPiece>;

  __device__ __forceinline__ void copy_item(const AttentionItem& item, const Columns& columns) {
    mbarrier_wait(shared_.q_empty(q_at_.stage), q_at_.parity ^ 1);
    if (elect_one()) {
      const uint32_t full = shared_.q_full(q_at_.stage);
      mbarrier_arrive_expect(full, Tile::kUsers * Tile::kUserBytes);
#pragma unroll
      for (int user = 0; user < Tile::kUsers; ++user) {
#pragma unroll
        for (int panel = 0; panel < Tile::kPanels; ++panel) {
          tma_load(shared_.q_of(q_at_.stage, user) + panel * kUserRows * kLineBytes, args_.q, full,
                   panel * kLineHalves, item.row + user * kUserRows, item.head, item.batch);
        }
      }
    }
    __syncwarp();
    q_at_.advance();
    const int kv_head = item.head / args_.group, lane = threadIdx.x % 32;
    // Each lane has one piece of a tile, and reads its entry a tile ahead.
    int entry = columns.entry(lane), before = 0;
    for (int tile = 0; tile <= item.tiles; ++tile) {
      const int i = tile * Tile::kPieces + lane;
      const ColumnPiece piece = columns.piece(i, entry, args_.columns);
      entry = columns.entry(i + Tile::kPieces);
      if (tile < item.tiles) copy_tile<true>(args_.k, piece, kv_head, item.batch);
      if (tile > 0) copy_tile<false>(args_.v, {before, 0}, kv_head, item.batch);
      before = piece.column;
    }
  }

  // Lane i copies piece i.
  template <bool kTells>
  __device__ __forceinline__ void copy_tile(const CUtensorMap& map, ColumnPiece piece, int head,
                                            int batch) {
    const int lane = threadIdx.x % 32;
    mbarrier_wait(shared_.empty(at_.stage), at_.parity ^ 1);
    const uint32_t full = shared_.full(at_.stage);
    if (kTells && lane < Tile::kPieces) {
      store_shared(shared_.pieces(at_.stage) + lane * 8, piece);
    }
    __syncwarp();
    mbarrier_arrive_expect_warp(full, Tile::kTileBytes, elect_one());
    __syncwarp();
    if (lane < Tile::kPieces) {
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        const int line = panel * Tile::kN + lane * Tile::kPiece;
        tma_load(shared_.tile(at_.stage) + line * kLineBytes, map, full, panel * kLineHalves,
                 piece.column, head, batch);
      }
    }
    __syncwarp();
    at_.advance();
  }

  const AttentionArgumentsSm90& args_;
  const AttentionShared<Tile> shared_;
  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesQ> q_at_;
};

}  // namespace sparse_autotune
