// Every schema and every registration. Exported programs store these schemas: they are final.
#include <torch/csrc/stable/library.h>

#include "ops/bound.h"
#include "ops/gradients.h"
#include "ops/matmul.h"
#include "ops/product_form.h"
#include "ops/race.h"
#include "ops/sampled_matmul.h"

namespace sparse_autotune {
namespace {

#define SPARSE_AUTOTUNE_PRODUCT_PARAMETERS                                            \
  Tensor crow_indices, Tensor col_indices, Tensor values, int64_t rows, int64_t cols, \
      Tensor dense, std::optional<Tensor> bias, bool sparse_right, bool transpose,    \
      int64_t activation, bool frozen, bool allow_tf32, bool deterministic,           \
      std::optional<std::string> variant
#define SPARSE_AUTOTUNE_PRODUCT_ARGUMENTS                                                \
  MatmulArguments {                                                                      \
    crow_indices, col_indices, values, rows, cols, dense, bias, sparse_right, transpose, \
        activation, frozen, allow_tf32, deterministic, variant                           \
  }

Tensor bsr_matmul(SPARSE_AUTOTUNE_PRODUCT_PARAMETERS) {
  return matmul(SPARSE_AUTOTUNE_PRODUCT_ARGUMENTS);
}

void bsr_matmul_out(SPARSE_AUTOTUNE_PRODUCT_PARAMETERS, Tensor out) {
  matmul_out(SPARSE_AUTOTUNE_PRODUCT_ARGUMENTS, out);
}

Tensor bsr_matmul_race(SPARSE_AUTOTUNE_PRODUCT_PARAMETERS, std::optional<std::string> variants,
                       int64_t rounds, double budget_s, bool eliminate, bool save,
                       std::optional<Tensor> out) {
  return text_tensor(race_text(SPARSE_AUTOTUNE_PRODUCT_ARGUMENTS,
                               {variants, rounds, budget_s, eliminate, save, out}));
}

Tensor bsr_matmul_legality(SPARSE_AUTOTUNE_PRODUCT_PARAMETERS) {
  return text_tensor(legality_text(SPARSE_AUTOTUNE_PRODUCT_ARGUMENTS));
}

#define SPARSE_AUTOTUNE_SAMPLED_PARAMETERS                                              \
  Tensor crow_indices, Tensor col_indices, int64_t rows, int64_t cols, int64_t block_m, \
      int64_t block_k, Tensor x, Tensor y, bool allow_tf32, bool deterministic,         \
      std::optional<std::string> variant
#define SPARSE_AUTOTUNE_SAMPLED_ARGUMENTS                                                     \
  SampledArguments {                                                                          \
    crow_indices, col_indices, rows, cols, block_m, block_k, x, y, allow_tf32, deterministic, \
        variant                                                                               \
  }

Tensor bsr_sampled_matmul(SPARSE_AUTOTUNE_SAMPLED_PARAMETERS) {
  return sampled_matmul(SPARSE_AUTOTUNE_SAMPLED_ARGUMENTS);
}

Tensor bsr_sampled_matmul_race(SPARSE_AUTOTUNE_SAMPLED_PARAMETERS,
                               std::optional<std::string> variants, int64_t rounds, double budget_s,
                               bool eliminate, bool save) {
  return text_tensor(
      race_text(SPARSE_AUTOTUNE_SAMPLED_ARGUMENTS, {variants, rounds, budget_s, eliminate, save}));
}

Tensor bsr_sampled_matmul_legality(SPARSE_AUTOTUNE_SAMPLED_PARAMETERS) {
  return text_tensor(legality_text(SPARSE_AUTOTUNE_SAMPLED_ARGUMENTS));
}

// The same products without derivatives, for below autograd and so for compiled graphs.
MatmulArguments product_arguments(Tensor crow_indices, Tensor col_indices, Tensor values,
                                  int64_t rows, int64_t cols, Tensor dense,
                                  std::optional<Tensor> bias, const ProductForm& form,
                                  std::optional<std::string> variant) {
  return {crow_indices,
          col_indices,
          values,
          rows,
          cols,
          dense,
          bias,
          form.sparse_right,
          form.transpose,
          form.activation,
          form.frozen,
          form.allow_tf32,
          form.deterministic,
          variant};
}

Tensor bsr_product(Tensor crow_indices, Tensor col_indices, Tensor values, int64_t rows,
                   int64_t cols, Tensor dense, std::optional<Tensor> bias, int64_t form,
                   std::optional<std::string> variant) {
  return matmul(product_arguments(crow_indices, col_indices, values, rows, cols, dense, bias,
                                  ProductForm(form), variant));
}

Tensor bsr_sampled_product(Tensor crow_indices, Tensor col_indices, int64_t rows, int64_t cols,
                           int64_t block_m, int64_t block_k, Tensor x, Tensor y, int64_t form,
                           std::optional<std::string> variant) {
  const ProductForm f(form);
  return sampled_matmul({crow_indices, col_indices, rows, cols, block_m, block_k, x, y,
                         f.allow_tf32, f.deterministic, variant});
}

// Of a bsr_product without bias and activation; in this order because a backward goes on with the
// first. One operator where a graph needs both: each call from Python is dear.
std::tuple<Tensor, Tensor> bsr_product_gradients(Tensor crow_indices, Tensor col_indices,
                                                 Tensor values, int64_t rows, int64_t cols,
                                                 Tensor dense, Tensor grad, int64_t form) {
  ProductForm f(form);
  f.activation = 0;
  return gradients(product_arguments(crow_indices, col_indices, values, rows, cols, dense,
                                     std::nullopt, f, std::nullopt),
                   grad);
}

void bsr_prepare(Tensor crow_indices, Tensor col_indices, int64_t rows, int64_t cols,
                 int64_t block_m, int64_t block_k) {
  if (block_m <= 0 || block_k <= 0 || rows % block_m != 0 || cols % block_k != 0) {
    refuse("the block must divide the shape");
  }
  prepare_pattern(crow_indices, col_indices, rows / block_m, cols / block_k);
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

STABLE_TORCH_LIBRARY(sparse_autotune, library) {
  library.def("bsr_matmul(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA ") -> Tensor");
  library.def("bsr_matmul_out(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA ", Tensor(a!) out) -> ()");
  library.def("bsr_matmul_race(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA
              ", str? variants=None, int rounds=0, float budget_s=0., bool eliminate=True, "
              "bool save=True, Tensor? out=None) -> Tensor");
  library.def("bsr_matmul_legality(" SPARSE_AUTOTUNE_PRODUCT_SCHEMA ") -> Tensor");
  library.def("bsr_sampled_matmul(" SPARSE_AUTOTUNE_SAMPLED_SCHEMA ") -> Tensor");
  library.def("bsr_sampled_matmul_race(" SPARSE_AUTOTUNE_SAMPLED_SCHEMA
              ", str? variants=None, int rounds=0, float budget_s=0., bool eliminate=True, "
              "bool save=True) -> Tensor");
  library.def("bsr_sampled_matmul_legality(" SPARSE_AUTOTUNE_SAMPLED_SCHEMA ") -> Tensor");
  library.def(
      "bsr_product(Tensor crow_indices, Tensor col_indices, Tensor values, SymInt rows, "
      "SymInt cols, Tensor dense, Tensor? bias, int form, str? variant) -> Tensor");
  library.def(
      "bsr_sampled_product(Tensor crow_indices, Tensor col_indices, SymInt rows, SymInt cols, "
      "int block_m, int block_k, Tensor x, Tensor y, int form, str? variant) -> Tensor");
  library.def(
      "bsr_product_gradients(Tensor crow_indices, Tensor col_indices, Tensor values, SymInt rows, "
      "SymInt cols, Tensor dense, Tensor grad, int form) -> (Tensor, Tensor)");
  library.def(
      "bsr_prepare(Tensor crow_indices, Tensor col_indices, SymInt rows, SymInt cols, "
      "int block_m, int block_k) -> ()");
}

// One implementation for both devices: it looks at the tensors.
void register_all(torch::stable::detail::StableLibrary& library) {
  library.impl("bsr_matmul", TORCH_BOX(&bsr_matmul));
  library.impl("bsr_matmul_out", TORCH_BOX(&bsr_matmul_out));
  library.impl("bsr_matmul_race", TORCH_BOX(&bsr_matmul_race));
  library.impl("bsr_matmul_legality", TORCH_BOX(&bsr_matmul_legality));
  library.impl("bsr_sampled_matmul", TORCH_BOX(&bsr_sampled_matmul));
  library.impl("bsr_sampled_matmul_race", TORCH_BOX(&bsr_sampled_matmul_race));
  library.impl("bsr_sampled_matmul_legality", TORCH_BOX(&bsr_sampled_matmul_legality));
  library.impl("bsr_product", TORCH_BOX(&bsr_product));
  library.impl("bsr_sampled_product", TORCH_BOX(&bsr_sampled_product));
  library.impl("bsr_product_gradients", TORCH_BOX(&bsr_product_gradients));
  library.impl("bsr_prepare", TORCH_BOX(&bsr_prepare));
}

STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CPU, library) { register_all(library); }
STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CUDA, library) { register_all(library); }

}  // namespace
}  // namespace sparse_autotune
