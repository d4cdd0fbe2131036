// The producer warps of attention_warps_sm90: one takes items and copies k, one copies v, one lists
// for each consumer which pieces it sees.
#pragma once

#include "kernels/cuda/attention/attention_warps_steps_sm90.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"

namespace sparse_autotune {

template <typename Tile>
class WarpRowsProducer {
 public:
  enum Role { kCopiesK, kCopiesV, kLists };

  __device__ __forceinline__ WarpRowsProducer(const WarpRowsArguments& args,
                                              const WarpRowsShared<Tile>& shared)
      : args_(args),
        shared_(shared),
        queue_(shared.queue()),
        steps_(shared, static_cast<int>(threadIdx.x) % 32) {}

  // By a whole warp of each role.
  template <Role kRole>
  __device__ __forceinline__ void run() {
    const ItemCounter counter(args_.counter, args_.items, gridDim.x);
    int i = blockIdx.x;
    for (;;) {
      AttentionItem item = {0, 0, 0, -1};
      int next = 0;
      if constexpr (kRole == kCopiesK) {
        if (i < args_.items) {
          if (threadIdx.x % 32 == 0) next = counter.next(i);
          item = item_at(args_, i, Tile::kRows);
          item.tiles = (columns_of(item).pieces + Tile::kPieces - 1) / Tile::kPieces;
        }
        queue_.push(item);
      } else {
        item = queue_.pop();
      }
      if (item.tiles < 0) break;
      fill_stages<kRole>(item);
      if constexpr (kRole == kCopiesK) i = __shfl_sync(~0u, next, 0);
    }
  }

 private:
  using Columns = TileColumns<Tile::kPiece, kWideEntryBits>;

  __device__ __forceinline__ Columns columns_of(const AttentionItem& item) const {
    return Columns(args_.mask, args_.lists, item.batch, item.head, args_.rows, args_.columns,
                   args_.is_causal, item.row, Tile::kRows);
  }

  // Each lane has one of 32 pieces, and reads its next entry that many ahead.
  template <Role kRole>
  __device__ __forceinline__ void fill_stages(const AttentionItem& item) {
    const Columns columns = columns_of(item);
    const int kv_head = item.head / args_.group, lane = threadIdx.x % 32;
    constexpr int kAtOnce = 32 / Tile::kPieces;  // stages
    int entry = columns.entry(lane);
    ColumnPiece own = {0, 0};
    for (int stage = 0; stage < item.tiles; ++stage) {
      if (stage % kAtOnce == 0) {
        const int i = stage * Tile::kPieces + lane;
        own = columns.piece(i, entry, args_.columns);
        entry = columns.entry(i + 32);
      }
      const int first = stage % kAtOnce * Tile::kPieces;
      mbarrier_wait(shared_.empty(at_.stage), at_.parity ^ 1);
      if constexpr (kRole == kLists) {
        list_pieces(own, first);
      } else {
        const int count = min(Tile::kPieces, columns.pieces - stage * Tile::kPieces);
        copy_pieces<kRole>(own.column, first, count, kv_head, item.batch);
      }
      at_.advance();
    }
    if (kRole == kLists && lane < Tile::kWarps) steps_.end_item();
    __syncwarp();
  }

  template <Role kRole>
  __device__ __forceinline__ void copy_pieces(int own_column, int first, int count, int head,
                                              int batch) {
    int column[Tile::kPieces];
    bool neighbours = count == Tile::kPieces;
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      column[i] = __shfl_sync(~0u, own_column, first + i);
      neighbours &= column[i] == column[0] + i * Tile::kPiece;
    }
    if (elect_one()) {
      const uint32_t full = shared_.full(at_.stage);
      const uint32_t to = kRole == kCopiesK ? shared_.k(at_.stage) : shared_.v(at_.stage);
      mbarrier_arrive_expect(full, count * Tile::kPieceBytes);
      if (neighbours) {
        const CUtensorMap& map = kRole == kCopiesK ? args_.k_stages : args_.v_stages;
#pragma unroll
        for (int panel = 0; panel < Tile::kPanels; ++panel) {
          tma_load(to + panel * Tile::kPanelBytes, map, full, panel * kLineHalves, column[0], head,
                   batch);
        }
      } else {
        const CUtensorMap& map = kRole == kCopiesK ? args_.k : args_.v;
#pragma unroll
        for (int i = 0; i < Tile::kPieces; ++i) {
          if (i >= count) break;
#pragma unroll
          for (int panel = 0; panel < Tile::kPanels; ++panel) {
            tma_load(to + panel * Tile::kPanelBytes + i * Tile::kPiece * kLineBytes, map, full,
                     panel * kLineHalves, column[i], head, batch);
          }
        }
      }
    }
    __syncwarp();
  }

  // Lane i keeps the list of consumer i.
  __device__ __forceinline__ void list_pieces(ColumnPiece own, int first) {
    const int lane = threadIdx.x % 32, block_row = lane * Tile::kWarpRows / args_.mask.block_m;
    int column[Tile::kPieces];
    unsigned seen = 0;
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      column[i] = __shfl_sync(~0u, own.column, first + i);
      seen |= (__shfl_sync(~0u, own.block_rows, first + i) >> block_row & 1) << i;
    }
    if (lane < Tile::kWarps) steps_.add(at_, seen, column);
    __syncwarp();
  }

  const WarpRowsArguments& args_;
  const WarpRowsShared<Tile> shared_;
  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  StepWriter<Tile> steps_;  // the lister's
};

}  // namespace sparse_autotune
