// The producer warps of a pipeline of attention_backward_sm90. One takes items, and keeps copies of
// q and dout under way; the other one copies k and v, once the item before is done with them, and
// clears sums of dq. So an item's first q and dout are there before its k is.
#pragma once

#include "kernels/cuda/attention/attention_backward_tile_sm90.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/device/bulk_load.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

template <typename Tile>
class AttentionBackwardProducer {
 public:
  __device__ __forceinline__ AttentionBackwardProducer(const AttentionBackwardArgumentsSm90& args,
                                                       const AttentionBackwardShared<Tile>& shared)
      : args_(args), shared_(shared), queue_(shared.queue()) {}

  // By the whole thread block, before its warps take roles. Heads follow each other, so that few
  // are in L2 at once. Only the last items, where a mask or a causal rule makes them differ, come
  // in order of length, longest first, so that all multiprocessors end together.
  __device__ __forceinline__ void order_last_items() const {
    const int i = threadIdx.x, first = args_.items - args_.ordered;
    const int tiles = i < args_.ordered ? item_at(first + i).tiles : -1;
    const int key = tiles * Tile::kOrdered - i;  // no two are alike
    if (i < Tile::kOrdered) store_shared(shared_.order + i * 4, key);
    __syncthreads();
    int longer = 0;
    if (i < Tile::kOrdered) {
#pragma unroll 8
      for (int j = 0; j < Tile::kOrdered; j += 4) {
        const uint4 keys = load_shared<uint4>(shared_.order + j * 4);
        for (const uint32_t other : {keys.x, keys.y, keys.z, keys.w}) {
          longer += static_cast<int>(other) > key;
        }
      }
    }
    __syncthreads();
    if (i < Tile::kOrdered) store_shared(shared_.order + longer * 4, first + i);
  }

  // Each of both by a whole warp. An item is taken when all of the one before has been copied: a
  // pipeline that took it sooner might be the last to get to it.
  __device__ __forceinline__ void run(int pipeline) {
    const ItemCounter counter(args_.counter, args_.items, gridDim.x * Tile::kPipelines);
    const int first = args_.items - args_.ordered;
    for (int i = blockIdx.x * Tile::kPipelines + pipeline; i < args_.items;
         i = counter.next_of_warp(i)) {
      const AttentionItem item =
          item_at(i < first ? i : load_shared<int>(shared_.order + (i - first) * 4));
      queue_.push(item);
      if (item.tiles > 0) copy_rows_of(item);
    }
    queue_.push({0, 0, 0, -1});
  }
  __device__ __forceinline__ void run_second() {
    for (;;) {
      const AttentionItem item = queue_.pop();
      if (item.tiles < 0) break;
      const int head = item.batch * (args_.heads / args_.group) + item.head;
      bool waits = item.tiles > 0;
      // Whoever waits clears what nobody has begun, and so for no thread block that does not run.
      do {
        if (waits && args_.dq.are_cleared(head)) {
          copy_columns_of(item);
          waits = false;
        }
        args_.dq.template clear_part<Tile::kDim>();
      } while (waits);
    }
  }

 private:
  // The rows that see an item's columns, in one head. Under a causal rule without a mask the first
  // ones do not.
  struct Rows {
    TileColumns<Tile::kPiece> list;
    int skipped;  // pieces
    __device__ __forceinline__ int steps() const {
      return (max(list.pieces - skipped, 0) + Tile::kPieces - 1) / Tile::kPieces;
    }
  };
  __device__ __forceinline__ Rows rows_of(int column, int batch, int head) const {
    const bool dense = args_.mask.crow_indices == nullptr;
    return {TileColumns<Tile::kPiece>(args_.mask, args_.lists, batch, head, args_.columns,
                                      args_.rows, false, column, Tile::kColumns),
            dense && args_.is_causal ? column / Tile::kPiece : 0};
  }

  __device__ __forceinline__ AttentionItem item_at(int i) const {
    const int kv_heads = args_.heads / args_.group, head = i / args_.column_tiles;
    AttentionItem item{i % args_.column_tiles * Tile::kColumns, head % kv_heads, head / kv_heads,
                       0};
#pragma unroll 1
    for (int j = 0; j < args_.group; ++j) {
      item.tiles += rows_of(item.row, item.batch, item.head * args_.group + j).steps();
    }
    return item;
  }

  __device__ __forceinline__ void copy_columns_of(const AttentionItem& item) {
    mbarrier_wait(shared_.kv_empty(kv_at_.stage), kv_at_.parity ^ 1);
    if (elect_one()) {
      copy_columns(shared_.k(kv_at_.stage), args_.k, shared_.k_full(kv_at_.stage), item);
      copy_columns(shared_.v(kv_at_.stage), args_.v, shared_.v_full(kv_at_.stage), item);
    }
    __syncwarp();
    kv_at_.advance();
  }

  __device__ __forceinline__ void copy_rows_of(const AttentionItem& item) {
#pragma unroll 1
    for (int j = 0; j < args_.group; ++j) {
      const int head = item.head * args_.group + j;
      const Rows rows = rows_of(item.row, item.batch, head);
      const int steps = rows.steps(), lane = threadIdx.x % 32;
      // Each lane has one piece of a step, and reads its entry a step ahead.
      int entry = rows.list.entry(rows.skipped + lane);
      for (int step = 0; step < steps; ++step) {
        const int i = rows.skipped + step * Tile::kPieces + lane;
        ColumnPiece piece = rows.list.piece(i, entry, args_.rows);
        entry = rows.list.entry(i + Tile::kPieces);
        // Past the last one rows are copied that nobody sees.
        if (piece.block_rows == 0) piece.column = 0;
        copy_step(piece, head, item.batch);
      }
    }
  }

  // Lane i copies piece i.
  __device__ __forceinline__ void copy_step(const ColumnPiece& piece, int head, int batch) {
    const int lane = threadIdx.x % 32;
    const int64_t values =
        (static_cast<int64_t>(batch) * args_.heads + head) * args_.row_tiles * kDqRows;
    mbarrier_wait(shared_.q_empty(at_.stage), at_.parity ^ 1);
    if (lane < Tile::kPieces) {
      store_shared(shared_.pieces(at_.stage) + lane * 8, piece);
    }
    if (lane == 0) {
      store_shared(shared_.rows_before(at_.stage), static_cast<int>(values / 16));
    }
    copy_rows(shared_.q(at_.stage), args_.q, shared_.lse(at_.stage), args_.lse + values,
              shared_.q_full(at_.stage), piece.column, head, batch);
    at_.advance();
    mbarrier_wait(shared_.dout_empty(dout_at_.stage), dout_at_.parity ^ 1);
    copy_rows(shared_.dout(dout_at_.stage), args_.dout, shared_.delta(dout_at_.stage),
              args_.delta + values, shared_.dout_full(dout_at_.stage), piece.column, head, batch);
    dout_at_.advance();
  }

  // A piece a lane, of q or dout and of the values that their rows have.
  __device__ __forceinline__ void copy_rows(uint32_t to, const CUtensorMap& map, uint32_t values_to,
                                            const float* values, uint32_t full, int row, int head,
                                            int batch) const {
    const int lane = threadIdx.x % 32;
    __syncwarp();
    mbarrier_arrive_expect_warp(full, Tile::kStepBytes + Tile::kRowBytes, lane == 0);
    __syncwarp();
    if (lane < Tile::kPieces) {
#pragma unroll
      for (int panel = 0; panel < Tile::kPanels; ++panel) {
        tma_load(to + (panel * Tile::kStepRows + lane * Tile::kPiece) * kLineBytes, map, full,
                 panel * kLineHalves, row, head, batch);
      }
      bulk_load(values_to + lane * Tile::kPiece * 4, values + row, Tile::kPiece * 4, full);
    }
    __syncwarp();
  }

  // Of k or v, in boxes of 64 rows.
  __device__ __forceinline__ void copy_columns(uint32_t to, const CUtensorMap& map, uint32_t full,
                                               const AttentionItem& item) const {
    mbarrier_arrive_expect(full, Tile::kTileBytes);
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < Tile::kColumns; i += 64) {
        tma_load(to + (panel * Tile::kColumns + i) * kLineBytes, map, full, panel * kLineHalves,
                 item.row + i, item.head, item.batch);
      }
    }
  }

  const AttentionBackwardArgumentsSm90& args_;
  const AttentionBackwardShared<Tile> shared_;
  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesDout> dout_at_;
  RingPlace<Tile::kStagesKv> kv_at_;
};

}  // namespace sparse_autotune
