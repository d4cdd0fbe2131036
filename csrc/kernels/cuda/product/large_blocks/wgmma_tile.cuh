// A tile of C of the kernels that multiply by wgmma, what they are given, and where things lie in
// shared memory: two rings of tiles, A's of kM lines and B's of kWidth, and their barriers.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/tile_queue.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"
#include "kernels/cuda/product/large_blocks/store_sinks.cuh"
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

}  // namespace sparse_autotune
