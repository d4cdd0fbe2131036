// A product as its caller describes it, the rules that it must keep, and its normalised form.
//
// The one place that reads shapes: PyTorch's operators, plain eager calls, compiled graphs and C
// programs all come through here.
#pragma once

#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "calls/dense_layout.h"
#include "calls/tensor_view.h"
#include "exported.h"
#include "operators/product/product.h"
#include "plan/pattern.h"

namespace sparse_autotune {

// The indices of a block-sparse matrix, as stored.
struct PatternCall {
  TensorView crow_indices, col_indices;
  int64_t rows, cols;  // of the matrix in elements
  int64_t block_m, block_k;
};

// activation(op(A) @ dense + bias), or activation(dense @ op(A) + bias) with `sparse_right`.
struct MatmulCall {
  TensorView crow_indices, col_indices, values;
  int64_t rows, cols;
  TensorView dense;
  std::optional<TensorView> bias;
  bool sparse_right, transpose;
  int64_t activation;
  bool frozen, allow_tf32, deterministic;

  // A product on the right with A is one on the left with A^T, and the other way round.
  bool transposed() const { return transpose != sparse_right; }
  PatternCall pattern() const {
    return {crow_indices, col_indices, rows, cols, values.sizes[1], values.sizes[2]};
  }
  // The dimension of `dense` that is summed over, which is the one of the result that changes.
  int64_t inner() const {
    return sparse_right || dense.dims == 1 ? dense.dims - 1 : dense.dims - 2;
  }
  int64_t result_size() const { return transposed() ? cols : rows; }
  std::vector<int64_t> result_sizes() const {
    std::vector<int64_t> sizes(dense.sizes, dense.sizes + dense.dims);
    sizes[static_cast<size_t>(inner())] = result_size();
    return sizes;
  }
};

// x @ y at the stored blocks, summed over leading dimensions.
struct SampledCall {
  PatternCall pattern;
  TensorView x, y;
  bool allow_tf32, deterministic;

  std::vector<int64_t> result_sizes() const {
    return {pattern.col_indices.sizes[0], pattern.block_m, pattern.block_k};
  }
};

// Why a call is refused; Python sees a RuntimeError in each case.
enum class Fault : uint8_t { kCall, kPattern, kVariant, kMemory, kLaunch };
class Refusal : public std::runtime_error {
 public:
  Refusal(const std::string& text, Fault fault) : std::runtime_error(text), fault_(fault) {}
  Fault fault() const { return fault_; }

 private:
  Fault fault_;
};
// Throws a Refusal whose text begins as all of ours do.
[[noreturn]] SPARSE_AUTOTUNE_API void refuse(const std::string& text, Fault fault = Fault::kCall);

// The first rule that a call breaks, in words; null where it keeps all. Python explains user errors
// (checks/); these are the rules that protect memory.
SPARSE_AUTOTUNE_API const char* broken_rule(const MatmulCall& call);
SPARSE_AUTOTUNE_API const char* broken_rule(const SampledCall& call);
SPARSE_AUTOTUNE_API const char* broken_rule(const PatternCall& pattern);
SPARSE_AUTOTUNE_API PatternKey key_of(const PatternCall& pattern);
// Whether the result of `call`, which keeps its rules, may be written there.
SPARSE_AUTOTUNE_API const char* broken_rule_of_result(const MatmulCall& call,
                                                      const TensorView& result);

// A matrix view of a tensor, with its last two dimensions swapped if `swap`. A vector becomes one
// column, or with `swap` one row. It owns the sizes and strides that the view points to.
struct SwappedView {
  explicit SwappedView(const TensorView& of, bool swap = true);
  TensorView view;
  std::vector<int64_t> sizes, strides;
  SwappedView(const SwappedView&) = delete;
  SwappedView& operator=(const SwappedView&) = delete;
};
// The products that give the gradients of `forward`'s dense operand and values, from `grad`, that
// of its result.
class SPARSE_AUTOTUNE_API GradientCalls {
 public:
  GradientCalls(const MatmulCall& forward, const TensorView& grad);
  MatmulCall of_dense;
  SampledCall of_values;

 private:
  SwappedView left_, right_;
};

// What a call comes to. `problem` has no facts of the pattern yet, `launch` neither device nor
// stream.
struct NormalisedCall {
  Problem problem{};
  Launch launch;
  PatternKey pattern{};
  // Leading dimensions of `dense` that no stride folds into n or the batch: one launch for each.
  std::vector<Step> outer;

  bool is_empty() const { return problem.m == 0 || problem.n == 0; }
};

// Operands that no kernel reads or writes where they lie, and that must be made contiguous first:
// A's components and the bias, B, C. Of a sampled product B is y and C is x.
struct Copies {
  bool components = false, b = false, c = false;
  bool any() const { return components || b || c; }
};

// `call` keeps its rules and `result` is of its result's shape; `out` is complete unless something
// must be copied.
SPARSE_AUTOTUNE_API Copies normalise(const MatmulCall& call, const TensorView& result,
                                     NormalisedCall* out);
SPARSE_AUTOTUNE_API Copies normalise(const SampledCall& call, const TensorView& result,
                                     NormalisedCall* out);

}  // namespace sparse_autotune
