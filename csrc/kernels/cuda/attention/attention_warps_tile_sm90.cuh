// The sizes of attention_warps_sm90's tiles, its arguments, and how its shared memory is laid out.
//
// A thread block is three producer warps, a ring of stages, and consumer warps of 16 rows of q
// each. A stage holds pieces of 16 rows of k and the same rows of v.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/attention/work_items.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sparse_autotune {

// What a thread block owns rows of: q; q, for dq; k and v, for their gradients.
enum class WarpRowsPass { kForward, kOfRows, kOfColumns };

// `kWarpRowCount` rows of q to a consumer warp; pieces of `kPieceRows` of k, `kPieceCount` a stage.
// With 32 rows a warp has no registers for q, which is in shared memory then.
template <int kHeadDim, int kWarpRowCount, int kWarpCount, int kPieceRows, int kPieceCount,
          int kDepth, int kOfProducer, int kOfConsumer, WarpRowsPass kOfPass>
struct WarpRowsTile {
  static constexpr WarpRowsPass kPass = kOfPass;
  static constexpr int kDim = kHeadDim, kPanels = kDim / kLineHalves;
  static constexpr int kWarps = kWarpCount, kWarpRows = kWarpRowCount, kRows = kWarpRows * kWarps;
  static constexpr int kThreads = kWarpgroup + 32 * kWarps;
  static constexpr int kProducerRegisters = kOfProducer, kConsumerRegisters = kOfConsumer;
  static constexpr int kPiece = kPieceRows, kPieces = kPieceCount;  // rows of k and v; of a stage
  static constexpr int kStages = kDepth;
  static constexpr int kLines = kPieces * kPiece;
  static constexpr int kPanelBytes = kLines * kLineBytes, kTileBytes = kPanels * kPanelBytes;
  static constexpr int kPieceBytes = kPanels * kPiece * kLineBytes;
  static constexpr int kStageBytes = 2 * kTileBytes;
  static constexpr bool kSharesQ = kWarpRows > 16;  // whether q is in shared memory
  static constexpr int kWarpQBytes = kSharesQ ? kWarpRows * kDim * 2 : 0;
  // lse and delta of a piece's rows, where these are rows of q.
  static constexpr int kValueBytes = kPass == WarpRowsPass::kOfColumns ? 2 * kPiece * 4 : 0;
  static constexpr int kPieceLineBytes = kPiece * kLineBytes;
  static constexpr int kStageValueBytes = kStageBytes / kPieceLineBytes * kValueBytes;
  static constexpr bool kSplits = kPass == WarpRowsPass::kForward;
  using Queue = ItemQueue<kWarps + 2, kSplits>;  // the copier of v and the lister read it, too
  // Of a consumer's list: for each stage as many as it has pieces, and ends of items.
  static constexpr int kSteps = kPieces == 1 ? 16 : 64, kStepBytes = 8;
  static constexpr int kSharedBytes =
      kSwizzleAlignment + kStages * (kStageBytes + kStageValueBytes) +
      kWarps * (kWarpQBytes + kSteps * kStepBytes) + Queue::kBytes + 2 * kStages * 8 + kWarps * 4;
  static_assert(kPieces * kStages + 4 <= kSteps, "a step is kept until it is read");
  static_assert(kSharedBytes <= 227 * 1024, "what a thread block of Hopper may have");
};

// Registers: 32 + 3 * 160 for a thread of each warpgroup, the 4 * 128 that were launched.
template <int kDim>
using WarpRows16 =
    WarpRowsTile<kDim, 16, 12, 16, 4, kDim == 64 ? 9 : 6, 32, 160, WarpRowsPass::kForward>;
// 40 + 2 * 232, the 3 * 168 that were launched.
template <int kDim>
using WarpRows32 =
    WarpRowsTile<kDim, 32, 8, 32, 1, kDim == 64 ? 12 : 10, 40, 232, WarpRowsPass::kForward>;

struct WarpRowsMaps {
  CUtensorMap k, v;                // boxes of a piece
  CUtensorMap k_stages, v_stages;  // of as many rows as a stage has
};

struct WarpRowsArguments : WarpRowsMaps, ForwardWork {
  AttentionTensor q;
};

// Of a gradient: rows x1 and x2 are those of q and dout or of k and v, depending on the pass, y1
// and y2 the others. Maps of k and v are of y1 and y2; the mask's rows and the work's are x's.
struct WarpRowsBackwardArguments : WarpRowsMaps, AttentionWork {
  AttentionTensor x1, x2, sum1, sum2;  // sum2 in one pass alone
  const float *lse, *delta;            // of rows of q: see attention_backward_rows.cuh
  int64_t padded_rows;                 // of these, in one head
  float scale;
};

template <typename Tile>
struct WarpRowsShared {
  uint32_t ring;

  __device__ __forceinline__ explicit WarpRowsShared(const void* memory)
      : ring(align_swizzled(static_cast<uint32_t>(__cvta_generic_to_shared(memory)))) {}

  __device__ __forceinline__ uint32_t k(uint32_t i) const { return ring + i * Tile::kStageBytes; }
  __device__ __forceinline__ uint32_t v(uint32_t i) const { return k(i) + Tile::kTileBytes; }
  __device__ __forceinline__ uint32_t q(int warp) const {
    return k(Tile::kStages) + warp * Tile::kWarpQBytes;
  }
  // Of the piece whose first rows begin there: its rows' lse, then their delta.
  __device__ __forceinline__ uint32_t values(uint32_t k) const {
    return q(Tile::kWarps) + (k - ring) / Tile::kPieceLineBytes * Tile::kValueBytes;
  }
  // Step i of a consumer's list.
  __device__ __forceinline__ uint32_t step(int warp, uint32_t i) const {
    return q(Tile::kWarps) + Tile::kStages * Tile::kStageValueBytes +
           (warp * Tile::kSteps + i % Tile::kSteps) * Tile::kStepBytes;
  }
  __device__ __forceinline__ typename Tile::Queue queue() const {
    return typename Tile::Queue(step(Tile::kWarps, 0));
  }
  __device__ __forceinline__ uint32_t full(uint32_t i) const {
    return step(Tile::kWarps, 0) + Tile::Queue::kBytes + i * 8;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(Tile::kStages + i); }
  // By one thread.
  __device__ __forceinline__ void init() const {
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(full(i), 2);
      mbarrier_init(empty(i), Tile::kWarps);
    }
    for (int i = 0; i < Tile::kWarps * Tile::kSteps; ++i) {  // of no round
      store_shared(step(0, 0) + i * Tile::kStepBytes, uint64_t{0});
    }
    queue().init_barriers();
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
