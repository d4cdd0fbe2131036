// The sizes of attention_backward_sm90's tiles, its arguments, and its shared memory.
//
// An item of work is a tile of k and v: the kernel adds up its rows of dk and dv while it walks
// along the rows of q that see it, 64 or 128 at a time, and adds each step's part of dq to sums in
// global memory. As in the forward pass a pipeline serves both consumers, which have 64 rows of k
// and v each and the same list, or each consumer has its own.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/attention_backward_sums_sm90.cuh"
#include "kernels/cuda/attention/tile_lists.h"
#include "kernels/cuda/attention/work_items.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"

namespace sparse_autotune {

constexpr int kUserColumns = 64;  // rows of k and v of a consumer
constexpr int kDqRows = 64;       // of a part of dq, which has 64 columns
constexpr int kMostStepRows = 128;

// kRowsOfStep: of q. kPieceRows: rows of q or dout that one copy moves. kMerged: a tile of k is
// higher than a block.
template <int kHeadDim, int kPipelineCount, int kDepth, int kDepthOfDout, int kDepthOfKv,
          int kRowsOfStep = 64, int kPieceRows = kRowsOfStep, bool kMerged = false>
struct AttentionBackwardTile {
  static constexpr int kStepRows = kRowsOfStep;
  static constexpr int kDim = kHeadDim, kPanels = kDim / kLineHalves;
  static constexpr int kPipelines = kPipelineCount;
  static constexpr int kUsers = kConsumers / kPipelines;  // warpgroups of a pipeline
  static constexpr int kColumns = kUserColumns * kUsers;  // of an item
  static constexpr int kPiece = kPieceRows, kPieces = kStepRows / kPiece;  // of a step
  static constexpr bool kMerges = kMerged;
  // Steps of 128 rows hand dp over right behind the scores, and end when their dk is there. Those
  // of 64 leave dk under way, and wait for it and the next scores before they hand dp over.
  static constexpr bool kFinishesDk = kStepRows == kMostStepRows;
  static constexpr int kStages = kDepth;  // of q
  static constexpr int kStagesDout = kDepthOfDout;
  static constexpr int kStagesKv = kDepthOfKv;                             // of k and v
  static constexpr int kDqParts = kStepRows / kDqRows * kPanels / kUsers;  // of a consumer
  static constexpr int kTileBytes = kColumns * kDim * 2;                   // k or v
  static constexpr int kStepBytes = kStepRows * kDim * 2;                  // q or dout
  static constexpr int kDsBytes = kColumns * kStepRows * 2;
  // Consumers that share an item multiply a step's dq in the next step.
  static constexpr int kDsBuffers = kUsers;
  static constexpr int kRowBytes = kStepRows * 4;  // lse or delta
  static constexpr int kStepListBytes = (kPieces * 8 + 4 + 15) / 16 * 16;
  static constexpr int kDqBytes = kDqRows * kLineHalves * 4;  // of a part
  static constexpr int kTiles = 2 * kStagesKv * kTileBytes + (kStages + kStagesDout) * kStepBytes +
                                kDsBuffers * kDsBytes + kUsers * kDqBytes;
  // An even number: a pipeline's part is a multiple of 16 bytes.
  static constexpr int kBarriers =
      (2 * (kStages + kStagesDout) + 3 * kStagesKv + kDsBuffers + 1) / 2 * 2;
  using Queue = ItemQueue<4 * kUsers + 1>;  // the second producer warp reads, too
  static constexpr int kPipelineBytes = kStages * (kRowBytes + kStepListBytes) +
                                        kStagesDout * kRowBytes + Queue::kBytes + kBarriers * 8;
  static constexpr int kOrdered = 256;  // items at the end, which are in order of length
  static constexpr int kSharedBytes =
      kSwizzleAlignment + kPipelines * (kTiles + kPipelineBytes) + kOrdered * 4;
  static_assert(kDqParts == 1 || (kDqParts == 2 && kStepRows == kDqRows), "see dq_rows()");
  static_assert(kSharedBytes <= 227 * 1024, "what a thread block of Hopper may have");
};

struct AttentionBackwardArgumentsSm90 {
  CUtensorMap q, k, v, dout;
  AttentionTensor dk, dv;
  AttentionMask mask;  // by column: block rows are those of k, columns those of q
  TileLists lists;
  // (batch, heads, row tiles * 64): lse as a power of two, inf where there is nothing; delta.
  const float *lse, *delta;
  BackwardSums dq;
  unsigned* counter;
  int rows, columns, heads, group, row_tiles, column_tiles, items, ordered;
  float scale_log2, scale;
  bool is_causal;

  __device__ __forceinline__ void prefetch_maps() const {
    tma_prefetch_map(q);
    tma_prefetch_map(k);
    tma_prefetch_map(v);
    tma_prefetch_map(dout);
  }
};

// A pipeline's part of shared memory.
template <typename Tile>
struct AttentionBackwardShared {
  uint32_t tiles, others, order;  // of the last items

  __device__ __forceinline__ AttentionBackwardShared(const void* memory, int pipeline) {
    const uint32_t begin = align_swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
    tiles = begin + pipeline * Tile::kTiles;
    others = begin + Tile::kPipelines * Tile::kTiles + pipeline * Tile::kPipelineBytes;
    order = begin + Tile::kPipelines * (Tile::kTiles + Tile::kPipelineBytes);
  }
  // In panels of all rows each.
  __device__ __forceinline__ uint32_t k(uint32_t i) const { return tiles + i * Tile::kTileBytes; }
  __device__ __forceinline__ uint32_t v(uint32_t i) const { return k(Tile::kStagesKv + i); }
  __device__ __forceinline__ uint32_t q(uint32_t i) const {
    return k(2 * Tile::kStagesKv) + i * Tile::kStepBytes;
  }
  __device__ __forceinline__ uint32_t dout(uint32_t i) const { return q(Tile::kStages + i); }
  // Lines of 64 rows of q, a line a column; in panels of all columns.
  __device__ __forceinline__ uint32_t ds(uint32_t i) const {
    return dout(Tile::kStagesDout) + i * Tile::kDsBytes;
  }
  // Of a consumer: what its warps add, each 16 rows, in the order of fragments.
  __device__ __forceinline__ uint32_t dq(int user) const {
    return ds(Tile::kDsBuffers) + user * Tile::kDqBytes;
  }
  __device__ __forceinline__ uint32_t lse(uint32_t i) const { return others + i * Tile::kRowBytes; }
  __device__ __forceinline__ uint32_t delta(uint32_t i) const { return lse(Tile::kStages + i); }
  // A ColumnPiece for each piece of a step, of which `column` is the first row of q; and how many
  // tiles of 16 rows come before those of its head.
  __device__ __forceinline__ uint32_t pieces(uint32_t i) const {
    return delta(Tile::kStagesDout) + i * Tile::kStepListBytes;
  }
  __device__ __forceinline__ uint32_t rows_before(uint32_t i) const {
    return pieces(i) + Tile::kPieces * 8;
  }
  __device__ __forceinline__ typename Tile::Queue queue() const {
    return typename Tile::Queue(pieces(Tile::kStages));
  }
  __device__ __forceinline__ uint32_t q_full(uint32_t i) const {
    return pieces(Tile::kStages) + Tile::Queue::kBytes + i * 8;
  }
  __device__ __forceinline__ uint32_t q_empty(uint32_t i) const {
    return q_full(Tile::kStages + i);
  }
  __device__ __forceinline__ uint32_t dout_full(uint32_t i) const {
    return q_full(2 * Tile::kStages + i);
  }
  __device__ __forceinline__ uint32_t dout_empty(uint32_t i) const {
    return dout_full(Tile::kStagesDout + i);
  }
  __device__ __forceinline__ uint32_t k_full(uint32_t i) const {
    return dout_empty(Tile::kStagesDout + i);
  }
  __device__ __forceinline__ uint32_t v_full(uint32_t i) const {
    return k_full(Tile::kStagesKv + i);
  }
  __device__ __forceinline__ uint32_t kv_empty(uint32_t i) const {
    return v_full(Tile::kStagesKv + i);
  }
  __device__ __forceinline__ uint32_t ds_full(uint32_t i) const {
    return kv_empty(Tile::kStagesKv + i);
  }

  __device__ __forceinline__ void init_barriers() const {
    constexpr int kReaders = 4 * Tile::kUsers * kWarpArrivals;
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(q_full(i), kWarpArrivals);
      mbarrier_init(q_empty(i), kReaders);
    }
    for (int i = 0; i < Tile::kStagesDout; ++i) {
      mbarrier_init(dout_full(i), kWarpArrivals);
      mbarrier_init(dout_empty(i), kReaders);
    }
    for (int i = 0; i < Tile::kStagesKv; ++i) {
      mbarrier_init(k_full(i), 1);
      mbarrier_init(v_full(i), 1);
      mbarrier_init(kv_empty(i), kReaders);
    }
    for (int i = 0; i < Tile::kDsBuffers; ++i) mbarrier_init(ds_full(i), kReaders);
    queue().init_barriers();
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
