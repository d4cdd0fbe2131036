// The sizes of attention_sm90's tiles, its arguments, and how its shared memory is laid out.
//
// A pipeline is a producer warp, a ring of tiles of k and v, and the consumer warpgroups that use
// them, each for 64 rows of q. Either one pipeline serves two or three consumers, whose rows have
// the same blocks, or each of two has its own, and works on rows of its own.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/attention/work_items.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"

namespace sparse_autotune {

constexpr int kUserRows = 64, kWarpRows = 16;  // of q, of a consumer and of one of its warps

// kUserCount: consumers of a pipeline. kPieceRows: rows of k or v that one copy moves. kMerged: a
// tile of q is higher than a block. kSplit: items may be split (item_split.h).
template <int kHeadDim, int kUserCount, int kColumns, int kDepth, int kDepthOfQ,
          int kPieceRows = 64, bool kMerged = false, bool kSplit = false>
struct AttentionTile {
  static constexpr int kDim = kHeadDim, kPanels = kDim / kLineHalves;
  static constexpr int kUsers = kUserCount, kPipelines = kUsers == 1 ? 2 : 1;
  static constexpr int kRows = kUserRows * kUsers;  // of q, of one item of work
  static constexpr int kPiece = kPieceRows;
  static constexpr int kN = kColumns, kPieces = kN / kPiece;
  static constexpr bool kMerges = kMerged, kSplits = kSplit;
  static constexpr int kStages = kDepth;  // of a pipeline's ring, tiles of k or v
  static constexpr int kStagesQ = kDepthOfQ;
  // Whether an item's results go to memory by TMA, from where its q was. That keeps a stage of q
  // until the next item has begun.
  static constexpr bool kCopiesOut = kStagesQ == 2;
  // Whether consumers hand out products in turn, as the exponentials take as long as the products.
  static constexpr bool kTakesTurns = kDim == 64 && kUsers > 1;
  static constexpr int kUserBytes = kUserRows * kDim * 2;
  static constexpr int kTileBytes = kN * kDim * 2;
  using Queue = ItemQueue<4 * kUsers, kSplits>;
  static constexpr int kBarriers = 2 * kStages + 2 * kStagesQ;  // of a pipeline
  static constexpr int kPieceListBytes = (kStages * kPieces * 8 + 15) / 16 * 16;
  static constexpr int kPipelineBytes = kBarriers * 8 + kPieceListBytes + Queue::kBytes;
  static constexpr int kSharedBytes = kSwizzleAlignment +
                                      kStagesQ * kPipelines * kUsers * kUserBytes +
                                      kPipelines * (kStages * kTileBytes + kPipelineBytes);
  static_assert(kDim == 64 || kDim == 128, "whole panels, sums that fit registers");
  static_assert(kN == 64 || kN == 128, "whole pieces, scores that fit registers");
  static_assert(kBarriers % 2 == 0, "queues of each pipeline are aligned");
  static_assert(kSharedBytes <= 227 * 1024, "what a thread block of Hopper may have");
};

struct AttentionArgumentsSm90 : ForwardWork {
  CUtensorMap q, k, v, out_rows;  // the last with boxes of a warp's rows

  __device__ __forceinline__ void prefetch_maps() const {
    tma_prefetch_map(q);
    tma_prefetch_map(k);
    tma_prefetch_map(v);
  }
};

// A pipeline's part of shared memory.
template <typename Tile>
struct AttentionShared {
  uint32_t q, ring, barriers;

  __device__ __forceinline__ AttentionShared(const void* memory, int pipeline) {
    const uint32_t begin = align_swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
    constexpr int kBytesQ = Tile::kStagesQ * Tile::kUsers * Tile::kUserBytes;
    constexpr int kRingBytes = Tile::kStages * Tile::kTileBytes;
    q = begin + pipeline * kBytesQ;
    ring = begin + Tile::kPipelines * kBytesQ + pipeline * kRingBytes;
    barriers = begin + Tile::kPipelines * (kBytesQ + kRingBytes) + pipeline * Tile::kPipelineBytes;
  }
  // Panels of 64 rows each.
  __device__ __forceinline__ uint32_t q_of(uint32_t i, int user) const {
    return q + (i * Tile::kUsers + user) * Tile::kUserBytes;
  }
  // Panels of kN rows each.
  __device__ __forceinline__ uint32_t tile(uint32_t i) const { return ring + i * Tile::kTileBytes; }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(Tile::kStages + i); }
  __device__ __forceinline__ uint32_t q_full(uint32_t i) const {
    return full(2 * Tile::kStages + i);
  }
  __device__ __forceinline__ uint32_t q_empty(uint32_t i) const {
    return q_full(Tile::kStagesQ + i);
  }
  // A ColumnPiece for each piece of the tile of k in stage i.
  __device__ __forceinline__ uint32_t pieces(uint32_t i) const {
    return full(Tile::kBarriers) + i * Tile::kPieces * 8;
  }
  __device__ __forceinline__ typename Tile::Queue queue() const {
    return typename Tile::Queue(full(Tile::kBarriers) + Tile::kPieceListBytes);
  }

  __device__ __forceinline__ void init_barriers() const {
    constexpr int kReaders = 4 * Tile::kUsers * kWarpArrivals;
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full(i), kWarpArrivals);
      mbarrier_init(empty(i), kReaders);
    }
    for (int i = 0; i < Tile::kStagesQ; ++i) {
      mbarrier_init(q_full(i), 1);
      mbarrier_init(q_empty(i), kReaders);
    }
    queue().init_barriers();
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
