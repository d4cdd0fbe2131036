// What union_sm90.cu and union_transposed_sm90.cu share: the kernel, its tiles and its code.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernels/cuda/device/union_pipeline.cuh"
#include "kernels/cuda/kernel_code.h"
#include "variant.h"

namespace sparse_autotune {

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    union_kernel(const __grid_constant__ UnionArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const UnionShared<Tile> shared(static_cast<uint32_t>(__cvta_generic_to_shared(memory)));
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.b);
    tma_prefetch_map(args.c);
    shared.init_barriers();
  }
  // The launch before this one may not be over yet, and the next one may get ready from here on.
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
  __syncthreads();
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(Tile::kProducerRegisters));
    if (warp < Tile::kProducers) produce<Tile, kRowMajorB>(args, shared, warp);
    if (warp == Tile::kProducers) schedule<Tile>(args, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(Tile::kConsumerRegisters));
    consume<T, Tile, kTransposedA, kRowMajorB>(args, shared, warp - 4);
  }
#else
  __trap();
#endif
}

template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB>
constinit KernelCode<UnionArguments> union_code{&union_kernel<T, Tile, kTransposedA, kRowMajorB>,
                                                true};

// A tile's kernels for A or for A^T, by DType and Layout of B.
struct UnionCodes {
  KernelCode<UnionArguments>* of[2][2];
};

template <typename Tile, bool kTransposedA>
constexpr UnionCodes union_codes() {
  return {{{&union_code<__half, Tile, kTransposedA, true>,
            &union_code<__half, Tile, kTransposedA, false>},
           {&union_code<__nv_bfloat16, Tile, kTransposedA, true>,
            &union_code<__nv_bfloat16, Tile, kTransposedA, false>}}};
}

// union_codes<Tile, true>(), which union_transposed_sm90.cu compiles.
template <typename Tile>
UnionCodes transposed_union_codes();

// Group's block rows, block_m, block_k; a warp's block rows and its share of the columns; a
// stage's block columns, stages, blocks ahead, buffers for C, producers.
struct B16R16 : UnionTile<16, 16, 16, 1, 1, 8, 5, 4, 1, 2> {};
struct B32R8 : UnionTile<8, 32, 32, 1, 1, 4, 4, 4, 1> {};

}  // namespace sparse_autotune
