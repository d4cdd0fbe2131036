// The producer warp of a pipeline of attention_backward_sm90: it takes items, copies their k and v,
// and keeps copies of q and dout under way.
#pragma once

#include "kernels/cuda/attention/attention_backward_tile_sm90.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/device/bulk_load.cuh"

namespace sparse_autotune {

template <typename Tile>
class AttentionBackwardProducer {
 public:
  __device__ __forceinline__ AttentionBackwardProducer(const AttentionBackwardArgumentsSm90& args,
                                                       const AttentionBackwardShared<Tile>& shared)
      : args_(args), shared_(shared), queue_(shared.queue()) {}

  // By a whole warp.
  __device__ __forceinline__ void run(int pipeline) {
    const int takers = gridDim.x * Tile::kPipelines;
    const ItemCounter counter(args_.counter, args_.items, takers);
    int i = blockIdx.x * Tile::kPipelines + pipeline;
    while (i < args_.items) {
      int next = 0;
      if (threadIdx.x % 32 == 0) next = counter.next(i);
      const AttentionItem item = item_at(i);
      queue_.push(item);
      if (item.tiles > 0) copy_item(item);
      i = __shfl_sync(~0u, next, 0);
    }
    queue_.push({0, 0, 0, -1});
  }

 private:
  // The rows that see an item's columns, in one head. Under a causal rule without a mask the first
  // ones do not.
  struct Rows {
    TileColumns<kStepRows> list;
    int skipped;  // steps
    __device__ __forceinline__ int steps() const { return max(list.pieces - skipped, 0); }
  };
  __device__ __forceinline__ Rows rows_of(int column, int batch, int head) const {
    const bool dense = args_.mask.crow_indices == nullptr;
    return {TileColumns<kStepRows>(args_.mask, {}, batch, head, args_.columns, args_.rows, false,
                                   column, Tile::kColumns),
            dense && args_.is_causal ? column / kStepRows : 0};
  }

  // Heads that L2 holds are taken together; under a causal rule the first columns are seen by the
  // most rows.
  __device__ __forceinline__ AttentionItem item_at(int i) const {
    const int share = args_.heads_at_once * args_.column_tiles;
    const int first = i / share * args_.heads_at_once;
    const int heads = min(args_.heads_at_once, args_.kv_batch_heads - first);
    const int rest = i % share, tile = rest / heads, head = first + rest - tile * heads;
    const int kv_heads = args_.heads / args_.group;
    AttentionItem item{tile * Tile::kColumns, head % kv_heads, head / kv_heads, 0};
    for (int j = 0; j < args_.group; ++j) {
      item.tiles += rows_of(item.row, item.batch, item.head * args_.group + j).steps();
    }
    return item;
  }

  __device__ __forceinline__ void copy_item(const AttentionItem& item) {
    mbarrier_wait(shared_.kv_empty(kv_at_.stage), kv_at_.parity ^ 1);
    if (elect_one()) {
      const uint32_t full = shared_.kv_full(kv_at_.stage);
      mbarrier_arrive_expect(full, 2 * Tile::kTileBytes);
      copy_panels<Tile::kColumns>(shared_.k(kv_at_.stage), args_.k, full, item.row, item.head,
                                  item.batch);
      copy_panels<Tile::kColumns>(shared_.v(kv_at_.stage), args_.v, full, item.row, item.head,
                                  item.batch);
    }
    __syncwarp();
    kv_at_.advance();
    for (int j = 0; j < args_.group; ++j) {
      const int head = item.head * args_.group + j;
      const Rows rows = rows_of(item.row, item.batch, head);
      const int steps = rows.steps();
      int entry = rows.list.entry(rows.skipped);
      for (int step = 0; step < steps; ++step) {
        const int i = step + rows.skipped;
        const int row = rows.list.piece(i, entry, args_.rows).column;
        entry = rows.list.entry(i + 1);
        copy_step(row, head, item.batch);
      }
    }
  }

  __device__ __forceinline__ void copy_step(int row, int head, int batch) {
    const int64_t values =
        (static_cast<int64_t>(batch) * args_.heads + head) * args_.row_tiles * kStepRows + row;
    mbarrier_wait(shared_.q_empty(at_.stage), at_.parity ^ 1);
    if (elect_one()) {
      const uint32_t full = shared_.q_full(at_.stage);
      asm volatile("st.shared.v2.s32 [%0], {%1, %2};\n" ::"r"(shared_.step(at_.stage)), "r"(row),
                   "r"(head)
                   : "memory");
      mbarrier_arrive_expect(full, Tile::kStepBytes + Tile::kRowBytes);
      copy_panels<kStepRows>(shared_.q(at_.stage), args_.q, full, row, head, batch);
      bulk_load(shared_.lse(at_.stage), args_.lse + values, Tile::kRowBytes, full);
    }
    __syncwarp();
    mbarrier_wait(shared_.dout_empty(at_.stage), at_.parity ^ 1);
    if (elect_one()) {
      const uint32_t full = shared_.dout_full(at_.stage);
      mbarrier_arrive_expect(full, Tile::kStepBytes + Tile::kRowBytes);
      copy_panels<kStepRows>(shared_.dout(at_.stage), args_.dout, full, row, head, batch);
      bulk_load(shared_.delta(at_.stage), args_.delta + values, Tile::kRowBytes, full);
    }
    __syncwarp();
    at_.advance();
  }

  // Rows in boxes of 64.
  template <int kRows>
  __device__ __forceinline__ void copy_panels(uint32_t to, const CUtensorMap& map, uint32_t full,
                                              int row, int head, int batch) const {
#pragma unroll
    for (int panel = 0; panel < Tile::kPanels; ++panel) {
#pragma unroll
      for (int i = 0; i < kRows; i += 64) {
        tma_load(to + (panel * kRows + i) * kLineBytes, map, full, panel * kLineHalves, row + i,
                 head, batch);
      }
    }
  }

  const AttentionBackwardArgumentsSm90& args_;
  const AttentionBackwardShared<Tile> shared_;
  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  RingPlace<Tile::kStagesKv> kv_at_;
};

}  // namespace sparse_autotune
