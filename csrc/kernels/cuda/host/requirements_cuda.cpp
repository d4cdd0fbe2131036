#include "kernels/cuda/host/requirements.h"

#include <algorithm>

namespace sparse_autotune {

Support from_ampere_on(const Device& d) {
  return d.compute_capability >= 80 ? Support::yes()
                                    : Support::no("needs compute capability 8.0 or newer");
}

Support half_types_on_hopper(const Problem& p, const Device& d) {
  if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
  return d.compute_capability == 90 ? Support::yes() : Support::no("needs compute capability 9.0");
}

std::string block_text(int64_t block_m, int64_t block_k) {
  return std::to_string(block_m) + "x" + std::to_string(block_k);
}

Support blocks_are(const Problem& p, int64_t block_m, int64_t block_k) {
  if (p.block_m == block_m && p.block_k == block_k) return Support::yes();
  return Support::no("needs blocks of " + block_text(block_m, block_k) + ", got " +
                     block_text(p.block_m, p.block_k));
}

Support sides_are_multiples_of(int unit, const Problem& p) {
  if (p.block_m % unit == 0 && p.block_k % unit == 0) return Support::yes();
  return Support::no("needs block sides that are multiples of " + std::to_string(unit) + ", got " +
                     block_text(p.block_m, p.block_k));
}

Support blocks_fill_rows(const Problem& p, int64_t rows) {
  if (2 * p.block_m > rows) return Support::yes();
  return Support::no("at least half of each " + std::to_string(rows) +
                     "-row tile would be idle on blocks of " + std::to_string(p.block_m) + " rows");
}
Support n_fills_columns(const Problem& p, int64_t columns) {
  if (2 * p.n > columns) return Support::yes();
  return Support::no("at least half of each " + std::to_string(columns) +
                     "-column tile would be idle on " + std::to_string(p.n) + " columns");
}

Support columns_are_within(const Problem& p, int64_t least, int64_t most) {
  if (least <= p.n && p.n <= most) return Support::yes();
  return Support::no("is for " + std::to_string(least) + " to " + std::to_string(most) +
                     " columns, got " + std::to_string(p.n));
}

Support groups_are_known(const Problem& p, int grouping) {
  if (p.group_counts.columns[grouping] > 0) return Support::yes();
  return Support::no("nobody has looked which block columns its groups of " +
                     std::to_string(group_rows(grouping)) + " block rows have");
}

Support aligned_to_16(std::string_view operands, int alignment) {
  if (alignment >= 16) return Support::yes();
  return Support::no(
      "needs addresses, leading dimensions and batch strides of " + std::string(operands) +
      " that are multiples of 16 bytes, one is a multiple of " + std::to_string(alignment));
}

Support copied_by_16(const Problem& p) {
  return aligned_to_16("values and B", std::min(p.values_alignment, p.b_alignment));
}
Support all_by_16(const Problem& p) {
  return aligned_to_16("values, B and C",
                       std::min({p.values_alignment, p.b_alignment, p.c_alignment}));
}

Support c_comes_in_eights(const Problem& p) {
  if (p.c_layout == Layout::kColMajor || p.n % 8 == 0) return Support::yes();
  return Support::no("TMA writes rows of C in units of 8 elements, " + std::to_string(p.n) +
                     " columns leave a part of one");
}

Support tma_reaches(const Problem& p, int64_t coordinate) {
  const int64_t stride = std::max({p.ldb, p.ldc, p.b_batch_stride, p.c_batch_stride});
  if (std::max({p.m, p.n, p.k, p.nnzb, coordinate}) <= INT32_MAX &&
      stride * size_of(p.dtype) < int64_t{1} << 40) {
    return Support::yes();
  }
  return Support::no("a size is beyond TMA's 32-bit coordinates or 40-bit strides");
}

}  // namespace sparse_autotune
