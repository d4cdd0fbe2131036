// Races of attention problems that mode "record" wrote.
#pragma once

#include <optional>
#include <string>

#include "calls/tensor_view.h"
#include "exported.h"
#include "variant.h"

namespace sparse_autotune {

// A mask with the numbers of patterns and blocks that the problem has, by rows and, of a backward
// pass, by columns: (batch or 1, heads or 1, lines + 1) and (capacity,) each. Of a problem without
// a mask `crow_indices` has no element, and says on which device the race is to run.
struct AttentionPattern {
  TensorView crow_indices, col_indices;
  std::optional<TensorView> ccol_indices, row_indices;
};

// A race (see problem_text.h) among those that `selector` means, unless its winner is known: ""
// then. `stream` is a cudaStream_t of the pattern's device.
SPARSE_AUTOTUNE_API std::string race_attention_problem(const std::string& text,
                                                       const AttentionPattern& pattern,
                                                       const std::string& selector, void* stream,
                                                       const Parallel& parallel);

}  // namespace sparse_autotune
