// A tile of C of the kernels that multiply by wgmma, what they are given, and where things lie in
// shared memory: two rings of tiles, A's of kM lines and B's of kWidth, and their barriers; and the
// instructions of a cluster: thread blocks that run at the same time on neighbouring
// multiprocessors, reach each other's shared memory and barriers, and may receive one TMA load
// together.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tile_queue.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"
#include "kernels/cuda/product/large_blocks/store_sinks.cuh"
#include "operators/product/product.h"
#include "row_groups.h"

namespace sparse_autotune {

// The calling thread block's place in its cluster.
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;\n" : "=r"(rank));
  return rank;
}

// The address in shared memory that `address` has in the cluster's thread block `rank`.
__device__ __forceinline__ uint32_t in_block(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// All threads of the cluster's thread blocks; those that have ended count as arrived. Orders no
// memory but barriers that mbarrier_init_fence() has published.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.relaxed;\nbarrier.cluster.wait;\n" ::: "memory");
}

// An arrival at the barrier of any thread block, by its address from in_block(): what this thread
// has read there may be written. Release at the cluster's scope would be a fence of the whole GPU,
// which in every step made products 1.6 times slower.
__device__ __forceinline__ void cluster_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}

// Writes to the shared memory of any thread block, and arrives there as 4 bytes at `barrier`.
__device__ __forceinline__ void cluster_store(uint32_t address, uint32_t value, uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.u32 [%0], %1, [%2];\n" ::"r"(address),
      "r"(value), "r"(barrier)
      : "memory");
}

// Loads into the same place of every thread block in `blocks`, a bit set, and arrives as bytes at
// the same barrier of each.
__device__ __forceinline__ void tma_load_to(uint16_t blocks, uint32_t to, const CUtensorMap& map,
                                            uint32_t barrier, int x, int y) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;\n" ::"r"(to),
      "l"(&map), "r"(barrier), "r"(x), "r"(y), "h"(blocks)
      : "memory");
}

using Queue = TileQueue<1 + 4 * kConsumers>;

// A tile of C and the depths of the rings.
template <int kRows, int kColumns, int kDepthA, int kDepthB>
struct WgmmaTile {
  static constexpr int kM = kRows, kN = kColumns, kStagesA = kDepthA, kStagesB = kDepthB;
  static constexpr int kCluster = 1;  // see MatchedPairs and TilesInCluster
  static constexpr bool kPairs = false;
  static constexpr bool kTall = kM == 128;
  static constexpr int kWidth = kTall ? kN : kN / kConsumers;  // of one consumer's part
  static constexpr int kPartsB = kTall ? 1 : kConsumers;       // tiles of B in a step
  static constexpr int kBytesA = kM * kLineBytes, kBytesB = kWidth * kLineBytes;
  static constexpr int kReadersB = 4 * kConsumers / kPartsB;  // warps
  static constexpr int kStoreBytes = 128 * kLineBytes;        // of each consumer's store
  // Steps before the end of a tile at which the next is asked for: 2 to 4 us, what an answer takes.
  static constexpr int kAskAhead = 4 * 128 * 256 / (kM * kN);
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

// The tiles of a cluster's two thread blocks are neighbours in one block row: each brings half of
// A's rows to both.
struct TilesInCluster : WgmmaTile<128, 256, 4, 4> {
  static constexpr int kCluster = 2;
};

struct WgmmaArguments : ProductArguments {
  // Values as nnzb * block_m rows or, transposed, as nnzb * block_k rows with each 64 columns of a
  // block as third dimension; B and C with the batch as third dimension.
  CUtensorMap a_map, b_map, c_map;
  const GroupColumn* columns;  // of MatchedPairs
  const int32_t* pairs;        // RowGroups::rows
  Panels panels;
  PartialSums partials;
  DirectOutput direct;              // instead of c_map, for tiles that are stored directly
  int n, block_m, block_k, strips;  // strips: of one block row
  bool c_rows, b_batched;
};

// What a thread block keeps in shared memory, from a multiple of kSwizzleAlignment on.
template <typename Tile>
struct WgmmaLayout {
  std::byte a[Tile::kStagesA][Tile::kBytesA], b[Tile::kStagesB][Tile::kBytesB];
  std::byte store[kConsumers][Tile::kStoreBytes];
  Queue::Layout queue;
  Barrier a_full[Tile::kStagesA], a_empty[Tile::kStagesA], b_empty[Tile::kStagesB];
  // Each part has barriers of its own for what it waits for. Where the number of stages is odd a
  // stage holds now one consumer's tile and now the other's; one that waited for every other phase
  // of a barrier could take a phase that is not over for the one before, of the same parity.
  Barrier b_full[Tile::kPartsB][Tile::kStagesB];
  Barrier asked;
  // How a cluster's first thread block tells the second which tile is next.
  Barrier mail_full, mail_empty;
  uint32_t mail;
  uint32_t rows[Tile::kStagesA];  // GroupColumn::rows of what a stage of A holds
};

// The same by address.
template <typename Tile>
struct Shared {
  using Layout = WgmmaLayout<Tile>;
  static constexpr int kBytes = kSwizzleAlignment + sizeof(Layout);
  static_assert(kBytes <= 227 * 1024, "more shared memory than a thread block of Hopper may have");
  uint32_t begin;

  __device__ __forceinline__ explicit Shared(uint32_t memory) : begin(align_swizzled(memory)) {}
  __device__ __forceinline__ uint32_t a_tile(uint32_t i) const {
    return begin + offsetof(Layout, a) + i * Tile::kBytesA;
  }
  __device__ __forceinline__ uint32_t b_tile(uint32_t i) const {
    return begin + offsetof(Layout, b) + i * Tile::kBytesB;
  }
  __device__ __forceinline__ uint32_t store(uint32_t consumer) const {
    return begin + offsetof(Layout, store) + consumer * Tile::kStoreBytes;
  }
  __device__ __forceinline__ uint32_t queue() const { return begin + offsetof(Layout, queue); }
  __device__ __forceinline__ uint32_t a_full(uint32_t i) const {
    return begin + offsetof(Layout, a_full) + i * sizeof(Barrier);
  }
  __device__ __forceinline__ uint32_t a_empty(uint32_t i) const {
    return begin + offsetof(Layout, a_empty) + i * sizeof(Barrier);
  }
  __device__ __forceinline__ uint32_t b_empty(uint32_t i) const {
    return begin + offsetof(Layout, b_empty) + i * sizeof(Barrier);
  }
  __device__ __forceinline__ uint32_t b_full(uint32_t part, uint32_t turn) const {
    return begin + offsetof(Layout, b_full) + (part * Tile::kStagesB + turn) * sizeof(Barrier);
  }
  __device__ __forceinline__ uint32_t asked() const { return begin + offsetof(Layout, asked); }
  __device__ __forceinline__ uint32_t mail_full() const {
    return begin + offsetof(Layout, mail_full);
  }
  __device__ __forceinline__ uint32_t mail_empty() const {
    return begin + offsetof(Layout, mail_empty);
  }
  __device__ __forceinline__ uint32_t mail() const { return begin + offsetof(Layout, mail); }
  __device__ __forceinline__ uint32_t rows(uint32_t i) const {
    return begin + offsetof(Layout, rows) + i * 4;
  }
  __device__ __forceinline__ void set_rows(uint32_t i, int of_stage) const {
    store_shared(rows(i), of_stage);
  }
  // By a whole warp, of which lane 0 alone reads: it is the one that releases the stage.
  __device__ __forceinline__ int rows_of(uint32_t i) const {
    const int found = threadIdx.x % 32 == 0 ? load_shared<int>(rows(i)) : 0;
    return __shfl_sync(~0u, found, 0);
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
    Queue(queue()).init_barriers();
    mbarrier_init_fence();
  }
};

}  // namespace sparse_autotune
