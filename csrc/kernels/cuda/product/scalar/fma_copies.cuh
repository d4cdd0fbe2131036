// Where the operands of a block row's products lie, its stored blocks side by side, in units of
// four lines of k, which never straddle two blocks; and copies of a step's operands to shared
// memory, shared out among a group of warps: of B in chunks of four elements, as they lie in global
// memory, of A element by element, to be turned on the way. Elements behind the tile's end stay as
// they are: no sum that is kept depends on them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/product/scalar/fma_tile.cuh"

namespace sparse_autotune {

struct FmaArguments : ProductArguments {
  float* partials;  // sums of parts of rows: by slot, as a block row of C lies; the batch outside
  Panels panels;    // of thread blocks
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  uint32_t a_row, a_col;    // bytes from one row to the next and from one k, within a block
  uint32_t b_line;          // and from one row of B to the next, or one column
  unsigned tile_rows;       // strips of all block rows
  unsigned strips, shares;  // shares: groups that have one tile, a divisor of all
  // Of a block: its units of k, its elements in quads; of a unit: quads from one to the next.
  unsigned block_units, block_quads, unit_quads;
  int block_m;
  int slots;           // parts of all rows
  int64_t part_pitch;  // words from one row of C to the next in these, or from one column
  int64_t part_words;
  bool c_rows;
  bool b_aligned, c_aligned;  // to 16 bytes
};

// The units that a group of warps multiplies, 32 at a time: one in each lane, those behind on their
// way. Of `shares` groups with the same blocks each takes every shares-th step.
class FmaUnits {
 public:
  __device__ __forceinline__ FmaUnits(const FmaArguments& args, int begin, int length, int share)
      : begin_(begin), length_(length) {
    const int lane = threadIdx.x % 32;
    const int step = lane / kStepUnits * static_cast<int>(args.shares) + share;
    next_ = step * kStepUnits + lane % kStepUnits;
    fetch(args);
  }

  // To be called before each 32nd unit.
  __device__ __forceinline__ void turn(const FmaArguments& args) {
    const int units = static_cast<int>(args.block_units);
    const bool inside = next_within_ >= 0;
    const int within = inside ? next_within_ * kUnitLines : 0;
    line_ = inside ? next_column_ * (units * kUnitLines) + within : -1;
    quad_ = inside ? static_cast<uint32_t>(next_position_) * args.block_quads +
                         next_within_ * args.unit_quads
                   : 0;
    next_ += 32 * static_cast<int>(args.shares);
    fetch(args);
  }

  // Of unit i of the 32: B's first line, -1 behind the row's end, and where A's elements begin, in
  // quads of elements. All lanes must ask.
  __device__ __forceinline__ int line(int i) const { return __shfl_sync(~0u, line_, i); }
  __device__ __forceinline__ uint32_t quad(int i) const { return __shfl_sync(~0u, quad_, i); }

 private:
  __device__ __forceinline__ void fetch(const FmaArguments& args) {
    const auto block = static_cast<int>(static_cast<unsigned>(next_) / args.block_units);
    next_within_ = -1;
    if (block < length_) {
      next_within_ = next_ - block * static_cast<int>(args.block_units);
      const int i = begin_ + block;
      next_column_ = load_narrow_index(args.col_indices, i, args.wide_indices);
      next_position_ =
          args.positions == nullptr ? i : load_narrow_index(args.positions, i, args.wide_indices);
    }
  }

  int begin_, length_;
  int line_ = -1;
  uint32_t quad_ = 0;
  int next_, next_within_, next_column_ = 0, next_position_ = 0;
};

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
