// What the families that multiply by wgmma share: their kernel, and the host's side.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string_view>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/product/large_blocks/wgmma_consumer.cuh"
#include "kernels/cuda/product/large_blocks/wgmma_producer.cuh"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB, bool kSplits>
__global__ void __launch_bounds__(kThreads, 1)
    wgmma_kernel(const __grid_constant__ WgmmaArguments args) {
  extern __shared__ char memory[];
  const Shared<Tile> shared(static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.a_map);
    tma_prefetch_map(args.b_map);
    if constexpr (!Tile::kDirect && sizeof(T) == 2) tma_prefetch_map(args.c_map);
    shared.init_barriers();
  }
  follow_launch_before();
  if constexpr (Tile::kCluster > 1) {
    cluster_sync();
  } else {
    __syncthreads();
  }
  // 40 + 2 * 232 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    give_up_registers<40>();
    if (warp == 0) WgmmaProducer<T, Tile, kTransposedA, kRowMajorB>{args, shared}.run();
    if (warp == 1) schedule<Tile, kTransposedA>(args, shared);
  } else {
    take_registers<232>();
    consume_wgmma<T, Tile, kTransposedA, kRowMajorB, kSplits>(args, shared, warp / 4 - 1);
  }
  // Until the other has received and released all, its barriers are there for it.
  if constexpr (Tile::kCluster > 1) cluster_sync();
}

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB, bool kSplits>
constinit KernelCode<WgmmaArguments> wgmma_code{
    &wgmma_kernel<T, Tile, kTransposedA, kRowMajorB, kSplits>, true};

// wgmma takes TF32 with k contiguous alone: column-major B, as linear() has it, and A itself.
template <typename Tile, bool kTransposedA, bool kSplits>
constexpr KernelCode<WgmmaArguments>* tf32_code() {
  if constexpr (kTransposedA || kSplits) {
    return nullptr;
  } else {
    return &wgmma_code<float, Tile, false, false, false>;
  }
}

// A tile's kernels for A or for A^T, by DType and Layout of B; null where there is none.
struct WgmmaCodes {
  KernelCode<WgmmaArguments>* of[3][2];
};

template <typename Tile, bool kTransposedA, bool kSplits>
constexpr WgmmaCodes wgmma_codes() {
  return {{{&wgmma_code<__half, Tile, kTransposedA, true, kSplits>,
            &wgmma_code<__half, Tile, kTransposedA, false, kSplits>},
           {&wgmma_code<__nv_bfloat16, Tile, kTransposedA, true, kSplits>,
            &wgmma_code<__nv_bfloat16, Tile, kTransposedA, false, kSplits>},
           {nullptr, tf32_code<Tile, kTransposedA, kSplits>()}}};
}

// wgmma_codes<Tile, true, kSplits>(), which files of their own compile: wgmma_transposed_sm90.cu
// and split_k_transposed_sm90.cu.
template <typename Tile, bool kSplits>
WgmmaCodes transposed_wgmma_codes();

// Rows, columns, stages of A's ring, stages of B's ring.
struct M128N256 : WgmmaTile<128, 256, 4, 4> {};
struct M128N128 : WgmmaTile<128, 128, 6, 6> {};
struct M128N64 : WgmmaTile<128, 64, 8, 8> {};
struct M64N512 : WgmmaTile<64, 512, 4, 5> {};
struct M64N256 : WgmmaTile<64, 256, 5, 9> {};
struct M64N128 : WgmmaTile<64, 128, 8, 16> {};
struct Pairs : MatchedPairs<1> {};
struct PairsInCluster : MatchedPairs<2> {};

// A tile as the host sees it, or the tiles that a cluster has at a time.
struct WgmmaShape {
  int m, n, width, cluster, shared_bytes;
  bool pairs;           // rows of two block rows
  bool direct;          // C's rows may be ones that TMA does not take
  WgmmaCodes codes[2];  // for A and for A^T

  bool stores_directly(const Problem& p) const { return direct || p.dtype == DType::kFloat32; }
  int64_t columns(const Problem& p) const { return ceil_div(p.n, n); }
  // Of a block row, or of a pair.
  int64_t strips(const Problem& p) const { return pairs ? 1 : p.block_m / m; }
  // Whether it waits for L2 more than for the tensor cores.
  bool waits() const { return m == 64 || pairs; }
  // Thread blocks, or clusters, that work at a time.
  int64_t at_once(const Device& d) const { return std::max(d.multiprocessors / cluster, 1); }
  // For so many entries of a row order.
  int64_t tiles(const Problem& p, int64_t entries) const {
    return entries * strips(p) * columns(p) * p.batch;
  }
  KernelCode<WgmmaArguments>* code_of(const Problem& p) const {
    return codes[p.transpose ? 1 : 0].of[static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }
};

template <typename Tile>
constexpr WgmmaShape wgmma_shape_of(const WgmmaCodes& plain, const WgmmaCodes& transposed) {
  return {Tile::kM,       Tile::kN * Tile::kCluster, Tile::kWidth,
          Tile::kCluster, Shared<Tile>::kBytes,      Tile::kPairs,
          Tile::kDirect,  {plain, transposed}};
}

template <typename Tile, bool kSplits>
WgmmaShape wgmma_shape() {
  return wgmma_shape_of<Tile>(wgmma_codes<Tile, false, kSplits>(),
                              transposed_wgmma_codes<Tile, kSplits>());
}

// C is stored directly.
template <typename Tile>
struct Direct : Tile {
  static constexpr bool kDirect = true;
};

// For A and a row-major B alone.
template <typename Tile>
constexpr WgmmaShape wgmma_row_major_shape() {
  return wgmma_shape_of<Tile>({{{&wgmma_code<__half, Tile, false, true, false>, nullptr},
                                {&wgmma_code<__nv_bfloat16, Tile, false, true, false>, nullptr}}},
                              {});
}

// Whether the kernel can multiply the problem on the device.
Support wgmma_supports(const WgmmaShape& shape, const Problem& problem, const Device& device);

// Expected time with so many entries in the row order, of which the longest has so many blocks.
double wgmma_us(const WgmmaShape& shape, const Problem& problem, const Device& device,
                int64_t entries, int64_t longest);
// The same of tiles that are other work; its panels are counted here.
double wgmma_us(const WgmmaShape& shape, const Problem& problem, const Device& device,
                int64_t entries, TileWork work);

// Everything but what concerns parts of rows. `order`: of so many entries; null: rows as they come.
Status wgmma_arguments(const WgmmaShape& shape, const Problem& problem, const Launch& launch,
                       const OrderedRow* order, int64_t entries, WgmmaArguments* arguments);

Status wgmma_launch(const WgmmaShape& shape, const Problem& problem, const Launch& launch,
                    const WgmmaArguments& arguments, std::string_view name);

}  // namespace sparse_autotune
