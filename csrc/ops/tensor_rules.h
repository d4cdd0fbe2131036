// What all operators ask of tensors before they take pointers and strides from them.
#pragma once

#include <torch/csrc/inductor/aoti_torch/c/shim.h>
#include <torch/csrc/stable/ops.h>

#include <string>

#include "ops/arguments.h"
#include "ops/dense_layout.h"
#include "ops/torch_runtime.h"
#include "variant.h"

namespace sparse_autotune {

inline int32_t dtype_of(const Tensor& tensor) {
  int32_t dtype = -1;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_dtype(tensor.get(), &dtype));
  return dtype;
}

inline DType value_dtype(const Tensor& values) {
  for (const DType d : {DType::kFloat16, DType::kBFloat16, DType::kFloat32, DType::kFloat64}) {
    if (dtype_of(values) == torch_dtype(d)) return d;
  }
  refuse("values must be float16, bfloat16, float32 or float64");
}

inline IndexType index_type(const Tensor& indices) {
  for (const IndexType t : {IndexType::kInt32, IndexType::kInt64}) {
    if (dtype_of(indices) == torch_dtype(t)) return t;
  }
  refuse("indices must be int32 or int64");
}

inline bool same_device(const Tensor& a, const Tensor& b) {
  return a.is_cpu() == b.is_cpu() && a.is_cuda() == b.is_cuda() &&
         (a.is_cpu() || a.get_device_index() == b.get_device_index());
}

inline void expect(bool holds, const char* rule) {
  if (!holds) refuse(rule);
}

// Sharding takes a tensor's memory away while it is not needed; torch's operators refuse it then.
inline void expect_memory(const Tensor& tensor, const char* name) {
  const auto begin = reinterpret_cast<uintptr_t>(tensor.data_ptr());
  const auto offset = static_cast<uintptr_t>(tensor.storage_offset()) * tensor.element_size();
  if (begin == offset && tensor.numel() > 0) {
    refuse("the memory of " + std::string(name) + " is not allocated");
  }
}

inline Tensor in_one_piece(const Tensor& tensor) {
  return tensor.is_contiguous() ? tensor : torch::stable::contiguous(tensor);
}

// Of contiguous index vectors of one dtype.
inline PatternKey pattern_key(const Tensor& crow, const Tensor& col, int64_t block_rows,
                              int64_t block_cols) {
  PatternKey key{};
  key.crow_indices = crow.data_ptr();
  key.col_indices = col.data_ptr();
  key.nnzb = col.size(0);
  key.block_rows = block_rows;
  key.block_cols = block_cols;
  key.ordinal = crow.is_cpu() ? -1 : crow.get_device_index();
  key.index_type = index_type(crow);
  return key;
}

}  // namespace sparse_autotune
