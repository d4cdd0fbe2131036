// The kernel of mma_eights_sm80, for the files that compile its configurations. At its end a warp's
// sums of C^T, 4 strips of 8 rows by 64 columns, go to C: bias, activation, rounding, and through
// the registers of four lanes, so that each stores 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/transpose_word.cuh"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/product/small_blocks/eights_strips.cuh"
#include "kernels/cuda/product/small_blocks/eights_tile.cuh"
#include "operators/product/product.h"
#include "variant.h"

namespace sparse_autotune {

// Lane t of four gives word i to lane i, and has lane i's in its place then.
__device__ __forceinline__ void exchange_words(uint32_t (&word)[4]) {
#pragma unroll
  for (int apart = 1; apart <= 2; apart *= 2) {
    const bool upper = (threadIdx.x & apart) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & apart) continue;
      const uint32_t got = __shfl_xor_sync(~0u, upper ? word[i] : word[i + apart], apart);
      (upper ? word[i] : word[i + apart]) = got;
    }
  }
}

// The first `count` of the 8 elements.
template <typename T>
__device__ __forceinline__ void store_eight(T* to, const uint32_t (&word)[4], int count,
                                            int alignment) {
  if (count >= 8 && alignment >= 16) {
    *reinterpret_cast<uint4*>(to) = make_uint4(word[0], word[1], word[2], word[3]);
    return;
  }
  auto* const halves = reinterpret_cast<unsigned short*>(to);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (i < count) halves[i] = static_cast<unsigned short>(word[i / 2] >> i % 2 * 16);
  }
}

// sum[r][j]: of strip `strip` + r and columns n0 + 16 j, as mma() leaves C^T.
template <typename T, typename Arguments>
__device__ __forceinline__ void store_eights(float (&sum)[4][4][4], const Arguments& args,
                                             unsigned batch, int strip, int64_t n0) {
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  if (args.bias != nullptr) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = (strip + r) * 8 + 2 * t;
      if (row >= args.m) continue;
      const T* bias = static_cast<const T*>(args.bias) + row;
      const auto x = static_cast<float>(bias[0]), y = static_cast<float>(bias[1]);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        sum[r][j][0] += x;
        sum[r][j][1] += y;
        sum[r][j][2] += x;
        sum[r][j][3] += y;
      }
    }
  }
  if (args.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < 64; ++i) {
      float& x = sum[i / 16][i / 4 % 4][i % 4];
      x = activate(x, Activation::kRelu);
    }
  } else if (args.activation != Activation::kNone) {
    activate_passing<64, 4>(&sum[0][0][0], args.activation);
  }

  T* const c = static_cast<T*>(args.c) + batch * args.c_batch_stride;
  const auto columns = static_cast<int>(min(args.n - n0, int64_t{64}));
  // Rows 2t and 2t + 1 of strip r, column 8 j + g.
  const auto pair = [&](int r, int j) {
    return pack<T>(sum[r][j / 2][j % 2 * 2], sum[r][j / 2][j % 2 * 2 + 1]);
  };
  if (args.c_rows) {
#pragma unroll
    for (int r = 0; r < 4; ++r) {
      const int row = (strip + r) * 8 + g;
      T* const line = c + row * args.ldc + n0;
#pragma unroll
      for (int first = 0; first < 8; first += 4) {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) word[i] = transpose_word(pair(r, first + i));
        exchange_words(word);
        const int at = (first + t) * 8;
        if (row < args.m) store_eight(line + at, word, columns - at, args.c_alignment);
      }
    }
  } else {
    const int row = (strip + t) * 8;
    T* const own = c + (n0 + g) * args.ldc + row;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      uint32_t word[4];
#pragma unroll
      for (int r = 0; r < 4; ++r) word[r] = pair(r, j);
      exchange_words(word);
      const int count = j * 8 + g < columns ? args.m - row : 0;
      store_eight(own + j * 8 * args.ldc, word, count, args.c_alignment);
    }
  }
}

template <typename T, typename Tile, typename Strips>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    mma_eights_kernel(const __grid_constant__ EightsArguments args) {
  using Shared = EightsShared<Tile, Strips>;
  extern __shared__ __align__(128) char memory[];
  const Shared shared{static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  CopiesOfStages<T, Tile, Shared> copies(args);
  copies.start(args, shared);

  // This warp's first strip of a tile of those rows.
  const auto strip_of = [&](const TilePlace& place) {
    return static_cast<int>(place.row) * kEightsStrips + warp * kEightsOwn;
  };
  TilePlace place = locate(args.panels, blockIdx.x);
  Strips strips(shared.place(warp), shared.landed(warp));
  strips.begin(args, strip_of(place), Strips::look(args, strip_of(place)));
  RingPlace<Tile::kStages> at;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < args.panels.tiles; tile += gridDim.x) {
    const TilePlace next = locate(args.panels, min(tile + gridDim.x, args.panels.tiles - 1));
    const auto ends = Strips::look(args, strip_of(next));
    float sum[kEightsOwn][4][4] = {};
#pragma unroll 1
    for (int first = 0; first < args.k; first += Tile::kStageK) {
      copies.start(args, shared);
      mbarrier_wait(shared.full(at.stage), at.parity);
      multiply_stage<T, Tile>(args, strips, shared.stage(at.stage), first / Strips::kBlockK, sum);
      // Each lane for itself: racecheck does not see that one may speak for its warp.
      mbarrier_arrive(shared.empty(at.stage));
      at.advance();
    }
    // What the next tile begins with is on its way while this one's sums leave.
    strips.begin(args, strip_of(next), ends);
    store_eights<T>(sum, args, place.batch, strip_of(place), int64_t{place.column} * Tile::kN);
    place = next;
  }
  cp_async_wait<0>();
}

template <typename T, typename Tile, typename Strips>
constinit KernelCode<EightsArguments> eights_code{&mma_eights_kernel<T, Tile, Strips>};

// A tile as the host sees it, and its kernels by A or A^T, DType and Layout of B.
struct EightsShape {
  int stage_k;
  int64_t shared_bytes;
  KernelCode<EightsArguments>* of[2][2][2];
};

template <int kStageRows, int kDepth>
constexpr EightsShape eights_shape() {
  using Rows = EightsTile<kStageRows, kDepth, true>;
  using Columns = EightsTile<kStageRows, kDepth, false>;
  using A = Pieces<false>;
  using At = Pieces<true>;
  using Bf16 = __nv_bfloat16;
  return {Rows::kStageK,
          sizeof(EightsLayout<Rows, A>),
          {{{&eights_code<__half, Rows, A>, &eights_code<__half, Columns, A>},
            {&eights_code<Bf16, Rows, A>, &eights_code<Bf16, Columns, A>}},
           {{&eights_code<__half, Rows, At>, &eights_code<__half, Columns, At>},
            {&eights_code<Bf16, Rows, At>, &eights_code<Bf16, Columns, At>}}}};
}

// In a file of their own, so that none compiles for long.
extern const EightsShape kEightsDeep, kEightsSmall;

}  // namespace sparse_autotune
