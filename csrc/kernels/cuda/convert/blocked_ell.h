// BSR to Blocked-ELL: every block row gets as many block slots as the longest one has.
#pragma once

#include <cstdint>

#include "operators/product/product.h"

namespace sparse_autotune {

// Where the parts of a Blocked-ELL matrix lie in one allocation, and its padded width.
struct BlockedEll {
  int64_t slots;           // blocks per block row, stored or empty
  int64_t cols;            // slots * block_k: row length of `values`
  int64_t values_bytes;    // values: row-major, (block rows * block_m) x cols, from offset 0
  int64_t indices_offset;  // block columns: int32, (block rows) x slots, -1 in an empty slot
  int64_t bytes;           // of it all
};

// Requires problem.longest_row >= 0.
BlockedEll blocked_ell(const Problem& problem);

// Writes the matrix to `dst` (16-byte aligned): each byte of its parts, zeros in the empty slots.
// Requires block columns below 2^31.
Status convert_to_blocked_ell(const Problem& problem, const Launch& launch, void* dst);

}  // namespace sparse_autotune
