// Where a lane finds its part of fragments in swizzled shared memory: lines of 64 halves, 16 lines
// a fragment, heads of 128 in two panels.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

// Offsets of ldmatrix: of lines that are rows of A, or columns of B with its transposition; and of
// lines that are columns of B.
__device__ __forceinline__ uint32_t lines_as_rows() {
  const uint32_t lane = threadIdx.x % 32;
  return lane % 16 * kLineBytes + ((lane / 16 ^ (lane & 7)) << 4);
}
__device__ __forceinline__ uint32_t lines_as_columns() {
  const uint32_t lane = threadIdx.x % 32;
  return (lane / 16 * 8 + lane % 8) * kLineBytes + ((lane / 8 % 2 ^ (lane & 7)) << 4);
}

// The address in slice i, of 16 of the head dimension, given that in slice 0.
template <int kPanelBytes>
__device__ __forceinline__ uint32_t slice_address(uint32_t from, int i) {
  return (from ^ i % 4 * 32) + i / 4 * kPanelBytes;
}

}  // namespace sparse_autotune
