// What follows the last mma: bias, activation, rounding and the way through shared memory to C.
//
// A thread's accumulators are scattered over its warp's tile, so the thread block gathers the whole
// tile in shared memory, in C's order, and writes it in long runs. Everything before the rounding
// is fp32.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/activation.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Where a tile goes. Rows and columns beyond the given numbers are not written.
template <typename T>
struct Output {
  T* c;  // the tile's first element
  int64_t ldc;
  const T* bias;  // of the tile's first row, or null
  int rows, columns;
  int alignment;  // of c and ldc, bytes
  bool row_major;
  Activation activation;
};

// Of matrix `batch`, from C's `row` and column `n0` on.
template <typename T, typename Arguments>
__device__ __forceinline__ Output<T> output_at(const Arguments& args, unsigned batch, int64_t row,
                                               int64_t n0, int rows, int columns) {
  Output<T> out;
  out.c = static_cast<T*>(args.c) + batch * args.c_batch_stride +
          (args.c_rows ? row * args.ldc + n0 : n0 * args.ldc + row);
  out.ldc = args.ldc;
  out.bias = args.bias == nullptr ? nullptr : static_cast<const T*>(args.bias) + row;
  out.rows = rows;
  out.columns = columns;
  out.alignment = args.c_alignment;
  out.row_major = args.c_rows;
  out.activation = args.activation;
  return out;
}

__host__ __device__ constexpr int log2_of(int power) {
  return power == 1 ? 0 : 1 + log2_of(power / 2);
}

// Elements from one line of the gathered tile to the next: 16 bytes between the lines keep the
// fragments' writes free of bank conflicts.
template <typename T>
__host__ __device__ constexpr int staged_line(int inner) {
  return inner + 16 / static_cast<int>(sizeof(T));
}

// Shared memory that write_tile needs, bytes.
inline int64_t staged_bytes(int m, int n, int64_t element, Activation activation) {
  const int64_t pad = 16 / element;
  const int64_t sums = int64_t{m} * n, gathered = (sums + pad * (m > n ? m : n)) * element;
  const bool costly = activation != Activation::kNone && activation != Activation::kRelu;
  return costly && 4 * sums > gathered ? 4 * sums : gathered;
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

// Lines of 2^log_inner elements, gathered in shared memory; `lines` of them and the first `inner`
// elements of each belong to C.
struct Lines {
  int lines, inner, log_inner;
};

// Writes them to C in words of type Word; single elements where a line ends inside a word.
template <int kThreads, typename Word, int kUnroll, typename T>
__device__ __forceinline__ void copy_out(T* c, int64_t ldc, const T* staged, Lines l) {
  constexpr int kWord = sizeof(Word) / sizeof(T);
  const int line_words = (1 << l.log_inner) / kWord, pitch = staged_line<T>(1 << l.log_inner);
#pragma unroll kUnroll
  for (int w = threadIdx.x; w < l.lines * line_words; w += kThreads) {
    const int line = static_cast<unsigned>(w) * kWord >> l.log_inner;
    const int at = (w & (line_words - 1)) * kWord;
    if (at >= l.inner) continue;
    T* to = c + line * ldc + at;
    const T* from = staged + line * pitch + at;
    if (at + kWord <= l.inner) {
      *reinterpret_cast<Word*>(to) = *reinterpret_cast<const Word*>(from);
    } else {
#pragma unroll 1
      for (int i = 0; i < l.inner - at; ++i) to[i] = from[i];
    }
  }
}

// Gathers a tile's rows, staged_line() apart. `sum` is laid out as Fragments::multiply leaves it.
template <typename T, typename Tile, int kCount>
__device__ __forceinline__ void stage_rows(const float (&sum)[kCount], T* staged) {
  constexpr int kHalves = Tile::kWarpM / 8, kColumns = Tile::kWarpN / 8;
  constexpr int kLine = staged_line<T>(Tile::kN);
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  staged += (warp / Tile::kWarpsN * Tile::kWarpM + lane / 4) * kLine +
            warp % Tile::kWarpsN * Tile::kWarpN + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < kHalves; ++i) {
#pragma unroll
    for (int j = 0; j < kColumns; ++j) {
      const float* pair = sum + ((i / 2 * kColumns + j) * 2 + i % 2) * 2;
      store_pair(staged + i * 8 * kLine + j * 8, pair[0], pair[1]);
    }
  }
}

// Adds bias, applies the activation and writes the tile. `sum` is laid out as Fragments::multiply
// leaves it. All threads are done with `shared`.
template <typename T, typename Tile, int kCount>
__device__ __forceinline__ void write_tile(float (&sum)[kCount], char* shared,
                                           const Output<T>& out) {
  constexpr int kHalves = Tile::kWarpM / 8, kColumns = Tile::kWarpN / 8;
  static_assert(kCount == kHalves * kColumns * 2, "a warp's sums fill its tile");
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
    stage_rows<T, Tile>(sum, staged);
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
  }
  __syncthreads();
  const Lines lines = out.row_major ? Lines{out.rows, out.columns, log2_of(Tile::kN)}
                                    : Lines{out.columns, out.rows, log2_of(Tile::kM)};
  if (out.alignment >= 16) {
    copy_out<Tile::kThreads, uint4, 4>(out.c, out.ldc, staged, lines);
  } else if (out.alignment >= 4) {
    copy_out<Tile::kThreads, uint32_t, 1>(out.c, out.ldc, staged, lines);
  } else {
    copy_out<Tile::kThreads, T, 1>(out.c, out.ldc, staged, lines);
  }
}

}  // namespace sparse_autotune
