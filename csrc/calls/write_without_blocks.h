// Results to which no stored block contributes.
#pragma once

#include "calls/call.h"

namespace sparse_autotune {

// Writes C = activation(bias), or zero values of a sampled product, on the launch's stream or
// threads. Results without elements are left alone.
Status write_without_blocks(const NormalisedCall& call);

namespace detail {
// `lines` runs of `length` bytes, `pitch` bytes apart.
Status clear_lines_cuda(void* first, int64_t pitch, int64_t length, int64_t lines, void* stream);
Status apply_epilogue_to_cuda(const Problem& problem, const Launch& launch);
}  // namespace detail

}  // namespace sparse_autotune
