// The bodies of cpu_rows' micro-kernels, written once over a vector type and compiled once per
// instruction-set level. A level's file defines SPARSE_AUTOTUNE_TARGET (a function attribute: a
// per-file flag would leak wide instructions into shared templates) and includes this; everything
// below is therefore private to the including file. No std template is used inside.
//
// A vector type L gives: T, Vec (kLanes of T), Mask, Index (a lane for each lane), kVectors
// (of a block's elements at most), kTile (sums that leave registers for what is loaded), kMost
// (vectors of a tile), first_lanes, zero, load, load_part, store, store_part, broadcast,
// multiply_add, add, sum, index, permute.
#pragma once

#ifndef SPARSE_AUTOTUNE_TARGET
#error "define SPARSE_AUTOTUNE_TARGET before including this file"
#endif
#define SPARSE_AUTOTUNE_INLINE SPARSE_AUTOTUNE_TARGET inline __attribute__((always_inline))
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
