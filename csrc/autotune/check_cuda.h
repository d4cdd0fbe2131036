// What a race does with its operands on a CUDA device: fills them, computes what is right,
// compares.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "autotune/operands.h"
#include "autotune/verify.h"
#include "variant.h"

namespace sparse_autotune {

struct Findings {
  unsigned long long missing;  // elements of the output that are NaN
  unsigned long long written;  // elements around and inside it that are not poison
  float worst;  // largest |result - expected| / allowed; ordered as an int, being >= 0
};

// All of these only enqueue work on `stream`.

// Indices (from the user's) and inputs of `sets` sets of operands that begin at `base`, one behind
// the other; everything else is poison.
cudaError_t fill_operands(const OperandLayout& layout, const Problem& problem, const Launch& user,
                          char* base, int64_t sets, cudaStream_t stream);

// `expected` gets kTileElements elements for each tile; `operands` is a launch on a filled set.
cudaError_t compute_expected(const Problem& problem, const Launch& operands, const Tile* tiles,
                             int64_t count, Expected* expected, cudaStream_t stream);

// The output of the set at `base` against the expected elements.
cudaError_t compare_output(const OperandLayout& layout, const Problem& problem, const Launch& user,
                           char* base, const Tile* tiles, int64_t count, Expected* expected,
                           Findings* findings, cudaStream_t stream);

}  // namespace sparse_autotune
