// The operators of products and sampled products: what they compute, what the tuner is asked
// through them, every schema and every registration. Exported programs store these schemas: they
// are final.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <utility>

#include "calls/race_call.h"
#include "calls/serve.h"
#include "ops/arguments.h"
#include "ops/torch_caller.h"

namespace sparse_autotune {
namespace {

template <typename Arguments, typename Call>
Tensor new_result(const Arguments& a, const Call& call) {
  return new_contiguous(a.operand(), call.result_sizes(), element_type(a.operand()));
}

// A call that kernels can serve: what none of them reads where it lies was made contiguous.
template <typename Arguments>
struct Served {
  Arguments arguments;  // whose memory the call's is
  NormalisedCall call;
  TorchCaller caller;
};

template <typename Arguments, typename Call>
Served<Arguments> served(Arguments a, const Call& call, const Tensor& result) {
  const TensorView written = view_of(result);
  NormalisedCall normal;
  if (const Copies copies = normalise(call, written, &normal); copies.any()) {
    // Neither rows nor columns contiguous: torch's own matmul copies such operands too.
    a = contiguous(std::move(a), copies);
    normal = {};
    if (normalise(checked_call(a), written, &normal).any()) {
      refuse("a result with neither contiguous rows nor contiguous columns");
    }
  }
  TorchCaller caller(a.crow_indices, a.col_indices, a.operand());
  return {std::move(a), std::move(normal), std::move(caller)};
}

template <typename Arguments, typename Call>
void write(const Arguments& a, const Call& call, const Tensor& result) {
  auto product = served(a, call, result);
  std::optional<Bound> bound = bind_call(std::move(product.call), a.variant, product.caller);
  if (bound) serve(*bound, a.variant);
}

// `out` where kernels can write there, otherwise a new contiguous tensor in its place.
Tensor written_for(const Tensor& out, const MatmulArguments& a, const MatmulCall& call) {
  const TensorView view = view_of(out);
  if (const char* rule = broken_rule_of_result(call, view)) refuse(rule);
  NormalisedCall unused;
  return normalise(call, view, &unused).c ? new_result(a, call) : out;
}

Tensor result_of_race(const SampledArguments& a, const SampledCall& call) {
  return new_result(a, call);
}
// `out` is not written: its layout is that of the result.
Tensor result_of_race(const MatmulArguments& a, const MatmulCall& call,
                      const std::optional<Tensor>& out) {
  return out ? written_for(*out, a, call) : new_result(a, call);
}

// The text of the race's record, or "" when there is nothing to race (an empty product). Of a dry
// run, a line per variant of the operation on the operands' device (see legality_of).
template <typename Arguments, typename Call>
std::string answer(const Arguments& a, const Call& call, const Tensor& result,
                   const RaceOrder& order) {
  auto product = served(a, call, result);
  if (order.dry_run) {
    const Bound bound = bind_for_questions(std::move(product.call), product.caller);
    return legality_of(bound.call.problem, *bound.device);
  }
  if (a.col_indices.size(0) == 0) return "";  // bind_call() would write the result
  std::optional<Bound> bound = bind_call(std::move(product.call), a.variant, product.caller);
  return bound ? race_bound(*bound, order) : "";
}

// The operators of one kind of operation, whose parameters have these types, in the order of the
// schema and of `Arguments`. Results are new and contiguous.
template <typename Arguments, typename... Types>
struct Operators {
  static Tensor computed(Types... given) {
    const Arguments a{given...};
    const auto call = checked_call(a);
    const DeviceScope scope(a.operand());
    Tensor result = new_result(a, call);
    write(a, call, result);
    return result;
  }
  static void computed_into(Types... given, Tensor out) {
    const Arguments a{given...};
    const auto call = checked_call(a);
    const DeviceScope scope(a.operand());
    const Tensor written = written_for(out, a, call);
    write(a, call, written);
    if (written.get() != out.get()) torch::stable::copy_(out, written);
  }
  template <typename... Out>
  static Tensor raced(Types... given, std::optional<std::string> variants, int64_t rounds,
                      double budget_s, bool eliminate, bool save, bool dry_run, Out... out) {
    const Arguments a{given...};
    const auto call = checked_call(a);
    const DeviceScope scope(a.operand());
    const RaceOrder order{variants.value_or(""), rounds, budget_s, eliminate, save, dry_run};
    return text_tensor(answer(a, call, result_of_race(a, call, out...), order));
  }
};
using Product = Operators<MatmulArguments, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor,
                          std::optional<Tensor>, bool, bool, int64_t, bool, bool, bool,
                          std::optional<std::string>>;
using Sampled = Operators<SampledArguments, Tensor, Tensor, int64_t, int64_t, int64_t, int64_t,
                          Tensor, Tensor, bool, bool, std::optional<std::string>>;

void check_contiguous(const Tensor& crow, const Tensor& col) {
  if (!crow.is_contiguous() || !col.is_contiguous()) refuse("indices must be contiguous");
}

// A race of a problem that mode "record" wrote (see problem_text.h), on the pattern of A as stored,
// among those that `selector` means, unless its winner is known: "" then.
Tensor problem_raced(Tensor crow, Tensor col, std::string problem, std::string selector) {
  const TensorView crow_view = view_of(crow), col_view = view_of(col);
  check_contiguous(crow, col);
  const DeviceScope scope(crow);
  TorchCaller caller(crow, col, crow);
  return text_tensor(race_problem(problem, crow_view, col_view, selector, caller));
}

// Builds the pattern's plan ahead of the first product; raises when the indices break a rule.
void prepare(Tensor crow, Tensor col, int64_t rows, int64_t cols, int64_t block_m,
             int64_t block_k) {
  const PatternCall pattern{view_of(crow), view_of(col), rows, cols, block_m, block_k};
  if (const char* rule = broken_rule(pattern)) refuse(rule);
  check_contiguous(crow, col);
  if (col.size(0) == 0) return;
  const DeviceScope scope(crow);
  TorchCaller caller(crow, col, crow);
  if (find_plan(key_of(pattern), caller) == nullptr) {
    refuse("a plan cannot be built while a CUDA graph is being captured");
  }
}

#define SPARSE_AUTOTUNE_PRODUCT_SCHEMA                                                     \
  "Tensor crow_indices, Tensor col_indices, Tensor values, SymInt rows, SymInt cols, "     \
  "Tensor dense, Tensor? bias=None, *, bool sparse_right=False, bool transpose=False, "    \
  "int activation=0, bool frozen=False, bool allow_tf32=False, bool deterministic=False, " \
  "str? variant=None"

#define SPARSE_AUTOTUNE_SAMPLED_SCHEMA                                                    \
  "Tensor crow_indices, Tensor col_indices, SymInt rows, SymInt cols, int block_m, "      \
  "int block_k, Tensor x, Tensor y, *, bool allow_tf32=False, bool deterministic=False, " \
  "str? variant=None"

#define SPARSE_AUTOTUNE_RACE_SCHEMA                                                            \
  "str? variants=None, int rounds=0, float budget_s=0., bool eliminate=True, bool save=True, " \
  "bool dry_run=False"

STABLE_TORCH_LIBRARY(sparse_autotune, library) {
  library.def("bsr_matmul(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA ") -> Tensor");
  library.def("bsr_matmul_out(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA ", Tensor(a!) out) -> ()");
  library.def("bsr_sampled_matmul(" SPARSE_AUTOTUNE_SAMPLED_SCHEMA ") -> Tensor");
  library.def("bsr_matmul_race(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA ", " SPARSE_AUTOTUNE_RACE_SCHEMA
              ", Tensor? out=None) -> Tensor");
  library.def("bsr_sampled_matmul_race(" SPARSE_AUTOTUNE_SAMPLED_SCHEMA
              ", " SPARSE_AUTOTUNE_RACE_SCHEMA ") -> Tensor");
  library.def(
      "bsr_problem_race(Tensor crow_indices, Tensor col_indices, str problem, str selector) -> "
      "Tensor");
  library.def(
      "bsr_prepare(Tensor crow_indices, Tensor col_indices, SymInt rows, SymInt cols, "
      "int block_m, int block_k) -> ()");
}

// One implementation for both devices: it looks at the tensors.
void register_all(torch::stable::detail::StableLibrary& library) {
  library.impl("bsr_matmul", TORCH_BOX(&Product::computed));
  library.impl("bsr_matmul_out", TORCH_BOX(&Product::computed_into));
  library.impl("bsr_sampled_matmul", TORCH_BOX(&Sampled::computed));
  library.impl("bsr_matmul_race", TORCH_BOX(&Product::raced<std::optional<Tensor>>));
  library.impl("bsr_sampled_matmul_race", TORCH_BOX(&Sampled::raced<>));
  library.impl("bsr_problem_race", TORCH_BOX(&problem_raced));
  library.impl("bsr_prepare", TORCH_BOX(&prepare));
}

STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CPU, library) { register_all(library); }
STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CUDA, library) { register_all(library); }

}  // namespace
}  // namespace sparse_autotune
