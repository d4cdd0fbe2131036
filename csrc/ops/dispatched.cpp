#include "ops/dispatched.h"

#include <exception>

namespace sparse_autotune {
namespace {

Tensor matrix_view(const void* data, int64_t offset, int64_t rows, int64_t cols, Layout layout,
                   int64_t leading, DType dtype, const Device& device) {
  const char* first = static_cast<const char*>(data) + offset * size_of(dtype);
  const bool row_major = layout == Layout::kRowMajor;
  return tensor_over(first, {rows, cols}, {row_major ? leading : 1, row_major ? 1 : leading},
                     torch_dtype(dtype), device);
}

constexpr auto kFloat = torch::headeronly::ScalarType::Float;

// Of as many matrices as the batch has, `step` elements apart.
Tensor batch_view(const void* data, int64_t step, int64_t rows, int64_t cols, Layout layout,
                  int64_t leading, DType dtype, const Problem& p, const Launch& l) {
  const bool row_major = layout == Layout::kRowMajor;
  return tensor_over(data, {p.batch, rows, cols},
                     {step, row_major ? leading : 1, row_major ? 1 : leading}, torch_dtype(dtype),
                     *l.device);
}
Tensor batch_of_c(const Problem& p, const Launch& l) {
  return batch_view(l.c, p.c_batch_stride, p.m, p.n, p.c_layout, p.ldc, p.dtype, p, l);
}
Tensor batch_of_b(const Problem& p, const Launch& l) {
  return batch_view(l.b, p.b_batch_stride, p.k, p.n, p.b_layout, p.ldb, p.dtype, p, l);
}

}  // namespace

Tensor view_of_b(const Problem& p, const Launch& l, int64_t batch) {
  return matrix_view(l.b, batch * p.b_batch_stride, p.k, p.n, p.b_layout, p.ldb, p.dtype,
                     *l.device);
}

Tensor view_of_c(const Problem& p, const Launch& l, int64_t batch) {
  return matrix_view(l.c, batch * p.c_batch_stride, p.m, p.n, p.c_layout, p.ldc, p.dtype,
                     *l.device);
}

Status guarded(const std::function<void()>& call) {
  try {
    call();
    return Status::ok();
  } catch (const std::exception& error) {
    const std::string text = error.what();
    const bool memory = text.find("out of memory") != std::string::npos;
    return Status::failed(memory ? StatusCode::kOutOfMemory : StatusCode::kLaunchFailed, text);
  }
}

Tensor densified(const Problem& p, const Launch& l, Layout layout) {
  return matrix_view(l.prepared, 0, p.m, p.k, layout, layout == Layout::kRowMajor ? p.k : p.m,
                     p.dtype, *l.device);
}

Tensor densified_for_all(const Problem& p, const Launch& l, Layout layout) {
  return batch_view(l.prepared, 0, p.m, p.k, layout, layout == Layout::kRowMajor ? p.k : p.m,
                    p.dtype, p, l);
}

Status mm_rows(const Problem& p, const Launch& l, int64_t batch, int64_t first, int64_t rows,
               DType dtype, void* product) {
  return guarded([&] {
    const int64_t row = p.c_layout == Layout::kRowMajor ? p.ldc : 1;
    const Layout turned = p.b_layout == Layout::kRowMajor ? Layout::kColMajor : Layout::kRowMajor;
    const Tensor c = matrix_view(l.c, batch * p.c_batch_stride + first * row, rows, p.n, p.c_layout,
                                 p.ldc, p.dtype, *l.device);
    const Tensor b =
        matrix_view(l.b, batch * p.b_batch_stride, p.n, p.k, turned, p.ldb, p.dtype, *l.device);
    const Tensor out = matrix_view(product, 0, rows, p.k, Layout::kRowMajor, p.k, dtype, *l.device);
    if (dtype == p.dtype) {
      call_torch<Tensor>("aten::mm", "out", c, b, out);
    } else {
      call_torch<Tensor>("aten::mm", "dtype_out", c, b, kFloat, out);
    }
  });
}

Status round_values(const Problem& p, const Launch& l, const void* from) {
  return guarded([&] {
    const int64_t count = p.nnzb * p.block_m * p.block_k;
    call_torch<Tensor>(
        "aten::copy_", "", tensor_over(l.sampled, {count}, {1}, torch_dtype(p.dtype), *l.device),
        tensor_over(from, {count}, {1}, torch_dtype(DType::kFloat32), *l.device), false);
  });
}

Status mm_into_c(const Tensor& a, const Problem& p, const Launch& l) {
  return guarded([&] {
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      call_torch<Tensor>("aten::mm", "out", a, view_of_b(p, l, batch), view_of_c(p, l, batch));
    }
  });
}

Status bmm_into_c(const Tensor& a, const Problem& p, const Launch& l) {
  return guarded(
      [&] { call_torch<Tensor>("aten::bmm", "out", a, batch_of_b(p, l), batch_of_c(p, l)); });
}

Status bmm_through_fp32(const Tensor& a, const Problem& p, const Launch& l) {
  return guarded([&] {
    const int64_t leading = p.c_layout == Layout::kRowMajor ? p.n : p.m;
    const Tensor sums =
        batch_view(l.workspace, p.m * p.n, p.m, p.n, p.c_layout, leading, DType::kFloat32, p, l);
    call_torch<Tensor>("aten::bmm", "dtype_out", a, batch_of_b(p, l), kFloat, sums);
    call_torch<Tensor>("aten::copy_", "", batch_of_c(p, l), sums, false);
  });
}

}  // namespace sparse_autotune
