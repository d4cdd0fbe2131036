// Dense to BSR values: a thread owns whole block rows and copies their blocks' rows.
#include "kernels/cpu/convert/layouts_of_a.h"

#include "kernels/cpu/convert/copy_lines.h"

namespace sparse_autotune {
namespace {

using cpu_tiled::Indices;

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kBytesOfALine = 32;      // that are copied as fast as one more line is begun

template <typename T>
void add_row(const char* from, char* to, int64_t count) {
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] += source[i];
}

// Blocks of one element.
template <typename T>
void take_elements(const char* from, Indices columns, int64_t begin, int64_t end, void* to) {
#pragma GCC unroll 4
  for (int64_t i = begin; i < end; ++i) {
    static_cast<T*>(to)[i] = reinterpret_cast<const T*>(from)[columns[i]];
  }
}

}  // namespace

void gather_blocks_cpu(const Problem& p, const Launch& l, const void* product, int64_t first,
                       int64_t rows, bool add) {
  const Indices crow{l.crow_indices, p.index_type == IndexType::kInt64};
  const Indices columns{l.col_indices, crow.wide};
  const int64_t row_bytes = p.block_k * size_of(p.dtype), dense_row_bytes = p.k * size_of(p.dtype);
  const int64_t mean_bytes = p.nnzb * p.block_m * (row_bytes + kBytesOfALine) / block_rows(p);
  const int64_t grain = ceil_div(kGrainBytes, mean_bytes + 1);
  parallel_each(l.parallel, rows, grain, [&](int64_t i) {
    const int64_t begin = crow[first + i], end = crow[first + i + 1];
    const char* block_row = static_cast<const char*>(product) + i * p.block_m * dense_row_bytes;
    if (!add && p.block_m * p.block_k == 1) {
      return with_word(size_of(p.dtype), [&]<typename T>(T*) {
        take_elements<T>(block_row, columns, begin, end, l.sampled);
      });
    }
    for (int64_t position = begin; position < end; ++position) {
      const char* from = block_row + columns[position] * row_bytes;
      char* to = static_cast<char*>(l.sampled) + position * p.block_m * row_bytes;
      if (!add) {
        copy_lines(to, row_bytes, from, dense_row_bytes, p.block_m, row_bytes);
        continue;
      }
      for (int64_t row = 0; row < p.block_m; ++row) {
        const char* source = from + row * dense_row_bytes;
        if (p.dtype == DType::kFloat64) {
          add_row<double>(source, to + row * row_bytes, p.block_k);
        } else {
          add_row<float>(source, to + row * row_bytes, p.block_k);
        }
      }
    }
  });
}

}  // namespace sparse_autotune
