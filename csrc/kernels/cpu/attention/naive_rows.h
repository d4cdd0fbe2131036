// Rows of attention's operands, a number at a time: for the kernels that explain.
#pragma once

#include <string>

#include "kernels/attention_arguments.h"
#include "kernels/cpu/shared/elements.h"
#include "variant.h"

namespace sparse_autotune::cpu_attention {

inline constexpr int64_t kMostDim = 256;

inline Support supports_dim(int64_t dim) {
  if (dim <= kMostDim) return Support::yes();
  return Support::no("heads of more than " + std::to_string(kMostDim) + " numbers");
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
