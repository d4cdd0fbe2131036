// Sums over parts of block rows, on their way through global memory in fp32.
//
// They are kept as warpgroups hold them after wgmma, in units of 64 x 64: of a thread's 32 sums,
// four together lie beside those of its neighbours. Who reads a unit holds it just as its writer
// did. A tile's units go from left to right, then from top to bottom.
#pragma once

#include <cstdint>

namespace sparse_autotune {

constexpr int kUnitFloats = 64 * 64, kUnitThreads = 128;

struct PartialSums {
  float* memory;
  int slots;            // of one matrix of the batch
  int strips, columns;  // tiles from top to bottom of a block row, and from left to right of C
  int tile_units;       // units in a tile

  __device__ __forceinline__ float* tile(int batch, int slot, int strip, int column) const {
    const int64_t row = (int64_t{batch} * slots + slot) * strips + strip;
    return memory + (row * columns + column) * (int64_t{tile_units} * kUnitFloats);
  }
};

// By a warpgroup: sums 32 * i to 32 * i + 31 of each thread.
template <int kCount>
__device__ __forceinline__ void store_unit(float* unit, const float (&sum)[kCount], int i) {
  float4* to = reinterpret_cast<float4*>(unit) + threadIdx.x % kUnitThreads;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const float* s = sum + 32 * i + 4 * j;
    __stcg(to + j * kUnitThreads, make_float4(s[0], s[1], s[2], s[3]));
  }
}

// Not through L1, which another kernel's stores leave as it is.
__device__ __forceinline__ void load_unit(const float* unit, float4 (&sum)[8]) {
  const float4* from = reinterpret_cast<const float4*>(unit) + threadIdx.x % kUnitThreads;
#pragma unroll
  for (int j = 0; j < 8; ++j) sum[j] = __ldcg(from + j * kUnitThreads);
}

// The thread's 32 sums of a loaded unit, added to those from `sum` on.
__device__ __forceinline__ void add_unit(float* sum, const float4 (&unit)[8]) {
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    sum[4 * j] += unit[j].x;
    sum[4 * j + 1] += unit[j].y;
    sum[4 * j + 2] += unit[j].z;
    sum[4 * j + 3] += unit[j].w;
  }
}

}  // namespace sparse_autotune
