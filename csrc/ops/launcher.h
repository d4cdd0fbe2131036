// The short way to products that were decided before: no dispatcher, no tensor objects.
//
// Python takes it where the dispatcher would add nothing but its time: in plain eager calls
// (launching.py) and in compiled graphs (direct_operator.h). It only ever launches what the plan
// remembers for exactly this problem; everything else is left to the operator.
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

  // Where a GPU's workspace comes from, in stream order, for the time of the call; `allocate` may
  // return null. On a CPU there is enough.
  struct Scratch {
    void* (*allocate)(void* context, int64_t bytes) = nullptr;
    void* context = nullptr;
  };

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
  bool launch(const Call& call, Scratch scratch) const;

  // The blocks of X * Y that the pattern stores: X has A's rows, Y its columns. `n` is the
  // product's.
  struct Sample {
    const void *x, *y;
    void* blocks;
    int64_t x_row_stride, x_col_stride, y_row_stride, y_col_stride;
  };
  // That sample alone, of which `call` has what is not of the product only; as launch().
  bool launch_sample(const Call& call, const Sample& sample, Scratch scratch) const;
  // Both gradients of a product, by the product and the sample that compute them; as launch().
  bool launch_both(const Call& call, const Sample& sample, Scratch scratch) const;

 private:
  struct Ready;
  struct Surroundings;
  bool look(const Call& call, Surroundings* found) const;
  bool prepare(const Call& call, const Surroundings& here, Scratch scratch, Ready* ready) const;
  bool prepare(const Call& call, const Sample& sample, const Surroundings& here, Scratch scratch,
               Ready* ready) const;

  PatternKey pattern_;
  Problem problem_{}, transposed_{};  // without what a call brings
};

}  // namespace sparse_autotune
