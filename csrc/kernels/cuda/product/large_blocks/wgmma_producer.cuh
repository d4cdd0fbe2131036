// The two warps of a wgmma kernel that bring operands: one finds tiles of C to work on, one keeps
// TMA copies to the rings of wgmma_tile.cuh under way, across the ends of tiles of C.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/product/large_blocks/wgmma_tile.cuh"

namespace sparse_autotune {

// Of a pair's columns, the rows stand in for the position.
template <bool kTransposedA, bool kPairs>
__device__ __forceinline__ BlockPlace load_place(const WgmmaArguments& args, int block, int end) {
  BlockPlace place;
  if constexpr (kPairs) {
    const int2 found = load_group_column(args.columns, block, end);
    place.column = found.x;
    place.position = found.y;
  } else if (block < end) {
    place.column = load_narrow_index(args.col_indices, block, args.wide_indices);
    if constexpr (kTransposedA) {
      place.position = load_narrow_index(args.positions, block, args.wide_indices);
    }
  }
  return place;
}

// The next tile's number, by one thread: of a cluster's thread blocks the first finds it.
template <typename Tile>
__device__ __forceinline__ unsigned next_tile_of(const Panels& panels, const Shared<Tile>& shared,
                                                 unsigned turn) {
  if constexpr (Tile::kCluster == 1) {
    return next_tile(panels, turn);
  } else if (cluster_rank() == 0) {
    const unsigned tile =
        next_tile(panels, turn, blockIdx.x / Tile::kCluster, gridDim.x / Tile::kCluster);
    mbarrier_wait(shared.mail_empty(), turn % 2 ^ 1);
    cluster_store(in_block(shared.mail(), 1), tile, in_block(shared.mail_full(), 1));
    return tile;
  } else {
    mbarrier_arrive_expect(shared.mail_full(), 4);
    mbarrier_wait(shared.mail_full(), turn % 2);
    const auto tile = load_shared<unsigned>(shared.mail());
    cluster_arrive(in_block(shared.mail_empty(), 0));
    return tile;
  }
}

// One warp: finds the next tile to work on when it is asked to. Finding tiles earlier would hand
// out the last ones while nobody knows who will be free first.
template <typename Tile, bool kTransposedA>
__device__ __forceinline__ void schedule(const WgmmaArguments& args, const Shared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  const auto strips = static_cast<unsigned>(args.strips);
  Queue queue(shared.queue());
  TileTask task{.valid = true};
  for (unsigned turn = 0; task.valid; ++turn) {
    if (turn > 0) mbarrier_wait(shared.asked(), (turn - 1) % 2);
    unsigned tile = lane == 0 ? next_tile_of(args.panels, shared, turn) : 0;
    tile = __shfl_sync(~0u, tile, 0);
    task.valid = tile < args.panels.tiles;
    BlockPlace block;
    if (task.valid) {
      const TilePlace place = locate(args.panels, tile);
      const OrderedRow found = row_of_order(args, place.row / strips);
      const int strip = static_cast<int>(place.row % strips) * Tile::kM;
      int row = found.row;
      task.begin = found.begin;
      task.end = found.end;
      task.slot = found.slot;
      task.column = static_cast<int>(place.column) * Tile::kN * Tile::kCluster;
      if constexpr (Tile::kCluster > 1) task.column += static_cast<int>(cluster_rank()) * Tile::kN;
      task.batch = static_cast<int>(place.batch);
      task.strip = strip;
      if constexpr (Tile::kPairs) {
        const int2 pair = load_pair(args.pairs, row);
        const int second = max(pair.y, 0);
        row = pair.x;
        task.slot = pair.y;
        // Each row's first block.
        task.strip = load_narrow_index(args.crow_indices, row, args.wide_indices);
        task.other = load_narrow_index(args.crow_indices, second, args.wide_indices);
      }
      task.row = row * args.block_m + strip;
      block = load_place<kTransposedA, Tile::kPairs>(args, task.begin + lane, task.end);
    }
    queue.push(task, block);
  }
}

// One warp: keeps the rings full. Places of blocks are fetched a batch of 32 ahead.
template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
struct WgmmaProducer {
  static_assert(!(Tile::kPairs && kTransposedA), "pairs are of A's own block rows");
  static constexpr int kStep = kStepOf<T>;
  static constexpr uint16_t kAll = (1 << Tile::kCluster) - 1;  // thread blocks of the cluster
  const WgmmaArguments& args;
  const Shared<Tile>& shared;
  RingPlace<Tile::kStagesA> at_a{};
  RingPlace<Tile::kStagesB> at_b{}, turn_b{};
  int left = 0, ask_at = 0;  // steps of the tile; of these, when the next tile is asked for

  __device__ __forceinline__ void run() {
    Queue queue(shared.queue());
    int ask_ahead = INT32_MAX;  // the second tile is asked for at once
    BlockPlace places;
    for (TileTask task = queue.pop(&places); task.valid; task = queue.pop(&places)) {
      left = (task.end - task.begin) * (args.block_k / kStep);
      ask_at = min(left, ask_ahead);
      ask_ahead = Tile::kAskAhead;
      if (left == 0 && threadIdx.x % 32 == 0) mbarrier_arrive(shared.asked());
      copy_tile(task, places);
    }
  }

  __device__ __forceinline__ void copy_tile(const TileTask& task, BlockPlace& places) {
    const int lane = threadIdx.x % 32;
    const int batch = args.b_batched ? task.batch : 0;
    int next[] = {task.strip, task.other};  // of a pair: each row's next block
    for (int block = task.begin; block < task.end;) {
      const int batch_end = min(block + 32, task.end);
      const BlockPlace following =
          load_place<kTransposedA, Tile::kPairs>(args, block + 32 + lane, task.end);
      int of_row[] = {places.position, 0};  // positions in values
      if constexpr (Tile::kPairs) find_pair(places.position, next, of_row);
      for (int i = 0; block < batch_end; ++i, ++block) {
        const int k0 = __shfl_sync(~0u, places.column, i) * args.block_k;
        // The block's first row in values.
        Rows rows{block * args.block_m + task.strip, 0, 0};
        if constexpr (Tile::kPairs || kTransposedA) {
          const int lines = kTransposedA ? args.block_k : args.block_m;
          rows.first = __shfl_sync(~0u, of_row[0], i) * lines;
          if constexpr (Tile::kPairs) {
            rows.second = __shfl_sync(~0u, of_row[1], i) * lines;
            rows.stored = __shfl_sync(~0u, places.position, i);
          }
        }
        copy_block(task, rows, k0, batch);
      }
      places = following;
    }
  }

  // First rows in values of a block, or of a pair's blocks, of which bit i of `stored` says that
  // row i has one.
  struct Rows {
    int first, second, stored;
  };

  // Where the pair's blocks of this lane's column lie in values. `next`: each row's next block.
  __device__ __forceinline__ void find_pair(int stored, int (&next)[2], int (&found)[2]) const {
    const uint32_t before = (1u << threadIdx.x % 32) - 1;
#pragma unroll
    for (int row = 0; row < 2; ++row) {
      const bool has = (stored >> row & 1) != 0;
      const uint32_t all = __ballot_sync(~0u, has);
      found[row] = next[row] + __popc(all & before);
      next[row] += __popc(all);
    }
  }

  __device__ __forceinline__ void copy_block(const TileTask& task, const Rows& rows, int k0,
                                             int batch) {
    for (int k = 0; k < args.block_k; k += kStep, --left) {
      if (left == ask_at && threadIdx.x % 32 == 0) mbarrier_arrive(shared.asked());
      copy_a(task, rows, k);
#pragma unroll
      for (int part = 0; part < Tile::kPartsB; ++part) {
        copy_b(task.column + part * Tile::kWidth, part, k0 + k, batch);
      }
      turn_b.advance();
    }
  }

  __device__ __forceinline__ void copy_a(const TileTask& task, const Rows& rows, int k) {
    mbarrier_wait(shared.a_empty(at_a.stage), at_a.parity ^ 1);
    __syncwarp();
    if (elect_one()) {
      const uint32_t full = shared.a_full(at_a.stage);
      const uint32_t to = shared.a_tile(at_a.stage);
      if constexpr (Tile::kPairs) {
        shared.set_rows(at_a.stage, rows.stored);
        mbarrier_arrive_expect(full, __popc(rows.stored) * (Tile::kBytesA / 2));
        if (rows.stored & 1) copy_row(0, to, full, rows.first, k);
        if (rows.stored & 2) copy_row(1, to + Tile::kBytesA / 2, full, rows.second, k);
      } else {
        mbarrier_arrive_expect(full, Tile::kBytesA);
        if constexpr (Tile::kCluster > 1) {
          const uint32_t rank = cluster_rank();
          tma_load_to(kAll, to + rank * Tile::kBytesA / 2, args.a_map, full, k,
                      rows.first + static_cast<int>(rank) * Tile::kM / 2);
        } else if constexpr (kTransposedA) {
          tma_load(to, args.a_map, full, 0, rows.first + k, task.strip / kLineHalves);
        } else {
          tma_load(to, args.a_map, full, k, rows.first);
        }
      }
    }
    at_a.advance();
  }

  // Of a pair's two rows, `which`: to all of the cluster, by one of its thread blocks.
  __device__ __forceinline__ void copy_row(uint32_t which, uint32_t to, uint32_t full, int row,
                                           int k) {
    if constexpr (Tile::kCluster > 1) {
      if (cluster_rank() == which) tma_load_to(kAll, to, args.a_map, full, k, row);
    } else {
      tma_load(to, args.a_map, full, k, row);
    }
  }

  __device__ __forceinline__ void copy_b(int n, int part, int k, int batch) {
    mbarrier_wait(shared.b_empty(at_b.stage), at_b.parity ^ 1);
    __syncwarp();
    if (elect_one()) {
      const uint32_t full = shared.b_full(part, turn_b.stage);
      const uint32_t to = shared.b_tile(at_b.stage);
      if constexpr (kRowMajorB) {
        load_boxes(to, full, n, k, batch);
      } else {
        mbarrier_arrive_expect(full, Tile::kBytesB);
        tma_load(to, args.b_map, full, k, n, batch);
      }
    }
    at_b.advance();
  }

  // Boxes beyond the last column stay away: what they leave is never stored.
  __device__ __forceinline__ void load_boxes(uint32_t to, uint32_t full, int n, int k, int batch) {
    const int boxes = min(max((args.n - n + 63) / 64, 0), Tile::kWidth / 64);
    mbarrier_arrive_expect(full, boxes * kStepK * kLineBytes);
#pragma unroll
    for (int box = 0; box < Tile::kWidth / 64; ++box) {
      if (box < boxes) {
        tma_load(to + box * kStepK * kLineBytes, args.b_map, full, n + box * 64, k, batch);
      }
    }
  }
};

}  // namespace sparse_autotune
