// Every schema and every registration. Exported programs store these schemas: they are final.
#include <torch/csrc/stable/library.h>

#include "ops/product_calls.h"

namespace sparse_autotune {
namespace {

// The operators of one kind of operation, whose parameters have these types, in the order of the
// schema and of `Arguments`.
template <typename Arguments, typename... Types>
struct Operators {
  static Tensor computed(Types... given) { return compute(Arguments{given...}); }
  static void computed_into(Types... given, Tensor out) { matmul_out(Arguments{given...}, out); }
  template <typename... Out>
  static Tensor raced(Types... given, std::optional<std::string> variants, int64_t rounds,
                      double budget_s, bool eliminate, bool save, bool dry_run, Out... out) {
    const RaceOrder order{variants.value_or(""), rounds, budget_s, eliminate, save};
    return text_tensor(race_text(Arguments{given...}, {order, dry_run, out...}));
  }
};
using Product = Operators<MatmulArguments, Tensor, Tensor, Tensor, int64_t, int64_t, Tensor,
                          std::optional<Tensor>, bool, bool, int64_t, bool, bool, bool,
                          std::optional<std::string>>;
using Sampled = Operators<SampledArguments, Tensor, Tensor, int64_t, int64_t, int64_t, int64_t,
                          Tensor, Tensor, bool, bool, std::optional<std::string>>;

Tensor bsr_problem_race(Tensor crow_indices, Tensor col_indices, std::string problem,
                        std::string selector) {
  return text_tensor(race_text(problem, crow_indices, col_indices, selector));
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
  library.impl("bsr_problem_race", TORCH_BOX(&bsr_problem_race));
  library.impl("bsr_prepare", TORCH_BOX(&prepare_pattern));
}

STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CPU, library) { register_all(library); }
STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CUDA, library) { register_all(library); }

}  // namespace
}  // namespace sparse_autotune
