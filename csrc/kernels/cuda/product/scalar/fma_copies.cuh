// Copies of a step's operands to shared memory, shared out among a group of warps: of B in chunks
// of four elements, as they lie in global memory, of A element by element, to be turned on the way.
// Elements behind the tile's end stay as they are: no sum that is kept depends on them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/product/scalar/fma_tile.cuh"

namespace sparse_autotune {

// One multiplication, where a 64-bit stride would take several.
__device__ __forceinline__ const char* bytes_ahead(const char* from, uint32_t stride,
                                                   uint32_t times) {
  return from + static_cast<uint64_t>(stride) * times;
}

// A chunk that is aligned to single elements only: the first `elements` of it, or zeros.
__device__ __forceinline__ void copy_narrow_quad(uint32_t to, const char* from, int elements,
                                                 bool inside) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (i < elements) cp_async_narrow<4>(to + i * 4, from + i * 4, inside ? 4 : 0);
  }
}

// In all of these `to` is in shared memory, the step's beginning plus this thread's offset(), and
// source(unit) this thread's first element in a unit of the step and whether there is such a unit.

// A, of which kStep rows of A^T are to be kWidth wide, element by element: eight k of four rows a
// warp, so that both sides come in whole sectors and no bank twice.
template <int kWidth, int kPitch, int kStep, int kThreads>
struct TurnedCopies {
  static constexpr int kApart = kThreads / 8;  // rows of A
  static_assert(kWidth % kApart == 0, "threads share out whole lines");

  static __device__ __forceinline__ int k(int thread) { return thread % kUnitLines; }
  static __device__ __forceinline__ int row(int thread) { return thread / 8; }
  static __device__ __forceinline__ uint32_t offset(int thread) {
    return (thread % 8 * kPitch + row(thread)) * 4;
  }

  // `stride`: bytes from one row to the next; `rows` of kWidth exist.
  template <typename Source>
  static __device__ __forceinline__ void start(uint32_t to, int thread, const Source& source,
                                               uint32_t stride, int rows) {
#pragma unroll
    for (int first = 0; first < kStep; first += 8) {
      const auto [from, inside] = source((first + thread % 8) / kUnitLines);
#pragma unroll
      for (int i = 0; i < kWidth; i += kApart) {
        if (i + row(thread) < rows) {
          cp_async_narrow<4>(to + (first * kPitch + i) * 4, bytes_ahead(from, stride, i),
                             inside ? 4 : 0);
        }
      }
    }
  }
};

// A column-major B: kWidth columns, kStep elements of each.
template <int kWidth, int kPitch, int kStep, int kThreads>
struct ColumnCopies {
  static constexpr int kUnits = kStep / kUnitLines, kApart = kThreads / kUnits;  // columns
  static_assert(kWidth % kApart == 0, "threads share out whole lines");

  static __device__ __forceinline__ int column(int thread) { return thread / kUnits; }
  static __device__ __forceinline__ uint32_t offset(int thread) {
    return (column(thread) * kPitch + thread % kUnits * kUnitLines) * 4;
  }

  // `stride`: bytes from one column to the next; `columns` of kWidth exist.
  template <typename Source>
  static __device__ __forceinline__ void start(uint32_t to, int thread, const Source& source,
                                               uint32_t stride, int columns, bool aligned) {
    const auto [from, inside] = source(thread % kUnits);
    if (aligned) {
#pragma unroll
      for (int i = 0; i < kWidth; i += kApart) {
        if (i + column(thread) < columns) {
          cp_async_16(to + i * kPitch * 4, bytes_ahead(from, stride, i), inside ? 16 : 0);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i + column(thread) < columns; i += kApart) {
        copy_narrow_quad(to + i * kPitch * 4, bytes_ahead(from, stride, i), 4, inside);
      }
    }
  }
};

// A row-major B: kStep rows, kWidth elements of each.
template <int kWidth, int kPitch, int kStep, int kThreads>
struct RowCopies {
  static constexpr int kChunks = kWidth / 4, kApart = kThreads / kChunks;  // rows
  static_assert(kThreads % kChunks == 0 && kStep % kApart == 0, "threads share out whole rows");
  static_assert(kApart % kUnitLines == 0 || kUnitLines % kApart == 0,
                "a thread's copies lie in units alike");

  static __device__ __forceinline__ int k(int thread) { return thread / kChunks % kUnitLines; }
  static __device__ __forceinline__ int element(int thread) { return thread % kChunks * 4; }
  static __device__ __forceinline__ uint32_t offset(int thread) {
    return (thread / kChunks * kPitch + element(thread)) * 4;
  }

  // `stride`: bytes from one row to the next; `elements` of kWidth exist.
  template <typename Source>
  static __device__ __forceinline__ void start(uint32_t to, int thread, const Source& source,
                                               uint32_t stride, int elements, bool aligned) {
    const int some = min(elements - element(thread), 4);
    const auto row_of_step = [&](int i) {
      return source((i + (kApart > 1 ? thread / kChunks : 0)) / kUnitLines);
    };
    if (aligned) {
#pragma unroll
      for (int i = 0; i < kStep; i += kApart) {
        const auto [from, inside] = row_of_step(i);
        if (some > 0) {
          cp_async_16(to + i * kPitch * 4, bytes_ahead(from, stride, i % kUnitLines),
                      inside ? some * 4 : 0);
        }
      }
    } else {
#pragma unroll 1
      for (int i = 0; i < kStep; i += kApart) {
        const auto [from, inside] = row_of_step(i);
        copy_narrow_quad(to + i * kPitch * 4, bytes_ahead(from, stride, i % kUnitLines), some,
                         inside);
      }
    }
  }
};

}  // namespace sparse_autotune
