// Block-sparse attention and its gradients: two operators that share their problems.
//
// kernels/attention_arguments.h says what is computed. A `Problem` is one attention without its
// data, a `Launch` is its data, a `Variant` is one way to compute it. The two passes race
// separately; what the forward pass leaves for the backward one is `out` and lse, whose meaning is
// the same whoever computed them.
#pragma once

#include <cstdint>
#include <string_view>

#include "exported.h"
#include "host_device.h"
#include "kernels/attention_arguments.h"
#include "variant.h"

namespace sparse_autotune::attention {

enum class Pass : uint8_t {
  kForward,   // reads q, k and v, writes out and lse
  kBackward,  // reads those and dout, perhaps dlse, writes dq, dk and dv
};
SPARSE_AUTOTUNE_API const Operator& operator_of(Pass pass);

// Elements from one batch entry, head and row to the next; the last dimension is contiguous.
struct TensorStrides {
  int64_t batch, head, row;
};
// How a result lies: dense, heads and rows in the order in which its operand has them in memory. So
// do the results of torch's scaled_dot_product_attention.
SPARSE_AUTOTUNE_HOST_DEVICE inline TensorStrides dense_like(const TensorStrides& operand,
                                                            int64_t heads, int64_t rows,
                                                            int64_t dim) {
  if (operand.head < operand.row) return {heads * rows * dim, dim, heads * dim};
  return {heads * rows * dim, rows * dim, dim};
}

// Everything about an attention but its data and its scale. It has no padding. `out` and dq are
// dense_like q, dk is like k and dv like v; the values of rows are contiguous.
struct Problem {
  int64_t batch, heads, kv_heads;  // heads is a multiple of kv_heads
  int64_t rows, columns;           // S of q, T of k and v
  int64_t dim;
  int64_t block_m, block_n;                     // 0: no mask, every block is stored
  int64_t patterns;                             // of the mask
  int64_t mask_batch_stride, mask_head_stride;  // in patterns
  int64_t nnzb;          // stored blocks of all patterns, or about as many; -1: nobody knows
  int64_t capacity;      // entries that col_indices has room for
  int64_t row_capacity;  // and row_indices, of a backward pass
  TensorStrides q, k, v, dout;
  Pass pass;
  DeviceType device;
  DType dtype;
  bool is_causal;
  bool has_dlse;           // the backward pass gets a gradient of lse
  bool allow_tf32;         // fp32 products may round their inputs to TF32
  bool deterministic;      // only variants with repeatable results
  bool exact_nonfinite;    // no NaN from an absent block that meets an infinity
  bool nonpositive_scale;  // which makes infinity or NaN of scores that were hidden before
  // Largest power of two, at most 16, that divides the address and all strides in bytes.
  uint8_t q_alignment, k_alignment, v_alignment, dout_alignment;
  uint8_t reserved[3];  // zeros
};
inline const Operator& operator_of(const Problem& p) { return operator_of(p.pass); }

inline bool has_mask(const Problem& p) { return p.block_m > 0; }
inline int64_t block_rows(const Problem& p) {
  return has_mask(p) ? ceil_div(p.rows, p.block_m) : 0;
}
inline int64_t block_columns(const Problem& p) {
  return has_mask(p) ? ceil_div(p.columns, p.block_n) : 0;
}
// Of the values of rows: lse and its gradient.
inline DType row_dtype(const Problem& p) {
  return p.dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
}
// The part of all blocks that is stored; of a mask that nobody has counted, a guess.
inline double density(const Problem& p) {
  if (!has_mask(p)) return 1;
  if (p.nnzb < 0) return 0.25;
  const double blocks = static_cast<double>(block_rows(p)) * block_columns(p) * p.patterns;
  return blocks > 0 ? static_cast<double>(p.nnzb) / blocks : 0;
}
// Of pairs of a row and a column, over all heads and batch entries.
inline double all_pairs(const Problem& p) {
  return static_cast<double>(p.batch) * p.heads * p.rows * p.columns;
}
// Floating-point operations on all pairs: two products forward, five backward.
inline double dense_flops(const Problem& p) {
  return (p.pass == Pass::kForward ? 4.0 : 10.0) * all_pairs(p) * p.dim;
}
// Of those on what is stored; of a causal attention without a mask half is counted.
inline double nnz_flops(const Problem& p) {
  return dense_flops(p) * (has_mask(p) ? density(p) : p.is_causal ? 0.5 : 1.0);
}
// Bytes that any variant must move: each input read once, each output written once.
inline double compulsory_bytes(const Problem& p) {
  const double queries = static_cast<double>(p.batch) * p.heads * p.rows * p.dim;
  const double keys = static_cast<double>(p.batch) * p.kv_heads * p.columns * p.dim;
  const bool forward = p.pass == Pass::kForward;
  return ((forward ? 2 : 4) * queries + (forward ? 2 : 4) * keys) *
         static_cast<double>(size_of(p.dtype));
}
// The limit of code without tensor cores, TFLOP/s.
inline double fma_tflops(const Problem& p, const Device& d) {
  return p.dtype == DType::kFloat64 ? d.fp64_tflops : d.fp32_tflops;
}

// How `out` and dq lie, dk, and dv.
SPARSE_AUTOTUNE_HOST_DEVICE inline TensorStrides strides_of_out(const Problem& p) {
  return dense_like(p.q, p.heads, p.rows, p.dim);
}
SPARSE_AUTOTUNE_HOST_DEVICE inline TensorStrides strides_of_dk(const Problem& p) {
  return dense_like(p.k, p.kv_heads, p.columns, p.dim);
}
SPARSE_AUTOTUNE_HOST_DEVICE inline TensorStrides strides_of_dv(const Problem& p) {
  return dense_like(p.v, p.kv_heads, p.columns, p.dim);
}

// Results that a variant has in memory of its own, given to the caller instead of written where the
// launch says. Defined where such variants are (csrc/ops).
struct HandedOver;

// The data of one attention.
struct Launch : AnyLaunch {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const int32_t* crow_indices = nullptr;  // null: no mask
  const int32_t* col_indices = nullptr;
  const int32_t* ccol_indices = nullptr;  // the same blocks by column, of a backward pass
  const int32_t* row_indices = nullptr;
  void* out = nullptr;  // an input of a backward pass, as is lse
  void* lse = nullptr;
  const void* dout = nullptr;
  const void* dlse = nullptr;  // null exactly when !problem.has_dlse
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  HandedOver* handed_over = nullptr;  // null: all results are to be written
  double scale = 1;
};

class Variant : public VariantOf<Problem, Launch> {
 public:
  Variant(DeviceType device, std::string_view name, Pass pass = Pass::kForward)
      : VariantOf(operator_of(pass), device, name) {}
};

// What kernels take.
AttentionForward forward_arguments(const Problem& problem, const Launch& launch);
AttentionBackward backward_arguments(const Problem& problem, const Launch& launch);

}  // namespace sparse_autotune::attention
