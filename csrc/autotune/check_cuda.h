// What a race does with its operands on a CUDA device: fills them, and compares.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <vector>

#include "autotune/operands.h"
#include "operator.h"

namespace sparse_autotune {

struct Findings {
  unsigned long long missing;  // elements of the outputs that are NaN
  unsigned long long written;  // elements around and inside them that are not poison
  float worst;  // largest |result - expected| / allowed; ordered as an int, being >= 0
};

// All of these only enqueue work on `stream`.

// Copied operands and inputs of `sets` sets that begin at `base`, one behind the other; everything
// else is poison.
cudaError_t fill_operands(const std::vector<Operand>& operands, const OperandLayout& layout,
                          char* base, int64_t sets, cudaStream_t stream);

// The outputs of the set at `base` against the expected elements.
cudaError_t compare_outputs(const std::vector<Operand>& operands, const OperandLayout& layout,
                            const char* base, const Tile* tiles, int64_t count,
                            const Expected* expected, Findings* findings, cudaStream_t stream);

}  // namespace sparse_autotune
