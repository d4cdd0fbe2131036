// Dense to BSR values: a thread owns whole block rows and copies their blocks' rows.
#include "kernels/cpu/convert/layouts_of_a.h"

#include "kernels/cpu/convert/copy_lines.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kGrainBytes = 64 << 10;  // less work than this is not worth another thread
constexpr int64_t kBytesOfALine = 32;      // that are copied as fast as one more line is begun

template <typename T>
void add_row(const char* from, char* to, int64_t count) {
  const T* source = reinterpret_cast<const T*>(from);
  T* target = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] += source[i];
}

// T has an element's size.
template <typename T, typename Index>
void take_elements(const char* from, const Index* columns, int64_t count, char* to) {
  const T* const source = reinterpret_cast<const T*>(from);
  T* const target = reinterpret_cast<T*>(to);
  for (int64_t i = 0; i < count; ++i) target[i] = source[columns[i]];
}

template <typename Index>
void gather(const Problem& p, const Launch& l, const void* product, int64_t first, int64_t rows,
            bool add) {
  const auto* crow = static_cast<const Index*>(l.crow_indices);
  const auto* col = static_cast<const Index*>(l.col_indices);
  const int64_t row_bytes = p.block_k * size_of(p.dtype), dense_row_bytes = p.k * size_of(p.dtype);
  const int64_t mean_bytes = p.nnzb * p.block_m * (row_bytes + kBytesOfALine) / block_rows(p);
  const int64_t grain = ceil_div(kGrainBytes, mean_bytes + 1);
  const int64_t element = size_of(p.dtype);

  parallel_for(l.parallel, first, first + rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const char* block_row =
          static_cast<const char*>(product) + (i - first) * p.block_m * dense_row_bytes;
      if (!add && p.block_m * p.block_k == 1) {
        char* const to = static_cast<char*>(l.sampled) + crow[i] * element;
        const Index* const columns = col + crow[i];
        const int64_t count = crow[i + 1] - crow[i];
        if (element == 2) {
          take_elements<uint16_t>(block_row, columns, count, to);
        } else if (element == 4) {
          take_elements<uint32_t>(block_row, columns, count, to);
        } else {
          take_elements<uint64_t>(block_row, columns, count, to);
        }
        continue;
      }
      for (int64_t position = crow[i]; position < crow[i + 1]; ++position) {
        const char* from = block_row + static_cast<int64_t>(col[position]) * row_bytes;
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
    }
  });
}

}  // namespace

void gather_blocks_cpu(const Problem& p, const Launch& l, const void* product, int64_t first,
                       int64_t rows, bool add) {
  if (p.index_type == IndexType::kInt64) {
    gather<int64_t>(p, l, product, first, rows, add);
  } else {
    gather<int32_t>(p, l, product, first, rows, add);
  }
}

}  // namespace sparse_autotune
