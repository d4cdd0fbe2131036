// What the kernels of small square blocks share: copies of neighbouring bytes, and of scattered
// blocks, to shared memory by all threads of a thread block, with cp.async; and a block in shared
// memory times a lane's columns of B.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"

namespace sparse_autotune {

// How far behind `to` stage_bytes() lays an element.
__device__ __forceinline__ int staged_behind(const void* base, int element, int bytes) {
  return static_cast<int>(
      (reinterpret_cast<uint64_t>(base) + static_cast<unsigned>(element * bytes)) % 16);
}

// Copies bytes as they lie to where 16 bytes have the same bounds as there. Returns how far behind
// `to` the first is.
__device__ __forceinline__ int stage_bytes(char* to, const char* from, int bytes) {
  const int shift = static_cast<int>(reinterpret_cast<uint64_t>(from) % 16), end = shift + bytes;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  from -= shift;
  const int step = static_cast<int>(blockDim.x) * 16;
  for (int i = static_cast<int>(threadIdx.x) * 16; i < end; i += step) {
    if (i >= shift && i + 16 <= end) {
      cp_async_16(shared + i, from + i);
      continue;
    }
#pragma unroll
    for (int j = i; j < i + 16; j += 4) {
      if (j >= shift && j < end) cp_async_narrow<4>(shared + j, from + j, 4);
    }
  }
  return shift;
}

// Copies blocks that lie where `positions` says, one behind the other.
template <int kBytes>
__device__ __forceinline__ void stage_blocks(char* to, const void* values, const void* positions,
                                             int index_bytes, int first, int blocks) {
  constexpr int kVector = std::min(kBytes & -kBytes, 16), kVectors = kBytes / kVector;
  const auto shared = static_cast<uint32_t>(__cvta_generic_to_shared(to));
  for (int i = static_cast<int>(threadIdx.x); i < blocks * kVectors;
       i += static_cast<int>(blockDim.x)) {
    const int block = i / kVectors, vector = (i - block * kVectors) * kVector;
    const char* from =
        at_step(values, index_at(positions, first + block, index_bytes), kBytes) + vector;
    if constexpr (kVector == 16) {
      cp_async_16(shared + i * kVector, from);
    } else {
      cp_async_narrow<kVector>(shared + i * kVector, from, kVector);
    }
  }
}

// `right`: the lane's columns of B's first row; b_k: bytes from one row to the next.
template <typename T, int kBlock, int kColumns>
__device__ __forceinline__ void load_rows_of_b(const char* right, int block_column, int b_k,
                                               T (&x)[kBlock][kColumns]) {
  const char* const from = at_step(right, block_column, kBlock * b_k);
#pragma unroll
  for (int k = 0; k < kBlock; ++k) load_run(at_step(from, k, b_k), x[k]);
}

// kTransposed: the block is stored column by column.
template <bool kTransposed, typename T, int kBlock, int kColumns>
__device__ __forceinline__ void multiply_small_block(const char* block,
                                                     const T (&x)[kBlock][kColumns],
                                                     T (&sum)[kBlock][kColumns]) {
#pragma unroll
  for (int line = 0; line < kBlock; ++line) {
    T left[kBlock];
    load_words<SharedMemory>(block + line * kBlock * static_cast<int>(sizeof(T)), left);
#pragma unroll
    for (int i = 0; i < kBlock; ++i) {
      const int r = kTransposed ? i : line, k = kTransposed ? line : i;
#pragma unroll
      for (int w = 0; w < kColumns; ++w) sum[r][w] += left[i] * x[k][w];
    }
  }
}

}  // namespace sparse_autotune
