// What the union family's kernels work on: a tile of C, its arguments, its shared memory; and C's
// way out of warps that own strips of 16 or 32 of its rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/tile_queue.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// From a warp's sums to C: bias, activation, rounding, stmatrix, TMA. Nobody waits for the stores
// before the next tile's. A row-major C takes each warp's own box of 64 columns. Of a column-major
// C, strips that make 64 rows share a box, as their own pieces of its columns would be of 32 or 64
// bytes.

template <typename T, typename Tile>
class StripStore {
 public:
  static constexpr int kParts = Tile::kWarpN / kLineHalves, kBoxBytes = 64 * kLineBytes;
  static constexpr int kStrips = 64 / Tile::kWarpM;  // that share a box
  static constexpr int kStripBytes = Tile::kWarpM * kLineBytes, kTall = Tile::kWarpM / 16;

  // `buffers`: Tile::kStoreBytes of shared memory, aligned to kSwizzleAlignment.
  __device__ __forceinline__ StripStore(uint32_t buffers, int warp) {
    const int row = warp / Tile::kWarpsN;
    part_ = warp % Tile::kWarpsN * Tile::kWarpN;
    strip_ = row % kStrips;
    team_ = row / kStrips * Tile::kWarpsN + warp % Tile::kWarpsN;
    boxes_ = buffers + team_ * Tile::kStoreParts * kBoxBytes;
  }

  // Of a tile of C that begins at the column, this warp's strip at its `own_row`; negative: none.
  // Where C is column-major, strips that share a box lie below each other.
  template <typename Arguments>
  __device__ __forceinline__ void write(const Arguments& args,
                                        float (&sum)[kTall][Tile::kWarpN / 8][4], int own_row,
                                        int column, int batch) {
    const int lane = threadIdx.x % 32;
    column += part_;
    if (args.bias != nullptr) add_bias(sum, static_cast<const T*>(args.bias), own_row);
    if (args.activation == Activation::kRelu) {
#pragma unroll
      for (int i = 0; i < kTall * Tile::kWarpN / 2; ++i) {
        float& x = (&sum[0][0][0])[i];
        x = activate(x, Activation::kRelu);
      }
    } else if (args.activation != Activation::kNone) {
      reuse(args.c_rows);
      activate_sums<kTall * Tile::kWarpN / 2, kStripBytes / 128, 128>(
          &sum[0][0][0], boxes_ + strip_ * kStripBytes + lane * 4, args.activation);
      team_sync(args.c_rows);
    }
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (p % Tile::kStoreParts == 0) reuse(args.c_rows);
      const uint32_t box = boxes_ + p % Tile::kStoreParts * kBoxBytes;
      if (args.c_rows) {
        // Matrices 0 and 1 are the upper and lower half of 8 columns, 2 and 3 of the next 8.
        const uint32_t to = box + strip_ * kStripBytes + lane % 16 * kLineBytes;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t chunk = (2 * j + lane / 16) ^ (lane % 8);
#pragma unroll
          for (int i = 0; i < kTall; ++i) {
            store(to + chunk * 16 + i * 16 * kLineBytes, &sum[i][p * 8 + 2 * j][0], false);
          }
        }
      } else {
        const uint32_t to = box + (lane / 16 * 8 + lane % 8) * kLineBytes;
#pragma unroll
        for (int i = 0; i < kTall; ++i) {
          const uint32_t chunk = (strip_ * kTall * 2 + i * 2 + lane / 8 % 2) ^ (lane % 8);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            store(to + chunk * 16 + j * 16 * kLineBytes, &sum[i][p * 8 + 2 * j][0], true);
          }
        }
      }
      tma_store_fence();
      team_sync(args.c_rows);
      const int at = column + p * kLineHalves;
      if (at >= args.n || !leads(args.c_rows)) continue;
      if (own_row < 0) continue;
      // C is the first to give way in L2, which leaves more to B.
      const int inner = args.c_rows ? at : own_row, outer = args.c_rows ? own_row : at;
      tma_store_hinted(args.c_map, box + strip_ * kStripBytes, evict_first(), inner, outer, batch);
    }
  }

  // Before the thread block ends.
  __device__ __forceinline__ void close() const { tma_store_wait<0>(); }

 private:
  // The thread that sends this warp's boxes.
  __device__ __forceinline__ bool leads(bool alone) const {
    return threadIdx.x % 32 == 0 && (alone || strip_ == 0);
  }
  __device__ __forceinline__ void team_sync(bool alone) const {
    if (alone) {
      __syncwarp();
    } else {
      barrier_sync<kStrips * 32>(1 + team_);
    }
  }
  // All that was sent has left the buffers.
  __device__ __forceinline__ void reuse(bool alone) const {
    if (leads(alone)) tma_store_wait<0>();
    team_sync(alone);
  }

  static __device__ __forceinline__ void add_bias(float (&sum)[kTall][Tile::kWarpN / 8][4],
                                                  const T* bias, int row) {
    if (row < 0) return;
    bias += row + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTall; ++i) {
      const float low = static_cast<float>(bias[i * 16]);
      const float high = static_cast<float>(bias[i * 16 + 8]);
#pragma unroll
      for (int j = 0; j < Tile::kWarpN / 8; ++j) {
        sum[i][j][0] += low;
        sum[i][j][1] += low;
        sum[i][j][2] += high;
        sum[i][j][3] += high;
      }
    }
  }

  // Two neighbouring 8 columns of 16 rows.
  static __device__ __forceinline__ void store(uint32_t to, const float* sum, bool transposed) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
    stmatrix(to, word, transposed);
  }

  uint32_t boxes_;
  int part_, strip_, team_;
};

// How tiles of B, of a block column each, come to shared memory.
enum class UnionCopies : uint8_t {
  kTiles,   // of a row-major B: by TMA, each by itself
  kSpans,   // of a column-major B: by TMA in whole lines of 64 k, with the block columns between
  kLines,   // of a column-major B: by TMA, each by itself
  kChunks,  // of a column-major B: by cp.async, each by itself
};

// What comes with a tile of C, for each lane: one of its first 32 block columns, and a block row
// with its range of blocks, row -1 where there is none.
struct UnionPlace {
  int column = 0;
  int row = -1, begin = 0, end = 0;
};

// A tile of C: kGroup block rows by kN columns. A warp owns kOwn of the block rows, kRows apart,
// and one kWarpsN-th of the columns.
template <typename Config, bool kRowMajor>
struct UnionTile : Config {
  using Config::kBlockK;
  using Config::kBlockM;
  using Config::kColumns;  // block columns whose tiles a stage of the ring has room for
  using Config::kGroup;
  using Config::kN;
  using Config::kOwn;
  using Config::kStages;
  static constexpr bool kRowMajorB = kRowMajor;
  static constexpr int kWarpsN = Config::kWarpsAcross;
  static constexpr int kBlockSlots = Config::kBlocksAhead;  // of a block row's BlockStream

  static constexpr int kRows = kGroup / kOwn;
  static constexpr int kM = kRows * kBlockM, kWarpM = kBlockM, kWarpN = kN / kWarpsN;
  static constexpr int kWarps = kRows * kWarpsN;  // that multiply
  static constexpr int kThreads = 128 + kWarps * 32;
  // What is launched is divided up anew: whole warpgroups, and registers in units of 8.
  static constexpr int kLaunchRegisters = 65536 / kThreads / 8 * 8;
  static constexpr int kProducerRegisters = kWarps == 8 ? 40 : 32;
  static constexpr int kConsumerRegisters =
      (kLaunchRegisters * kThreads - kProducerRegisters * 128) / (kWarps * 32) / 8 * 8;

  // See union_producers.cuh.
  static constexpr UnionCopies kCopies = kRowMajorB ? UnionCopies::kTiles : Config::kColumnMajor;
  static constexpr int kSpan = kCopies == UnionCopies::kSpans ? kLineHalves / kBlockK : 1;
  static constexpr int kSpans = kColumns / kSpan;      // of a stage
  static constexpr int kTileBytes = kBlockK * kN * 2;  // of a block column
  static constexpr int kSpanBytes = kSpan * kTileBytes;
  static constexpr int kStageBytes = kColumns * kTileBytes;
  static constexpr int kProducers = kSpan > 1 ? 1 : 2;

  static constexpr int kBlockBytes = kBlockM * kBlockK * 2;
  static constexpr int kStoreParts = Config::kStoreBuffers;
  static constexpr int kStoreBytes = kM * kLineBytes * kWarpsN * kStoreParts;
  static constexpr int kStreamBytes = kOwn * kBlockSlots * kBlockBytes;  // of a warp
  // Block columns before the end of a tile at which the next is asked for.
  static constexpr int kAskAhead = 6 * kColumns;
  using Queue = TileQueue<kProducers + kWarps, kProducers + kWarps, UnionPlace>;
  static_assert(kWarps % 4 == 0 && 32 % kColumns == 0 && kColumns < 32 && kGroup <= 32,
                "whole warpgroups; stages divide a batch of 32; a bit for each row");
  static_assert(kColumns % kSpan == 0 && kColumns % kProducers == 0,
                "producers share out whole spans");
};

struct UnionArguments : ProductArguments {
  // B row-major as 64 columns, k, n / 64 and batch if n is a multiple of 64; otherwise B and C with
  // the batch as third dimension.
  CUtensorMap b_map, c_map;
  int64_t ldb, b_batch_stride;
  const GroupColumn* columns;
  const int32_t* rows;  // RowGroups::rows; null: of neighbours
  Panels panels;
  int m, n, block_rows;
  bool c_rows, b_batched, b_whole;  // b_whole: n is a multiple of 64
};

// What a thread block keeps in shared memory, from a multiple of kSwizzleAlignment on.
template <typename Tile>
struct UnionLayout {
  std::byte stages[Tile::kStages][Tile::kStageBytes];  // of B
  std::byte store[Tile::kStoreBytes];
  std::byte streams[Tile::kWarps][Tile::kStreamBytes];
  typename Tile::Queue::Layout queue;
  RingBarriers<Tile::kStages> barriers;
  Barrier asked;
};

// The same by address.
template <typename Tile>
struct UnionShared : RingBarriersAt<Tile::kStages> {
  using Layout = UnionLayout<Tile>;
  static constexpr int kBytes = kSwizzleAlignment + sizeof(Layout);
  static_assert(kBytes <= 227 * 1024, "more shared memory than a thread block of Hopper may have");
  uint32_t begin;

  __device__ __forceinline__ explicit UnionShared(uint32_t memory) : begin(align_swizzled(memory)) {
    this->barriers = begin + offsetof(Layout, barriers);
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const {
    return begin + offsetof(Layout, stages) + i * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t store() const { return begin + offsetof(Layout, store); }
  __device__ __forceinline__ uint32_t stream(uint32_t warp) const {
    return begin + offsetof(Layout, streams) + warp * Tile::kStreamBytes;
  }
  __device__ __forceinline__ uint32_t queue() const { return begin + offsetof(Layout, queue); }
  __device__ __forceinline__ uint32_t asked() const { return begin + offsetof(Layout, asked); }
  __device__ __forceinline__ void init_barriers() const {
    constexpr bool kChunks = Tile::kCopies == UnionCopies::kChunks;
    this->init(kChunks ? Tile::kProducers * 32 : 1, kChunks ? Tile::kWarps * 32 : Tile::kWarps);
    mbarrier_init(asked(), 1);
    typename Tile::Queue(queue()).init_barriers();
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
