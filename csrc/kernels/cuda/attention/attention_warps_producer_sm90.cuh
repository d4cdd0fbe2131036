// The producer warps of attention_warps_sm90: one takes items and copies k, one copies v, one lists
// for each consumer which pieces it sees.
#pragma once

#include "kernels/cuda/attention/attention_warps_steps_sm90.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/device/bulk_load.cuh"

namespace sparse_autotune {

template <typename Arguments, typename Tile>
class WarpRowsProducer {
 public:
  enum Role { kCopiesK, kCopiesV, kLists };

  __device__ __forceinline__ WarpRowsProducer(const Arguments& args,
                                              const WarpRowsShared<Tile>& shared)
      : args_(args), shared_(shared), queue_(shared.queue()), steps_(shared) {}

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
          item = item_at<Tile::kSplits>(args_, i, Tile::kRows);
        }
        queue_.push(item);
      } else {
        item = queue_.pop();
      }
      if (item.tiles < 0) break;
      // Rows of k have rows of q of several heads.
      constexpr bool kOfColumns = Tile::kPass == WarpRowsPass::kOfColumns;
      const int each = kOfColumns ? args_.group : 1;
#pragma unroll 1
      for (int j = 0; j < each; ++j) {
        const int head = item.head * each + j;
        fill_stages<kRole>(item, head, kOfColumns ? head : head / args_.group);
      }
      if constexpr (kRole == kLists) {
        steps_.end_item();
        __syncwarp();
      }
      if constexpr (kRole == kCopiesK) i = __shfl_sync(~0u, next, 0);
    }
  }

 private:
  using Columns = TileColumns<Tile::kPiece, kWideEntryBits>;
  using Writer = StepWriter<Tile>;

  // What the rows see in a head of q; the pieces are of head `step_head`. Each lane has one of 32
  // pieces, and reads its next entry that many ahead.
  template <Role kRole>
  __device__ __forceinline__ void fill_stages(const AttentionItem& item, int head, int step_head) {
    Columns columns(args_.mask, args_.lists, item.batch, head, args_.rows, args_.columns,
                    args_.is_causal, item.row, Tile::kRows);
    if (Tile::kSplits && item.part >= 0) {
      columns.take_part(item.part % args_.parts.count, args_.parts.count);
    }
    const int stages = (columns.pieces + Tile::kPieces - 1) / Tile::kPieces;
    const int lane = threadIdx.x % 32;
    constexpr int kAtOnce = 32 / Tile::kPieces;  // stages
    const int block_row = Writer::consumer() * Tile::kWarpRows / args_.mask.block_m;
    int entry = columns.entry(lane);
    ColumnPiece own = {0, 0};
    for (int stage = 0; stage < stages; ++stage) {
      if (stage % kAtOnce == 0) {
        const int i = stage * Tile::kPieces + lane;
        own = columns.piece(i, entry, args_.columns);
        entry = columns.entry(i + 32);
      }
      const int first = stage % kAtOnce * Tile::kPieces;
      mbarrier_wait(shared_.empty(at_.stage), at_.parity ^ 1);
      if constexpr (kRole == kLists) {
        list_pieces(own, first, block_row);
      } else {
        const int count = min(Tile::kPieces, columns.pieces - stage * Tile::kPieces);
        copy_pieces<kRole>(own.column, first, count, step_head, item.batch);
      }
      at_.advance();
    }
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
      constexpr int kValueBytes = kRole == kCopiesK ? Tile::kValueBytes : 0;
      mbarrier_arrive_expect(full, count * (Tile::kPieceBytes + kValueBytes));
      if constexpr (kValueBytes > 0) {
        const int64_t begin =
            (int64_t{batch} * args_.heads * args_.group + head) * args_.padded_rows;
#pragma unroll
        for (int i = 0; i < Tile::kPieces; ++i) {
          if (i >= count) break;
          const uint32_t values = shared_.values(to + i * Tile::kPieceLineBytes);
          bulk_load(values, args_.lse + begin + column[i], kValueBytes / 2, full);
          bulk_load(values + kValueBytes / 2, args_.delta + begin + column[i], kValueBytes / 2,
                    full);
        }
      }
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

  // Gives the stage back in the name of consumers that see nothing in it. `block_row`: of the
  // lane's consumer, in the tile.
  __device__ __forceinline__ void list_pieces(ColumnPiece own, int first, int block_row) {
    int column[Writer::kShare];
    unsigned seen = 0;
#pragma unroll
    for (int i = 0; i < Writer::kShare; ++i) {
      const int from = first + Writer::piece(i);
      column[i] = __shfl_sync(~0u, own.column, from);
      seen |= (__shfl_sync(~0u, own.block_rows, from) >> block_row & 1) << i;
    }
    const int others = steps_.add(at_, seen, column);
    if (others > 0 && elect_one()) mbarrier_arrive(shared_.empty(at_.stage), others);
    __syncwarp();
  }

  const Arguments& args_;
  const WarpRowsShared<Tile> shared_;
  typename Tile::Queue queue_;
  RingPlace<Tile::kStages> at_;
  Writer steps_;  // the lister's
};

}  // namespace sparse_autotune
