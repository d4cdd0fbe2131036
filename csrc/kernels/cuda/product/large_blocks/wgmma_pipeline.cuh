// What the warps of a wgmma kernel do: one finds tiles of C to work on, one keeps TMA copies under
// way, two warpgroups multiply. Copies and multiplications meet at two rings of tiles in shared
// memory, A's of kM x 64 and B's of 64 x kWidth (of floats half as much k), which run on across the
// ends of tiles of C.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/tile_queue.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/product/large_blocks/cluster.cuh"
#include "kernels/cuda/product/large_blocks/deferred_store.cuh"
#include "kernels/cuda/product/large_blocks/immediate_store.cuh"
#include "row_groups.h"
#include "variant.h"

namespace sparse_autotune {

using Queue = TileQueue<1 + 4 * kConsumers>;

// A tile of C and the depths of the rings.
template <int kRows, int kColumns, int kDepthA, int kDepthB>
struct WgmmaTile {
  static constexpr int kM = kRows, kN = kColumns, kStagesA = kDepthA, kStagesB = kDepthB;
  static constexpr int kCluster = 1;  // see MatchedPairs
  static constexpr bool kPairs = false;
  static constexpr bool kTall = kM == 128;
  static constexpr int kWidth = kTall ? kN : kN / kConsumers;  // of one consumer's part
  static constexpr int kPartsB = kTall ? 1 : kConsumers;       // tiles of B in a step
  static constexpr int kBytesA = kM * kLineBytes, kBytesB = kWidth * kLineBytes;
  static constexpr int kReadersB = 4 * kConsumers / kPartsB;  // warps
  static constexpr int kStoreBytes = 128 * kLineBytes;        // of each consumer's store
  static constexpr int kRingBytes = kStagesA * kBytesA + kStagesB * kBytesB;
  static constexpr int kBarriers = 2 * kStagesA + (1 + kPartsB) * kStagesB + 3;
  // Steps before the end of a tile at which the next is asked for: 2 to 4 us, what an answer takes.
  static constexpr int kAskAhead = 4 * 128 * 256 / (kM * kN);
  static constexpr int kSharedBytes = kSwizzleAlignment + kRingBytes + kConsumers * kStoreBytes +
                                      Queue::kBytes + kBarriers * 8 + (1 + kStagesA) * 4;
  static constexpr bool kDirect = false;  // to C by DirectSink
  static_assert((kM == 64 || kM == 128) && kWidth % 64 == 0 && kWidth <= 256,
                "a consumer multiplies 64 rows by one wgmma");
};

// A tile whose rows are a pair of block rows of 64: it walks the columns that either has, and each
// consumer takes of B's tiles those that its own row needs. A cluster's two thread blocks have
// neighbouring tiles of one pair, and each brings the blocks of one row to both.
template <int kBlocks>
struct MatchedPairs : WgmmaTile<128, 256, 4, 4> {
  static constexpr int kCluster = kBlocks;
  static constexpr bool kPairs = true;
  static_assert(kCluster == 1 || kCluster == 2, "a thread block brings one row of the two");
};

struct WgmmaArguments {
  // Values as nnzb * block_m rows or, transposed, as nnzb * block_k rows with each 64 columns of a
  // block as third dimension; B and C with the batch as third dimension.
  CUtensorMap a, b, c;
  const void* crow_indices;
  const void* col_indices;
  const void* positions;  // Launch::positions
  const void* bias;
  const GroupColumn* columns;  // of MatchedPairs
  const RowPair* pairs;
  Panels panels;
  PartialSums partials;
  DirectOutput direct;              // instead of c, for tiles that are stored directly
  int n, block_m, block_k, strips;  // strips: of one block row
  Activation activation;
  bool wide_indices, c_rows, b_batched;
};

// Where things lie in shared memory.
template <typename Tile>
struct Shared {
  uint32_t a, b, store, queue, barriers;

  __device__ __forceinline__ explicit Shared(uint32_t begin) {
    a = align_swizzled(begin);
    b = a + Tile::kStagesA * Tile::kBytesA;
    store = b + Tile::kStagesB * Tile::kBytesB;
    queue = store + kConsumers * Tile::kStoreBytes;
    barriers = queue + Queue::kBytes;
  }
  __device__ __forceinline__ uint32_t a_tile(uint32_t i) const { return a + i * Tile::kBytesA; }
  __device__ __forceinline__ uint32_t b_tile(uint32_t i) const { return b + i * Tile::kBytesB; }
  __device__ __forceinline__ uint32_t a_full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t a_empty(uint32_t i) const {
    return a_full(Tile::kStagesA + i);
  }
  __device__ __forceinline__ uint32_t b_empty(uint32_t i) const {
    return a_full(2 * Tile::kStagesA + i);
  }
  // Each part has barriers of its own for what it waits for. Where the number of stages is odd a
  // stage holds now one consumer's tile and now the other's; one that waited for every other phase
  // of a barrier could take a phase that is not over for the one before, of the same parity.
  __device__ __forceinline__ uint32_t b_full(uint32_t part, uint32_t turn) const {
    return b_empty(Tile::kStagesB + part * Tile::kStagesB + turn);
  }
  __device__ __forceinline__ uint32_t asked() const {
    return b_full(Tile::kPartsB, 0);  // behind the last of these
  }
  // How a cluster's first thread block tells the second which tile is next.
  __device__ __forceinline__ uint32_t mail_full() const { return asked() + 8; }
  __device__ __forceinline__ uint32_t mail_empty() const { return asked() + 16; }
  __device__ __forceinline__ uint32_t mail() const { return asked() + 24; }
  // GroupColumn::rows of what a stage of A holds.
  __device__ __forceinline__ void set_rows(uint32_t i, int rows) const {
    asm volatile("st.shared.u32 [%0], %1;\n" ::"r"(mail() + (1 + i) * 4), "r"(rows) : "memory");
  }
  // By a whole warp, of which lane 0 alone reads: it is the one that releases the stage.
  __device__ __forceinline__ int rows_of(uint32_t i) const {
    int rows = 0;
    if (threadIdx.x % 32 == 0) {
      asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(rows) : "r"(mail() + (1 + i) * 4) : "memory");
    }
    return __shfl_sync(~0u, rows, 0);
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tile::kStagesA; ++i) {
      mbarrier_init(a_full(i), 1);
      mbarrier_init(a_empty(i), 4 * kConsumers * Tile::kCluster);
    }
    mbarrier_init(mail_full(), 1);
    mbarrier_init(mail_empty(), 1);
    for (int i = 0; i < Tile::kStagesB; ++i) {
      for (int part = 0; part < Tile::kPartsB; ++part) mbarrier_init(b_full(part, i), 1);
      mbarrier_init(b_empty(i), Tile::kReadersB);
    }
    mbarrier_init(asked(), 1);
    Queue(queue).init_barriers();
    mbarrier_init_fence();
  }
};

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
    unsigned tile;
    asm volatile("ld.shared.u32 %0, [%1];\n" : "=r"(tile) : "r"(shared.mail()) : "memory");
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
  Queue queue(shared.queue);
  TileTask task{.valid = true};
  for (unsigned turn = 0; task.valid; ++turn) {
    if (turn > 0) mbarrier_wait(shared.asked(), (turn - 1) % 2);
    unsigned tile = lane == 0 ? next_tile_of(args.panels, shared, turn) : 0;
    tile = __shfl_sync(~0u, tile, 0);
    task.valid = tile < args.panels.tiles;
    BlockPlace block;
    if (task.valid) {
      const TilePlace place = locate(args.panels, tile);
      int row = static_cast<int>(place.row / strips);
      const int strip = static_cast<int>(place.row % strips) * Tile::kM;
      if (args.panels.order != nullptr) {
        const OrderedRow found = load_entry(args.panels.order, row);
        row = found.row;
        task.begin = found.begin;
        task.end = found.end;
        task.slot = found.slot;
      } else {
        task.slot = -1;
        task.begin = load_narrow_index(args.crow_indices, row, args.wide_indices);
        task.end = load_narrow_index(args.crow_indices, row + 1, args.wide_indices);
      }
      task.column = static_cast<int>(place.column) * Tile::kN * Tile::kCluster;
      if constexpr (Tile::kCluster > 1) task.column += static_cast<int>(cluster_rank()) * Tile::kN;
      task.batch = static_cast<int>(place.batch);
      task.strip = strip;
      if constexpr (Tile::kPairs) {
        const RowPair pair = load_pair(args.pairs, row);
        const int second = max(pair.second, 0);
        row = pair.first;
        task.slot = pair.second;
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
  static constexpr int kStep = kStepOf<T>;
  const WgmmaArguments& args;
  const Shared<Tile>& shared;
  RingPlace<Tile::kStagesA> at_a{};
  RingPlace<Tile::kStagesB> at_b{}, turn_b{};
  int left = 0, ask_at = 0;  // steps of the tile; of these, when the next tile is asked for

  __device__ __forceinline__ void run() {
    Queue queue(shared.queue);
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
      if (kTransposedA && has) {
        found[row] = load_narrow_index(args.positions, found[row], args.wide_indices);
      }
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
        if constexpr (kTransposedA) {
          tma_load(to, args.a, full, 0, rows.first + k, task.strip / kLineHalves);
        } else {
          tma_load(to, args.a, full, k, rows.first);
        }
      }
    }
    at_a.advance();
  }

  // Of a pair's two rows, `which`: to all of the cluster, by one of its thread blocks.
  __device__ __forceinline__ void copy_row(uint32_t which, uint32_t to, uint32_t full, int row,
                                           int k) {
    constexpr uint16_t kAll = (1 << Tile::kCluster) - 1;
    if constexpr (Tile::kCluster > 1) {
      if (cluster_rank() != which) return;
      if constexpr (kTransposedA) {
        tma_load_to(kAll, to, args.a, full, 0, row + k, 0);
      } else {
        tma_load_to(kAll, to, args.a, full, k, row);
      }
    } else if constexpr (kTransposedA) {
      tma_load(to, args.a, full, 0, row + k, 0);
    } else {
      tma_load(to, args.a, full, k, row);
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
        tma_load(to, args.b, full, k, n, batch);
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
        tma_load(to + box * kStepK * kLineBytes, args.b, full, n + box * 64, k, batch);
      }
    }
  }
};

// A warpgroup. `kSplits`: tiles of parts of rows leave as partial sums.
template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB, bool kSplits>
__device__ __forceinline__ void consume_wgmma(const WgmmaArguments& args,
                                              const Shared<Tile>& shared, int consumer) {
  constexpr int kWidth = Tile::kWidth;
  const int lane = threadIdx.x % 32;
  const int slices = args.block_k / kStepOf<T>;
  RingPlace<Tile::kStagesA> at_a;
  RingPlace<Tile::kStagesB> turn_b;
  const uint32_t part = Tile::kTall ? 0 : consumer;
  // The producer fills the stages in turn, with both parts of a step next to each other.
  const auto stage_b = [&] {
    const uint32_t i = turn_b.stage * Tile::kPartsB + part;
    return i < Tile::kStagesB ? i : i - Tile::kStagesB;
  };

  // Of the cluster's other thread block.
  const uint32_t others_empty =
      Tile::kCluster > 1 ? in_block(shared.a_empty(0), cluster_rank() ^ 1) : 0;
  const auto release = [&](uint32_t a, uint32_t b) {
    if (lane != 0) return;
    mbarrier_arrive(shared.a_empty(a));
    if constexpr (Tile::kCluster > 1) cluster_arrive(others_empty + a * 8);
    mbarrier_arrive(shared.b_empty(b));
  };
  const auto wait_for_step = [&] {
    mbarrier_wait(shared.a_full(at_a.stage), at_a.parity);
    mbarrier_wait(shared.b_full(part, turn_b.stage), turn_b.parity);
  };

  Queue queue(shared.queue);
  const uint32_t buffers = shared.store + consumer * Tile::kStoreBytes;
  auto store = [&] {
    if constexpr (sizeof(T) == 4) {
      return ImmediateStore<kWidth>(args.direct, buffers, args.c_rows);
    } else if constexpr (Tile::kDirect) {
      return DeferredStore<T, kWidth, DirectSink>(DirectSink(args.direct), buffers, 1 + consumer,
                                                  args.n, args.c_rows);
    } else {
      return DeferredStore<T, kWidth, TmaSink>(TmaSink(args.c), buffers, 1 + consumer, args.n,
                                               args.c_rows);
    }
  }();
  float sum[kWidth / 2];
  for (TileTask task = queue.pop(); task.valid; task = queue.pop()) {
    const int steps = (task.end - task.begin) * slices;
    const int sends = store.sends_each(steps);
    int m0 = task.row + (Tile::kTall ? consumer * 64 : 0);
    int n0 = task.column + (Tile::kTall ? 0 : consumer * kWidth);
    if (Tile::kPairs && consumer == 0) m0 = task.row;
    if (Tile::kPairs && consumer == 1) m0 = max(task.slot, 0) * args.block_m;
    if (Tile::kPairs && consumer == 1 && task.slot < 0) n0 = args.n;  // nothing to store
    float low = 0, high = 0;
    if (args.bias != nullptr) {
      const T* bias = static_cast<const T*>(args.bias) + m0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
      low = static_cast<float>(bias[0]);
      high = static_cast<float>(bias[8]);
    }

    uint32_t last_a = 0, last_b = 0;        // stages of the multiplication before
    bool multiplied = false, held = false;  // whether there was one, and its stages are in use
    for (int step = 0; step < steps; ++step) {
      wait_for_step();
      if constexpr (Tile::kPairs) {
        // Steps of the other consumer's row alone.
        while ((shared.rows_of(at_a.stage) >> consumer & 1) == 0) {
          if (held) {
            wgmma::wait<0>();
            release(last_a, last_b);
            held = false;
          }
          release(at_a.stage, stage_b());
          at_a.advance();
          turn_b.advance();
          if (++step == steps) break;
          wait_for_step();
        }
        if (step == steps) break;
      }
      const uint32_t b_stage = stage_b();
      const uint32_t a_tile =
          shared.a_tile(at_a.stage) + (Tile::kTall ? consumer * 64 : 0) * kLineBytes;
      wgmma::fence();
      wgmma::multiply_lines<T, kWidth, kRowMajorB, kTransposedA>(
          sum, a_tile, shared.b_tile(b_stage), multiplied);
      wgmma::commit();
      wgmma::wait<1>();
      if (held) release(last_a, last_b);
      multiplied = held = true;
      last_a = at_a.stage;
      last_b = b_stage;
      at_a.advance();
      turn_b.advance();
      for (int i = 0; i < sends; ++i) store.advance();
    }
    wgmma::wait<0>();
    if (held) release(last_a, last_b);
    if (multiplied) {
      wgmma::pin(sum);
      if constexpr (kSplits) {
        if (task.slot >= 0) {
          float* units = args.partials.tile(task.batch, task.slot, task.strip / Tile::kM,
                                            task.column / Tile::kN) +
                         consumer * (kWidth / 64) * kUnitFloats;
#pragma unroll
          for (int i = 0; i < kWidth / 64; ++i) {
            if (n0 + i * 64 < args.n) store_unit(units + i * kUnitFloats, sum, i);
          }
          continue;
        }
      }
      store.begin(m0, n0, task.batch);
      store.finish(sum, low, high, args.activation);
    } else {
      store.begin(m0, n0, task.batch);
      store.finish_empty(low, high, args.activation);
    }
  }
  store.close();
}

}  // namespace sparse_autotune
