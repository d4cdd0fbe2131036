// Products with few columns as a walk of part of a warp along a block row: the kernels.
//
// A group of 4 to 32 lanes of a warp owns the rows of one strip of a block row, or of a segment of
// a long one. Its lanes lie over `blocks` stored blocks at a time, in each over rows, over vectors
// of kVectorK neighbouring k, and over columns of B, the last fastest: neighbouring lanes read
// neighbouring values. A lane keeps the sums of kRows rows by kColumns columns from the first block
// to the last, so that nothing is exchanged before the row ends; then sums go down the lanes by
// shuffles, in an order that the shape alone decides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/sum_parts.cuh"
#include "kernels/cuda/product/scalar/warp_row_parts.cuh"

namespace sparse_autotune {

// How a lane loads its part of B: kVectorK k of each column at once, kColumns columns of each k at
// once, or element by element.
enum class RowsAccess : uint8_t { kAlongK, kAlongColumns, kElements };

// Steps whose loads are under way together: as many as some 48 registers hold.
constexpr int rows_steps_at_once(int vector, int columns, int rows, int item) {
  const int registers = (vector * (rows + columns) * item + 3) / 4;  // of one
  return registers > 24 ? 1 : registers > 12 ? 2 : 4;
}

// How a kernel's lanes load and multiply: a lane has kVectorK k of kRows rows and kColumns columns
// of each step.
template <typename T, int kVectorK, int kColumns, int kRows, RowsAccess kAccess>
struct RowsStep {
  using Acc = typename Accumulator<T>::Type;
  static constexpr int kAtOnce =
      rows_steps_at_once(kVectorK, kColumns, kRows, static_cast<int>(sizeof(T)));
  static constexpr bool kAlongK = kAccess == RowsAccess::kAlongK;
  static constexpr bool kAlongColumns = kAccess == RowsAccess::kAlongColumns;
  // Of B: loads, and elements of each.
  static constexpr int kRun = kAlongK ? kVectorK : kAlongColumns ? kColumns : 1;
  static constexpr int kRuns = kVectorK * kColumns / kRun;

  // Where the lane's loads of the first block of B begin.
  static __device__ __forceinline__ const char* run_of(const WarpRowsArguments& a, int i,
                                                       int vector, int column) {
    const int v = kAlongK ? 0 : kAlongColumns ? i : i / kColumns;
    const int w = kAlongK ? i : kAlongColumns ? 0 : i % kColumns;
    return static_cast<const char*>(a.b) + int64_t{blockIdx.y} * a.b_batch +
           int64_t{vector * kVectorK + v} * a.b_k + (column + w) * a.b_column;
  }

  static __device__ __forceinline__ void multiply(const T (&left)[kRows][kVectorK],
                                                  const T (&right)[kRuns][kRun],
                                                  Acc (&sum)[kRows][kColumns]) {
#pragma unroll
    for (int v = 0; v < kVectorK; ++v) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
#pragma unroll
        for (int w = 0; w < kColumns; ++w) {
          const T x = kAlongK         ? right[w][v]
                      : kAlongColumns ? right[v][w]
                                      : right[v * kColumns + w][0];
          sum[j][w] += static_cast<Acc>(left[j][v]) * static_cast<Acc>(x);
        }
      }
    }
  }

  // kSteps blocks from number p on, a.blocks apart, of which the lane has one vector. kCut: steps
  // beyond the last block read that block again, and are not added.
  template <int kSteps, bool kCut>
  static __device__ __forceinline__ void multiply_blocks(const WarpRowsArguments& a, int p, int end,
                                                         const char* const (&left_of)[kRows],
                                                         const char* const (&right_of)[kRuns],
                                                         Acc (&sum)[kRows][kColumns]) {
    T left[kSteps][kRows][kVectorK], right[kSteps][kRuns][kRun];
    int at[kSteps], block_column[kSteps];
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      at[u] = p + u * a.blocks;
      if (kCut && u > 0) at[u] = min(at[u], end - 1);
      block_column[u] = index_at(a.col_indices, at[u], a.wide_indices ? 8 : 4);
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) load_run(at_step(left_of[j], at[u], a.a_block), left[u][j]);
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        load_run(at_step(right_of[i], block_column[u], a.b_block), right[u][i]);
      }
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
      if (!kCut || u == 0 || p + u * a.blocks < end) multiply(left[u], right[u], sum);
    }
  }

  // kSteps of the lane's vectors of a block from number `step` on.
  template <int kSteps>
  static __device__ __forceinline__ void multiply_vectors(const WarpRowsArguments& a, int step,
                                                          const char* const (&left_from)[kRows],
                                                          const char* const (&right_from)[kRuns],
                                                          Acc (&sum)[kRows][kColumns]) {
    T left[kSteps][kRows][kVectorK], right[kSteps][kRuns][kRun];
    const int left_step = a.vector_lanes * kVectorK * a.a_k;
    const int right_step = a.vector_lanes * kVectorK * a.b_k;
#pragma unroll
    for (int u = 0; u < kSteps; ++u) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        load_run(at_step(left_from[j], step + u, left_step), left[u][j]);
      }
#pragma unroll
      for (int i = 0; i < kRuns; ++i) {
        load_run(at_step(right_from[i], step + u, right_step), right[u][i]);
      }
    }
#pragma unroll
    for (int u = 0; u < kSteps; ++u) multiply(left[u], right[u], sum);
  }

  // A part of a row whose lanes have one vector of each block: this one of number begin + block.
  static __device__ __forceinline__ void multiply_plain(const WarpRowsArguments& a, int begin,
                                                        int block, int end,
                                                        const char* const (&left_of)[kRows],
                                                        const char* const (&right_of)[kRuns],
                                                        Acc (&sum)[kRows][kColumns]) {
    constexpr int kTail = std::min(kAtOnce, 2);
    int p = begin + block;
    const int whole = end - kAtOnce * a.blocks;  // as far as all lanes have blocks
    for (; p - block <= whole; p += kAtOnce * a.blocks) {
      multiply_blocks<kAtOnce, false>(a, p, end, left_of, right_of, sum);
    }
#pragma unroll 1
    for (; p < end; p += kTail * a.blocks) {
      multiply_blocks<kTail, true>(a, p, end, left_of, right_of, sum);
    }
  }

  // A part of a row whose blocks have several vectors for a lane, or do not lie in order.
  static __device__ __forceinline__ void multiply_any(const WarpRowsArguments& a, int p, int end,
                                                      int vector,
                                                      const char* const (&left_of)[kRows],
                                                      const char* const (&right_of)[kRuns],
                                                      Acc (&sum)[kRows][kColumns]) {
    const int bytes = a.wide_indices ? 8 : 4;
    for (; p < end; p += a.blocks) {
      const int at = index_at(a.col_indices, p, bytes);
      const int place = a.positions == nullptr ? p : index_at(a.positions, p, bytes);
      const char* left_from[kRows];
      const char* right_from[kRuns];
#pragma unroll
      for (int j = 0; j < kRows; ++j) left_from[j] = at_step(left_of[j], place, a.a_block);
#pragma unroll
      for (int i = 0; i < kRuns; ++i) right_from[i] = at_step(right_of[i], at, a.b_block);
      const int count = vector < a.vectors ? (a.vectors - vector - 1) / a.vector_lanes + 1 : 0;
      int step = 0;
      for (; step + kAtOnce <= count; step += kAtOnce) {
        multiply_vectors<kAtOnce>(a, step, left_from, right_from, sum);
      }
#pragma unroll 1
      for (; step < count; ++step) multiply_vectors<1>(a, step, left_from, right_from, sum);
    }
  }
};

// A group's task of a row: its place, with its strip. Of a segment: none.
__device__ __forceinline__ Place look_up_row(const WarpRowsArguments& a, unsigned task) {
  if (task < a.segments || task >= a.tasks) return {};
  const int bytes = a.wide_indices ? 8 : 4;
  unsigned row = task - a.segments, strip = 0;
  if (a.strips > 1) {
    strip = row;
    row /= a.strips;
    strip -= row * a.strips;
  }
  return {static_cast<int>(row), index_at(a.crow_indices, static_cast<int>(row), bytes),
          index_at(a.crow_indices, static_cast<int>(row) + 1, bytes), static_cast<int>(strip)};
}

// Asks into L2 what a task will read.
__device__ __forceinline__ void ask_row(const WarpRowsArguments& a, const Place& row, int lane) {
  const int bytes = a.wide_indices ? 8 : 4;
  const int share = (row.strip << a.log_lanes) + lane;
  const int step = static_cast<int>(a.strips) << a.log_lanes;
  if (row.end - row.begin > a.limit) return;
  if (a.positions == nullptr) {
    ask_lines(at_step(a.values, row.begin, a.a_block), at_step(a.values, row.end, a.a_block), share,
              step);
  }
  ask_lines(at_step(a.col_indices, row.begin, bytes), at_step(a.col_indices, row.end, bytes), share,
            step);
}

// A lane's sums of a segment, to scratch memory.
template <int kRows, int kColumns, typename Acc>
__device__ __forceinline__ void store_segment(const WarpRowsArguments& a, int segment,
                                              int first_row, int column,
                                              const Acc (&sum)[kRows][kColumns]) {
  Acc* to =
      static_cast<Acc*>(a.partials) + (int64_t{blockIdx.y} * a.slots + segment) * a.block_m * a.n;
#pragma unroll
  for (int j = 0; j < kRows; ++j) {
    const int row = first_row + j * a.row_lanes;
    if (row >= a.block_m) break;
#pragma unroll
    for (int w = 0; w < kColumns; ++w) to[row * a.n + column + w] = sum[j][w];
  }
}

// A lane's sums of a row, to C: `c` is its column there.
template <typename T, int kRows, int kColumns, typename Acc>
__device__ __forceinline__ void store_row(const WarpRowsArguments& a, T* c, int block_row,
                                          int first_row, const Acc (&sum)[kRows][kColumns]) {
  const int c_row = block_row * a.block_m + first_row;
  if (a.activation == Activation::kNone) {
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      if (first_row + j * a.row_lanes >= a.block_m) break;
      const int row = c_row + j * a.row_lanes;
      T* to = c + int64_t{row} * a.c_row;
#pragma unroll
      for (int w = 0; w < kColumns; ++w) {
        to[int64_t{w} * a.c_column] = finish_sum<T>(sum[j][w], a.bias, row, Activation::kNone);
      }
    }
    return;
  }
  // One copy of erf, tanh and exp: registers cannot be indexed, but they can be chosen.
#pragma unroll 1
  for (int i = 0; i < kRows * kColumns; ++i) {
    const int j = i / kColumns, w = i % kColumns;
    if (first_row + j * a.row_lanes >= a.block_m) break;
    Acc chosen = sum[0][0];
#pragma unroll
    for (int s = 1; s < kRows * kColumns; ++s) {
      if (s == i) chosen = sum[s / kColumns][s % kColumns];
    }
    const int row = c_row + j * a.row_lanes;
    c[int64_t{row} * a.c_row + int64_t{w} * a.c_column] =
        finish_sum<T>(chosen, a.bias, row, a.activation);
  }
}

// kPlain: a lane has one vector of each block, and blocks lie in order.
template <typename T, int kVectorK, int kColumns, int kRows, RowsAccess kAccess, bool kPlain>
__global__ void __launch_bounds__(kRowsThreads, kPlain&& kVectorK == 1 && sizeof(T) <= 4 ? 6 : 4)
    warp_rows_kernel(const __grid_constant__ WarpRowsArguments a) {
  using Acc = typename Accumulator<T>::Type;
  using Step = RowsStep<T, kVectorK, kColumns, kRows, kAccess>;
  constexpr int kRuns = Step::kRuns;

  const int lane = static_cast<int>(threadIdx.x) & ((1 << a.log_lanes) - 1);
  int rest = static_cast<int>(lane * a.by_column_lanes >> 16);
  const int column = (lane - rest * a.column_lanes) * kColumns;
  const int over_vectors = static_cast<int>(rest * a.by_vector_lanes >> 16);
  const int vector = rest - over_vectors * a.vector_lanes;
  const int block = static_cast<int>(over_vectors * a.by_row_lanes >> 16);
  const int row_lane = over_vectors - block * a.row_lanes;
  const bool idle = block >= a.blocks;  // beyond the last block
  const bool gives = block == 0 && vector == 0;
  const bool adds_block = block + a.half_blocks < a.blocks;
  const bool adds_vector = vector + a.half_vectors < a.vector_lanes;
  const int vector_apart = a.column_lanes,
            block_apart = vector_apart * a.vector_lanes * a.row_lanes;

  const char* right_of[kRuns];  // of the first block column
#pragma unroll
  for (int i = 0; i < kRuns; ++i) right_of[i] = Step::run_of(a, i, vector, column);
  T* const c = static_cast<T*>(a.c) + blockIdx.y * a.c_batch_stride + column * a.c_column;

  // A group's tasks. Their places are looked up two tasks ahead, and what one task reads is asked
  // into L2 while the task before it runs.
  const unsigned groups = kRowsThreads >> a.log_lanes;
  unsigned task = blockIdx.x * groups * a.turns + (threadIdx.x >> a.log_lanes);
  Place here = look_up_row(a, task);
  Place next = a.turns > 1 ? look_up_row(a, task + groups) : Place{};
  for (unsigned turn = 0; turn < a.turns; ++turn, task += groups) {
    RowPart part;
    unsigned strip = here.strip;
    if (task < a.segments) {
      strip = task % a.strips;
      const auto number = static_cast<int>(task / a.strips);
      part = segment_part(a, number, lane);
      // Whoever adds the segments up finds the row that begins here.
      if (number % 2 != 0 && lane == 0 && strip == 0 && blockIdx.y == 0) {
        a.heads[number / 2] = part.row;
      }
    } else if (here.end - here.begin <= a.limit) {
      part = {here.row, here.begin, here.end, -1};
    }
    here = next;
    if (turn + 1 < a.turns) {
      ask_row(a, here, lane);
      next = turn + 2 < a.turns ? look_up_row(a, task + 2 * groups) : Place{};
    }

    const int first_row = static_cast<int>(strip) * kRows * a.row_lanes + row_lane;
    const char* left_of[kRows];  // of the first block; rows beyond the last are read, but not kept
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = min(first_row + j * a.row_lanes, a.block_m - 1);
      left_of[j] = at_step(at_step(a.values, row, a.a_row), vector * kVectorK, a.a_k);
    }

    Acc sum[kRows][kColumns] = {};
    const int end = idle ? 0 : part.end;
    if constexpr (kPlain) {
      Step::multiply_plain(a, part.begin, block, end, left_of, right_of, sum);
    } else {
      Step::multiply_any(a, part.begin + block, end, vector, left_of, right_of, sum);
    }

    __syncwarp();
    const auto add_from = [&](int lanes, bool takes) {
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
#pragma unroll
        for (int w = 0; w < kColumns; ++w) {
          const Acc other = __shfl_down_sync(~0u, sum[j][w], lanes);
          if (takes) sum[j][w] += other;
        }
      }
    };
    // The first halving brings the lanes to a power of two; what later ones add to the upper half
    // is of no use to anyone.
    if (a.half_blocks > 0) add_from(a.half_blocks * block_apart, adds_block);
    for (int half = a.half_blocks / 2; half > 0; half /= 2) add_from(half * block_apart, true);
    if (a.half_vectors > 0) add_from(a.half_vectors * vector_apart, adds_vector);
    for (int half = a.half_vectors / 2; half > 0; half /= 2) add_from(half * vector_apart, true);
    if (part.row < 0 || !gives) continue;

    if (part.segment >= 0) {
      store_segment(a, part.segment, first_row, column, sum);
    } else {
      store_row(a, c, part.row, first_row, sum);
    }
  }
}

}  // namespace sparse_autotune
