// A sparsity pattern: which tensors it lies in, and what one look at its indices tells.
#pragma once

#include <cstdint>
#include <string>

#include "operators/product/product.h"

namespace sparse_autotune {

// Where a pattern's indices lie. Two calls with equal keys read the same memory.
struct PatternKey {
  const void* crow_indices;
  const void* col_indices;
  int64_t nnzb, block_rows, block_cols;
  int32_t ordinal;  // CUDA device, -1 for the CPU
  IndexType index_type;

  bool operator==(const PatternKey&) const = default;
};

// Inductor turns constant vectors of up to so many entries into code that writes them anew in each
// run, into memory that it uses for others too, and no version counter shows it.
constexpr int64_t kInlinedEntries = 8;
inline bool may_be_inlined(const PatternKey& key) {
  return key.block_rows + 1 <= kInlinedEntries || key.nnzb <= kInlinedEntries;
}

// The rules of BSR that a pattern can break; a bit set.
enum PatternFault : uint32_t {
  kFirstNotZero = 1,      // crow_indices[0] != 0
  kLastNotNnzb = 2,       // crow_indices[-1] != nnzb
  kNotMonotonic = 4,      // crow_indices decreases
  kColumnOutOfRange = 8,  // a column index outside [0, block_cols)
  kColumnsUnsorted = 16,  // columns of a row not strictly ascending
};

struct PatternFacts {
  uint32_t faults = 0;
  int64_t longest_row = 0;  // blocks; -1: not known
  // On a GPU: nothing cuts or groups rows on a CPU.
  RowCuts row_cuts{};
  GroupCounts group_counts{};
};

// What a problem says of its pattern.
inline void add_facts(const PatternFacts& facts, Problem* problem) {
  problem->longest_row = facts.longest_row;
  problem->row_cuts = facts.row_cuts;
  problem->group_counts = facts.group_counts;
}

// What is wrong with it, in words; empty when nothing is.
std::string describe_faults(uint32_t faults);

// Reads the indices on the host.
PatternFacts check_pattern(const PatternKey& key, const Parallel& parallel);

// Reads the indices on the device, on `stream`, and waits for it: one kernel, one synchronisation.
// Must not be called while `stream` is capturing.
Status check_pattern_cuda(const PatternKey& key, void* stream, PatternFacts* facts);

}  // namespace sparse_autotune
