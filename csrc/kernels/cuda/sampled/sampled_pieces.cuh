// The kernel of sampled_pieces: stored blocks cut into pieces of a few
// elements, one a thread.
//
// A thread block owns the stored blocks of a region: some block rows by some
// block columns. It finds them, takes as many of their pieces at a time as it
// has threads (over the teams), and stages the lines of both operands that
// these need, 64 bytes of terms at a time, in shared memory. There a line
// follows the one of the same place in the next block that is needed, so that
// threads whose blocks are neighbours read neighbouring lines, which do not
// meet in a bank.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/device/accumulator.cuh"
#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/warp_sum.cuh"

namespace sparse_autotune {

constexpr int kPieceThreads = 256;
constexpr int kPieceMostRows = 128, kPieceMostColumns = 4096;  // of a region
constexpr int kPieceStepBytes = 64;                            // of a line in a stage
constexpr int kPiecePitch = kPieceStepBytes + 16;  // eight lines in a row touch every bank

struct PieceArguments {
  const void* crow_indices;
  const void* col_indices;
  const char* c;  // lines of terms: the rows of C, the columns of B^T
  const char* b;
  void* sampled;
  int64_t c_pitch, b_pitch, c_batch, b_batch;  // bytes
  int64_t n, batch;
  int block_rows, block_cols, block_m, block_k;
  int rows, columns, across;  // block rows and columns of a region; regions along a row
  int pieces_m, pieces_k;     // of a block
  int teams;                  // that share out the terms
  int stages, lines;          // of a stage, at most
  bool wide_indices;
};

// A multiply-add of what 16 bytes of two lines hold.
__device__ __forceinline__ float add_products(uint4 x, uint4 y, float sum, float) {
  sum = fmaf(__uint_as_float(x.x), __uint_as_float(y.x), sum);
  sum = fmaf(__uint_as_float(x.y), __uint_as_float(y.y), sum);
  sum = fmaf(__uint_as_float(x.z), __uint_as_float(y.z), sum);
  return fmaf(__uint_as_float(x.w), __uint_as_float(y.w), sum);
}
__device__ __forceinline__ double add_products(uint4 x, uint4 y, double sum, double) {
  sum = fma(__hiloint2double(x.y, x.x), __hiloint2double(y.y, y.x), sum);
  return fma(__hiloint2double(x.w, x.z), __hiloint2double(y.w, y.z), sum);
}
__device__ __forceinline__ float2 wide_pair(uint32_t pair, __half) {
  return __half22float2(*reinterpret_cast<__half2*>(&pair));
}
__device__ __forceinline__ float2 wide_pair(uint32_t pair, __nv_bfloat16) {
  return make_float2(__uint_as_float(pair << 16), __uint_as_float(pair & 0xffff0000u));
}
template <typename T>
__device__ __forceinline__ float add_products(uint4 x, uint4 y, float sum, T type) {
  const uint32_t left[4] = {x.x, x.y, x.z, x.w}, right[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float2 l = wide_pair(left[i], type), r = wide_pair(right[i], type);
    sum = fmaf(l.x, r.x, sum);
    sum = fmaf(l.y, r.y, sum);
  }
  return sum;
}

// A set of bits with the number of those below each word.
template <int kWords>
struct RankedBits {
  uint32_t words[kWords];
  int before[kWords + 1];

  __device__ void set(int i) { atomicOr(&words[i / 32], 1u << i % 32); }
  __device__ bool has(int i) const { return words[i / 32] >> i % 32 & 1; }
  __device__ int rank(int i) const {
    return before[i / 32] + __popc(words[i / 32] & ((1u << i % 32) - 1));
  }
  // By one warp.
  __device__ void count(int lane) {
    int sum = 0;
    for (int first = 0; first < kWords; first += 32) {
      const int i = first + lane;
      const int own = i < kWords ? __popc(words[i]) : 0;
      const int up = sum_up_to(own);
      if (i < kWords) before[i] = sum + up - own;
      sum += __shfl_sync(0xffffffffu, up, 31);
    }
    if (lane == 0) before[kWords] = sum;
  }
};

struct PieceRegion {
  int64_t begin[kPieceMostRows];   // of a block row's part, its first stored block
  int before[kPieceMostRows + 1];  // stored blocks of the block rows before it
  RankedBits<kPieceMostRows / 32> rows;
  RankedBits<kPieceMostColumns / 32> columns;
};

constexpr int64_t piece_shared_bytes(int stages, int lines) {
  return static_cast<int64_t>(sizeof(PieceRegion)) + 16 +
         ((int64_t{lines} * 4 + 15) / 16 + int64_t{stages} * lines * (kPiecePitch / 16)) * 16;
}

// The first block of [low, high) whose column is not below `column`.
__device__ inline int64_t first_block_from(const PieceArguments& a, int64_t low, int64_t high,
                                           int column) {
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (load_index(a.col_indices, middle, a.wide_indices) < column) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low;
}

// What one thread of a thread block does for its region.
template <typename T, int kRows, int kColumns>
struct PieceWalk {
  using Sum = typename Accumulator<T>::Type;
  static constexpr int kStepTerms = kPieceStepBytes / static_cast<int>(sizeof(T));

  // Pieces that the thread block works on at a time, and the lines that these need: block rows of C
  // and block columns of B, a line of each behind one another.
  struct Batch {
    int count;
    int c_rows, b_columns;  // odd, so that lines of one block lie in different banks
    int c_lines, all_lines;
  };
  // The thread's piece: every pieces_m-th row and pieces_k-th column of its block.
  struct Piece {
    bool mine;
    int row, block;  // of the region
    int i0, j0;
    uint32_t c_from[kRows], b_from[kColumns];  // in a stage
  };

  const PieceArguments& a;
  PieceRegion& region;
  int* const lines;
  char* const stages;
  const uint32_t stage0 = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const uint32_t stage_bytes = static_cast<uint32_t>(a.lines) * kPiecePitch;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int row0 = static_cast<int>(blockIdx.x) / a.across * a.rows;
  const int column0 = static_cast<int>(blockIdx.x) % a.across * a.columns;
  const int rows = min(a.rows, a.block_rows - row0);
  const int columns = min(a.columns, a.block_cols - column0);
  const int block_pieces = a.pieces_m * a.pieces_k;
  const int places = kPieceThreads / a.teams;
  const int place = thread % places, team = thread / places;

  __device__ __forceinline__ PieceWalk(const PieceArguments& arguments, char* shared)
      : a(arguments),
        region(*reinterpret_cast<PieceRegion*>(shared)),
        lines(reinterpret_cast<int*>(shared + (sizeof(PieceRegion) + 15) / 16 * 16)),
        stages(reinterpret_cast<char*>(lines + (a.lines + 3) / 4 * 4)) {}

  __device__ __forceinline__ void run() const {
    find_region();
    const int64_t all = int64_t{region.before[rows]} * block_pieces;
    // Of an uneven region several thread blocks have parts.
    const int64_t end = all * (blockIdx.y + 1) / gridDim.y;
    int64_t done = all * blockIdx.y / gridDim.y;
    while (done < end) {
      const Batch batch = take_batch(done, end);
      list_lines(batch);
      const Piece piece = piece_of(done, batch);
      Sum sum[kRows][kColumns] = {};
      __syncthreads();
      multiply(batch, piece, sum);
      if (a.teams > 1) add_teams(sum);
      if (piece.mine && team == 0) store(piece, sum);
      done += batch.count;
      __syncthreads();
    }
  }

  // What the region stores.
  __device__ __forceinline__ void find_region() const {
    if (thread < rows) {
      const int64_t begin = load_index(a.crow_indices, row0 + thread, a.wide_indices);
      const int64_t end = load_index(a.crow_indices, row0 + thread + 1, a.wide_indices);
      const int64_t first = a.across == 1 ? begin : first_block_from(a, begin, end, column0);
      const int64_t last = a.across == 1 ? end : first_block_from(a, first, end, column0 + columns);
      region.begin[thread] = first;
      region.before[thread + 1] = static_cast<int>(last - first);
    }
    __syncthreads();
    if (thread < 32) {
      int sum = 0;
#pragma unroll 1
      for (int i = lane; i - lane < rows; i += 32) {
        const int up = sum_up_to(i < rows ? region.before[i + 1] : 0);
        if (i < rows) region.before[i + 1] = sum + up;
        sum += __shfl_sync(0xffffffffu, up, 31);
      }
      if (lane == 0) region.before[0] = 0;
    }
    __syncthreads();
  }
  // The last row that begins at or before a block of the region.
  __device__ __forceinline__ int row_of(int block) const {
    int low = 0, high = rows;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (region.before[middle] <= block ? low : high) = middle;
    }
    return low;
  }
  __device__ __forceinline__ int column_of(int row, int block) const {
    return static_cast<int>(load_index(
               a.col_indices, region.begin[row] + block - region.before[row], a.wide_indices)) -
           column0;
  }

  // As many pieces as there are places, or half, ... of that, whose lines find room.
  __device__ __forceinline__ Batch take_batch(int64_t done, int64_t end) const {
    Batch batch;
    batch.count = static_cast<int>(min(int64_t{places}, end - done));
    for (;;) {
      mark_blocks(static_cast<int>(done / block_pieces),
                  static_cast<int>((done + batch.count - 1) / block_pieces));
      batch.c_rows = region.rows.before[kPieceMostRows / 32] | 1;
      batch.b_columns = region.columns.before[kPieceMostColumns / 32] | 1;
      batch.c_lines = batch.c_rows * a.block_m;
      batch.all_lines = batch.c_lines + batch.b_columns * a.block_k;
      if (batch.all_lines <= a.lines || batch.count == 1) return batch;
      batch.count = max(batch.count / 2, 1);
      __syncthreads();
    }
  }
  // The rows and columns of the region's blocks [first, last], counted.
  __device__ __forceinline__ void mark_blocks(int first, int last) const {
#pragma unroll 1
    for (int i = thread; i < kPieceMostRows / 32; i += kPieceThreads) region.rows.words[i] = 0;
#pragma unroll 1
    for (int i = thread; i < kPieceMostColumns / 32; i += kPieceThreads) {
      region.columns.words[i] = 0;
    }
    __syncthreads();
#pragma unroll 1
    for (int block = first + thread; block <= last; block += kPieceThreads) {
      const int row = row_of(block);
      region.rows.set(row);
      region.columns.set(column_of(row, block));
    }
    __syncthreads();
    if (thread < 32) {
      region.rows.count(lane);
      region.columns.count(lane);
    }
    __syncthreads();
  }
  // Which line of C or B goes to each place of a stage; -1: none.
  __device__ __forceinline__ void list_lines(const Batch& batch) const {
#pragma unroll 1
    for (int i = thread; i < batch.all_lines; i += kPieceThreads) lines[i] = -1;
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < rows; i += kPieceThreads) {
      if (!region.rows.has(i)) continue;
      const int at = region.rows.rank(i);
#pragma unroll 1
      for (int r = 0; r < a.block_m; ++r) {
        lines[r * batch.c_rows + at] = (row0 + i) * a.block_m + r;
      }
    }
#pragma unroll 1
    for (int i = thread; i < columns; i += kPieceThreads) {
      if (!region.columns.has(i)) continue;
      const int at = batch.c_lines + region.columns.rank(i);
#pragma unroll 1
      for (int s = 0; s < a.block_k; ++s) {
        lines[s * batch.b_columns + at] = (column0 + i) * a.block_k + s;
      }
    }
  }
  __device__ __forceinline__ Piece piece_of(int64_t done, const Batch& batch) const {
    Piece piece;
    piece.mine = place < batch.count;
    const int64_t number = done + (piece.mine ? place : 0);
    piece.block = static_cast<int>(number / block_pieces);
    const int within = static_cast<int>(number - int64_t{piece.block} * block_pieces);
    piece.i0 = within / a.pieces_k;
    piece.j0 = within - piece.i0 * a.pieces_k;
    piece.row = row_of(piece.block);
    const int c_at = region.rows.rank(piece.row);
    const int b_at = region.columns.rank(column_of(piece.row, piece.block));
#pragma unroll
    for (int y = 0; y < kRows; ++y) {
      const int r = min(piece.i0 + y * a.pieces_m, a.block_m - 1);
      piece.c_from[y] = static_cast<uint32_t>(r * batch.c_rows + c_at) * kPiecePitch;
    }
#pragma unroll
    for (int x = 0; x < kColumns; ++x) {
      const int s = min(piece.j0 + x * a.pieces_k, a.block_k - 1);
      piece.b_from[x] =
          static_cast<uint32_t>(batch.c_lines + s * batch.b_columns + b_at) * kPiecePitch;
    }
    return piece;
  }

  // What is copied next, and the stage that it goes to.
  struct Copies {
    const char *c, *b;
    int copied = 0, within_matrix = 0, filled = 0;
  };
  __device__ __forceinline__ void multiply(const Batch& batch, const Piece& piece,
                                           Sum (&sum)[kRows][kColumns]) const {
    const int steps_each = static_cast<int>((a.n + kStepTerms - 1) / kStepTerms);
    const int steps = steps_each * static_cast<int>(a.batch);
    Copies next{a.c, a.b};
#pragma unroll 1
    for (int i = 0; i < a.stages - 1; ++i) copy(batch, steps, steps_each, next);
    int read = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait();
      __syncthreads();
      copy(batch, steps, steps_each, next);
      const uint32_t from = static_cast<uint32_t>(read) * stage_bytes;
      if (++read == a.stages) read = 0;
      if (piece.mine) multiply_step(piece, from, sum);
    }
    cp_async_wait<0>();
    __syncthreads();
  }
  __device__ __forceinline__ void copy(const Batch& batch, int steps, int steps_each,
                                       Copies& next) const {
    if (next.copied < steps) {
      copy_lines(batch, next);
      ++next.copied;
      next.c += kPieceStepBytes;
      next.b += kPieceStepBytes;
      if (++next.within_matrix == steps_each) {
        next.within_matrix = 0;
        next.c += a.c_batch - int64_t{steps_each} * kPieceStepBytes;
        next.b += a.b_batch - int64_t{steps_each} * kPieceStepBytes;
      }
      if (++next.filled == a.stages) next.filled = 0;
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void copy_lines(const Batch& batch, const Copies& next) const {
    const int at = thread % 4 * 16;
    const uint32_t to = stage0 + static_cast<uint32_t>(next.filled) * stage_bytes + at;
    const int64_t left = (a.n - int64_t{next.within_matrix} * kStepTerms) * int64_t{sizeof(T)} - at;
    const int bytes = static_cast<int>(max(min(left, int64_t{16}), int64_t{0}));
    const int from = bytes > 0 ? at : 0;
    const char *const c = next.c + from, *const b = next.b + from;
    for (int i = thread / 4; i < batch.all_lines; i += kPieceThreads / 4) {
      const int line = lines[i];
      if (line < 0) continue;
      const char* const start = i < batch.c_lines ? c + line * a.c_pitch : b + line * a.b_pitch;
      cp_async_16(to + static_cast<uint32_t>(i) * kPiecePitch, start, bytes);
    }
  }
  __device__ __forceinline__ void wait() const {
    if (a.stages == 2) {
      cp_async_wait<0>();
    } else if (a.stages == 3) {
      cp_async_wait<1>();
    } else {
      cp_async_wait<2>();
    }
  }
  __device__ __forceinline__ uint4 held(uint32_t at) const {
    return *reinterpret_cast<const uint4*>(stages + at);
  }
  __device__ __forceinline__ void multiply_step(const Piece& piece, uint32_t from,
                                                Sum (&sum)[kRows][kColumns]) const {
    for (int chunk = team; chunk < kPieceStepBytes / 16; chunk += a.teams) {
      uint4 c[kRows], b[kColumns];
#pragma unroll
      for (int y = 0; y < kRows; ++y) c[y] = held(from + piece.c_from[y] + chunk * 16);
#pragma unroll
      for (int x = 0; x < kColumns; ++x) b[x] = held(from + piece.b_from[x] + chunk * 16);
#pragma unroll
      for (int y = 0; y < kRows; ++y) {
#pragma unroll
        for (int x = 0; x < kColumns; ++x) sum[y][x] = add_products(c[y], b[x], sum[y][x], T{});
      }
    }
  }

  // The teams' sums go through the stages' memory.
  __device__ __forceinline__ void add_teams(Sum (&sum)[kRows][kColumns]) const {
    Sum* const sums = reinterpret_cast<Sum*>(stages);
    if (team > 0) {
#pragma unroll
      for (int e = 0; e < kRows * kColumns; ++e) {
        sums[e * (kPieceThreads - places) + thread - places] = sum[e / kColumns][e % kColumns];
      }
    }
    __syncthreads();
    if (team == 0) {
#pragma unroll 1
      for (int other = 0; other < a.teams - 1; ++other) {
#pragma unroll
        for (int e = 0; e < kRows * kColumns; ++e) {
          sum[e / kColumns][e % kColumns] +=
              sums[e * (kPieceThreads - places) + other * places + place];
        }
      }
    }
    __syncthreads();
  }
  __device__ __forceinline__ void store(const Piece& piece,
                                        const Sum (&sum)[kRows][kColumns]) const {
    T* const values =
        static_cast<T*>(a.sampled) +
        (region.begin[piece.row] + piece.block - region.before[piece.row]) * a.block_m * a.block_k;
#pragma unroll
    for (int e = 0; e < kRows * kColumns; ++e) {
      const int r = piece.i0 + e / kColumns * a.pieces_m;
      const int s = piece.j0 + e % kColumns * a.pieces_k;
      if (r < a.block_m && s < a.block_k) {
        values[r * a.block_k + s] = static_cast<T>(sum[e / kColumns][e % kColumns]);
      }
    }
  }
};

template <typename T, int kRows, int kColumns>
__global__ void __launch_bounds__(kPieceThreads, 2) sampled_pieces_kernel(const PieceArguments a) {
  extern __shared__ __align__(16) char shared[];
  PieceWalk<T, kRows, kColumns>(a, shared).run();
}

}  // namespace sparse_autotune
