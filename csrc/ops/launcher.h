// The short way to a product that was decided before: no dispatcher, no tensor objects.
//
// Python takes it in plain eager calls (see launching.py), where the dispatcher would add nothing
// but its time. It only ever launches what the plan remembers for exactly this problem; everything
// else is left to the operator.
#pragma once

#include <cstdint>

#include "autotune/api.h"
#include "plan/pattern.h"
#include "variant.h"

namespace sparse_autotune {

class SPARSE_AUTOTUNE_API Launcher {
 public:
  // One matrix: its pattern, shape and dtype. `ordinal` is -1 for the CPU.
  Launcher(const PatternKey& pattern, int64_t rows, int64_t cols, int64_t block_m, int64_t block_k,
           DType dtype);

  // activation(op(A) * B + bias), op(A) being A or, with `transpose`, A^T.
  struct Call {
    int64_t crow_version, col_version;  // of the index tensors
    const void* values;
    const void* b;
    const void* bias;  // may be null
    void* c;
    int64_t n;
    int64_t b_row_stride, b_col_stride, c_row_stride, c_col_stride;  // elements
    Activation activation;
    bool transpose, frozen, allow_tf32, deterministic;
  };
  // False when the operator has to do it: nothing has been launched then. Throws std::runtime_error
  // when a launch fails.
  bool launch(const Call& call) const;

 private:
  PatternKey pattern_;
  Problem problem_{}, transposed_{};  // without what a call brings
};

}  // namespace sparse_autotune
