// The pattern of A^T: its block rows are A's block columns. Values stay where they are; each block
// of A^T knows where in A's values it lies, transposed.
#pragma once

#include "exported.h"
#include "operators/product/product.h"
#include "plan/pattern.h"

namespace sparse_autotune {

// Bytes of a transposed pattern, and of the scratch that its making takes on a GPU.
int64_t transposed_bytes(const PatternKey& key);
int64_t transposing_scratch_bytes(const PatternKey& key);

// Where its arrays lie in that memory, which is aligned to 16 bytes: each of key.index_type.
struct TransposedPattern {
  void* crow_indices;  // block_cols + 1
  void* col_indices;   // nnzb block rows of A, ascending within a row of A^T
  void* positions;     // nnzb, see Launch::positions
};
SPARSE_AUTOTUNE_API TransposedPattern transposed_at(const PatternKey& key, void* memory);
// In place of the pattern that it is of.
inline void set_pattern(const TransposedPattern& pattern, Launch* launch) {
  launch->crow_indices = pattern.crow_indices;
  launch->col_indices = pattern.col_indices;
  launch->positions = pattern.positions;
}
PatternKey key_of_transposed(const PatternKey& key, const TransposedPattern& transposed);

// Fills the arrays from a pattern that breaks no rule.
void transpose_pattern(const PatternKey& key, const TransposedPattern& out);

// The same on the device: only enqueues, so that a CUDA graph may hold it.
Status transpose_pattern_cuda(const PatternKey& key, void* stream, const TransposedPattern& out,
                              void* scratch);

}  // namespace sparse_autotune
