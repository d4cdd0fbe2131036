// Random descriptions of operands, legal and hostile, and memory that is exactly as long as they
// say.
#pragma once

#include <sparse_autotune.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <memory>
#include <random>

#include "operations.h"

namespace fuzz {

using Random = std::mt19937_64;

inline bool one_in(Random& random, uint64_t count) { return random() % count == 0; }

inline int64_t pick(Random& random, std::initializer_list<int64_t> from) {
  return from.begin()[random() % from.size()];
}

// A number that breaks naive arithmetic, or is just beside the usual one.
inline int64_t hostile(Random& random, int64_t usual) {
  if (one_in(random, 2)) return std::min(usual, INT64_MAX - 1) + pick(random, {-1, 0, 1});
  return pick(random,
              {-1, 0, 1, 2, INT64_MIN, INT64_MAX, INT64_MAX - 1, int64_t{1} << 32, int64_t{1} << 31,
               (int64_t{1} << 31) - 1, int64_t{1} << 47, (int64_t{1} << 48) + 1, int64_t{1} << 56,
               int64_t{1} << 62, INT64_MAX / 8, -(int64_t{1} << 40)});
}

inline int32_t hostile_flag(Random& random) {
  return static_cast<int32_t>(one_in(random, 2) ? random() : random() % 12 - 2);
}

// INT64_MAX where it is no number.
inline int64_t times(std::initializer_list<int64_t> sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) {
    if (size < 0 || __builtin_mul_overflow(product, size, &product)) return INT64_MAX;
  }
  return product;
}

// Memory of exactly so many bytes, so that a sanitizer sees one byte too many. What is too long to
// be made gets one byte, for calls that the library must refuse by their sizes alone.
constexpr int64_t kMost = int64_t{1} << 22;
inline bool fits(int64_t bytes) { return bytes >= 0 && bytes <= kMost; }

class Memory {
 public:
  explicit Memory(int64_t bytes, int fill = 0)
      : size(static_cast<size_t>(bytes < 1 || !fits(bytes) ? 1 : bytes)) {
    constexpr size_t kAlignment = 256;
    void* made = nullptr;
    if (posix_memalign(&made, kAlignment, size) != 0) std::abort();
    data_.reset(static_cast<char*>(made));
    std::memset(made, fill, size);
  }
  char* data() const { return data_.get(); }
  const size_t size;

 private:
  struct Free {
    void operator()(char* memory) const { std::free(memory); }
  };
  std::unique_ptr<char, Free> data_;
};

// Elements of the library's bound on any operand: a description of more is always refused.
constexpr int64_t kMostElements = int64_t{1} << 48;

// From the first element to behind the last, as the header says where each lies.
inline int64_t span(const sparse_autotune_dense& d) {
  if (d.rows <= 0 || d.cols <= 0) return 0;
  const bool packed = d.row_stride == 0 && d.col_stride == 0;
  const int64_t row = packed ? d.cols : d.row_stride, col = packed ? 1 : d.col_stride;
  const int64_t parts[] = {times({d.rows - 1, row}), times({d.cols - 1, col}),
                           d.batch > 1 ? times({d.batch - 1, d.batch_stride}) : 0};
  int64_t sum = 1;
  for (const int64_t part : parts) {
    if (__builtin_add_overflow(sum, part, &sum)) return INT64_MAX;
  }
  return sum;
}

// Whether so many elements can be made here, or are more than any that the library takes.
inline bool can_be_tried(int64_t elements) {
  constexpr int64_t kWidest = 8, kParts = 3;  // see span()
  return fits(times({elements, kWidest})) || elements > kParts * kMostElements;
}

// A legal layout: packed, rows or columns with room between them, matrices of a batch apart,
// between each other's rows or, of an operand that is only read, all the same.
inline sparse_autotune_dense legal_dense(Random& random, int64_t rows, int64_t cols, int64_t batch,
                                         bool written) {
  sparse_autotune_dense d{};
  d.rows = rows;
  d.cols = cols;
  d.batch = batch;
  const auto room = static_cast<int64_t>(random() % 3);
  const int64_t between = one_in(random, 5) && batch > 1 ? batch : 1;
  const int64_t lines = one_in(random, 2) ? rows : cols;
  const int64_t length = (rows + cols - lines) * between + room;
  if (one_in(random, 3)) {
    d.batch_stride = rows * cols;
    return d;
  }
  (lines == rows ? d.row_stride : d.col_stride) = std::max<int64_t>(length, 1);
  (lines == rows ? d.col_stride : d.row_stride) = 1;
  d.batch_stride = between > 1 ? rows + cols - lines : length * lines + room;
  d.batch_stride = std::max<int64_t>(d.batch_stride, written ? 1 : 0);
  if (!written && one_in(random, 6)) d.batch_stride = 0;
  return d;
}

inline void make_hostile(Random& random, sparse_autotune_dense* d) {
  int64_t* const members[] = {&d->rows,       &d->cols,  &d->row_stride,
                              &d->col_stride, &d->batch, &d->batch_stride};
  int64_t& member = *members[random() % std::size(members)];
  member = hostile(random, member);
}

// A flag, a dense operand or the size of the struct becomes hostile.
template <typename Operation>
void make_hostile(Random& random, typename Operation::Product* p) {
  if (one_in(random, 2)) return make_hostile(random, Operation::dense(*p)[random() % 2]);
  if (one_in(random, 4)) {
    p->struct_size = one_in(random, 2) ? random() % 5000 : random();
  } else {
    const auto flags = Operation::flags(*p);
    *flags[random() % flags.size()] = hostile_flag(random);
  }
}

inline void make_hostile(Random& random, sparse_autotune_pattern_description* d) {
  int64_t* const sizes[] = {&d->rows, &d->cols, &d->block_rows, &d->block_cols, &d->nnzb};
  switch (random() % 8) {
    case 0:
      d->index_type = hostile_flag(random);
      break;
    case 1:
      d->reserved = hostile_flag(random);
      break;
    case 2:
      d->struct_size = one_in(random, 2) ? random() % 5000 : random();
      break;
    default: {
      int64_t& size = *sizes[random() % std::size(sizes)];
      size = hostile(random, size);
    }
  }
}

// Whether the sizes of a description keep every rule.
inline bool has_legal_sizes(const sparse_autotune_pattern_description& d) {
  if (d.struct_size < sizeof(d) || d.struct_size > 4096 || d.reserved != 0) return false;
  if (d.index_type != SPARSE_AUTOTUNE_INT32 && d.index_type != SPARSE_AUTOTUNE_INT64) return false;
  if (d.rows < 0 || d.cols < 0 || d.block_rows <= 0 || d.block_cols <= 0) return false;
  if (d.rows % d.block_rows != 0 || d.cols % d.block_cols != 0) return false;
  for (const int64_t size : {times({d.rows, d.cols}), times({d.block_rows, d.block_cols}),
                             times({d.rows, 8}), times({d.cols, 8})}) {
    if (size > kMostElements) return false;
  }
  return d.nnzb >= 0 && d.nnzb <= (d.rows / d.block_rows) * (d.cols / d.block_cols) &&
         (d.index_type == SPARSE_AUTOTUNE_INT64 ||
          (d.nnzb <= INT32_MAX && d.cols / d.block_cols <= INT32_MAX));
}

inline const char* hostile_text(Random& random) {
  static const char* const texts[] = {
      "cpu_tiled",
      "cpu_rows",
      "reference/fp64",
      "cpu_turned",
      "sampled_dots",
      "nobody",
      "",
      "sampled_tiled",
      ",",
      "cpu_rows,cpu_tiled",
      "%s%n%n",
      "../../etc/passwd",
      "\xff\xfe",
      "cpu_rows/",
      "a\nwinner b\n",
      "sampled_dots,",
  };
  return texts[random() % std::size(texts)];
}

}  // namespace fuzz
