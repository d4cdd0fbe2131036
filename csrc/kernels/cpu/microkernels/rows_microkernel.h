// The bodies of cpu_rows' micro-kernels, written once over a vector type and compiled once per
// instruction-set level: a level's file includes its vectors_*.h and this; everything below is
// private to it. No std template is used inside.
//
// A vector type L is one of vectors_*.h with Index (a lane for each lane), kVectors (of a block's
// elements at most), kTile (sums that leave registers for what is loaded), kMost (vectors of a
// tile), sum, index and permute.
#pragma once

#include "kernels/cpu/microkernels/rows_columns.h"
#include "kernels/cpu/microkernels/rows_sampled.h"
#include "kernels/cpu/microkernels/rows_vectors.h"

namespace sparse_autotune::cpu_rows {
namespace {

template <class L>
constexpr RowKernels kKernelsOf{L::kLanes, L::kVectors* L::kLanes, sample<L>, multiply_vectors<L>,
                                multiply_columns<L>};

template <class Floats, class Doubles>
const RowKernels* row_kernels_of(DType dtype) {
  if (dtype == DType::kFloat32) return &kKernelsOf<Floats>;
  if (dtype == DType::kFloat64) return &kKernelsOf<Doubles>;
  return nullptr;
}

}  // namespace
}  // namespace sparse_autotune::cpu_rows
