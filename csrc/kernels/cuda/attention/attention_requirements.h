// What attention's families for half types ask of a problem. Host code.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "kernels/cuda/host/element_types.h"
#include "operators/attention/attention.h"

namespace sparse_autotune {

// Calls f with a null pointer to the type, and the head dimension as a type.
template <typename F>
auto with_half_and_dim(const attention::Problem& p, F&& f) {
  const auto with_dim = [&]<typename T>(T* type) {
    if (p.dim == 64) return f(type, std::integral_constant<int, 64>{});
    return f(type, std::integral_constant<int, 128>{});
  };
  if (p.dtype == DType::kFloat16) return with_dim(static_cast<__half*>(nullptr));
  return with_dim(static_cast<__nv_bfloat16*>(nullptr));
}

// Half types, heads of 64 or 128, 16 bytes at a time; sizes that fit 32-bit indices.
inline Support halves_by_16_bytes(const attention::Problem& p) {
  if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
  if (p.dim != 64 && p.dim != 128) {
    return Support::no("needs heads of 64 or 128, got " + std::to_string(p.dim));
  }
  const bool backward = p.pass == attention::Pass::kBackward;
  const int least = std::min(
      {p.q_alignment, p.k_alignment, p.v_alignment, backward ? p.dout_alignment : p.q_alignment});
  if (least < 16) {
    return Support::no(
        "needs addresses and strides of q, k, v and dout that are multiples of 16 bytes, one is a "
        "multiple of " +
        std::to_string(least));
  }
  constexpr int64_t kMost = INT32_MAX - 1024;
  if (p.rows > kMost || p.columns > kMost || p.batch > 65535 || p.heads > 65535) {
    return Support::no("has more rows than 32-bit indices or more heads than a grid's side");
  }
  if (p.rows == 0 || p.columns == 0 || p.batch == 0) return Support::no("has no element");
  return Support::yes();
}

// Of a mask: multiples of these.
inline Support block_sides_are_multiples_of(const attention::Problem& p, int64_t m, int64_t n) {
  if (!has_mask(p) || (p.block_m % m == 0 && p.block_n % n == 0)) return Support::yes();
  return Support::no("needs blocks of multiples of " + std::to_string(m) + " by multiples of " +
                     std::to_string(n) + ", got " + std::to_string(p.block_m) + " by " +
                     std::to_string(p.block_n));
}

// What make_tile_lists() asks.
inline Support has_tile_lists(const attention::Problem& p) {
  if (p.patterns <= 65535) return Support::yes();
  return Support::no("has more patterns than a grid's side");
}

// What kernels of mma.sync ask that merge block rows into tiles of `tile_rows`.
inline Support tiled_by_mma(const attention::Problem& p, const Device& d, int tile_rows) {
  if (d.compute_capability < 80) return Support::no("needs compute capability 8.0 or newer");
  if (auto s = halves_by_16_bytes(p); !s) return s;
  if (auto s = block_sides_are_multiples_of(p, 16, 16); !s) return s;
  const bool backward = p.pass == attention::Pass::kBackward;
  const auto fits = [&](int64_t side) { return side % tile_rows == 0 || tile_rows % side == 0; };
  if (has_mask(p) && !(fits(p.block_m) && (!backward || fits(p.block_n)))) {
    return Support::no("needs blocks that divide " + std::to_string(tile_rows) +
                       " rows, or multiples of it");
  }
  return has_tile_lists(p);
}

// What Hopper's kernels ask: halves_by_16_bytes(), in strides that TMA takes.
inline Support halves_on_hopper(const attention::Problem& p, const Device& d) {
  if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
  if (auto s = halves_by_16_bytes(p); !s) return s;
  const auto takes = [&](const attention::TensorStrides& s, int64_t heads, int64_t rows) {
    const auto one = [](int64_t stride, int64_t size) {
      return size == 1 || (stride > 0 && stride < int64_t{1} << 38);
    };
    return one(s.batch, p.batch) && one(s.head, heads) && one(s.row, rows) && s.row > 0;
  };
  const bool backward = p.pass == attention::Pass::kBackward;
  if (takes(p.q, p.heads, p.rows) && takes(p.k, p.kv_heads, p.columns) &&
      takes(p.v, p.kv_heads, p.columns) && (!backward || takes(p.dout, p.heads, p.rows))) {
    return Support::yes();
  }
  return Support::no("needs strides greater than 0 and below 2^38 elements");
}

// The part of all blocks that tiles of `tile_rows` compute, given what the mask stores, if blocks
// lie at random.
inline double merged_density(const attention::Problem& p, int tile_rows) {
  if (!has_mask(p) || p.block_m >= tile_rows) return density(p);
  const double rows = static_cast<double>(tile_rows) / static_cast<double>(p.block_m);
  return 1 - std::pow(1 - density(p), rows);
}

// Microseconds of a launch that computes tiles of `tile_rows` at so many TFLOP/s.
inline double attention_us(const attention::Problem& p, int tile_rows, double tflops,
                           double start_us) {
  const double part = has_mask(p) ? merged_density(p, tile_rows) : p.is_causal ? 0.5 : 1;
  const double products = p.pass == attention::Pass::kForward ? 4 : 10;
  return products * all_pairs(p) * static_cast<double>(p.dim) * part / (tflops * 1e6) + start_us;
}

}  // namespace sparse_autotune
