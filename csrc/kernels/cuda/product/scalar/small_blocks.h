// What the families of small square blocks share on the host's side: from a type and a side to the
// kernel that was compiled for them, what they take, and B as rows of whole words of 16 bytes, of
// which lanes read one at a time: as it lies, or laid anew in the workspace.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "kernels/cuda/convert/turn_dense.h"
#include "kernels/cuda/host/requirements.h"
#include "operators/product/product.h"
#include "variant.h"

namespace sparse_autotune {

// Calls f for a side of 1 to kMost: [&]<typename T, int kSide>() { ... }.
template <int kMost, typename F>
void with_block_side(DType dtype, int64_t side, F&& f) {
  const auto with = [&]<typename T, int... kBelow>(std::integer_sequence<int, kBelow...>, T*) {
    static_cast<void>(
        ((side == kBelow + 1 && (f.template operator()<T, kBelow + 1>(), true)) || ...));
  };
  constexpr std::make_integer_sequence<int, kMost> kSides;
  if (dtype == DType::kFloat64) {
    with(kSides, static_cast<double*>(nullptr));
  } else {
    with(kSides, static_cast<float*>(nullptr));
  }
}

inline int64_t word_columns(const Problem& p) { return 16 / size_of(p.dtype); }
inline int64_t row_words(const Problem& p) { return ceil_div(p.n, word_columns(p)); }

inline bool lays_b(const Problem& p) {
  return p.b_layout != Layout::kRowMajor || p.b_alignment < 16 || p.n % word_columns(p) != 0;
}
inline int64_t laid_b_bytes(const Problem& p) {
  return lays_b(p) ? p.batch * p.k * row_words(p) * 16 : 0;
}
// From one row to the next, at most: as it lies, or laid anew.
inline int64_t most_b_row_bytes(const Problem& p) {
  return std::max(p.ldb, p.n + word_columns(p)) * size_of(p.dtype);
}

// `side`, `columns`: the most that a family takes.
inline Support takes_small_blocks(const Problem& p, const Device& d, int64_t side,
                                  int64_t columns) {
  if (is_half(p.dtype)) return Support::no("multiplies fp32 and fp64 only");
  if (p.block_m != p.block_k || p.block_m > side) {
    return Support::no("is for square blocks of at most " + std::to_string(side) + ", got " +
                       block_text(p.block_m, p.block_k));
  }
  if (Support s = columns_are_within(p, 2, columns); !s) return s;
  if (Support s = aligned_to_16("values", p.values_alignment); !s) return s;
  if (laid_b_bytes(p) > int64_t{1} << 30) {
    return Support::no("a B that is laid anew would take more than 1 GiB");
  }
  return from_ampere_on(d);
}

// `rows`: the caller's, or those that are laid in `memory`.
inline Status lay_b(const Problem& p, const Launch& l, void* memory, DenseLines* rows) {
  const DenseLines from{const_cast<void*>(l.b), p.ldb, p.b_batch_stride};
  *rows = from;
  if (!lays_b(p)) return Status::ok();
  const int64_t pitch = row_words(p) * word_columns(p);
  *rows = {memory, pitch, p.k * pitch};
  return lay_rows_cuda(p.b_layout, p.k, p.n, p.batch, size_of(p.dtype), from, *rows, l.stream);
}

}  // namespace sparse_autotune
