// The sums of rows that a plan's order cuts: adding up their parts' in fp32.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "row_orders.h"
#include "variant.h"

namespace sparse_autotune {

struct CutRowSums {
  const CutRow* rows;
  // Of each part lines of C, rows or columns, `pitch` words apart; the batch outside.
  const float* partials;
  const float* bias;
  float* c;
  int64_t ldc, c_batch_stride;
  int slots, lines, pitch, line_elements;  // slots: parts of all rows
  int block_m;
  Activation activation;
  bool c_rows;
};

constexpr int kCutRowWords = 128;  // of C, that a thread block finishes

// A thread block for each cut row, each kCutRowWords of its sums and each matrix of the batch. Its
// warps share out the parts; their sums are added up in the warps' order.
template <int kWarps>
__global__ void __launch_bounds__(kWarps * 32)
    add_cut_rows_kernel(const __grid_constant__ CutRowSums args) {
  __shared__ float4 sums[kWarps * 32];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  const CutRow cut = load_entry(args.rows, blockIdx.x);
  const int words = args.lines * args.pitch, batch = static_cast<int>(blockIdx.z);
  const float* from = args.partials + (int64_t{batch} * args.slots + cut.first) * words;
  for (int first = static_cast<int>(blockIdx.y) * kCutRowWords; first < words;
       first += static_cast<int>(gridDim.y) * kCutRowWords) {
    const int word = first + lane * 4;
    const float4 sum = sum_parts(cut.parts, warp, kWarps, 32, word < words, sums, [&](int part) {
      return __ldcg(reinterpret_cast<const float4*>(from + int64_t{part} * words + word));
    });
    if (warp == 0 && word < words) {
      const int line = word / args.pitch, element = word - line * args.pitch;
      const int64_t row = int64_t{cut.row} * args.block_m;
      const int64_t bias = row + (args.c_rows ? line : element);
      float* to = args.c + batch * args.c_batch_stride +
                  (args.c_rows ? (row + line) * args.ldc + element
                               : int64_t{line} * args.ldc + row + element);
      const float of[4] = {sum.x, sum.y, sum.z, sum.w};
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (element + e >= args.line_elements) break;
        float x = of[e];
        if (args.bias != nullptr) x += args.bias[bias + (args.c_rows ? 0 : e)];
        to[e] = activate(x, args.activation);
      }
    }
  }
}

}  // namespace sparse_autotune
