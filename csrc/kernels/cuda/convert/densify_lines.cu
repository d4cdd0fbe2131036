// BSR to dense by whole lines: what is written to memory is written once, zeros and values
// together.
//
// A thread block owns a tile of the dense matrix, some block rows of it or, of long lines, some
// block columns of one, clears its image in shared memory, puts the stored blocks there and copies
// it out. A thread's chunks of its block row, of up to 16 bytes, all have the same place
// within their blocks, so that it divides once. Data path: global -> registers -> shared -> global.
#include "kernels/cuda/convert/move_blocks.h"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/chunk.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/host/cuda_status.h"

namespace sparse_autotune {
namespace {

struct LinesArguments {
  const void* crow;
  const void* col;
  const void* values;
  char* dst;
  int64_t line_bytes;  // of the dense matrix
  int block_rows, block_m;
  int block_bytes;            // of one line of a block
  int line_chunks, area;      // of one line of a block, of a block
  int tile_rows;              // block rows of a tile
  int team, step;             // threads of a block row; blocks that they take at one time
  int tile_columns, windows;  // block columns of a tile; tiles side by side
  int pitch;                  // bytes from one line of a tile to the next
  int word;                   // bytes that divide lines, tiles side by side and where they lie
  bool wide_indices;
};

constexpr int kThreads = 256, kResident = 6;

// By a warp for each line: `length` bytes, a multiple of Word's.
template <typename Word>
__device__ __forceinline__ void copy_lines(const LinesArguments& a, const char* tile, char* dst,
                                           int length) {
  constexpr int kWord = sizeof(Word);
  for (int i = static_cast<int>(threadIdx.x) / 32; i < a.block_m; i += kThreads / 32) {
    for (int at = static_cast<int>(threadIdx.x) % 32 * kWord; at < length; at += 32 * kWord) {
      *reinterpret_cast<Word*>(dst + i * a.line_bytes + at) =
          *reinterpret_cast<const Word*>(tile + i * a.pitch + at);
    }
  }
}

template <typename Chunk>
__global__ void __launch_bounds__(kThreads, kResident)
    densify_lines_kernel(const __grid_constant__ LinesArguments a) {
  constexpr int kAtOnce = sizeof(Chunk) > 4 ? 32 / sizeof(Chunk) : 8;  // loads on their way
  extern __shared__ __align__(16) char tile[];
  __shared__ int bounds[2];
  const int thread = static_cast<int>(threadIdx.x);
  const int strip = static_cast<int>(blockIdx.x) / a.windows;
  const int window = static_cast<int>(blockIdx.x) - strip * a.windows;
  const int row0 = strip * a.tile_rows, rows = min(a.block_rows - row0, a.tile_rows);
  const int first_column = window * a.tile_columns;
  char* const dst =
      a.dst + int64_t{row0} * a.block_m * a.line_bytes + int64_t{first_column} * a.block_bytes;
  // Of a tile of whole lines, which are one run of memory, 16 bytes lie in shared memory as they
  // do there.
  const int shift = a.windows > 1 ? 0 : static_cast<int>(reinterpret_cast<uintptr_t>(dst) % 16);

  const int team = thread / a.team, member = thread - team * a.team;
  int64_t begin = 0;
  int count = 0;
  if (team < rows) {
    begin = load_index(a.crow, row0 + team, a.wide_indices);
    count = static_cast<int>(load_index(a.crow, row0 + team + 1, a.wide_indices) - begin);
  }
  if (a.windows > 1) {
    if (thread < 64) {
      const int column = first_column + thread / 32 * a.tile_columns;
      const int found = indices_below(a.col, begin, count, column, a.wide_indices);
      if (thread % 32 == 0) bounds[thread / 32] = found;
    }
    __syncthreads();
    begin += bounds[0];
    count = bounds[1] - bounds[0];
  }
  int block = member / a.area;
  const int within = member - block * a.area, line = within / a.line_chunks;
  if (block >= a.step) count = 0;  // a thread too many
  const int place = shift + (team * a.block_m + line) * a.pitch +
                    (within - line * a.line_chunks) * static_cast<int>(sizeof(Chunk)) -
                    first_column * a.block_bytes;
  const Chunk* from = static_cast<const Chunk*>(a.values) + begin * a.area + within;

  int columns[kAtOnce];
  Chunk chunks[kAtOnce];
  const auto fetch = [&] {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = block + i * a.step;
      if (at >= count) continue;
      columns[i] = load_narrow_index(a.col, begin + at, a.wide_indices);
      chunks[i] = __ldg(from + int64_t{at} * a.area);
    }
  };
  fetch();
  const int bytes = shift + (a.windows > 1 ? a.block_m * a.pitch : rows * a.block_m * a.pitch);
  for (int i = thread * 16; i < bytes; i += kThreads * 16) {
    *reinterpret_cast<uint4*>(tile + i) = uint4{};
  }
  __syncthreads();
  while (block < count) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (block + i * a.step < count) {
        *reinterpret_cast<Chunk*>(tile + (place + columns[i] * a.block_bytes)) = chunks[i];
      }
    }
    block += kAtOnce * a.step;
    fetch();
  }
  __syncthreads();

  if (a.windows > 1) {
    const int64_t left = a.line_bytes - int64_t{first_column} * a.block_bytes;
    const int length = static_cast<int>(min(left, int64_t{a.pitch}));
    if (a.word == 16) {
      copy_lines<uint4>(a, tile, dst, length);
    } else if (a.word == 8) {
      copy_lines<uint2>(a, tile, dst, length);
    } else {
      copy_lines<uint32_t>(a, tile, dst, length);
    }
    return;
  }
  for (int at = thread * 16; at < bytes; at += kThreads * 16) {
    if (at >= shift && at + 16 <= bytes) {
      *reinterpret_cast<uint4*>(dst + (at - shift)) = *reinterpret_cast<const uint4*>(tile + at);
    } else {
      for (int i = max(at, shift); i < min(at + 16, bytes); i += 2) {
        *reinterpret_cast<uint16_t*>(dst + (i - shift)) =
            *reinterpret_cast<const uint16_t*>(tile + i);
      }
    }
  }
}

// How the matrix is cut; tile_rows is 0 where it cannot be.
LinesArguments cut(const Problem& p, const Device& d, int64_t dst_alignment) {
  constexpr int64_t kMostBytes = 40 << 10, kMostRows = 32;
  const int64_t size = size_of(p.dtype), line = p.k * size, block_bytes = p.block_k * size;
  const int64_t alignment = std::min<int64_t>(p.values_alignment, dst_alignment);
  const int64_t chunk = chunk_bytes(block_bytes, alignment);
  LinesArguments a{};
  if (p.transpose || line > INT32_MAX || p.block_m * block_bytes / chunk > kThreads) return a;
  const int64_t strip = p.block_m * line;  // of one block row
  const int64_t word = chunk_bytes(line, dst_alignment);
  a.line_bytes = line;
  a.block_rows = static_cast<int>(block_rows(p));
  a.block_m = static_cast<int>(p.block_m);
  a.block_bytes = static_cast<int>(block_bytes);
  a.line_chunks = static_cast<int>(block_bytes / chunk);
  a.area = static_cast<int>(p.block_m) * a.line_chunks;
  a.word = static_cast<int>(word);
  a.wide_indices = p.index_type == IndexType::kInt64;
  // Of a tile: less where its blocks would keep each thread busy for long, and so that there are
  // enough for all multiprocessors, but none hardly worth its own thread block.
  const double chunks = static_cast<double>(p.nnzb) * a.area;
  int64_t bytes = 32 << 10;
  if (chunks * static_cast<double>(bytes) > 16.0 * kThreads * static_cast<double>(p.m * line)) {
    bytes /= 2;
  }
  while (bytes > 4 << 10 && p.m * line < bytes * 2 * d.multiprocessors) bytes /= 2;
  int64_t rows = 1, columns = block_cols(p);
  // To find where a part of a line begins takes longer than whole lines that are few at a time.
  if (strip <= (word >= 4 && bytes < 16 << 10 ? bytes / 2 * 3 : kMostBytes)) {
    rows = std::max<int64_t>(bytes / strip, 1);
    rows = std::min({rows, kMostRows, int64_t{kThreads / a.area}});
  } else {
    int64_t whole = 1;  // block columns that end where a word does
    while (whole * block_bytes % word != 0) ++whole;
    const int64_t unit = p.block_m * whole * block_bytes;
    const int64_t tiles = ceil_div(ceil_div(columns, whole), std::max<int64_t>(bytes / unit, 1));
    columns = ceil_div(ceil_div(columns, tiles), whole) * whole;
    if (word < 4 || p.block_m * columns * block_bytes > kMostBytes) return a;
  }
  a.tile_columns = static_cast<int>(columns);
  a.windows = static_cast<int>(ceil_div(block_cols(p), columns));
  a.pitch = static_cast<int>(columns * block_bytes);
  a.tile_rows = static_cast<int>(rows);
  a.team = kThreads / a.tile_rows;
  a.step = a.team / a.area;
  return a;
}

}  // namespace

bool densifies_lines(const Problem& p, const Device& d, int64_t dst_alignment) {
  const LinesArguments a = cut(p, d, dst_alignment);
  return a.tile_rows != 0 && ceil_div(a.block_rows, a.tile_rows) * a.windows <= INT32_MAX;
}

Status densify_lines_cuda(const Problem& p, const Launch& l, void* dst, int64_t dst_alignment) {
  LinesArguments a = cut(p, *l.device, dst_alignment);
  a.crow = l.crow_indices;
  a.col = l.col_indices;
  a.values = l.values;
  a.dst = static_cast<char*>(dst);
  const int64_t tiles = ceil_div(a.block_rows, a.tile_rows) * a.windows;
  const int64_t lines = int64_t{a.tile_rows} * a.block_m;
  const auto shared = static_cast<size_t>(lines * a.pitch + 32);
  const int64_t chunk = a.block_bytes / a.line_chunks;
  with_chunk(chunk, [&]<typename Chunk>(Chunk) {
    densify_lines_kernel<Chunk>
        <<<static_cast<unsigned>(tiles), kThreads, shared, static_cast<cudaStream_t>(l.stream)>>>(
            a);
  });
  return to_status(cudaGetLastError(), "densify_lines");
}

}  // namespace sparse_autotune
