// What the thread blocks of a sampled product's kernel work on, and how they find it.
//
// Blocks are cut into pieces: a strip of 64 or 128 rows by 64 columns of a stored block, numbered
// from block row to block row, within one from strip to strip, and within a strip from left to
// right. A task is a fixed number of them in turn, wherever rows end, so that all tasks are equally
// long and how many there are follows from the number of blocks alone. Pieces of one strip share
// C's rows.
//
// With a row order of two blocks each there is a task for each of its entries instead, so that no
// task has pieces of two rows; those of one block come last.
//
// Thread blocks take tasks in turn and walk the terms of the sums together, so that what one
// fetches from memory the others find in L2. The tasks from `whole` on are taken in halves, or
// their sums in parts, if there are too few left for all: the first halves or parts of all these
// tasks come first, then the second. Whoever is the last of a task adds its parts up.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/warpgroup_roles.cuh"

namespace sparse_autotune {

constexpr int kMaxPieces = 8;

struct SampledArguments {
  CUtensorMap c, b;  // with the batch as last dimension
  const void* crow_indices;
  const void* col_indices;
  void* values;
  float* partials;  // tiles of the tasks from `whole` on: the first parts of all, the second, ...
  unsigned* counters;       // two for each of these tasks, 0 between launches
  const OrderedRow* order;  // null: tasks run across rows
  // Tasks, tasks behind them (without an order halves count), parts of the latter.
  unsigned whole, rest, parts;
  unsigned pieces;                           // of all stored blocks
  int most;                                  // pieces of a whole task
  int steps, matrix_steps;                   // of 64 terms: of all matrices of the batch, of one
  int block_rows, block_m, block_k, strips;  // strips: of one block row
  bool halved;                               // the tasks from `whole` on are
  bool wide_boxes;                           // of B: of two pieces
  bool wide_indices, c_batched, b_batched;
};

// Lives in shared memory.
struct alignas(16) SampledTask {
  int first, steps;           // of the sums
  int strips, pieces;         // different strips among the pieces; pieces that there are
  int each;                   // pieces of a consumer
  int part, rest, valid;      // part of the sums, of which task behind the whole ones
  int row[kMaxPieces];        // of C, the strips' first
  int column[kMaxPieces];     // rows of B^T, the pieces' first
  int strip[kMaxPieces];      // by piece
  int64_t place[kMaxPieces];  // of a piece's first element in values
};

// Two tasks on their way from the warp that finds them to those that work on them.
template <int kReaders>
struct SampledQueue {
  static constexpr int kSlots = 2, kBytes = kSlots * (static_cast<int>(sizeof(SampledTask)) + 16);

  SampledTask* tasks;
  uint32_t barriers;
  RingPlace<kSlots> at;

  __device__ __forceinline__ SampledQueue(char* memory, uint32_t address)
      : tasks(reinterpret_cast<SampledTask*>(memory)),
        barriers(address + kSlots * static_cast<uint32_t>(sizeof(SampledTask))) {}
  __device__ __forceinline__ uint32_t full() const { return barriers + at.stage * 8; }
  __device__ __forceinline__ uint32_t empty() const { return full() + kSlots * 8; }
  __device__ __forceinline__ void init_barriers() const {
    for (uint32_t i = 0; i < kSlots; ++i) {
      mbarrier_init(barriers + i * 8, 32);
      mbarrier_init(barriers + (kSlots + i) * 8, kReaders);
    }
  }
};

// By a whole warp: the row that holds block `block`, the last that begins at or before it.
__device__ __forceinline__ int find_block_row(const SampledArguments& args, int block) {
  constexpr int kEach = 8;  // rows a lane looks at
  const int lane = threadIdx.x % 32;
  int low = 0, count = args.block_rows;
  for (;;) {
    const int stride = (count + 32 * kEach - 1) / (32 * kEach);
    int found[kEach], before = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int offset = (i * 32 + lane + 1) * stride;
      found[i] = offset < count
                     ? load_narrow_index(args.crow_indices, low + offset, args.wide_indices)
                     : INT32_MAX;
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) before += __popc(__ballot_sync(~0u, found[i] <= block));
    low += before * stride;
    count = min(stride, count - before * stride);
    if (stride == 1) return low;
  }
}

// By one thread: the same, where `row` begins at or before the block and is likely to be near.
__device__ __forceinline__ int find_near_block_row(const SampledArguments& args, int block,
                                                   int row) {
  int beyond = row + 1;
  for (int step = 1; beyond < args.block_rows; beyond += step, step *= 2) {
    if (load_narrow_index(args.crow_indices, beyond, args.wide_indices) > block) break;
    row = beyond;
  }
  beyond = min(beyond, args.block_rows);
  while (beyond - row > 1) {
    const int middle = row + (beyond - row) / 2;
    const bool begun = load_narrow_index(args.crow_indices, middle, args.wide_indices) <= block;
    (begun ? row : beyond) = middle;
  }
  return row;
}

// By a whole warp: which rows, columns and values up to `most` pieces are.
template <typename Tile>
__device__ __forceinline__ void find_pieces(const SampledArguments& args, unsigned first, int most,
                                            SampledTask& task) {
  const int lane = threadIdx.x % 32;
  const unsigned across = static_cast<unsigned>(args.block_k) / 64;  // pieces of a block's strip
  const unsigned strips = static_cast<unsigned>(args.strips), each = strips * across;
  const int pieces = static_cast<int>(min(args.pieces - first, static_cast<unsigned>(most)));
  const unsigned piece = first + static_cast<unsigned>(min(lane, pieces - 1));
  const int near = find_block_row(args, static_cast<int>(first / each));
  const int row = find_near_block_row(args, static_cast<int>(piece / each), near);
  unsigned block = piece / across, strip = 0;
  if (strips > 1) {
    const auto begin =
        static_cast<unsigned>(load_narrow_index(args.crow_indices, row, args.wide_indices));
    const auto end =
        static_cast<unsigned>(load_narrow_index(args.crow_indices, row + 1, args.wide_indices));
    const unsigned within = piece - begin * each, strip_pieces = (end - begin) * across;
    strip = within / strip_pieces;
    block = begin + (within - strip * strip_pieces) / across;
  }
  const int column =
      load_narrow_index(args.col_indices, static_cast<int>(block), args.wide_indices);
  const int part = static_cast<int>(piece % across) * 64;
  const int strip_row = static_cast<int>(strip) * Tile::kRows;
  const int c_row = row * args.block_m + strip_row, before = __shfl_up_sync(~0u, c_row, 1);
  const bool begins = lane == 0 || c_row != before;
  const unsigned begun = __ballot_sync(~0u, begins && lane < most);
  const int slot = __popc(begun & ((2u << lane) - 1)) - 1;
  if (lane < Tile::kPieces) {  // behind the last are its likes
    if (begins) task.row[slot] = c_row;
    task.column[lane] = column * args.block_k + part;
    task.strip[lane] = slot;
    task.place[lane] =
        (static_cast<int64_t>(block) * args.block_m + strip_row) * args.block_k + part;
  }
  if (lane == 0) {
    task.strips = __popc(begun);
    task.pieces = pieces;
  }
}

// By a whole warp: the pieces of one or two blocks of a row, [begin, end).
template <typename Tile>
__device__ __forceinline__ void list_pieces(const SampledArguments& args, int row, int strip,
                                            int begin, int end, SampledTask& task) {
  const int lane = threadIdx.x % 32, across = args.block_k / 64;
  const int block = begin + lane / across, part = lane % across * 64;
  const int strip_row = strip * Tile::kRows;
  if (lane < Tile::kPieces) task.strip[lane] = 0;
  if (block < end && lane < Tile::kPieces) {
    const int column = load_narrow_index(args.col_indices, block, args.wide_indices);
    task.column[lane] = column * args.block_k + part;
    task.place[lane] =
        (static_cast<int64_t>(block) * args.block_m + strip_row) * args.block_k + part;
  }
  if (lane == 0) {
    task.row[0] = row * args.block_m + strip_row;
    task.strips = 1;
    task.pieces = (end - begin) * across;
  }
}

}  // namespace sparse_autotune
