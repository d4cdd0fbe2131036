// What the thread blocks of a sampled product's kernel work on, and how they find it.
//
// Blocks are cut into pieces: kUnitRows * 64 rows by 64 columns of a stored block, numbered from
// block row to block row, within one from strip to strip, and within a strip from left to right. A
// task is kPieces of them in turn, wherever rows end, so that all tasks are equally long and their
// number follows from that of the blocks alone. Pieces of one strip share C's tile of it.
//
// Tasks below `whole` are dealt out in turn. What the others have to do, laid end to end, is cut
// into as many equal ranges of steps as there are cutters; a task whose sums several thread blocks
// have a part of is finished by whoever comes last.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/wgmma_pipeline.cuh"

namespace sparse_autotune {

constexpr int kMaxPieces = 8;
// Nobody gets fewer steps of a task than this, or leaves fewer to others.
constexpr unsigned kShortestPart = 4;

struct SampledArguments {
  CUtensorMap c, b;  // with the batch as third dimension
  const void* crow_indices;
  const void* col_indices;
  void* values;
  float* partials;  // of cutter i: a tile at 2 i of a task begun by another, at 2 i + 1 of its own
  unsigned* counters;  // two for each cutter, 0 between launches
  unsigned tasks, whole, cutters;
  unsigned pieces;                           // of all stored blocks
  int steps, matrix_steps;                   // of 64 terms: of all matrices of the batch, of one
  int block_rows, block_m, block_k, strips;  // strips: of one block row
  bool wide_indices, c_batched, b_batched;
};

// Lives in shared memory.
struct alignas(16) SampledTask {
  int first, steps;           // of the sums
  int strips, pieces;         // different strips among the pieces; pieces that there are
  int part, parts;            // of the sums, whose task the thread block `cutter` begins
  int cutter, valid;          // valid is 0 behind the last task
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

// Where cutter i begins, in steps from the first of the tasks that are cut.
__device__ __forceinline__ unsigned cut_at(const SampledArguments& args, unsigned i) {
  const unsigned length = static_cast<unsigned>(args.steps);
  const unsigned at = i * ((args.tasks - args.whole) * length) / args.cutters;
  const unsigned before = at % length;
  if (before < kShortestPart) return at - before;
  return length - before < kShortestPart ? at - before + length : at;
}

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

// By a whole warp: which rows, columns and values a task's pieces are.
template <typename Tile>
__device__ __forceinline__ void find_pieces(const SampledArguments& args, unsigned number,
                                            SampledTask& task) {
  const int lane = threadIdx.x % 32;
  const unsigned across = static_cast<unsigned>(args.block_k) / 64;  // pieces of a block's strip
  const unsigned strips = static_cast<unsigned>(args.strips), each = strips * across;
  const unsigned first = number * Tile::kPieces;
  const unsigned pieces = min(args.pieces - first, static_cast<unsigned>(Tile::kPieces));
  const unsigned piece = first + min(static_cast<unsigned>(lane), pieces - 1);
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
  const int strip_row = static_cast<int>(strip) * Tile::kRows,
            c_row = row * args.block_m + strip_row;
  const int before = __shfl_up_sync(~0u, c_row, 1);
  const bool begins = lane == 0 || c_row != before;
  const unsigned begun = __ballot_sync(~0u, begins && lane < Tile::kPieces);
  const int slot = __popc(begun & (2u << lane) - 1) - 1;
  if (lane < Tile::kPieces) {
    if (begins) task.row[slot] = c_row;
    task.column[lane] = column * args.block_k + part;
    task.strip[lane] = slot;
    task.place[lane] =
        (static_cast<int64_t>(block) * args.block_m + strip_row) * args.block_k + part;
  }
  if (lane == 0) {
    task.strips = __popc(begun);
    task.pieces = static_cast<int>(pieces);
  }
}

// One warp: finds this thread block's tasks, one ahead of those who work on them.
template <typename Tile>
__device__ __forceinline__ void schedule(const SampledArguments& args,
                                         SampledQueue<Tile::kTaskReaders> queue) {
  const int lane = threadIdx.x % 32;
  const auto push = [&](unsigned number, unsigned first, unsigned steps, unsigned part,
                        unsigned parts, unsigned cutter) {
    mbarrier_wait(queue.empty(), queue.at.parity ^ 1);
    SampledTask& task = queue.tasks[queue.at.stage];
    if (steps > 0) find_pieces<Tile>(args, number, task);
    if (lane == 0) {
      task.first = static_cast<int>(first);
      task.steps = static_cast<int>(steps);
      task.part = static_cast<int>(part);
      task.parts = static_cast<int>(parts);
      task.cutter = static_cast<int>(cutter);
      task.valid = steps > 0;
    }
    mbarrier_arrive(queue.full());
    queue.at.advance();
  };
  const unsigned me = blockIdx.x, length = static_cast<unsigned>(args.steps);
  for (unsigned number = me; number < args.whole; number += gridDim.x) {
    push(number, 0, length, 0, 1, me);
  }
  if (me < args.cutters) {
    const unsigned stop = cut_at(args, me + 1);
    for (unsigned at = cut_at(args, me); at < stop;) {
      const unsigned number = at / length, begin = number * length, end = begin + length;
      unsigned first = me, last = me;
      while (cut_at(args, first) > begin) --first;
      while (cut_at(args, last + 1) < end) ++last;
      const unsigned until = min(stop, end);
      push(args.whole + number, at - begin, until - at, me - first, last - first + 1, first);
      at = until;
    }
  }
  push(0, 0, 0, 0, 0, 0);
}

}  // namespace sparse_autotune
