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

// A tile of C: kGroup block rows by kN columns. A warp owns one of the block rows and one
// kWarpsN-th of the columns.
template <typename Config, bool kRowMajor>
struct UnionTile : Config {
  using Config::kBlockK;
  using Config::kBlockM;
  using Config::kColumns;  // block columns whose tiles a stage of the ring has room for
  using Config::kGroup;
  using Config::kN;
  using Config::kStages;
  static constexpr bool kRowMajorB = kRowMajor;
  static constexpr int kWarpsN = Config::kWarpsAcross;
  static constexpr int kBlockSlots = Config::kBlocksAhead;  // of a block row's BlockStream

  static constexpr int kM = kGroup * kBlockM, kWarpM = kBlockM, kWarpN = kN / kWarpsN;
  static constexpr int kWarps = kGroup * kWarpsN;  // that multiply
  static constexpr int kThreads = 128 + kWarps * 32;
  // What is launched is divided up anew: whole warpgroups, and registers in units of 8.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kWarps == 8 ? 40 : 32;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * kThreads - kProducerRegisters * 128) / (kWarps * 32) / 8 * 8;

  // Copies of B are of spans: a block column's tile if B is row-major; if it is column-major whole
  // lines of 64 k, as shorter ones take as long, with what block columns of the span are absent.
  static constexpr int kSpan = kRowMajorB ? 1 : kLineHalves / kBlockK;  // block columns
  static constexpr int kSpans = kColumns / kSpan;                       // of a stage
  static constexpr int kTileBytes = kBlockK * kN * 2;                   // of a block column
  static constexpr int kSpanBytes = kSpan * kTileBytes;
  static constexpr int kStageBytes = kColumns * kTileBytes;
  static constexpr int kProducers = kRowMajorB ? Config::kProducerWarps : 1;

  static constexpr int kBlockBytes = kBlockM * kBlockK * 2;
  static constexpr int kStoreParts = Config::kStoreBuffers;
  static constexpr int kStoreBytes = kM * kLineBytes * kWarpsN * kStoreParts;
  static constexpr int kStreamBytes = kWarps * kBlockSlots * kBlockBytes;
  // Block columns before the end of a tile at which the next is asked for.
  static constexpr int kAskAhead = 6 * kColumns;
  using Queue = TileQueue<kProducers + kWarps, kProducers + kWarps>;
  static constexpr int kBarriers = 2 * kStages + 1;
  static constexpr int kSharedBytes = kSwizzleAlignment + kStages * kStageBytes + kStoreBytes +
                                      kStreamBytes + Queue::kBytes + kBarriers * 8;
  static_assert(kWarps % 4 == 0 && 32 % kColumns == 0 && kColumns < 32 && kGroup < 32);
  static_assert(kColumns % kSpan == 0 && kColumns % kProducers == 0);
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

// A block column and the group's rows with a block in it; of no row behind the last.
__device__ __forceinline__ int2 load_column(const UnionArguments& args, int i, int end) {
  return i < end ? __ldg(reinterpret_cast<const int2*>(args.columns + i)) : int2{};
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
      place.column = load_column(args, task.begin + lane, task.end).x;
      place.position =
          load_narrow_index(args.crow_indices, min(group.x * Tile::kGroup + lane, args.block_rows),
                            args.wide_indices);
    }
    queue.push(task, place);
  }
}

// Warp `which` of Tile::kProducers: they keep the ring full, each with its share of a stage's
// columns, as issuing copies takes time. Columns are fetched a batch of 32 ahead.
template <typename Tile>
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
    bool asks = which == 0;
    const auto ask = [&](int columns_left) {
      if (!asks || columns_left > ask_ahead) return;
      if (lane == 0) mbarrier_arrive(shared.asked());
      asks = false;
    };
    int columns = place.column;
    int filled = 0, last = -1;  // spans in the stage, and the last of them
    for (int begin = task.begin; begin < task.end; begin += 32) {
      const int following = load_column(args, begin + 32 + lane, task.end).x;
      const int many = min(task.end - begin, 32);
      if constexpr (Tile::kSpan > 1) {
        const int span = columns / Tile::kSpan;
        const int before = __shfl_up_sync(~0u, span, 1);
        uint32_t starts = __ballot_sync(~0u, lane < many && span != (lane == 0 ? last : before));
        last = __shfl_sync(~0u, span, many - 1);
        while (starts != 0) {
          const int i = __ffs(static_cast<int>(starts)) - 1;
          starts &= starts - 1;
          ask(task.end - begin - i);
          const int k = __shfl_sync(~0u, span, i) * kLineHalves;
          const uint32_t full = shared.full(at.stage);
          if (filled == 0) mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
          __syncwarp();
          if (elect_one()) {
            mbarrier_expect(full, Tile::kSpanBytes);
            tma_load(shared.stage(at.stage) + filled * Tile::kSpanBytes, args.b, full, k,
                     task.column, batch);
            if (filled == Tile::kSpans - 1) mbarrier_arrive(full);
          }
          if (++filled == Tile::kSpans) {
            filled = 0;
            at.advance();
          }
        }
      } else {
        for (int first = 0; first < many; first += Tile::kColumns) {
          ask(task.end - begin - first);
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
              if (args.b_whole) {
                tma_load(tile, args.b, full, 0, k[i], task.column / kLineHalves, batch);
                continue;
              }
#pragma unroll
              for (int n = 0; n < Tile::kN; n += kLineHalves) {
                tma_load(tile + n * Tile::kBlockK * 2, args.b, full, task.column + n, k[i], batch);
              }
            }
          }
          at.advance();
        }
      }
      columns = following;
    }
    if (filled != 0) {
      if (elect_one()) mbarrier_arrive(shared.full(at.stage));
      at.advance();
    }
    ask(0);
    ask_ahead = Tile::kAskAhead;
  }
}

// Where tiles of B that a batch of block columns needs lie in the ring. Bit i of each word is of
// the batch's column i.
template <typename Tile>
struct SpanMap {
  uint32_t begins;           // a stage of the ring begins here
  uint32_t slot, part;       // of a stage's spans, of a span's block columns: the number's bit 0
  uint32_t part_high;        // bit 1
  int spans = 0, last = -1;  // of the tile, up to this batch

  __device__ __forceinline__ void next_batch(int column, int many) {
    const int lane = threadIdx.x % 32;
    static_assert(Tile::kSpan <= 4 && Tile::kSpans == 2);
    const int span = column / Tile::kSpan;
    const int before = __shfl_up_sync(~0u, span, 1);
    const bool starts = lane < many && span != (lane == 0 ? last : before);
    const uint32_t all = __ballot_sync(~0u, starts);
    const int number = spans + __popc(all & ((2u << lane) - 1)) - 1;
    begins = __ballot_sync(~0u, starts && number % 2 == 0);
    slot = __ballot_sync(~0u, number & 1);
    part = __ballot_sync(~0u, column & 1);
    part_high = __ballot_sync(~0u, Tile::kSpan == 4 && (column & 2));
    spans += __popc(all);
    last = __shfl_sync(~0u, span, many - 1);
  }
  __device__ __forceinline__ uint32_t tile(int i) const {
    return (slot >> i & 1) * Tile::kSpanBytes;
  }
  // What the part's number changes in the address within a swizzled line.
  __device__ __forceinline__ uint32_t flip(int i) const {
    return ((part >> i & 1) + 2 * (part_high >> i & 1)) * Tile::kBlockK * 2;
  }
};

// Multiplies a block with its tile of B: all of the warp's columns.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply(
    float (&sum)[Tile::kBlockM / 16][Tile::kWarpN / 8][4],
    const uint32_t (&a)[Tile::kBlockK / 16][Tile::kBlockM / 16][4], uint32_t tile, uint32_t flip,
    const uint32_t (&offset)[4]) {
#pragma unroll
  for (int step = 0; step < Tile::kBlockK / 16; ++step) {
#pragma unroll
    for (int j = 0; j < Tile::kWarpN / 16; ++j) {
      uint32_t b[4];
      if constexpr (Tile::kRowMajorB) {
        ldmatrix_transposed(
            b, tile + offset[j % 4] + step * 16 * kLineBytes + j / 4 * Tile::kBlockK * kLineBytes);
      } else {
        ldmatrix(b, (tile + offset[step] ^ flip) + j * 16 * kLineBytes);
      }
#pragma unroll
      for (int i = 0; i < Tile::kBlockM / 16; ++i) {
        mma<T>(sum[i][2 * j], a[step][i], b);
        mma<T>(sum[i][2 * j + 1], a[step][i], b + 2);
      }
    }
  }
}

// Where this lane reads B's tiles: for each 16 columns of 64 (row-major), or each 16 k.
template <typename Tile>
__device__ __forceinline__ void b_offsets(int part, uint32_t (&offset)[4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if constexpr (Tile::kRowMajorB) {
      offset[i] = part * (Tile::kWarpN / kLineHalves) * Tile::kBlockK * kLineBytes +
                  lane % 16 * kLineBytes + ((2 * i + lane / 16) ^ lane % 8) * 16;
    } else {
      offset[i] = (part * Tile::kWarpN + lane / 16 * 8 + lane % 8) * kLineBytes +
                  ((2 * i + lane / 8 % 2) ^ lane % 8) * 16;
    }
  }
}

// One of the warps that multiply.
template <typename T, typename Tile, bool kTransposedA>
__device__ __forceinline__ void consume(const UnionArguments& args, const UnionShared<Tile>& shared,
                                        int warp) {
  using Stream = BlockStream<Tile, kTransposedA>;
  const int lane = threadIdx.x % 32, row = warp / Tile::kWarpsN;
  uint32_t offset[4];
  b_offsets<Tile>(warp % Tile::kWarpsN, offset);
  RingPlace<Tile::kStages> at;
  typename Tile::Queue queue(shared.queue);
  StripStore<T, Tile> store(shared.store, warp);
  Stream stream(shared.streams + warp * Stream::kBytes);

  int2 column{};  // this lane's of the next batch of 32
  const auto start = [&]() {
    BlockPlace place;
    const TileTask task = queue.pop(&place);
    if (task.valid) {
      column = load_column(args, task.begin + lane, task.end);
      const int begin = __shfl_sync(~0u, place.position, row);
      const int end = __shfl_sync(~0u, place.position, row + 1);
      stream.start(args, begin, end);
    }
    return task;
  };
  const auto release = [&]() {
    __syncwarp();
    if (lane == 0) mbarrier_arrive(shared.empty(at.stage));
    at.advance();
  };

  for (TileTask task = start(); task.valid;) {
    float sum[Tile::kWarpM / 16][Tile::kWarpN / 8][4] = {};
    SpanMap<Tile> map;
    for (int begin = task.begin; begin < task.end; begin += 32) {
      const int many = min(task.end - begin, 32);
      const uint32_t present = __ballot_sync(~0u, column.y >> row & 1);
      if constexpr (Tile::kSpan > 1) map.next_batch(column.x, many);
      column = load_column(args, begin + 32 + lane, task.end);
      for (int first = 0; first < many;) {
        uint32_t left;
        if constexpr (Tile::kSpan > 1) {
          if (map.begins >> first & 1) {
            if (begin + first > task.begin) release();
            mbarrier_wait(shared.full(at.stage), at.parity);
          }
          // Up to where the next stage begins.
          const uint32_t later = map.begins & ~((2u << first) - 1);
          left = present & ((later & -later) - 1) & ~((1u << first) - 1);
          first = later != 0 ? __ffs(static_cast<int>(later)) - 1 : 32;
        } else {
          mbarrier_wait(shared.full(at.stage), at.parity);
          left = present & ((1u << Tile::kColumns) - 1) << first;
          first += Tile::kColumns;
        }
        const uint32_t tiles = shared.stage(at.stage);
        while (left != 0) {
          const int i = __ffs(static_cast<int>(left)) - 1;
          left &= left - 1;
          uint32_t tile = tiles, flip = 0;
          if constexpr (Tile::kSpan > 1) {
            tile += map.tile(i);
            flip = map.flip(i);
          } else {
            tile += i % Tile::kColumns * Tile::kTileBytes;
          }
          uint32_t a[Tile::kBlockK / 16][Tile::kBlockM / 16][4];
          stream.take(a);
          multiply<T, Tile>(sum, a, tile, flip, offset);
          stream.refill(args);
        }
        if constexpr (Tile::kSpan == 1) release();
      }
    }
    if (Tile::kSpan > 1 && task.begin < task.end) release();
    const TileTask done = task;
    task = start();  // its first blocks are on their way while this tile leaves
    store.write(args, sum, done.row, done.column, done.batch);
  }
  store.close();
}

}  // namespace sparse_autotune
