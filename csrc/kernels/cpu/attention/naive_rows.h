// Rows of attention's operands, a number at a time: for the kernels that explain.
#pragma once

#include <string>

#include "kernels/attention_arguments.h"
#include "kernels/cpu/shared/elements.h"
#include "operators/attention/attention.h"

namespace sparse_autotune::cpu_attention {

inline constexpr int64_t kMostDim = 256;

class AttentionNaive : public attention::Variant {
 public:
  using attention::Variant::Variant;

  Support supports(const attention::Problem& p, const Device&) const override {
    if (p.dim <= kMostDim) return Support::yes();
    return Support::no("heads of more than " + std::to_string(kMostDim) + " numbers");
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return attention::nnz_flops(p) / (0.2e3 * d.threads) + 1.0;  // about 0.2 GFLOP/s a thread
  }
};

// Calls visit(batch, head, row) for all rows of all heads, one thread each.
template <typename Visit>
void for_each_row(const Parallel& parallel, int64_t batch, int64_t heads, int64_t rows,
                  Visit&& visit) {
  parallel_for(parallel, 0, batch * heads * rows, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) visit(i / rows / heads, i / rows % heads, i % rows);
  });
}

// A row of one head.
struct Row {
  void* data;
  int64_t first;
  DType dtype;

  double operator[](int64_t d) const { return load(data, first + d, dtype); }
  void set(int64_t d, double x) const { store(data, first + d, dtype, x); }
};

inline Row row_of(const AttentionTensor& t, int64_t batch, int64_t head, int64_t i, DType dtype) {
  return {t.data, batch * t.batch_stride + head * t.head_stride + i * t.row_stride, dtype};
}

inline double dot(const Row& a, const Row& b, int64_t dim) {
  double sum = 0;
  for (int64_t d = 0; d < dim; ++d) sum += a[d] * b[d];
  return sum;
}

// Values of rows are fp32, or fp64 where the tensors are.
inline Row value_of(const AttentionRowValues& values, int64_t batch, int64_t head, int64_t i,
                    DType dtype) {
  const DType own = dtype == DType::kFloat64 ? DType::kFloat64 : DType::kFloat32;
  return {values.data,
          batch * values.batch_stride + head * values.head_stride + i * values.row_stride, own};
}

}  // namespace sparse_autotune::cpu_attention
