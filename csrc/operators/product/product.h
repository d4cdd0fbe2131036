// The sparse product and the sampled product, which share their problems: two operators.
//
// A product C = activation(op(A) * B + bias): A is a BSR matrix (crow_indices, col_indices,
// values), B and C are dense. A `Problem` is that product without its data, a `Launch` is its data,
// a `Variant` is one way to compute it. Kernels, vendor libraries and calls share these types.
//
// The second operator is the product's gradient with respect to A's values, the block-sampled
// dense-dense product: values = sum over the batch of C * B^T, at the stored blocks only.
#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>

#include "exported.h"
#include "row_groups.h"
#include "row_orders.h"
#include "sampled_tasks.h"
#include "variant.h"

namespace sparse_autotune {

enum class Op : uint8_t {
  kMatmul,   // reads values and B, writes C
  kSampled,  // reads C and B, writes values; no bias, no activation, not transposed, not frozen
};
SPARSE_AUTOTUNE_API const Operator& operator_of(Op op);
// The numbers are part of the operators' schema: exported programs store them.
enum class Activation : uint8_t { kNone = 0, kRelu = 1, kGelu = 2, kGeluTanh = 3, kSilu = 4 };

// Everything about a product but its data. Two problems are the same call exactly when their bytes
// are: it has no padding.
//
// Shapes are those of the normalised product C (m x n) = op(A) (m x k) * B (k x n). `linear`
// (y = x W^T) and products with the sparse operand on the right reach kernels in this form, with
// column-major B and C: y^T = W x^T. A sampled product has the fields of the product whose gradient
// it is.
struct Problem {
  int64_t m, n, k;
  int64_t nnzb;              // stored blocks
  int64_t block_m, block_k;  // block of op(A); stored as block_k x block_m under `transpose`
  int64_t longest_row;       // blocks in the longest block row of op(A), -1: nobody has looked
  int64_t ldb, ldc;          // elements between rows (row-major) or columns (column-major)
  int64_t batch;             // dense matrices multiplied by the one A, at least 1
  int64_t b_batch_stride, c_batch_stride;  // elements; 0 when batch is 1
  RowCuts row_cuts;
  GroupCounts group_counts;
  Op op;
  DeviceType device;
  DType dtype;  // of values, B, bias and C
  IndexType index_type;
  Layout b_layout, c_layout;
  Activation activation;
  bool has_bias;         // one value per row of C
  bool transpose;        // op(A) is A^T: see Launch::positions
  bool frozen;           // the caller promises that `values` will not change
  bool allow_tf32;       // fp32 products may round their inputs to TF32
  bool deterministic;    // only variants with repeatable results
  bool exact_nonfinite;  // no NaN from an absent block that meets an infinity
  // Largest power of two, at most 16, that divides the address in bytes and, for B and C, the
  // leading dimension and the batch stride in bytes too.
  uint8_t values_alignment, b_alignment, c_alignment;
};
inline bool operator==(const Problem& a, const Problem& b) {
  return std::memcmp(&a, &b, sizeof(Problem)) == 0;
}
inline const Operator& operator_of(const Problem& p) { return operator_of(p.op); }

inline int64_t block_rows(const Problem& p) { return p.m / p.block_m; }
inline int64_t block_cols(const Problem& p) { return p.k / p.block_k; }
// Within a stored block, elements from one row of op(A) to the next, and from one k to the next.
inline int64_t row_stride_in_block(const Problem& p) { return p.transpose ? 1 : p.block_k; }
inline int64_t k_stride_in_block(const Problem& p) { return p.transpose ? p.block_m : 1; }
// Of a sampled product, the terms of each sum.
constexpr int64_t sampled_length(const Problem& p) { return p.n * p.batch; }
// Floating-point operations on stored blocks.
inline double nnz_flops(const Problem& p) {
  return 2.0 * static_cast<double>(p.nnzb) * p.block_m * p.block_k * p.n * p.batch;
}
inline double values_bytes(const Problem& p) {
  return static_cast<double>(p.nnzb) * p.block_m * p.block_k * size_of(p.dtype);
}
inline double b_bytes(const Problem& p) {
  return static_cast<double>(p.k) * p.n * p.batch * size_of(p.dtype);
}
inline double c_bytes(const Problem& p) {
  return static_cast<double>(p.m) * p.n * p.batch * size_of(p.dtype);
}
// Bytes that any variant must move: each input read once, the output written once.
inline double compulsory_bytes(const Problem& p) {
  return values_bytes(p) + b_bytes(p) + c_bytes(p) +
         static_cast<double>(p.nnzb + block_rows(p) + 1) * size_of(p.index_type);
}

// The device's limit for the problem's arithmetic, TFLOP/s.
inline double peak_tflops(const Problem& p, const Device& d) {
  return peak_tflops(p.dtype, p.allow_tf32, d);
}

// The limit of code without tensor cores, TFLOP/s: it computes half types, and TF32 products, at
// the rate of fp32.
inline double fma_tflops(const Problem& p, const Device& d) {
  return p.dtype == DType::kFloat64 ? d.fp64_tflops : d.fp32_tflops;
}

// The data of one product.
struct Launch : AnyLaunch {
  const void* crow_indices = nullptr;  // op(A)'s pattern
  const void* col_indices = nullptr;
  // Where in `values` each block of op(A) lies; null exactly when !problem.transpose, as they lie
  // in order then. Of problem.index_type, as the indices are.
  const void* positions = nullptr;
  const void* values = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;  // null exactly when !problem.has_bias
  void* c = nullptr;           // an input of a sampled product
  void* sampled = nullptr;     // the values that a sampled product writes; `values` is null then
  // Those that a variant asked for, where they pay and could be built; in device memory.
  const OrderedRow* row_orders[kRowOrders] = {};
  // Those that a variant asked for.
  RowGroups row_groups[kAllGroupings] = {};
  const TaskTable* tasks = nullptr;  // of task_shape_of(problem), for a variant that wants them
};

// How the tasks of a sampled product are cut: for thread blocks that come in twos.
inline TaskShape task_shape_of(const Problem& p, const Device& d) {
  return task_shape(p.block_m, p.block_k, d.multiprocessors > 1 ? d.multiprocessors / 2 * 2 : 2);
}

class Variant : public VariantOf<Problem, Launch> {
 public:
  Variant(DeviceType device, std::string_view name, Op op = Op::kMatmul)
      : VariantOf(operator_of(op), device, name) {}

  // Which of Launch::row_orders launch() makes use of; it must do without where there is none.
  virtual int row_order(const Problem&, const Device&) const { return kNoRowOrder; }

  // Which of Launch::row_groups launch() and prepare() need. supports() must refuse a problem whose
  // group_counts are not known, then.
  virtual int grouping(const Problem&, const Device&) const { return kNoGrouping; }

  // Whether launch() needs Launch::tasks.
  virtual bool wants_tasks() const { return false; }
};

// What the tuner chose for a product.
inline const Variant& product(const AnyVariant& variant) {
  return static_cast<const Variant&>(variant);
}

// The same of what a launch must move beyond what the last-level cache may hold of it still, at the
// share of the memory's rate that streams reach.
inline double uncached_us(const Problem& p, const Device& d) {
  return (compulsory_bytes(p) - static_cast<double>(d.l2_bytes)) / (d.memory_gbps * 850);
}

}  // namespace sparse_autotune
