// What bsr_product and its relatives take as one integer. These call operators from Python, where
// each argument is a fifth of a microsecond and each name more: what is but a switch shares one.
// As python/sparse_autotune/ops.py has it. No torch.
#pragma once

#include <cstdint>

namespace sparse_autotune {

struct ProductForm {
  explicit ProductForm(int64_t form)
      : sparse_right((form & 1) != 0),
        transpose((form & 2) != 0),
        frozen((form & 4) != 0),
        allow_tf32((form & 8) != 0),
        deterministic((form & 16) != 0),
        activation(form >> 5) {}

  bool sparse_right, transpose, frozen, allow_tf32, deterministic;
  int64_t activation;
};

}  // namespace sparse_autotune
