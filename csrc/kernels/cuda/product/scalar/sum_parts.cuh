// The sums of rows that were multiplied in parts: of each element, its parts' in their order; and
// one element of C, from its sum.
#pragma once

#include <cuda_runtime.h>

#include "kernels/activation.h"
#include "operators/product/product.h"

namespace sparse_autotune {

template <typename T, int kCount>
struct alignas(sizeof(T) * kCount) Several {
  T of[kCount];
};

template <typename Acc>
__device__ __forceinline__ void add_part(Acc& sum, Acc x) {
  sum += x;
}
template <typename T, int kCount>
__device__ __forceinline__ void add_part(Several<T, kCount>& sum, Several<T, kCount> x) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) sum.of[i] += x.of[i];
}

// By all threads of a block. Those `width` apart have the same element, of which load(i) is part i:
// the `sharers` of them take every sharers-th part each, and the first adds up their shares in
// order and returns the sum. `sums`: shared memory, one for each thread. `is_in`: whether this
// thread has an element.
template <typename Acc, typename Load>
__device__ __forceinline__ Acc sum_parts(int parts, int share, int sharers, int width, bool is_in,
                                         Acc* sums, Load&& load) {
  Acc sum{};
  if (is_in) {
#pragma unroll 4
    for (int part = share; part < parts; part += sharers) add_part(sum, load(part));
  }
  __syncthreads();
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (!is_in || share != 0) return sum;
  for (int other = 1; other < sharers; ++other) {
    add_part(sum, sums[threadIdx.x + other * width]);
  }
  return sum;
}

// Of the row `row` of C.
template <typename T, typename Acc>
__device__ __forceinline__ T finish_sum(Acc sum, const void* bias, int row, Activation activation) {
  if (bias != nullptr) sum += static_cast<Acc>(static_cast<const T*>(bias)[row]);
  return static_cast<T>(activate(sum, activation));
}

}  // namespace sparse_autotune
