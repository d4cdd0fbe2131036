// The kernel of fma_tiled: a thread block's tiles, from the first copy to the last store.
#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/product/scalar/fma_copies.cuh"
#include "kernels/cuda/product/scalar/fma_tile.cuh"
#include "variant.h"

namespace sparse_autotune {

template <typename Tile>
__device__ __forceinline__ void wait_for_group(int group) {
  if constexpr (Tile::kThreads == 32) {
    __syncwarp();
  } else if constexpr (Tile::kGroups == 1) {
    __syncthreads();
  } else {
    barrier_sync<Tile::kThreads>(group + 1);
  }
}

template <typename Tile>
using CopiesOfDense =
    std::conditional_t<Tile::kRowsB,
                       RowCopies<Tile::kN, Tile::kPitchB, Tile::kStep, Tile::kThreads>,
                       ColumnCopies<Tile::kN, Tile::kPitchB, Tile::kStep, Tile::kThreads>>;

// A group's tile of C, or a part of one: stored blocks [begin, begin + length) by its rows from m0
// on.
struct FmaTask {
  int block_row, m0, begin, length;
  int slot;  // of a part's sums, or -1
};

template <typename Tile>
__device__ __forceinline__ FmaTask fma_task(const FmaArguments& args, unsigned tile_row) {
  const OrderedRow row = row_of_order(args, tile_row / args.strips);
  return {row.row, static_cast<int>(tile_row % args.strips) * Tile::kM, row.begin,
          row.end - row.begin, row.slot};
}

// Where a task's sums go, and what becomes of them.
__device__ __forceinline__ FmaEnd fma_end(const FmaArguments& args, const FmaTask& task,
                                          unsigned batch, int64_t n0) {
  FmaEnd end{.by_rows = args.c_rows};
  const auto place = [&](int64_t row, int64_t pitch) {
    end.pitch = pitch;
    return args.c_rows ? row * pitch + n0 : n0 * pitch + row;
  };
  if (task.slot < 0) {
    const int64_t row = int64_t{task.block_row} * args.block_m + task.m0;
    end.to = static_cast<float*>(args.c) + batch * args.c_batch_stride + place(row, args.ldc);
    end.bias = args.bias == nullptr ? nullptr : static_cast<const float*>(args.bias) + row;
    end.activation = args.activation;
    end.aligned = args.c_aligned;
  } else {
    end.to = args.partials + (int64_t{batch} * args.slots + task.slot) * args.part_words +
             place(task.m0, args.part_pitch);
    end.aligned = true;
  }
  return end;
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads* Tile::kGroups, Tile::kResident)
    fma_tiled_kernel(const __grid_constant__ FmaArguments args) {
  extern __shared__ __align__(16) float shared[];
  using CopiesOfA = TurnedCopies<Tile::kM, Tile::kPitchA, Tile::kStep, Tile::kThreads>;
  using CopiesOfB = CopiesOfDense<Tile>;
  constexpr int kStepsOfTurn = 32 / kStepUnits;
  const int group = Tile::kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / Tile::kThreads;
  const int thread = static_cast<int>(threadIdx.x) - group * Tile::kThreads;
  float* const ring = shared + group * Tile::kGroupWords;

  const TilePlace at = locate(args.panels, blockIdx.x);
  const auto shares = static_cast<int>(args.shares);
  const int share = group % shares;
  unsigned tile_row =
      at.row * (Tile::kGroups / args.shares) + static_cast<unsigned>(group / shares);
  const bool exists = tile_row < args.tile_rows;
  if (!exists) {
    if (shares == 1) return;  // else others wait for this group
    tile_row = 0;
  }
  FmaTask task = fma_task<Tile>(args, tile_row);
  if (!exists) task.length = 0;
  const int64_t n0 = int64_t{at.column} * Tile::kN;
  const int rows = exists ? min(args.block_m - task.m0, Tile::kM) : 0;
  auto columns = static_cast<int>(min(args.n - n0, int64_t{Tile::kN}));

  const int row_steps = static_cast<int>(
      (static_cast<unsigned>(task.length) * args.block_units + kStepUnits - 1) / kStepUnits);
  const int steps = (row_steps - share + shares - 1) / shares;
  FmaUnits units(args, task.begin, task.length, share);

  // This thread's first elements, and where they go.
  const char* a = static_cast<const char*>(args.values) +
                  int64_t{task.m0 + CopiesOfA::row(thread)} * args.a_row +
                  CopiesOfA::k(thread) * args.a_col;
  const char* b = static_cast<const char*>(args.b) + at.batch * args.b_batch_stride * 4;
  if constexpr (Tile::kRowsB) {
    b += (n0 + CopiesOfB::element(thread)) * 4 + int64_t{CopiesOfB::k(thread)} * args.b_line;
  } else {
    b += (n0 + CopiesOfB::column(thread)) * args.b_line;
  }
  const auto ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const uint32_t to_a = ring_address + CopiesOfA::offset(thread);
  const uint32_t to_b = ring_address + Tile::kStageA * 4 + CopiesOfB::offset(thread);

  FmaSums<Tile> sums;
  const int row = FmaSums<Tile>::row(thread), column = FmaSums<Tile>::column(thread);
  const float* left = ring + row;
  const float* right = ring + Tile::kStageA + (Tile::kRowsB ? column : column * Tile::kPitchB);
  int filled = 0, stage = 0;  // words from the ring's beginning
#pragma unroll 1
  for (int step = 1 - Tile::kStages; step < steps; ++step) {
    // Copies go to the stage of the step before, which everyone has left.
    const int copied = step + Tile::kStages - 1;
    if (copied < steps) {
      const int turn = copied % kStepsOfTurn;
      if (turn == 0) units.turn(args);
      const auto source_of_a = [&](int unit) {
        const uint32_t quad = units.quad(turn * kStepUnits + unit);
        const int line = units.line(turn * kStepUnits + unit);
        return std::pair{bytes_ahead(a, 16, quad), line >= 0};
      };
      const auto source_of_b = [&](int unit) {
        const int line = units.line(turn * kStepUnits + unit);
        return std::pair{bytes_ahead(b, Tile::kRowsB ? args.b_line : 4, max(line, 0)), line >= 0};
      };
      CopiesOfA::start(to_a + filled * 4, thread, source_of_a, args.a_row, rows);
      CopiesOfB::start(to_b + filled * 4, thread, source_of_b, args.b_line, columns,
                       args.b_aligned);
      filled = filled + Tile::kStageWords == Tile::kRingWords ? 0 : filled + Tile::kStageWords;
    }
    cp_async_commit();
    // This thread's copies for the next step have landed; then everyone's.
    const auto wait = [&] {
      cp_async_wait<Tile::kStages - 2>();
      wait_for_group<Tile>(group);
    };
    if (step < 0) {
      if (step == -1) {
        wait();
        sums.begin(left, right);
      }
      continue;
    }
    sums.multiply(left, right, [&] {
      wait();
      const int by = stage + Tile::kStageWords == Tile::kRingWords
                         ? Tile::kStageWords - Tile::kRingWords
                         : Tile::kStageWords;
      stage += by;
      left += by;
      right += by;
    });
  }
  cp_async_wait<0>();

  wait_for_group<Tile>(group);
  sums.leave(
      ring + (args.c_rows ? row * Tile::kPitchRows + column : column * Tile::kPitchColumns + row),
      args.c_rows);
  if (shares == 1) {
    wait_for_group<Tile>(group);
  } else {
    __syncthreads();
  }
  if (task.slot >= 0 && args.c_rows)
    columns = (columns + 3) / 4 * 4;  // whole quads: as they are read
  finish_tiles<Tile>(fma_end(args, task, at.batch, n0), ring - share * Tile::kGroupWords, shares,
                     rows, columns, share * Tile::kThreads + thread, shares * Tile::kThreads);
}

}  // namespace sparse_autotune
