// What the union family's kernels work on: a tile of C, its arguments, its shared memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/tile_queue.cuh"
#include "kernels/cuda/product/small_blocks/strip_store.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// How tiles of B, of a block column each, come to shared memory.
enum class UnionCopies : uint8_t {
  kTiles,   // of a row-major B: by TMA, each by itself
  kSpans,   // of a column-major B: by TMA in whole lines of 64 k, with the block columns between
  kLines,   // of a column-major B: by TMA, each by itself
  kChunks,  // of a column-major B: by cp.async, each by itself
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
  using Queue = TileQueue<kProducers + kWarps, kProducers + kWarps>;
  static_assert(kWarps % 4 == 0 && 32 % kColumns == 0 && kColumns < 32 && kGroup <= 32,
                "whole warpgroups; stages divide a batch of 32; a bit for each row");
  static_assert(kColumns % kSpan == 0 && kColumns % kProducers == 0,
                "producers share out whole spans");
};

struct UnionArguments {
  // B row-major as 64 columns, k, n / 64 and batch if n is a multiple of 64; otherwise B and C with
  // the batch as third dimension.
  CUtensorMap b, c;
  const void* b_data;  // with strides in elements, for kChunks
  int64_t ldb, b_batch_stride;
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
