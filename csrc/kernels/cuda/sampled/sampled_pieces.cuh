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
  int rows, columns,
      strips;              // block rows and columns of a region; regions along a row
  int pieces_m, pieces_k;  // of a block
  int teams;               // that share out the terms
  int stages, lines;       // of a stage, at most
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
      int up = own;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int from = __shfl_up_sync(0xffffffffu, up, d);
        if (lane >= d) up += from;
      }
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

template <typename T, int kRows, int kColumns>
__global__ void __launch_bounds__(kPieceThreads, 2) sampled_pieces_kernel(const PieceArguments a) {
  using Sum = typename Accumulator<T>::Type;
  constexpr int kStepTerms = kPieceStepBytes / static_cast<int>(sizeof(T));
  extern __shared__ __align__(16) char shared[];
  auto& region = *reinterpret_cast<PieceRegion*>(shared);
  int* const lines = reinterpret_cast<int*>(shared + (sizeof(PieceRegion) + 15) / 16 * 16);
  char* const stages = reinterpret_cast<char*>(lines + (a.lines + 3) / 4 * 4);
  const auto stage0 = static_cast<uint32_t>(__cvta_generic_to_shared(stages));
  const auto held = [&](uint32_t at) { return *reinterpret_cast<const uint4*>(stages + at); };
  const uint32_t stage_bytes = static_cast<uint32_t>(a.lines) * kPiecePitch;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const int row0 = static_cast<int>(blockIdx.x) / a.strips * a.rows;
  const int column0 = static_cast<int>(blockIdx.x) % a.strips * a.columns;
  const int rows = min(a.rows, a.block_rows - row0);
  const int columns = min(a.columns, a.block_cols - column0);

  // What the region stores.
  if (thread < rows) {
    const int64_t begin = load_index(a.crow_indices, row0 + thread, a.wide_indices);
    const int64_t end = load_index(a.crow_indices, row0 + thread + 1, a.wide_indices);
    const int64_t first = a.strips == 1 ? begin : first_block_from(a, begin, end, column0);
    const int64_t last = a.strips == 1 ? end : first_block_from(a, first, end, column0 + columns);
    region.begin[thread] = first;
    region.before[thread + 1] = static_cast<int>(last - first);
  }
  __syncthreads();
  if (thread < 32) {
    int sum = 0;
#pragma unroll 1
    for (int i = lane; i - lane < rows; i += 32) {
      int up = i < rows ? region.before[i + 1] : 0;
#pragma unroll
      for (int d = 1; d < 32; d *= 2) {
        const int from = __shfl_up_sync(0xffffffffu, up, d);
        if (lane >= d) up += from;
      }
      if (i < rows) region.before[i + 1] = sum + up;
      sum += __shfl_sync(0xffffffffu, up, 31);
    }
    if (lane == 0) region.before[0] = 0;
  }
  __syncthreads();
  const int block_pieces = a.pieces_m * a.pieces_k;
  const int64_t all = int64_t{region.before[rows]} * block_pieces;
  // Of an uneven region several thread blocks have parts.
  const int64_t first_piece = all * blockIdx.y / gridDim.y;
  const int64_t end_piece = all * (blockIdx.y + 1) / gridDim.y;
  const int places = kPieceThreads / a.teams;
  const int place = thread % places, team = thread / places;

  const auto row_of = [&](int block) {
    int low = 0, high = rows;  // the last row that begins at or before the block
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (region.before[middle] <= block ? low : high) = middle;
    }
    return low;
  };
  const auto column_of = [&](int row, int block) {
    return static_cast<int>(load_index(
               a.col_indices, region.begin[row] + block - region.before[row], a.wide_indices)) -
           column0;
  };

  int64_t done = first_piece;
  while (done < end_piece) {
    // As many pieces as there are places, or half, ... of that, whose lines
    // find room.
    int count = static_cast<int>(min(int64_t{places}, end_piece - done)), c_rows, b_columns;
    for (;;) {
#pragma unroll 1
      for (int i = thread; i < kPieceMostRows / 32; i += kPieceThreads) region.rows.words[i] = 0;
#pragma unroll 1
      for (int i = thread; i < kPieceMostColumns / 32; i += kPieceThreads) {
        region.columns.words[i] = 0;
      }
      __syncthreads();
      const int first = static_cast<int>(done / block_pieces);
      const int last = static_cast<int>((done + count - 1) / block_pieces);
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
      // An odd number: lines of one block lie in different banks.
      c_rows = region.rows.before[kPieceMostRows / 32] | 1;
      b_columns = region.columns.before[kPieceMostColumns / 32] | 1;
      if (c_rows * a.block_m + b_columns * a.block_k <= a.lines || count == 1) break;
      count = max(count / 2, 1);
      __syncthreads();
    }
    const int c_lines = c_rows * a.block_m;
    const int all_lines = c_lines + b_columns * a.block_k;
#pragma unroll 1
    for (int i = thread; i < all_lines; i += kPieceThreads) lines[i] = -1;
    __syncthreads();
#pragma unroll 1
    for (int i = thread; i < rows; i += kPieceThreads) {
      if (!region.rows.has(i)) continue;
      const int at = region.rows.rank(i);
#pragma unroll 1
      for (int r = 0; r < a.block_m; ++r) lines[r * c_rows + at] = (row0 + i) * a.block_m + r;
    }
#pragma unroll 1
    for (int i = thread; i < columns; i += kPieceThreads) {
      if (!region.columns.has(i)) continue;
      const int at = c_lines + region.columns.rank(i);
#pragma unroll 1
      for (int s = 0; s < a.block_k; ++s) {
        lines[s * b_columns + at] = (column0 + i) * a.block_k + s;
      }
    }

    // The thread's piece: every pieces_m-th row and pieces_k-th column of its
    // block.
    const bool mine = place < count;
    const int64_t piece = done + (mine ? place : 0);
    const int block = static_cast<int>(piece / block_pieces);
    const int within = static_cast<int>(piece - int64_t{block} * block_pieces);
    const int i0 = within / a.pieces_k, j0 = within - i0 * a.pieces_k;
    const int row = row_of(block);
    const int c_at = region.rows.rank(row), b_at = region.columns.rank(column_of(row, block));
    uint32_t c_from[kRows], b_from[kColumns];
#pragma unroll
    for (int y = 0; y < kRows; ++y) {
      const int r = min(i0 + y * a.pieces_m, a.block_m - 1);
      c_from[y] = static_cast<uint32_t>(r * c_rows + c_at) * kPiecePitch;
    }
#pragma unroll
    for (int x = 0; x < kColumns; ++x) {
      const int s = min(j0 + x * a.pieces_k, a.block_k - 1);
      b_from[x] = static_cast<uint32_t>(c_lines + s * b_columns + b_at) * kPiecePitch;
    }
    Sum sum[kRows][kColumns] = {};
    __syncthreads();

    // Counters of what is copied next, and of the stage that it goes to.
    const int steps_each = static_cast<int>((a.n + kStepTerms - 1) / kStepTerms);
    const int steps = steps_each * static_cast<int>(a.batch);
    const int at = thread % 4 * 16;
    const char *c_next = a.c, *b_next = a.b;
    int copied = 0, within_matrix = 0, filled = 0;
    const auto copy = [&]() {
      if (copied < steps) {
        const uint32_t to = stage0 + static_cast<uint32_t>(filled) * stage_bytes + at;
        const int64_t left = (a.n - int64_t{within_matrix} * kStepTerms) * int64_t{sizeof(T)} - at;
        const int bytes = static_cast<int>(max(min(left, int64_t{16}), int64_t{0}));
        const int from = bytes > 0 ? at : 0;
        const char *const c = c_next + from, *const b = b_next + from;
        for (int i = thread / 4; i < all_lines; i += kPieceThreads / 4) {
          const int line = lines[i];
          if (line < 0) continue;
          const char* const start = i < c_lines ? c + line * a.c_pitch : b + line * a.b_pitch;
          cp_async_16(to + static_cast<uint32_t>(i) * kPiecePitch, start, bytes);
        }
        ++copied;
        c_next += kPieceStepBytes;
        b_next += kPieceStepBytes;
        if (++within_matrix == steps_each) {
          within_matrix = 0;
          c_next += a.c_batch - int64_t{steps_each} * kPieceStepBytes;
          b_next += a.b_batch - int64_t{steps_each} * kPieceStepBytes;
        }
        if (++filled == a.stages) filled = 0;
      }
      cp_async_commit();
    };
    const auto wait = [&]() {
      if (a.stages == 2) {
        cp_async_wait<0>();
      } else if (a.stages == 3) {
        cp_async_wait<1>();
      } else {
        cp_async_wait<2>();
      }
    };
#pragma unroll 1
    for (int i = 0; i < a.stages - 1; ++i) copy();
    int read = 0;
#pragma unroll 1
    for (int step = 0; step < steps; ++step) {
      wait();
      __syncthreads();
      copy();
      const uint32_t from = static_cast<uint32_t>(read) * stage_bytes;
      if (++read == a.stages) read = 0;
      if (!mine) continue;
      for (int chunk = team; chunk < kPieceStepBytes / 16; chunk += a.teams) {
        uint4 c[kRows], b[kColumns];
#pragma unroll
        for (int y = 0; y < kRows; ++y) c[y] = held(from + c_from[y] + chunk * 16);
#pragma unroll
        for (int x = 0; x < kColumns; ++x) b[x] = held(from + b_from[x] + chunk * 16);
#pragma unroll
        for (int y = 0; y < kRows; ++y) {
#pragma unroll
          for (int x = 0; x < kColumns; ++x) sum[y][x] = add_products(c[y], b[x], sum[y][x], T{});
        }
      }
    }
    cp_async_wait<0>();
    __syncthreads();

    // The teams' sums go through the stages' memory.
    if (a.teams > 1) {
      Sum* const sums = reinterpret_cast<Sum*>(stages);
      if (team > 0) {
#pragma unroll
        for (int y = 0; y < kRows; ++y) {
#pragma unroll
          for (int x = 0; x < kColumns; ++x) {
            sums[(y * kColumns + x) * (kPieceThreads - places) + thread - places] = sum[y][x];
          }
        }
      }
      __syncthreads();
      if (team == 0) {
#pragma unroll 1
        for (int other = 0; other < a.teams - 1; ++other) {
#pragma unroll
          for (int y = 0; y < kRows; ++y) {
#pragma unroll
            for (int x = 0; x < kColumns; ++x) {
              sum[y][x] +=
                  sums[(y * kColumns + x) * (kPieceThreads - places) + other * places + place];
            }
          }
        }
      }
      __syncthreads();
    }
    if (mine && team == 0) {
      T* const values = static_cast<T*>(a.sampled) +
                        (region.begin[row] + block - region.before[row]) * a.block_m * a.block_k;
#pragma unroll
      for (int y = 0; y < kRows; ++y) {
#pragma unroll
        for (int x = 0; x < kColumns; ++x) {
          const int r = i0 + y * a.pieces_m, s = j0 + x * a.pieces_k;
          if (r < a.block_m && s < a.block_k) {
            values[r * a.block_k + s] = static_cast<T>(sum[y][x]);
          }
        }
      }
    }
    done += count;
    __syncthreads();
  }
}

}  // namespace sparse_autotune
