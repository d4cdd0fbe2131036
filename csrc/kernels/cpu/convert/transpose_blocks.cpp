// A thread owns neighbouring blocks of A^T; a block is turned in squares, in registers or with rows
// of a cache line or less.
#include "kernels/cpu/convert/layouts_of_a.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

#include <algorithm>

#include "kernels/cpu/shared/elements.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kSide = 8;

// Element [i][j] of a square of kSide to [j][i]; strides are from row to row.
template <typename T>
void turn_square(const T* from, int64_t from_stride, T* to, int64_t to_stride) {
  for (int64_t j = 0; j < kSide; ++j) {
    for (int64_t i = 0; i < kSide; ++i) to[j * to_stride + i] = from[i * from_stride + j];
  }
}

#if defined(__x86_64__)
// No compiler makes this of the loops above; each step doubles what lies together of a column.
void turn_square(const uint16_t* from, int64_t from_stride, uint16_t* to, int64_t to_stride) {
  static_assert(kSide == 8, "the network below turns squares of 8");
  __m128i one[kSide], two[kSide], four[kSide];
  for (int64_t i = 0; i < kSide; ++i) {
    one[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
  }
  for (int i = 0; i < kSide; i += 2) {
    two[i] = _mm_unpacklo_epi16(one[i], one[i + 1]);
    two[i + 1] = _mm_unpackhi_epi16(one[i], one[i + 1]);
  }
  for (int i = 0; i < kSide; i += 4) {
    for (int half = 0; half < 2; ++half) {
      four[i + 2 * half] = _mm_unpacklo_epi32(two[i + half], two[i + 2 + half]);
      four[i + 2 * half + 1] = _mm_unpackhi_epi32(two[i + half], two[i + 2 + half]);
    }
  }
  for (int j = 0; j < kSide / 2; ++j) {
    auto* const even = reinterpret_cast<__m128i*>(to + 2 * j * to_stride);
    auto* const odd = reinterpret_cast<__m128i*>(to + (2 * j + 1) * to_stride);
    _mm_storeu_si128(even, _mm_unpacklo_epi64(four[j], four[j + 4]));
    _mm_storeu_si128(odd, _mm_unpackhi_epi64(four[j], four[j + 4]));
  }
}
#endif

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
  parallel_for(l.parallel, 0, p.nnzb, ceil_div(kGrainBytes, bytes),
               [&](int64_t first, int64_t last) {
                 for (int64_t i = first; i < last; ++i) {
                   const int64_t position = load_index(l.positions, i, p.index_type);
                   turn_one(static_cast<const char*>(l.values) + position * bytes,
                            static_cast<char*>(dst) + i * bytes);
                 }
               });
}

// T has an element's size; its values are only moved.
template <typename T>
void turn_elements(const Problem& p, const Launch& l, void* dst) {
  turn_all(p, l, dst, [&](const char* from, char* to) {
    turn(reinterpret_cast<const T*>(from), p.block_k, p.block_m, reinterpret_cast<T*>(to));
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
  switch (size_of(p.dtype)) {
    case 2:
      return turn_elements<uint16_t>(p, l, dst);
    case 4:
      return turn_elements<uint32_t>(p, l, dst);
    default:
      return turn_elements<uint64_t>(p, l, dst);
  }
}

}  // namespace sparse_autotune
