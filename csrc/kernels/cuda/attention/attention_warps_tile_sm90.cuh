// The sizes of attention_warps_sm90's tiles, its arguments, and how its shared memory is laid out.
//
// A thread block is three producer warps, a ring of stages, and consumer warps of 16 rows of q
// each. A stage holds pieces of 16 rows of k and the same rows of v.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/attention_arguments.h"
#include "kernels/cuda/attention/tile_lists.h"
#include "kernels/cuda/attention/work_items.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sparse_autotune {

template <int kHeadDim, int kDepth, int kMostHeld>
struct WarpRowsTile {
  static constexpr int kDim = kHeadDim, kPanels = kDim / kLineHalves;
  static constexpr int kWarps = 12, kWarpRows = 16, kRows = kWarpRows * kWarps;
  static constexpr int kThreads = kWarpgroup + 32 * kWarps;
  // 56 + 3 * 152 registers for a thread of each warpgroup: the 4 * 128 that were launched.
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 152;
  static constexpr int kPiece = 16, kPieces = 4;  // rows of k and v; of a stage
  static constexpr int kStages = kDepth;
  static constexpr int kHeld = kMostHeld;  // stages, by a consumer
  static constexpr int kLines = kPieces * kPiece;
  static constexpr int kPanelBytes = kLines * kLineBytes, kTileBytes = kPanels * kPanelBytes;
  static constexpr int kPieceBytes = kPanels * kPiece * kLineBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  using Queue = ItemQueue<kWarps + 2>;  // the copier of v and the lister read it, too
  // Of a consumer's list: two for each stage, one that gives stages back, and ends of items.
  static constexpr int kSteps = 32, kStepBytes = 16;
  static constexpr int kSharedBytes = kSwizzleAlignment + kStages * kStageBytes +
                                      kWarps * kSteps * kStepBytes + Queue::kBytes +
                                      2 * kStages * 8 + kWarps * 4;
  static_assert(3 * kStages + 4 <= kSteps, "a step is kept until it is read");
  static_assert(kHeld < kStages, "a consumer waits for a stage while it holds others");
  static_assert(kSharedBytes <= 227 * 1024, "what a thread block of Hopper may have");
};

struct WarpRowsArguments {
  CUtensorMap k, v;                // boxes of a piece
  CUtensorMap k_stages, v_stages;  // of as many rows as a stage has
  AttentionTensor q, out;
  AttentionRowValues lse;
  AttentionMask mask;
  TileLists lists;
  unsigned* counter;  // see ItemCounter
  int rows, columns, heads, group, batch_heads;
  int row_tiles, items, heads_at_once;
  float scale_log2;  // greater than 0
  bool is_negative;  // the caller's scale
  bool is_causal;
};

template <typename Tile>
struct WarpRowsShared {
  uint32_t ring;

  __device__ __forceinline__ explicit WarpRowsShared(const void* memory)
      : ring(align_swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(memory)))) {}

  __device__ __forceinline__ uint32_t k(uint32_t i) const { return ring + i * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t v(uint32_t i) const { return k(i) + Tile::kTileBytes; }
  // Step i of a consumer's list.
  __device__ __forceinline__ uint32_t step(int warp, uint32_t i) const {
    return k(Tile::kStages) + (warp * Tile::kSteps + i % Tile::kSteps) * Tile::kStepBytes;
  }
  __device__ __forceinline__ typename Tile::Queue queue() const {
    return typename Tile::Queue(step(Tile::kWarps, 0));
  }
  __device__ __forceinline__ uint32_t full(uint32_t i) const {
    return step(Tile::kWarps, 0) + Tile::Queue::kBytes + i * 8;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(Tile::kStages + i); }
  // How many steps a consumer's list has had.
  __device__ __forceinline__ uint32_t step_count(int warp) const {
    return full(2 * Tile::kStages) + warp * 4;
  }

  // By one thread.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full(i), 2);
      mbarrier_init(empty(i), Tile::kWarps);
    }
    for (int i = 0; i < Tile::kWarps; ++i) {
      asm volatile("st.shared.u32 [%0], 0;\n" ::"r"(step_count(i)) : "memory");
    }
    queue().init_barriers();
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
