// The kernel of small_n_rings_sm90: a thread block for each block row, tiles of B by bulk copies.
//
// Groups of warps share out the block row's stored blocks, in turn, one or some neighbours at a
// time; each group has a ring of blocks and their tiles of B, which its first warp fills, and its
// warps have a part of the columns each.
// Data path: bulk copies or TMA (B), cp.async (A) -> rings in shared memory -> mma.sync -> fp32
// sums, one for each group, in shared memory -> added up in the order of the groups -> C.
#pragma once

#include <cuda.h>

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/bulk_load.cuh"
#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/swizzle.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/product/few_columns/few_columns.cuh"
#include "kernels/cuda/product/few_columns/group_sums.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// How a tile of B comes to shared memory.
enum class RingCopies : uint8_t {
  kLines,     // by TMA out of a column-major B, in lines as short as a block is wide
  kArranged,  // in one piece, of a copy of it that another kernel has arranged
  kBoxes,     // by TMA out of a row-major B, in boxes of 64 columns
  kGapless,   // by TMA out of a row-major B without gaps between its rows, in one piece
};
constexpr bool is_row_major(RingCopies copies) { return copies >= RingCopies::kBoxes; }

// The arranged copy: slices of 16 k; of each, 16 columns at a time; of these, 16 bytes a lane:
// k = 4t ... 4t + 3 of column g, and of column 8 + g.
constexpr int kSliceK = 16, kPairColumns = 16, kPairBytes = kSliceK * kPairColumns * 2;

constexpr int kBoxColumns = 64, kBoxLine = kBoxColumns * 2;

// Blocks of kSide x kSide, columns; of a thread block the groups, of each the warps and stages;
// thread blocks a multiprocessor; blocks of a stage.
template <int kSide, int kColumns, int kGroupCount, int kAcross, int kDepth, int kBlocks,
          RingCopies kWay, int kBlocksTogether = 1>
struct RingTile {
  static constexpr int kRows = kSide, kWidth = kColumns, kGroups = kGroupCount, kWarpsN = kAcross;
  static constexpr int kStages = kDepth, kResident = kBlocks, kTogether = kBlocksTogether;
  static constexpr RingCopies kCopies = kWay;
  static constexpr int kThreads = 32 * kGroups * kWarpsN;
  static constexpr int kRowTiles = kRows / 16, kColumnTiles = kWidth / kWarpsN / 8;  // of a warp
  static constexpr int kBytesA = kSide * kSide * 2, kBytesB = kSide * kWidth * 2;
  static constexpr int kStageBytes = kTogether * (kBytesA + kBytesB);
  // Floats from one column of gathered sums to the next: 16-byte aligned, no bank conflicts.
  static constexpr int kPitch = kRows + 4;
  // What TMA swizzles begins at a multiple of 1024 bytes.
  static constexpr int kAlignment = is_row_major(kCopies) ? 1024 : 128;
  // The sums take the place of the rings, and begin as far from each other.
  static constexpr int kNeeded = std::max(kStages * kStageBytes, kWidth* kPitch * 4);
  static constexpr int kSumBytes = (kNeeded + kAlignment - 1) / kAlignment * kAlignment;
  static constexpr int kBarriers = kGroups * kSumBytes;
  static constexpr int kSharedBytes = kAlignment + kBarriers + kGroups * kStages * 8;
  static_assert((kSide == 16 || kSide == 32) && 32 % kTogether == 0,
                "each of 32 lanes looks up a block");
  static_assert(kCopies != RingCopies::kLines || kSide == kChunkK, "a line is a chunk's k");
  static_assert(kCopies != RingCopies::kBoxes || kWidth % kBoxColumns == 0,
                "boxes divide the tile");
  static_assert(kSumBytes % kAlignment == 0 && kBytesB % kAlignment == 0,
                "rings and tiles begin where TMA swizzles");
  static_assert(kResident * (kSharedBytes + 1024) <= 228 * 1024,
                "so many thread blocks do not fit a multiprocessor");
};

struct RingArguments : FewColumnsArguments {
  // For kLines: k, columns, batch; a box is a tile. For kBoxes: columns, k, batch. For kGapless:
  // lines of 64 elements, whatever rows they are of, and batch; a box is a tile, too.
  CUtensorMap b_map;
  AheadLines ahead;
  const void* arranged;
  int64_t arranged_batch;  // bytes
  bool b_batched, gapless_swizzled;
};

// What a lane reads of shared memory at a time.
struct FourWords {
  uint32_t word[4];
};

// A block by the warp's part of its tile of B. Both have k contiguous; lane 4g + t has eight of a
// chunk's 32 k together.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_lines(float (&sum)[Tile::kRowTiles][Tile::kColumnTiles][4],
                                               uint32_t a_block, uint32_t b_part) {
  const uint32_t own = threadIdx.x % 32 * 16;  // 64 * g + 16 * t
  FourWords a[2 * Tile::kRowTiles];
#pragma unroll
  for (int i = 0; i < 2 * Tile::kRowTiles; ++i) {
    a[i] = load_shared<FourWords>(a_block + own + i * 512);
  }
#pragma unroll
  for (int j = 0; j < Tile::kColumnTiles; ++j) {
    const auto b = load_shared<FourWords>(b_part + own + j * 512);
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
      multiply_chunk<T>(sum[i][j], a[2 * i].word, a[2 * i + 1].word, b.word);
    }
  }
}

// The same from an arranged tile: a lane has four of a slice's 16 k together.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_arranged(
    float (&sum)[Tile::kRowTiles][Tile::kColumnTiles][4], uint32_t a_block, uint32_t b_part) {
  const uint32_t lane = threadIdx.x % 32;
  a_block += lane / 4 * Tile::kRows * 2 + lane % 4 * 8;
#pragma unroll
  for (int slice = 0; slice < Tile::kRows / kSliceK; ++slice) {
    uint32_t a[Tile::kRowTiles][4];
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
      const uint32_t from = a_block + slice * kSliceK * 2 + i * 16 * Tile::kRows * 2;
      const auto low = load_shared<uint2>(from);
      const auto high = load_shared<uint2>(from + 8 * Tile::kRows * 2);
      a[i][0] = low.x;
      a[i][1] = high.x;
      a[i][2] = low.y;
      a[i][3] = high.y;
    }
#pragma unroll
    for (int j = 0; j < Tile::kColumnTiles; j += 2) {
      const auto b = load_shared<FourWords>(
          b_part + lane * 16 + slice * kSliceK * Tile::kWidth * 2 + j / 2 * kPairBytes);
#pragma unroll
      for (int i = 0; i < Tile::kRowTiles; ++i) {
        mma<T>(sum[i][j], a[i], b.word);
        mma<T>(sum[i][j + 1], a[i], b.word + 2);
      }
    }
  }
}

// The same from a row-major tile. TMA exchanges the 16-byte chunks of lines of 128 bytes, as
// fetch_a does those of the block's rows. Of a tile whose rows are an odd number of chunks long,
// or twice one, the chunks that ldmatrix reads at once lie as well or better in their own order.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_row_major(
    float (&sum)[Tile::kRowTiles][Tile::kColumnTiles][4], uint32_t a_block, uint32_t b_tile,
    int part, int n, bool gapless_swizzled) {
  constexpr bool kBoxes = Tile::kCopies == RingCopies::kBoxes;
  const uint32_t lane = threadIdx.x % 32, row = lane % 16, half = lane / 16;
  const uint32_t b_pitch = kBoxes ? kBoxLine : n * 2, mask = kBoxes || gapless_swizzled ? 7 : 0;
#pragma unroll
  for (int slice = 0; slice < Tile::kRows / kSliceK; ++slice) {
    uint32_t a[Tile::kRowTiles][4];
#pragma unroll
    for (int i = 0; i < Tile::kRowTiles; ++i) {
      ldmatrix(a[i], a_block + chunk_offset<Tile::kRows * 2>(row + i * 16, slice * 2 + half));
    }
#pragma unroll
    for (int j = 0; j < Tile::kColumnTiles; j += 2) {
      const uint32_t chunk = part * Tile::kColumnTiles + j + half;
      uint32_t offset = (slice * kSliceK + row) * b_pitch;
      if constexpr (kBoxes) {
        offset += chunk / 8 * (Tile::kRows * kBoxLine) + chunk % 8 * 16;
      } else {
        offset += chunk * 16;
      }
      uint32_t b[4];
      ldmatrix_transposed(b, b_tile + (offset ^ (offset / kBoxLine & mask) * 16));
#pragma unroll
      for (int i = 0; i < Tile::kRowTiles; ++i) {
        mma<T>(sum[i][j], a[i], b);
        mma<T>(sum[i][j + 1], a[i], b + 2);
      }
    }
  }
}

// A block by the warp's part of its tile of B, however that lies.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply_tile(
    const RingArguments& args, uint32_t a_block, uint32_t b_tile, int part,
    float (&sum)[Tile::kRowTiles][Tile::kColumnTiles][4]) {
  if constexpr (Tile::kCopies == RingCopies::kArranged) {
    multiply_arranged<T, Tile>(sum, a_block, b_tile + part * (Tile::kColumnTiles / 2 * kPairBytes));
  } else if constexpr (is_row_major(Tile::kCopies)) {
    multiply_row_major<T, Tile>(sum, a_block, b_tile, part, args.n, args.gapless_swizzled);
  } else {
    multiply_lines<T, Tile>(sum, a_block, b_tile + part * (Tile::kColumnTiles * 512));
  }
}

// A group's copies to its ring: by its first warp.
template <typename Tile>
struct RingProducer {
  static constexpr bool kArranged = Tile::kCopies == RingCopies::kArranged;
  static constexpr bool kRowMajor = is_row_major(Tile::kCopies);
  static constexpr bool kGapless = Tile::kCopies == RingCopies::kGapless;
  static constexpr int kTogether = Tile::kTogether;
  static constexpr int kStep = Tile::kGroups * kTogether;  // from a turn's blocks to the next one's

  const RingArguments& args;
  const uint32_t ring, a_ring, barriers;
  const int lane;
  const int first, left;  // of the block row's blocks from the group's first on
  const int batch, n0;
  int column = 0;  // each lane looks up one of 32 blocks

  __device__ __forceinline__ int blocks_of(int turn) const {
    return kTogether == 1 ? 1 : min(kTogether, left - turn * kStep);
  }
  __device__ __forceinline__ void look_up(int turn) {
    const int block = (turn + lane / kTogether) * kStep + lane % kTogether;
    if (block < left) {
      column = load_narrow_index(args.col_indices, first + block, args.wide_indices);
    }
  }
  __device__ __forceinline__ void fetch_a(int turn, int stage) const {
    const int64_t block = first + turn * kStep;
    const char* from = static_cast<const char*>(args.values) + block * Tile::kBytesA + lane * 16;
    const uint32_t chunk = kRowMajor ? chunk_offset<Tile::kRows * 2>(lane / (Tile::kRows / 8),
                                                                     lane % (Tile::kRows / 8))
                                     : lane * 16;
    const uint32_t to = a_ring + stage * (kTogether * Tile::kBytesA) + chunk;
    const int blocks = blocks_of(turn);
#pragma unroll
    for (int i = 0; i < kTogether * Tile::kBytesA; i += 512) {
      if (i < blocks * Tile::kBytesA) cp_async_16(to + i, from + i, 16);
    }
    mbarrier_arrive_copied(barriers + stage * 8);
  }
  __device__ __forceinline__ void fetch_tile(uint32_t to, uint32_t barrier,
                                             int block_column) const {
    const int b_batch = args.b_batched ? batch : 0;
    if constexpr (kArranged) {
      bulk_load(to,
                static_cast<const char*>(args.arranged) + batch * args.arranged_batch +
                    static_cast<int64_t>(block_column) * Tile::kBytesB,
                Tile::kBytesB, barrier);
    } else if constexpr (kGapless) {
      const int lines = Tile::kRows * args.n / kBoxColumns;
      tma_load(to, args.b_map, barrier, 0, block_column * lines, b_batch);
    } else if constexpr (kRowMajor) {
#pragma unroll
      for (int i = 0; i < Tile::kWidth / kBoxColumns; ++i) {
        tma_load(to + i * (Tile::kRows * kBoxLine), args.b_map, barrier, n0 + i * kBoxColumns,
                 block_column * Tile::kRows, b_batch);
      }
    } else {
      tma_load(to, args.b_map, barrier, block_column * Tile::kRows, n0, b_batch);
    }
  }
  __device__ __forceinline__ void fetch_b(int turn, int stage) const {
    int block_columns[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      block_columns[i] = __shfl_sync(~0u, column, (turn * kTogether + i) % 32);
    }
    if (elect_one()) {
      const uint32_t barrier = barriers + stage * 8;
      const int blocks = blocks_of(turn);
      mbarrier_arrive_expect(barrier,
                             blocks * (kGapless ? Tile::kRows * 2 * args.n : Tile::kBytesB));
#pragma unroll
      for (int i = 0; i < kTogether; ++i) {
        if (i == blocks) break;
        fetch_tile(ring + (stage * kTogether + i) * Tile::kBytesB, barrier, block_columns[i]);
      }
    }
    __syncwarp();
  }
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_n_rings_kernel(const __grid_constant__ RingArguments args) {
  constexpr bool kArranged = Tile::kCopies == RingCopies::kArranged;
  constexpr bool kRowMajor = is_row_major(Tile::kCopies);
  using Producer = RingProducer<Tile>;
  extern __shared__ char memory[];
  const auto unaligned = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  const uint32_t shared = (unaligned + Tile::kAlignment - 1) & ~(Tile::kAlignment - 1u);
  const int lane = threadIdx.x % 32;
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  const int group = warp / Tile::kWarpsN, part = warp % Tile::kWarpsN;
  const uint32_t ring = shared + group * Tile::kSumBytes;
  constexpr int kTogether = Tile::kTogether;
  const uint32_t a_ring = ring + Tile::kStages * kTogether * Tile::kBytesB;
  const uint32_t barriers = shared + Tile::kBarriers + group * Tile::kStages * 8;
  const auto group_sync = [&]() {
    if constexpr (Tile::kWarpsN == 1) {
      __syncwarp();
    } else {
      barrier_sync<32 * Tile::kWarpsN>(1 + group);
    }
  };
  if (part == 0) {
    // One arrival announces B's bytes, each lane's that its copies of A have landed.
    if (lane < Tile::kStages) mbarrier_init(barriers + lane * 8, 1 + 32);
    mbarrier_init_fence();
  }
  if (!kArranged && threadIdx.x == 0) tma_prefetch_map(args.b_map);
  group_sync();
  // The launch before this one may not be over yet. If that is the kernel that arranges B, it began
  // when all before it were over, so that A can be read at once.
  if constexpr (kRowMajor) ask_ahead(args.ahead);
  if constexpr (!kArranged) follow_launch_before();

  const int begin = load_narrow_index(args.crow_indices, blockIdx.x, args.wide_indices);
  const int end = load_narrow_index(args.crow_indices, blockIdx.x + 1, args.wide_indices);
  constexpr int kStep = Producer::kStep;
  const int first = begin + group * kTogether, left = end - first;
  const int turns = (left + kStep - 1) / kStep;
  const auto batch = static_cast<int>(blockIdx.y);
  const int n0 = static_cast<int>(blockIdx.z) * Tile::kWidth;
  Producer producer{args, ring, a_ring, barriers, lane, first, left, batch, n0};
  if (part == 0) {
#pragma unroll
    for (int i = 0; i < Tile::kStages; ++i) {
      if (i < turns) producer.fetch_a(i, i);
    }
    producer.look_up(0);
    if constexpr (kArranged) follow_launch_before();
#pragma unroll
    for (int i = 0; i < Tile::kStages; ++i) {
      if (i < turns) producer.fetch_b(i, i);
    }
  }

  float sum[Tile::kRowTiles][Tile::kColumnTiles][4] = {};
  RingPlace<Tile::kStages> at;
#pragma unroll 1
  for (int turn = 0; turn < turns; ++turn) {
    mbarrier_wait(barriers + at.stage * 8, at.parity);
    const auto multiply = [&](int i) {
      const uint32_t b_tile = ring + (at.stage * kTogether + i) * Tile::kBytesB;
      const uint32_t a_block = a_ring + (at.stage * kTogether + i) * Tile::kBytesA;
      multiply_tile<T, Tile>(args, a_block, b_tile, part, sum);
    };
    const int blocks = producer.blocks_of(turn);
    if (kTogether == 1 || blocks == kTogether) {
#pragma unroll
      for (int i = 0; i < kTogether; ++i) multiply(i);
    } else {
#pragma unroll 1
      for (int i = 0; i < blocks; ++i) multiply(i);
    }
    const int next = turn + Tile::kStages;
    if (next < turns) {
      group_sync();  // all have read the stage
      if (part == 0) {
        if (next % (32 / kTogether) == 0) producer.look_up(next);
        producer.fetch_a(next, at.stage);
        producer.fetch_b(next, at.stage);
      }
    }
    at.advance();
  }
  // A group with a turn less has met once less, too: racecheck loses track of such groups.
  const int most_turns = (end - begin + kStep - 1) / kStep;
  if (turns < most_turns && most_turns > Tile::kStages) group_sync();
  group_sync();  // all are done with the ring
  float* const sums = reinterpret_cast<float*>(memory + (shared - unaligned));
  leave_sums<Tile::kPitch>(
      sum, sums + group * (Tile::kSumBytes / 4),
      [&](int i, int high) { return i * 16 + high * 8 + lane / 4; },
      [&](int j, int odd) { return (part * Tile::kColumnTiles + j) * 8 + lane % 4 * 2 + odd; });
  __syncthreads();
  finish_gathered<T, Tile>(args, sums, static_cast<int64_t>(blockIdx.x) * Tile::kRows, n0, batch);
}

}  // namespace sparse_autotune
