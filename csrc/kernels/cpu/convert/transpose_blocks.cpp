// A thread owns neighbouring blocks of A^T; a block is turned in squares, in registers or with rows
// of a cache line or less.
#include "kernels/cpu/convert/layouts_of_a.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/convert/copy_lines.h"
#include "kernels/cpu/shared/elements.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kSide = 8;

// Element [i][j] of a square of kSide to [j][i]; strides are from row to row.
template <typename T>
void turn_square(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  if constexpr (sizeof(T) != 2) {
    for (int64_t j = 0; j < kSide; ++j) {
      for (int64_t i = 0; i < kSide; ++i) to[j * to_stride + i] = from[i * from_stride + j];
    }
  } else {  // no compiler makes this of those loops
    typedef uint16_t Line __attribute__((vector_size(2 * kSide)));
    Line lines[kSide], mixed[kSide];
    for (int i = 0; i < kSide; ++i) std::memcpy(&lines[i], from + i * from_stride, sizeof(Line));
    // Each step moves the highest bit of an element's line behind its place in the line.
    for (int step = 1; step < kSide; step *= 2) {
      for (int i = 0; i < kSide / 2; ++i) {
        const Line a = lines[i], b = lines[i + kSide / 2];
        mixed[2 * i] = __builtin_shuffle(a, b, Line{0, 8, 1, 9, 2, 10, 3, 11});
        mixed[2 * i + 1] = __builtin_shuffle(a, b, Line{4, 12, 5, 13, 6, 14, 7, 15});
      }
      std::memcpy(lines, mixed, sizeof(lines));
    }
    for (int j = 0; j < kSide; ++j) std::memcpy(to + j * to_stride, &lines[j], sizeof(Line));
  }
}

// `from` is rows x columns.
template <typename T>
void turn(const T* from, int64_t rows, int64_t columns, T* to) {
  for (int64_t r = 0; r < rows; r += kSide) {
    for (int64_t c = 0; c < columns; c += kSide) {
      if (r + kSide <= rows && c + kSide <= columns) {
        turn_square(from + r * columns + c, columns, to + c * rows + r, rows);
        continue;
      }
      for (int64_t j = c; j < std::min(c + kSide, columns); ++j) {
        for (int64_t i = r; i < std::min(r + kSide, rows); ++i) {
          to[j * rows + i] = from[i * columns + j];
        }
      }
    }
  }
}

// Calls turn_one(stored block, where it goes) for each block.
template <typename Turn>
void turn_all(const Problem& p, const Launch& l, void* dst, Turn&& turn_one) {
  const int64_t bytes = p.block_m * p.block_k * size_of(p.dtype);
  parallel_each(l.parallel, p.nnzb, ceil_div(kGrainBytes, bytes), [&](int64_t i) {
    const int64_t position = load_index(l.positions, i, p.index_type);
    turn_one(static_cast<const char*>(l.values) + position * bytes,
             static_cast<char*>(dst) + i * bytes);
  });
}

}  // namespace

void transpose_blocks_cpu(const Problem& p, const Launch& l, const cpu_tiled::Microkernels& kernels,
                          void* dst) {
  if (kernels.widen == nullptr && !is_half(p.dtype) && p.block_k % kernels.lanes == 0) {
    return turn_all(p, l, dst, [&](const char* from, char* to) {
      kernels.pack({.b = from,
                    .ldb = p.block_m,
                    .layout = Layout::kColMajor,
                    .depth = p.block_m,
                    .columns = p.block_k,
                    .width = p.block_k,
                    .strip = to});
    });
  }
  with_word(size_of(p.dtype), [&]<typename T>(T*) {
    turn_all(p, l, dst, [&](const char* from, char* to) {
      turn(reinterpret_cast<const T*>(from), p.block_k, p.block_m, reinterpret_cast<T*>(to));
    });
  });
}

}  // namespace sparse_autotune
