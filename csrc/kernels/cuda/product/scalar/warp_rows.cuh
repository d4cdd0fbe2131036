// Products with few columns as a walk of part of a warp along a block row: the kernels.
//
// A group of 4 to 32 lanes of a warp owns the rows of one strip of a block row, or of a segment of
// a long one. Its lanes lie over `blocks` stored blocks at a time, in each over rows, over pieces
// of kPieceK neighbouring k, and over columns of B, the last fastest: neighbouring lanes read
// neighbouring values. A lane keeps the sums of kRows rows by kColumns columns from the first block
// to the last, so that nothing is exchanged before the row ends; then sums go down the lanes by
// shuffles, in an order that the shape alone decides.
#pragma once

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/product/scalar/at_step.cuh"
#include "kernels/cuda/product/scalar/finish_sum.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/warp_row_parts.cuh"

namespace sparse_autotune {

// How a lane loads its part of B: kPieceK k of each column at once, kColumns columns of each k at
// once, or element by element.
enum class RowsAccess : uint8_t { kAlongK, kAlongColumns, kElements };

// Steps whose loads are under way together: as many as some 48 registers hold.
constexpr int rows_steps_at_once(int piece, int columns, int rows, int item) {
  const int registers = (piece * (rows + columns) * item + 3) / 4;  // of one
  return registers > 24 ? 1 : registers > 12 ? 2 : 4;
}

// kPlain: a lane has one piece of each block, and blocks lie in order.
template <typename T, int kPieceK, int kColumns, int kRows, RowsAccess kAccess, bool kPlain>
__global__ void __launch_bounds__(kRowsThreads, kPlain&& kPieceK == 1 && sizeof(T) <= 4 ? 6 : 4)
    warp_rows_kernel(const __grid_constant__ WarpRowsArguments a) {
  using Acc = typename Accumulator<T>::Type;
  constexpr int kItem = static_cast<int>(sizeof(T));
  constexpr int kAtOnce = rows_steps_at_once(kPieceK, kColumns, kRows, kItem);
  constexpr int kTail = std::min(kAtOnce, 2);
  // Of B, for each step.
  constexpr bool kAlongK = kAccess == RowsAccess::kAlongK;
  constexpr int kRun = kAlongK ? kPieceK : kAccess == RowsAccess::kAlongColumns ? kColumns : 1;
  constexpr int kRuns = kPieceK * kColumns / kRun;

  const int bytes = a.wide_indices ? 8 : 4;
  const int lane = static_cast<int>(threadIdx.x) & ((1 << a.log_lanes) - 1);
  int rest = static_cast<int>(lane * a.by_column_lanes >> 16);
  const int column = (lane - rest * a.column_lanes) * kColumns;
  const int over_pieces = static_cast<int>(rest * a.by_piece_lanes >> 16);
  const int piece = rest - over_pieces * a.piece_lanes;
  const int block = static_cast<int>(over_pieces * a.by_row_lanes >> 16);
  const int row_lane = over_pieces - block * a.row_lanes;
  const bool idle = block >= a.blocks;  // beyond the last block
  const bool gives = block == 0 && piece == 0;
  const bool adds_block = block + a.half_blocks < a.blocks;
  const bool adds_piece = piece + a.half_pieces < a.piece_lanes;
  const int piece_apart = a.column_lanes, block_apart = piece_apart * a.piece_lanes * a.row_lanes;

  const char* right_of[kRuns];  // of the first block column
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int v = kAlongK ? 0 : kAccess == RowsAccess::kAlongColumns ? i : i / kColumns;
    const int w = kAlongK ? i : kAccess == RowsAccess::kAlongColumns ? 0 : i % kColumns;
    right_of[i] = static_cast<const char*>(a.b) + int64_t{blockIdx.y} * a.b_batch +
                  int64_t{piece * kPieceK + v} * a.b_k + (column + w) * a.b_column;
  }
  T* const c = static_cast<T*>(a.c) + blockIdx.y * a.c_batch + column * a.c_column;

  // A group's tasks. Their places are looked up two tasks ahead, and what one task reads is asked
  // into L2 while the task before it runs.
  const unsigned groups = kRowsThreads >> a.log_lanes;
  unsigned task = blockIdx.x * groups * a.turns + (threadIdx.x >> a.log_lanes);
  const auto look_up = [&](unsigned t) -> Place {
    if (t < a.segments || t >= a.tasks) return {};
    unsigned row = t - a.segments, strip = 0;
    if (a.strips > 1) {
      strip = row;
      row /= a.strips;
      strip -= row * a.strips;
    }
    return {static_cast<int>(row), index_at(a.crow_indices, static_cast<int>(row), bytes),
            index_at(a.crow_indices, static_cast<int>(row) + 1, bytes), static_cast<int>(strip)};
  };
  Place here = look_up(task);
  Place next = a.turns > 1 ? look_up(task + groups) : Place{};
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
      const int share = (here.strip << a.log_lanes) + lane;
      const int step = static_cast<int>(a.strips) << a.log_lanes;
      if (here.end - here.begin <= a.limit) {
        if (a.positions == nullptr) {
          ask_lines(at_step(a.values, here.begin, a.a_block),
                    at_step(a.values, here.end, a.a_block), share, step);
        }
        ask_lines(at_step(a.col_indices, here.begin, bytes),
                  at_step(a.col_indices, here.end, bytes), share, step);
      }
      next = turn + 2 < a.turns ? look_up(task + 2 * groups) : Place{};
    }

    const int first_row = static_cast<int>(strip) * kRows * a.row_lanes + row_lane;
    const char* left_of[kRows];  // of the first block; rows beyond the last are read, but not kept
#pragma unroll
    for (int j = 0; j < kRows; ++j) {
      const int row = min(first_row + j * a.row_lanes, a.block_m - 1);
      left_of[j] = at_step(at_step(a.values, row, a.a_row), piece * kPieceK, a.a_k);
    }

    Acc sum[kRows][kColumns] = {};
    const int end = idle ? 0 : part.end;
    T left[kAtOnce][kRows][kPieceK], right[kAtOnce][kRuns][kRun];
    const auto multiply = [&](int u) {
#pragma unroll
      for (int v = 0; v < kPieceK; ++v) {
#pragma unroll
        for (int j = 0; j < kRows; ++j) {
#pragma unroll
          for (int w = 0; w < kColumns; ++w) {
            const T x = kAlongK                                ? right[u][w][v]
                        : kAccess == RowsAccess::kAlongColumns ? right[u][v][w]
                                                               : right[u][v * kColumns + w][0];
            sum[j][w] += static_cast<Acc>(left[u][j][v]) * static_cast<Acc>(x);
          }
        }
      }
    };
    if constexpr (kPlain) {
      // kCut: steps beyond the last block read that block again, and are not added.
      const auto steps = [&]<int kSteps, bool kCut>(int p, std::integral_constant<int, kSteps>,
                                                    std::bool_constant<kCut>) {
        int at[kSteps], block_column[kSteps];
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
          at[u] = p + u * a.blocks;
          if (kCut && u > 0) at[u] = min(at[u], end - 1);
          block_column[u] = index_at(a.col_indices, at[u], bytes);
        }
#pragma unroll
        for (int u = 0; u < kSteps; ++u) {
#pragma unroll
          for (int j = 0; j < kRows; ++j) {
            load_run(at_step(left_of[j], at[u], a.a_block), left[u][j]);
          }
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
          if (!kCut || u == 0 || p + u * a.blocks < end) multiply(u);
        }
      };
      int p = part.begin + block;
      const int whole = end - kAtOnce * a.blocks;  // as far as all lanes have blocks
      for (; p - block <= whole; p += kAtOnce * a.blocks) {
        steps(p, std::integral_constant<int, kAtOnce>{}, std::false_type{});
      }
#pragma unroll 1
      for (; p < end; p += kTail * a.blocks) {
        steps(p, std::integral_constant<int, kTail>{}, std::true_type{});
      }
    } else {
      for (int p = part.begin + block; p < end; p += a.blocks) {
        const int at = index_at(a.col_indices, p, bytes);
        const int place = a.positions == nullptr ? p : index_at(a.positions, p, bytes);
        const int left_step = a.piece_lanes * kPieceK * a.a_k;
        const int right_step = a.piece_lanes * kPieceK * a.b_k;
        const char* left_from[kRows];
        const char* right_from[kRuns];
#pragma unroll
        for (int j = 0; j < kRows; ++j) left_from[j] = at_step(left_of[j], place, a.a_block);
#pragma unroll
        for (int i = 0; i < kRuns; ++i) right_from[i] = at_step(right_of[i], at, a.b_block);
        const auto steps = [&]<int kSteps>(int step, std::integral_constant<int, kSteps>) {
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
          for (int u = 0; u < kSteps; ++u) multiply(u);
        };
        const int count = piece < a.pieces ? (a.pieces - piece - 1) / a.piece_lanes + 1 : 0;
        int step = 0;
        for (; step + kAtOnce <= count; step += kAtOnce) {
          steps(step, std::integral_constant<int, kAtOnce>{});
        }
#pragma unroll 1
        for (; step < count; ++step) steps(step, std::integral_constant<int, 1>{});
      }
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
    if (a.half_pieces > 0) add_from(a.half_pieces * piece_apart, adds_piece);
    for (int half = a.half_pieces / 2; half > 0; half /= 2) add_from(half * piece_apart, true);
    if (part.row < 0 || !gives) continue;

    if (part.segment >= 0) {
      Acc* to = static_cast<Acc*>(a.partials) +
                (int64_t{blockIdx.y} * a.slots + part.segment) * a.block_m * a.n;
#pragma unroll
      for (int j = 0; j < kRows; ++j) {
        const int row = first_row + j * a.row_lanes;
        if (row >= a.block_m) break;
#pragma unroll
        for (int w = 0; w < kColumns; ++w) to[row * a.n + column + w] = sum[j][w];
      }
      continue;
    }
    const int c_row = part.row * a.block_m + first_row;
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
      continue;
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
}

}  // namespace sparse_autotune
