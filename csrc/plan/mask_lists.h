// The blocks of attention masks, listed by row: from a grid of bools, from a rule, from lists in
// any order, and from those of the other direction. Nothing here waits for a device, and CUDA
// graphs may hold all of it.
#pragma once

#include <cstdint>
#include <optional>

#include "exported.h"
#include "host_device.h"
#include "plan/mask_rule.h"
#include "variant.h"

namespace sparse_autotune {

// `patterns` grids of rows by columns, contiguous: a byte a block, not 0 where it is stored.
struct MaskGrid {
  int64_t patterns, rows, columns;

  SPARSE_AUTOTUNE_HOST_DEVICE int64_t lines() const { return patterns * rows; }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t room() const { return rows * columns; }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t blocks() const { return patterns * room(); }
};

// Row r of pattern p has the columns entries[begins[i]] to entries[begins[i + 1] - 1], where i is
// p * (rows + 1) + r; they ascend. Each pattern has room for all its blocks; behind its last entry
// stand zeros.
struct MaskLists {
  int32_t* begins;   // patterns * (rows + 1)
  int32_t* entries;  // grid.blocks()
};

// A bit for each block of a pattern; and whether they fit into a thread block's shared memory, so
// that one kernel can list them, without scratch. A row has an odd number of words, so that threads
// which read a row each meet in no bank.
SPARSE_AUTOTUNE_HOST_DEVICE constexpr int64_t bit_words_of_row(const MaskGrid& shape) {
  return ceil_div(shape.columns, 32) | 1;
}
inline int64_t bit_words(const MaskGrid& shape) { return shape.rows * bit_words_of_row(shape); }
constexpr int64_t kMostBitWords = 11264;
inline bool lists_in_one(const MaskGrid& shape) { return bit_words(shape) <= kMostBitWords; }

// Scratch that the functions of CUDA take: for counts of rows, and for marks where they make them.
inline int64_t counted_bytes(const MaskGrid& shape) {
  return lists_in_one(shape) ? 0 : shape.lines() * 4;
}
inline int64_t marked_bytes(const MaskGrid& shape) {
  return lists_in_one(shape) ? 0 : shape.lines() * 4 + shape.blocks();
}

namespace detail {
SPARSE_AUTOTUNE_HOST_DEVICE inline int64_t number(const void* numbers, int64_t i, bool is_wide) {
  return is_wide ? static_cast<const int64_t*>(numbers)[i]
                 : static_cast<const int32_t*>(numbers)[i];
}
}  // namespace detail

// The columns of each row, in any order and perhaps twice: `most` places a row, of which the first
// so many count, or all where `counts` is null. Both of int64 or of int32.
struct RowLists {
  const void *columns, *counts;
  int64_t most;
  bool is_wide;

  SPARSE_AUTOTUNE_HOST_DEVICE int64_t count(int64_t line) const {
    return counts == nullptr ? most : std::min(detail::number(counts, line, is_wide), most);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t column(int64_t line, int64_t i) const {
    return detail::number(columns, line * most + i, is_wide);
  }
};

// Lists as MaskLists, of int64 or of int32, and the number of entries.
struct GivenLists {
  const void *begins, *entries;
  int64_t capacity;
  bool is_wide;

  SPARSE_AUTOTUNE_HOST_DEVICE int64_t begin(int64_t i) const {
    return detail::number(begins, i, is_wide);
  }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t entry(int64_t i) const {
    return detail::number(entries, i, is_wide);
  }
};

SPARSE_AUTOTUNE_API void list_blocks(const MaskGrid& shape, const uint8_t* grid,
                                     const MaskLists& out);
SPARSE_AUTOTUNE_API Status list_blocks_cuda(const MaskGrid& shape, const uint8_t* grid,
                                            const MaskLists& out, void* scratch, void* stream);

// The rule with no number larger than what makes a difference; none where one is too small.
SPARSE_AUTOTUNE_API std::optional<MaskRule> sound(MaskRule rule);

// Of the rule's rows and columns.
SPARSE_AUTOTUNE_API void list_rule(const MaskGrid& shape, const MaskRule& rule,
                                   const MaskLists& out);
// So many of the documents' ends, not 0, are on the host: they go as parameters of the kernel,
// which are 4 KB with every driver. A copy may wait, and a CUDA graph could not hold it.
constexpr int64_t kMostKnownEnds = 448;
SPARSE_AUTOTUNE_API Status list_rule_cuda(const MaskGrid& shape, const MaskRule& rule,
                                          int64_t known_ends, const MaskLists& out, void* stream);

// How many blocks a rule stores: of many rows some stand for all, and then it is not exact.
struct BlockCount {
  int64_t blocks;
  bool is_exact;
};
SPARSE_AUTOTUNE_API BlockCount count_blocks(const MaskRule& rule, int64_t patterns);

// A column that is out of range ends the kernel, and all work of its context, as torch's own
// kernels do. False for one on the host, with `out` unfinished.
SPARSE_AUTOTUNE_API bool list_rows(const MaskGrid& shape, const RowLists& rows,
                                   const MaskLists& out);
SPARSE_AUTOTUNE_API Status list_rows_cuda(const MaskGrid& shape, const RowLists& rows,
                                          const MaskLists& out, void* scratch, void* stream);

// The columns of `shape` become rows. Entries that are out of range are left out on a device. False
// for them on the host, with `out` unfinished.
SPARSE_AUTOTUNE_API bool turn_lists(const MaskGrid& shape, const GivenLists& lists,
                                    const MaskLists& out);
SPARSE_AUTOTUNE_API Status turn_lists_cuda(const MaskGrid& shape, const GivenLists& lists,
                                           const MaskLists& out, void* scratch, void* stream);

}  // namespace sparse_autotune
