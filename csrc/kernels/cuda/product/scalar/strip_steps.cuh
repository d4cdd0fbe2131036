// A's way to a warp of column_strips: the steps of its rows, fetched a round ahead.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "variant.h"

namespace sparse_autotune {

struct StripArguments : ProductArguments {
  const OrderedRow* part_list;  // of rows that are cut
  void* partials;               // their sums: slot, row of the block, column; the batch outside
  Panels panels;                // tiles: kStripWarps units high
  int64_t ldc, b_batch_stride, c_batch_stride;
  int64_t partial_pitch;
  int area;              // elements of a block
  int64_t a_row, a_col;  // in a block of values, elements from one row or k to the next
  int64_t to_next_slice, to_next_blocks;  // elements of A between rounds
  unsigned line_b;                        // bytes from one row of B to the next
  int n;                                  // columns
  int units, part_units;                  // strips of block rows, and of parts of block rows
  int part_tiles;                         // tiles of parts from top to bottom: they come first
  int slots;                              // parts of all rows
  int limit;                              // a longer row is cut
  int block_m, block_k, strips;
  int step_blocks;         // blocks of a round
  int slice, slices;       // steps of a block in a round, and rounds of a block
  unsigned inverse_slice;  // 2^16 / slice, rounded up
  int lanes, lane_bits;    // of a team; their number is 2^lane_bits
  int stride;              // steps that all teams take at a time
  bool transposed;
};

constexpr int kStripWarps = 8, kStripSteps = 32;

// Columns in a chunk, what a lane loads of a line of B at a time.
template <typename T>
constexpr int kChunkElements = sizeof(T) == 8 ? 2 : 4;

// The warp's share of A, step by step.
template <typename T, int kRows>
struct StagedSteps {
  using Acc = typename Accumulator<T>::Type;
  static constexpr int kPitch = static_cast<int>(std::bit_ceil(static_cast<unsigned>(kRows)));

  alignas(16) Acc a[kStripSteps * kPitch + 32];  // behind the steps what is read by nobody
  alignas(16) int line[kStripSteps];             // of B

  __device__ __forceinline__ void load(int step, Acc (&column)[kPitch]) const {
    constexpr int kVector =
        kPitch < 16 / static_cast<int>(sizeof(Acc)) ? kPitch : 16 / static_cast<int>(sizeof(Acc));
#pragma unroll
    for (int i = 0; i < kRows; i += kVector) {
      const auto x = *reinterpret_cast<const Several<Acc, kVector>*>(a + step * kPitch + i);
#pragma unroll
      for (int v = 0; v < kVector; ++v) column[i + v] = x.of[v];
    }
  }
};

// Where the elements of a round lie, from its first on in the order of memory: in `values` and
// among the staged steps. The same for all warps of a thread block.
template <typename T, int kRows>
struct RoundPlaces {
  static constexpr int kPitch = StagedSteps<T, kRows>::kPitch;

  int2 of[32 * kRows];
  int2 step[32];  // its block within the round and, there, its k

  // Exact for what is less than 2^16 / slice.
  static __device__ __forceinline__ int over_slice(const StripArguments& args, unsigned x) {
    return static_cast<int>(x * args.inverse_slice >> 16);
  }

  __device__ __forceinline__ void fill(const StripArguments& args) {
    for (int e = static_cast<int>(threadIdx.x); e < 32 * kRows; e += kStripWarps * 32) {
      const int line = args.transposed ? e / kRows : over_slice(args, e);
      int block, r, k;
      if (args.transposed) {
        r = e - line * kRows;
        block = over_slice(args, line);
        k = line - block * args.slice;
      } else {
        k = e - line * args.slice;
        block = line / kRows;
        r = line - block * kRows;
      }
      const int to = (block * args.slice + k) * kPitch + r;
      of[e] = make_int2(static_cast<int>(block * args.area + r * args.a_row + k * args.a_col),
                        block < args.step_blocks ? to : kStripSteps * kPitch + e % 32);
    }
    if (threadIdx.x < 32) {
      const int block = over_slice(args, threadIdx.x);
      step[threadIdx.x] = make_int2(block, static_cast<int>(threadIdx.x) - block * args.slice);
    }
  }
};

// What a warp works on, in shared memory: the loop leaves no registers for it.
struct StripUnit {
  int end, rows;  // of the stored blocks; of C
  int block_row, first_row, slot, column, batch;
};

// Fetches A in rounds of up to 32 steps: whole blocks, or a slice of one.
template <typename T, int kRows>
class StepLoader {
 public:
  using Steps = StagedSteps<T, kRows>;
  using Places = RoundPlaces<T, kRows>;

  __device__ __forceinline__ StepLoader(const StripArguments& args, const Places& places,
                                        const StripUnit& unit, int begin)
      : places_(places), unit_(unit), block_(begin) {
    values_ = static_cast<const T*>(args.values) + unit.first_row * args.a_row;
    if (args.positions == nullptr) values_ += int64_t{begin} * args.area;
  }

  // Starts to fetch the next round; how many steps it has.
  __device__ __forceinline__ int fetch(const StripArguments& args) {
    const int blocks = unit_.end - block_, rows = unit_.rows;
    if (blocks <= 0) return 0;
    const int lane = static_cast<int>(threadIdx.x % 32);
    const int steps = args.slices == 1 ? min(args.step_blocks, blocks) * args.slice
                                       : min(args.slice, args.block_k - slice_ * args.slice);
    if (lane < steps) {
      column_ =
          load_narrow_index(args.col_indices, block_ + places_.step[lane].x, args.wide_indices);
    }
    const auto exists = [&](int to) {
      return to < steps * Steps::kPitch && (to & (Steps::kPitch - 1)) < rows;
    };
    if (args.positions == nullptr) {
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int2 place = places_.of[32 * i + lane];
        if (exists(place.y)) held_[i] = __ldg(values_ + place.x);
      }
    } else {
      // Each lane looks up where its step's block lies, relative to where it would lie in order.
      const int block = places_.step[lane].x;
      int shift = 0;
      if (lane < steps) {
        shift = load_narrow_index(args.positions, block_ + block, args.wide_indices) - block;
      }
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const int2 place = places_.of[32 * i + lane];
        const int blocks_on = __shfl_sync(~0u, shift, place.y / Steps::kPitch);
        if (exists(place.y)) held_[i] = __ldg(values_ + int64_t{blocks_on} * args.area + place.x);
      }
    }
    if (++slice_ == args.slices) {
      slice_ = 0;
      block_ += args.step_blocks;
      values_ += args.to_next_blocks;
    } else {
      values_ += args.to_next_slice;
    }
    return steps;
  }

  // Leaves what was fetched in shared memory; whatever where nothing was.
  __device__ __forceinline__ void stage(const StripArguments& args, Steps& steps) const {
    using Acc = typename Accumulator<T>::Type;
    const int lane = static_cast<int>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      steps.a[places_.of[32 * i + lane].y] = static_cast<Acc>(held_[i]);
    }
    const int slice = (slice_ == 0 ? args.slices : slice_) - 1;  // of what was fetched
    steps.line[lane] = column_ * args.block_k + slice * args.slice + places_.step[lane].y;
  }

 private:
  const Places& places_;
  const StripUnit& unit_;
  const T* values_;  // of the round's first block and slice; with positions, of block 0
  int block_, slice_ = 0;
  T held_[kRows];
  int column_ = 0;  // of blocks of B, that the lane's step needs
};

}  // namespace sparse_autotune
