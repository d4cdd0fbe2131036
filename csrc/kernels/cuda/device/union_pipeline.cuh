// What the warps of the union family do: one finds groups of block rows and columns of C to work
// on, one keeps copies of B's tiles under way, the others multiply. They meet at a ring in shared
// memory, whose stages hold B's tiles for some of the block columns that a group has blocks in.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/block_stream.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/strip_store.cuh"
#include "kernels/cuda/device/tile_queue.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "variant.h"

namespace sparse_autotune {

// A tile of C: kGroup block rows by kN columns. A warp owns kWarpRows of the block rows and one
// kWarpsN-th of the columns.
template <int kGroupRows, int kRows, int kDepth, int kWarpBlockRows, int kWarpsAcross,
          int kStageColumns, int kStageCount, int kBlocksAhead, int kStoreBuffers,
          int kProducerWarps = 1>
struct UnionTile {
  static constexpr int kGroup = kGroupRows, kBlockM = kRows, kBlockK = kDepth;
  static constexpr int kWarpRows = kWarpBlockRows, kWarpsN = kWarpsAcross;
  static constexpr int kColumns = kStageColumns, kStages = kStageCount;  // a stage's block columns
  static constexpr int kBlockSlots = kBlocksAhead;  // of a block row's BlockStream
  static constexpr int kStoreParts = kStoreBuffers;
  static constexpr int kProducers = kProducerWarps;  // warps

  static constexpr int kN = 128, kM = kGroup * kBlockM;
  static constexpr int kWarpM = kWarpRows * kBlockM, kWarpN = kN / kWarpsN;
  static constexpr int kWarps = kGroup / kWarpRows * kWarpsN;  // that multiply
  static constexpr int kThreads = 128 + kWarps * 32;
  // What is launched is divided up anew: whole warpgroups, and registers in units of 8.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kWarps == 8 ? 40 : 32;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * kThreads - kProducerRegisters * 128) / (kWarps * 32) / 8 * 8;

  static constexpr int kTileBytes = kBlockK * kN * 2;  // of B
  static constexpr int kStageBytes = kColumns * kTileBytes;
  static constexpr int kBlockBytes = kBlockM * kBlockK * 2;
  static constexpr int kStoreBytes = kM * kLineBytes * kWarpsN * kStoreParts;
  static constexpr int kStreamBytes = kGroup * kWarpsN * kBlockSlots * kBlockBytes;
  // Stages before the end of a tile at which the next is asked for.
  static constexpr int kAskAhead = 6;
  using Queue = TileQueue<kProducers + kWarps, kProducers + kWarps>;
  static constexpr int kBarriers = 2 * kStages + 1;
  static constexpr int kSharedBytes = kSwizzleAlignment + kStages * kStageBytes + kStoreBytes +
                                      kStreamBytes + Queue::kBytes + kBarriers * 8;
  static_assert(kWarps % 4 == 0 && 32 % kColumns == 0 && kGroup < 32 && kWarpRows <= 2);
};

struct UnionArguments {
  // B row-major as 64 columns, k, n / 64 and batch if n is a multiple of 64; otherwise B and C with
  // the batch as third dimension.
  CUtensorMap b, c;
  const void* values;
  const void* crow_indices;
  const void* positions;  // Launch::positions
  const void* bias;
  const GroupColumn* columns;
  Panels panels;
  int m, n, block_rows;
  Activation activation;
  bool wide_indices, c_rows, b_batched, b_whole;  // b_whole: n is a multiple of 64
};

template <typename Tile>
struct UnionShared {
  uint32_t b, store, streams, queue, barriers;

  __device__ __forceinline__ explicit UnionShared(uint32_t begin) {
    b = (begin + kSwizzleAlignment - 1) & ~static_cast<uint32_t>(kSwizzleAlignment - 1);
    store = b + Tile::kStages * Tile::kStageBytes;
    streams = store + Tile::kStoreBytes;
    queue = streams + Tile::kStreamBytes;
    barriers = queue + Tile::Queue::kBytes;
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const { return b + i * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(Tile::kStages + i); }
  __device__ __forceinline__ uint32_t asked() const { return full(2 * Tile::kStages); }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), Tile::kWarps);
    }
    mbarrier_init(asked(), 1);
    typename Tile::Queue(queue).init_barriers();
    mbarrier_init_fence();
  }
};

__device__ __forceinline__ int load_column(const UnionArguments& args, int i, int end) {
  return i < end ? __ldg(&args.columns[i].column) : 0;
}
__device__ __forceinline__ uint32_t load_rows(const UnionArguments& args, int i, int end) {
  return i < end ? __ldg(&args.columns[i].rows) : 0;
}

// One warp: finds the next tile when it is asked to. With it go its first 32 block columns and, as
// positions, where each of its block rows begins and ends among the blocks.
template <typename Tile>
__device__ __forceinline__ void schedule(const UnionArguments& args,
                                         const UnionShared<Tile>& shared) {
  const int lane = threadIdx.x % 32;
  typename Tile::Queue queue(shared.queue);
  TileTask task{.valid = true};
  for (unsigned turn = 0; task.valid; ++turn) {
    if (turn > 0) mbarrier_wait(shared.asked(), (turn - 1) % 2);
    unsigned tile = lane == 0 ? next_tile(args.panels, turn) : 0;
    tile = __shfl_sync(~0u, tile, 0);
    task.valid = tile < args.panels.tiles;
    BlockPlace place;
    if (task.valid) {
      const TilePlace at = locate(args.panels, tile);
      const int4 group = __ldg(reinterpret_cast<const int4*>(args.panels.order) + at.row);
      task.row = group.x * Tile::kM;
      task.begin = group.y;
      task.end = group.z;
      task.column = static_cast<int>(at.column) * Tile::kN;
      task.batch = static_cast<int>(at.batch);
      place.column = load_column(args, task.begin + lane, task.end);
      place.position =
          load_narrow_index(args.crow_indices, min(group.x * Tile::kGroup + lane, args.block_rows),
                            args.wide_indices);
    }
    queue.push(task, place);
  }
}

// Warp `which` of Tile::kProducers: they keep the ring full, each with its share of a stage's
// columns, as issuing copies takes time. Columns are fetched a batch of 32 ahead.
template <typename Tile, bool kRowMajorB>
__device__ __forceinline__ void produce(const UnionArguments& args, const UnionShared<Tile>& shared,
                                        int which) {
  constexpr int kShare = Tile::kColumns / Tile::kProducers;
  const int lane = threadIdx.x % 32;
  typename Tile::Queue queue(shared.queue);
  RingPlace<Tile::kStages> at;
  int ask_ahead = INT32_MAX;  // the second tile is asked for at once
  BlockPlace place;
  for (TileTask task = queue.pop(&place); task.valid; task = queue.pop(&place)) {
    const int batch = args.b_batched ? task.batch : 0;
    int left = (task.end - task.begin + Tile::kColumns - 1) / Tile::kColumns;
    const int ask_at = min(left, ask_ahead);
    ask_ahead = Tile::kAskAhead;
    if (left == 0 && which == 0 && lane == 0) mbarrier_arrive(shared.asked());
    int columns = place.column;
    for (int begin = task.begin; begin < task.end; begin += 32) {
      const int following = load_column(args, begin + 32 + lane, task.end);
      const int many = min(task.end - begin, 32);
      for (int first = 0; first < many; first += Tile::kColumns, --left) {
        if (left == ask_at && which == 0 && lane == 0) mbarrier_arrive(shared.asked());
        const int count = min(many - first, Tile::kColumns);
        int k[kShare];
#pragma unroll
        for (int i = 0; i < kShare; ++i) {
          k[i] = __shfl_sync(~0u, columns, first + which * kShare + i) * Tile::kBlockK;
        }
        const uint32_t full = shared.full(at.stage);
        const uint32_t to = shared.stage(at.stage) + which * kShare * Tile::kTileBytes;
        mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
        __syncwarp();
        if (elect_one()) {
          // The stage is not full before this, even if another's copies have landed.
          if (which == 0) mbarrier_arrive_expect(full, count * Tile::kTileBytes);
#pragma unroll
          for (int i = 0; i < kShare; ++i) {
            if (which * kShare + i >= count) break;
            const uint32_t tile = to + i * Tile::kTileBytes;
            if constexpr (!kRowMajorB) {
              tma_load(tile, args.b, full, k[i], task.column, batch);
            } else if (args.b_whole) {
              tma_load(tile, args.b, full, 0, k[i], task.column / kLineHalves, batch);
            } else {
              tma_load(tile, args.b, full, task.column, k[i], batch);
              tma_load(tile + Tile::kTileBytes / 2, args.b, full, task.column + kLineHalves, k[i],
                       batch);
            }
          }
        }
        at.advance();
      }
      columns = following;
    }
  }
}

// Multiplies blocks of one column, kTall * 16 rows in all, with the column's tile of B: all of the
// warp's columns.
template <typename T, typename Tile, bool kRowMajorB, int kTall>
__device__ __forceinline__ void multiply(float (*sum)[Tile::kWarpN / 8][4],
                                         const uint32_t (&a)[Tile::kBlockK / 16][kTall][4],
                                         uint32_t tile, const uint32_t (&offset)[4]) {
#pragma unroll
  for (int step = 0; step < Tile::kBlockK / 16; ++step) {
#pragma unroll
    for (int j = 0; j < Tile::kWarpN / 16; ++j) {
      uint32_t b[4];
      if constexpr (kRowMajorB) {
        ldmatrix_transposed(
            b, tile + offset[j % 4] + step * 16 * kLineBytes + j / 4 * Tile::kBlockK * kLineBytes);
      } else {
        ldmatrix(b, tile + offset[step] + j * 16 * Tile::kBlockK * 2);
      }
#pragma unroll
      for (int i = 0; i < kTall; ++i) {
        mma<T>(sum[i][2 * j], a[step][i], b);
        mma<T>(sum[i][2 * j + 1], a[step][i], b + 2);
      }
    }
  }
}

// Where this lane reads B's tiles: for each 16 columns of 64 (row-major), or each 16 k.
template <typename Tile, bool kRowMajorB>
__device__ __forceinline__ void b_offsets(int part, uint32_t (&offset)[4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if constexpr (kRowMajorB) {
      offset[i] = part * (Tile::kWarpN / kLineHalves) * Tile::kBlockK * kLineBytes +
                  lane % 16 * kLineBytes + ((2 * i + lane / 16) ^ lane % 8) * 16;
    } else {
      offset[i] = chunk_offset<Tile::kBlockK * 2>(part * Tile::kWarpN + lane / 16 * 8 + lane % 8,
                                                  (2 * i + lane / 8 % 2) % (Tile::kBlockK / 8));
    }
  }
}

// One of the warps that multiply.
template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
__device__ __forceinline__ void consume(const UnionArguments& args, const UnionShared<Tile>& shared,
                                        int warp) {
  constexpr int kFragments = Tile::kBlockM / 16;
  using Stream = BlockStream<Tile, kTransposedA>;
  const int lane = threadIdx.x % 32;
  const int first_row = warp / Tile::kWarpsN * Tile::kWarpRows, part = warp % Tile::kWarpsN;
  uint32_t offset[4];
  b_offsets<Tile, kRowMajorB>(part, offset);
  RingPlace<Tile::kStages> at;
  typename Tile::Queue queue(shared.queue);
  StripStore<T, Tile> store(shared.store, warp);
  Stream streams[Tile::kWarpRows];
#pragma unroll
  for (int r = 0; r < Tile::kWarpRows; ++r) {
    streams[r].init(shared.streams + (warp * Tile::kWarpRows + r) * Stream::kBytes);
  }

  uint32_t rows = 0;  // of this lane's column: the group's rows with a block in it
  const auto start = [&]() {
    BlockPlace place;
    const TileTask task = queue.pop(&place);
    if (!task.valid) return task;
    rows = load_rows(args, task.begin + lane, task.end);
#pragma unroll
    for (int r = 0; r < Tile::kWarpRows; ++r) {
      const int begin = __shfl_sync(~0u, place.position, first_row + r);
      const int end = __shfl_sync(~0u, place.position, first_row + r + 1);
      streams[r].start(args, begin, end);
    }
    return task;
  };

  for (TileTask task = start(); task.valid;) {
    float sum[Tile::kWarpM / 16][Tile::kWarpN / 8][4] = {};
    for (int begin = task.begin; begin < task.end; begin += 32) {
      uint32_t present[Tile::kWarpRows];  // bit i: the row has a block in column begin + i
#pragma unroll
      for (int r = 0; r < Tile::kWarpRows; ++r) {
        present[r] = __ballot_sync(~0u, rows >> (first_row + r) & 1);
      }
      rows = load_rows(args, begin + 32 + lane, task.end);
      const int many = min(task.end - begin, 32);
      for (int first = 0; first < many; first += Tile::kColumns) {
        mbarrier_wait(shared.full(at.stage), at.parity);
        const uint32_t tiles = shared.stage(at.stage);
        const uint32_t any = present[0] | present[Tile::kWarpRows - 1];
        uint32_t left = any >> first & ((1u << Tile::kColumns) - 1);
        while (left != 0) {
          const int column = __ffs(static_cast<int>(left)) - 1;
          left &= left - 1;
          const uint32_t tile = tiles + column * Tile::kTileBytes;
          if constexpr (Tile::kWarpRows == 2) {
            const bool upper = present[0] >> (first + column) & 1;
            const bool lower = present[1] >> (first + column) & 1;
            if (upper && lower) {  // they share what is loaded of B
              uint32_t a[Tile::kBlockK / 16][2 * kFragments][4];
              streams[0].template take<0>(a);
              streams[1].template take<kFragments>(a);
              multiply<T, Tile, kRowMajorB>(sum, a, tile, offset);
              streams[0].refill(args);
              streams[1].refill(args);
              continue;
            }
            if (lower) {
              uint32_t a[Tile::kBlockK / 16][kFragments][4];
              streams[1].template take<0>(a);
              multiply<T, Tile, kRowMajorB>(sum + kFragments, a, tile, offset);
              streams[1].refill(args);
              continue;
            }
          }
          uint32_t a[Tile::kBlockK / 16][kFragments][4];
          streams[0].template take<0>(a);
          multiply<T, Tile, kRowMajorB>(sum, a, tile, offset);
          streams[0].refill(args);
        }
        __syncwarp();
        if (lane == 0) mbarrier_arrive(shared.empty(at.stage));
        at.advance();
      }
    }
    const TileTask done = task;
    task = start();  // its first blocks are on their way while this tile leaves
    store.write(args, sum, done.row, done.column, done.batch);
  }
  store.close();
}

}  // namespace sparse_autotune
