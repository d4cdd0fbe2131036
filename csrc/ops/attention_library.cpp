// The schemas and registrations of attention. Exported programs store these schemas: they are
// final.
#include <torch/csrc/stable/library.h>

#include "ops/attention_calls.h"
#include "ops/torch_runtime.h"

namespace sparse_autotune {
namespace {

using OptionalTensor = std::optional<Tensor>;
using OptionalName = std::optional<std::string>;

AttentionArguments arguments(Tensor q, Tensor k, Tensor v, OptionalTensor crow, OptionalTensor col,
                             int64_t block_m, int64_t block_n, bool is_causal,
                             std::optional<double> scale, int64_t nnzb, bool allow_tf32,
                             bool deterministic, OptionalName variant) {
  return {q,         k,     v,    crow,       col,           block_m, block_n,
          is_causal, scale, nnzb, allow_tf32, deterministic, variant};
}

std::tuple<Tensor, Tensor> attention_forward(Tensor q, Tensor k, Tensor v, OptionalTensor crow,
                                             OptionalTensor col, int64_t block_m, int64_t block_n,
                                             bool is_causal, std::optional<double> scale,
                                             int64_t nnzb, bool allow_tf32, bool deterministic,
                                             OptionalName variant) {
  return compute(arguments(q, k, v, crow, col, block_m, block_n, is_causal, scale, nnzb, allow_tf32,
                           deterministic, variant));
}

std::tuple<Tensor, Tensor, Tensor> attention_backward(
    Tensor grad_out, OptionalTensor grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse,
    OptionalTensor crow, OptionalTensor col, OptionalTensor ccol, OptionalTensor row,
    int64_t block_m, int64_t block_n, bool is_causal, std::optional<double> scale, int64_t nnzb,
    bool allow_tf32, bool deterministic, OptionalName variant) {
  return compute(arguments(q, k, v, crow, col, block_m, block_n, is_causal, scale, nnzb, allow_tf32,
                           deterministic, variant),
                 {grad_out, grad_lse, out, lse, ccol, row});
}

Tensor attention_race(Tensor q, Tensor k, Tensor v, OptionalTensor crow, OptionalTensor col,
                      int64_t block_m, int64_t block_n, bool is_causal, std::optional<double> scale,
                      int64_t nnzb, bool allow_tf32, bool deterministic, OptionalName variant,
                      OptionalName variants, int64_t rounds, double budget_s, bool eliminate,
                      bool save, bool dry_run) {
  return text_tensor(
      race_text(arguments(q, k, v, crow, col, block_m, block_n, is_causal, scale, nnzb, allow_tf32,
                          deterministic, variant),
                {variants.value_or(""), rounds, budget_s, eliminate, save, dry_run}));
}

Tensor attention_backward_race(Tensor grad_out, OptionalTensor grad_lse, Tensor q, Tensor k,
                               Tensor v, Tensor out, Tensor lse, OptionalTensor crow,
                               OptionalTensor col, OptionalTensor ccol, OptionalTensor row,
                               int64_t block_m, int64_t block_n, bool is_causal,
                               std::optional<double> scale, int64_t nnzb, bool allow_tf32,
                               bool deterministic, OptionalName variant, OptionalName variants,
                               int64_t rounds, double budget_s, bool eliminate, bool save,
                               bool dry_run) {
  return text_tensor(
      race_text(arguments(q, k, v, crow, col, block_m, block_n, is_causal, scale, nnzb, allow_tf32,
                          deterministic, variant),
                {grad_out, grad_lse, out, lse, ccol, row},
                {variants.value_or(""), rounds, budget_s, eliminate, save, dry_run}));
}

Tensor attention_problem_race(Tensor crow, Tensor col, OptionalTensor ccol, OptionalTensor row,
                              std::string problem, std::string selector) {
  return text_tensor(race_text(problem, {crow, col, ccol, row}, selector));
}

#define SPARSE_AUTOTUNE_ATTENTION_SWITCHES                                              \
  "*, bool is_causal=False, float? scale=None, SymInt nnzb=-1, bool allow_tf32=False, " \
  "bool deterministic=False, str? variant=None"

#define SPARSE_AUTOTUNE_ATTENTION_SCHEMA                                                \
  "Tensor q, Tensor k, Tensor v, Tensor? crow_indices=None, Tensor? col_indices=None, " \
  "int block_m=0, int block_n=0, " SPARSE_AUTOTUNE_ATTENTION_SWITCHES

#define SPARSE_AUTOTUNE_ATTENTION_BACKWARD_SCHEMA                                             \
  "Tensor grad_out, Tensor? grad_lse, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, " \
  "Tensor? crow_indices=None, Tensor? col_indices=None, Tensor? ccol_indices=None, "          \
  "Tensor? row_indices=None, int block_m=0, int block_n=0, " SPARSE_AUTOTUNE_ATTENTION_SWITCHES

#define SPARSE_AUTOTUNE_RACE_SWITCHES                                            \
  ", str? variants=None, int rounds=0, float budget_s=0., bool eliminate=True, " \
  "bool save=True, bool dry_run=False) -> Tensor"

STABLE_TORCH_LIBRARY_FRAGMENT(sparse_autotune, library) {
  library.def("attention(" SPARSE_AUTOTUNE_ATTENTION_SCHEMA ") -> (Tensor, Tensor)");
  library.def("attention_backward(" SPARSE_AUTOTUNE_ATTENTION_BACKWARD_SCHEMA
              ") -> (Tensor, Tensor, Tensor)");
  library.def("attention_race(" SPARSE_AUTOTUNE_ATTENTION_SCHEMA SPARSE_AUTOTUNE_RACE_SWITCHES);
  library.def("attention_backward_race(" SPARSE_AUTOTUNE_ATTENTION_BACKWARD_SCHEMA
                  SPARSE_AUTOTUNE_RACE_SWITCHES);
  library.def(
      "attention_problem_race(Tensor crow_indices, Tensor col_indices, Tensor? ccol_indices, "
      "Tensor? row_indices, str problem, str selector) -> Tensor");
}

void register_all(torch::stable::detail::StableLibrary& library) {
  library.impl("attention", TORCH_BOX(&attention_forward));
  library.impl("attention_backward", TORCH_BOX(&attention_backward));
  library.impl("attention_race", TORCH_BOX(&attention_race));
  library.impl("attention_backward_race", TORCH_BOX(&attention_backward_race));
  library.impl("attention_problem_race", TORCH_BOX(&attention_problem_race));
}

STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CPU, library) { register_all(library); }
STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CUDA, library) { register_all(library); }

}  // namespace
}  // namespace sparse_autotune
