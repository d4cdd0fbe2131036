#include "plan/transpose.h"

#include <vector>

namespace sparse_autotune {
namespace {

int64_t aligned(int64_t bytes) { return ceil_div(bytes, 16) * 16; }

// A counting sort by column; rows are met in ascending order.
template <typename Index>
void transpose(const PatternKey& key, const TransposedPattern& out) {
  const auto* crow = static_cast<const Index*>(key.crow_indices);
  const auto* col = static_cast<const Index*>(key.col_indices);
  auto* crow_t = static_cast<Index*>(out.crow_indices);
  auto* col_t = static_cast<Index*>(out.col_indices);
  auto* positions = static_cast<Index*>(out.positions);

  std::vector<int64_t> next(static_cast<size_t>(key.block_cols) + 1);
  for (int64_t i = 0; i < key.nnzb; ++i) ++next[static_cast<size_t>(col[i]) + 1];
  for (size_t c = 1; c < next.size(); ++c) next[c] += next[c - 1];
  for (size_t c = 0; c < next.size(); ++c) crow_t[c] = static_cast<Index>(next[c]);
  for (int64_t row = 0; row < key.block_rows; ++row) {
    for (int64_t i = crow[row]; i < crow[row + 1]; ++i) {
      const int64_t to = next[static_cast<size_t>(col[i])]++;
      col_t[to] = static_cast<Index>(row);
      positions[to] = static_cast<Index>(i);
    }
  }
}

}  // namespace

int64_t transposed_bytes(const PatternKey& key) {
  const int64_t index = size_of(key.index_type);
  return aligned((key.block_cols + 1) * index) + 2 * aligned(key.nnzb * index);
}

int64_t transposing_scratch_bytes(const PatternKey& key) {
  return aligned((key.nnzb + key.block_cols) * size_of(key.index_type));
}

TransposedPattern transposed_at(const PatternKey& key, void* memory) {
  const int64_t index = size_of(key.index_type);
  char* at = static_cast<char*>(memory);
  const auto take = [&](int64_t bytes) {
    void* taken = at;
    at += aligned(bytes);
    return taken;
  };
  TransposedPattern out{};
  out.crow_indices = take((key.block_cols + 1) * index);
  out.col_indices = take(key.nnzb * index);
  out.positions = take(key.nnzb * index);
  return out;
}

PatternKey key_of_transposed(const PatternKey& key, const TransposedPattern& transposed) {
  PatternKey of = key;
  of.crow_indices = transposed.crow_indices;
  of.col_indices = transposed.col_indices;
  of.block_rows = key.block_cols;
  of.block_cols = key.block_rows;
  return of;
}

void transpose_pattern(const PatternKey& key, const TransposedPattern& out) {
  if (key.index_type == IndexType::kInt64) {
    transpose<int64_t>(key, out);
  } else {
    transpose<int32_t>(key, out);
  }
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status transpose_pattern_cuda(const PatternKey&, void*, const TransposedPattern&, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
