// What follows the last mma: bias, activation, rounding and the way through shared memory to C.
//
// A thread's accumulators are scattered over its warp's tile, so the thread block gathers the whole
// tile in shared memory, in C's order, and writes it in long runs. Everything before the rounding
// is fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <cstdint>

#include "kernels/activation.h"
#include "variant.h"

namespace sparse_autotune {

// Where a tile goes. Rows and columns beyond the given numbers are not written.
template <typename T>
struct Output {
  T* c;           // the tile's first element
  int64_t ldc;
  const T* bias;  // of the tile's first row, or null
  int rows, columns;
  int alignment;  // of c and ldc, bytes
  bool row_major;
  Activation activation;
};

// Elements from one line of the gathered tile to the next: 16 bytes between the lines keep the
// fragments' writes free of bank conflicts.
template <typename T>
constexpr int staged_line(int inner) {
  return inner + 16 / static_cast<int>(sizeof(T));
}

// Shared memory that write_tile needs, bytes.
inline int64_t staged_bytes(int m, int n, int64_t element, Activation activation) {
  const int64_t pad = 16 / element;
  const int64_t gathered = std::max(m * (n + pad), n * (m + pad)) * element;
  const bool costly = activation != Activation::kNone && activation != Activation::kRelu;
  return std::max<int64_t>(gathered, costly ? int64_t{4} * m * n : 0);
}

// Applies a costly activation. A rolled loop cannot index registers, and unrolled it would be
// hundreds of copies of erf and tanh: the values go through the thread's own words of `shared`.
template <int kThreads, int kCount>
__device__ __forceinline__ void activate_all(float (&x)[kCount], float* shared,
                                             Activation activation) {
  float* own = shared + threadIdx.x;
#pragma unroll
  for (int i = 0; i < kCount; ++i) own[i * kThreads] = x[i];
#pragma unroll 1
  for (int i = 0; i < kCount; ++i) own[i * kThreads] = activate(own[i * kThreads], activation);
#pragma unroll
  for (int i = 0; i < kCount; ++i) x[i] = own[i * kThreads];
  __syncthreads();
}

__device__ __forceinline__ void store_pair(__half* to, float x, float y) {
  *reinterpret_cast<__half2*>(to) = __floats2half2_rn(x, y);
}
__device__ __forceinline__ void store_pair(__nv_bfloat16* to, float x, float y) {
  *reinterpret_cast<__nv_bfloat162*>(to) = __floats2bfloat162_rn(x, y);
}
__device__ __forceinline__ void store_pair(float* to, float x, float y) {
  *reinterpret_cast<float2*>(to) = make_float2(x, y);
}

// Writes the first `lines` lines and `inner` elements of the gathered tile to C, in words of type
// Word; single elements where a line ends inside a word.
template <int kLines, int kInner, int kThreads, typename Word, typename T>
__device__ __forceinline__ void copy_out(T* c, int64_t ldc, const T* staged, int lines, int inner) {
  constexpr int kWord = sizeof(Word) / sizeof(T), kWords = kInner / kWord;
#pragma unroll 4
  for (int w = threadIdx.x; w < kLines * kWords; w += kThreads) {
    const int line = w / kWords, at = w % kWords * kWord;
    if (line >= lines || at >= inner) continue;
    T* to = c + line * ldc + at;
    const T* from = staged + line * staged_line<T>(kInner) + at;
    if (at + kWord <= inner) {
      *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(from);
    } else {
      for (int i = 0; i < inner - at; ++i) to[i] = from[i];
    }
  }
}

template <int kLines, int kInner, int kThreads, typename T>
__device__ __forceinline__ void copy_out_aligned(const Output<T>& out, const T* staged, int lines,
                                                 int inner) {
  if (out.alignment >= 16) {
    copy_out<kLines, kInner, kThreads, uint4>(out.c, out.ldc, staged, lines, inner);
  } else if (out.alignment >= 4) {
    copy_out<kLines, kInner, kThreads, uint32_t>(out.c, out.ldc, staged, lines, inner);
  } else {
    copy_out<kLines, kInner, kThreads, T>(out.c, out.ldc, staged, lines, inner);
  }
}

// Adds bias, applies the activation and writes the tile. `sum` is laid out as Fragments::multiply
// leaves it. All threads are done with `shared`.
template <typename T, typename Tile, int kCount>
__device__ __forceinline__ void write_tile(float (&sum)[kCount], char* shared,
                                           const Output<T>& out) {
  constexpr int kHalves = Tile::kWarpM / 8, kColumns = Tile::kWarpN / 8;
  static_assert(kCount == kHalves * kColumns * 2);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int first_row = warp / Tile::kWarpsN * Tile::kWarpM + lane / 4;
  const int first_column = warp % Tile::kWarpsN * Tile::kWarpN + lane % 4 * 2;
  // The first of two neighbours in row first_row + 8 * i, column first_column + 8 * j.
  const auto at = [](int i, int j) { return ((i / 2 * kColumns + j) * 2 + i % 2) * 2; };

  if (out.bias != nullptr) {
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int row = first_row + i * 8;
      const float x = row < out.rows ? static_cast<float>(out.bias[row]) : 0.0f;
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        sum[at(i, j)] += x;
        sum[at(i, j) + 1] += x;
      }
    }
  }
  if (out.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sum[i] = activate(sum[i], Activation::kRelu);
  } else if (out.activation != Activation::kNone) {
    activate_all<Tile::kThreads>(sum, reinterpret_cast<float*>(shared), out.activation);
  }

  T* const staged = reinterpret_cast<T*>(shared);
  if (out.row_major) {
    constexpr int kLine = staged_line<T>(Tile::kN);
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        store_pair(staged + (first_row + i * 8) * kLine + first_column + j * 8, sum[at(i, j)],
                   sum[at(i, j) + 1]);
      }
    }
    __syncthreads();
    copy_out_aligned<Tile::kM, Tile::kN, Tile::kThreads>(out, staged, out.rows, out.columns);
  } else {
    constexpr int kLine = staged_line<T>(Tile::kM);
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
#pragma unroll
      for (int j = 0; j < kColumns; ++j) {
        T* to = staged + (first_column + j * 8) * kLine + first_row + i * 8;
        to[0] = static_cast<T>(sum[at(i, j)]);
        to[kLine] = static_cast<T>(sum[at(i, j) + 1]);
      }
    }
    __syncthreads();
    copy_out_aligned<Tile::kN, Tile::kM, Tile::kThreads>(out, staged, out.columns, out.rows);
  }
}

}  // namespace sparse_autotune
