// Both operations of the C interface, for code that is the same for either.
#pragma once

#include <sparse_autotune.h>

#include <array>
#include <vector>

namespace fuzz {

struct Matmul {
  using Product = sparse_autotune_product;
  static constexpr auto launch = &sparse_autotune_matmul;
  static constexpr auto workspace = &sparse_autotune_matmul_workspace;
  static constexpr auto race = &sparse_autotune_race_matmul;
  static std::array<sparse_autotune_dense*, 2> dense(Product& p) { return {&p.dense, &p.result}; }
  static std::vector<int32_t*> flags(Product& p) {
    return {&p.dtype,      &p.activation,    &p.sparse_right, &p.transpose,
            &p.allow_tf32, &p.deterministic, &p.reserved};
  }
};

struct Sampled {
  using Product = sparse_autotune_sampled_product;
  static constexpr auto launch = &sparse_autotune_sampled_matmul;
  static constexpr auto workspace = &sparse_autotune_sampled_matmul_workspace;
  static constexpr auto race = &sparse_autotune_race_sampled_matmul;
  static std::array<sparse_autotune_dense*, 2> dense(Product& p) { return {&p.x, &p.y}; }
  static std::vector<int32_t*> flags(Product& p) {
    return {&p.dtype, &p.allow_tf32, &p.deterministic, &p.reserved};
  }
};

}  // namespace fuzz
