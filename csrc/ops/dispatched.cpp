#include "ops/dispatched.h"

#include <exception>
#include <utility>

namespace sparse_autotune {
namespace {

constexpr auto kFloat = torch::headeronly::ScalarType::Float;

// Matrices of equal shape, one after another.
struct Matrices {
  const void* data;
  DType dtype;
  int64_t rows, cols;
  Layout layout;
  int64_t leading, step;  // elements from line to line, and from matrix to matrix

  int64_t row_stride() const { return layout == Layout::kRowMajor ? leading : 1; }
  int64_t col_stride() const { return layout == Layout::kRowMajor ? 1 : leading; }
};

// That one, from its row `first` on.
Tensor one_of(const Matrices& m, int64_t number, const Launch& l, int64_t first = 0) {
  const int64_t offset = (number * m.step + first * m.row_stride()) * size_of(m.dtype);
  return tensor_over(static_cast<const char*>(m.data) + offset, {m.rows, m.cols},
                     {m.row_stride(), m.col_stride()}, element_type(m.dtype), *l.device);
}
Tensor all_of(const Matrices& m, const Problem& p, const Launch& l) {
  return tensor_over(m.data, {p.batch, m.rows, m.cols}, {m.step, m.row_stride(), m.col_stride()},
                     element_type(m.dtype), *l.device);
}

Matrices b_of(const Problem& p, const Launch& l) {
  return {l.b, p.dtype, p.k, p.n, p.b_layout, p.ldb, p.b_batch_stride};
}
Matrices c_of(const Problem& p, const Launch& l) {
  return {l.c, p.dtype, p.m, p.n, p.c_layout, p.ldc, p.c_batch_stride};
}
Matrices densified_a(const Problem& p, const Launch& l, Layout layout) {
  return {l.prepared, p.dtype, p.m, p.k, layout, layout == Layout::kRowMajor ? p.k : p.m, 0};
}

}  // namespace

Tensor view_of_b(const Problem& p, const Launch& l, int64_t batch) {
  return one_of(b_of(p, l), batch, l);
}
Tensor view_of_c(const Problem& p, const Launch& l, int64_t batch) {
  return one_of(c_of(p, l), batch, l);
}
Tensor densified(const Problem& p, const Launch& l, Layout layout) {
  return one_of(densified_a(p, l, layout), 0, l);
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

Status mm_rows(const Problem& p, const Launch& l, int64_t batch, int64_t first, int64_t rows,
               DType dtype, void* product) {
  return guarded([&] {
    Matrices c_rows = c_of(p, l), turned = b_of(p, l);
    c_rows.rows = rows;
    std::swap(turned.rows, turned.cols);
    turned.layout = p.b_layout == Layout::kRowMajor ? Layout::kColMajor : Layout::kRowMajor;
    const Tensor c = one_of(c_rows, batch, l, first), b = one_of(turned, batch, l);
    const Tensor out = one_of({product, dtype, rows, p.k, Layout::kRowMajor, p.k, 0}, 0, l);
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
        "aten::copy_", "", tensor_over(l.sampled, {count}, {1}, element_type(p.dtype), *l.device),
        tensor_over(from, {count}, {1}, element_type(DType::kFloat32), *l.device), false);
  });
}

Status mm_into_c(const Tensor& a, const Problem& p, const Launch& l) {
  return guarded([&] {
    for (int64_t batch = 0; batch < p.batch; ++batch) {
      call_torch<Tensor>("aten::mm", "out", a, view_of_b(p, l, batch), view_of_c(p, l, batch));
    }
  });
}

Status bmm_into_c(Layout prepared, const Problem& p, const Launch& l) {
  return guarded([&] {
    const Tensor a = all_of(densified_a(p, l, prepared), p, l);
    call_torch<Tensor>("aten::bmm", "out", a, all_of(b_of(p, l), p, l), all_of(c_of(p, l), p, l));
  });
}

Status bmm_through_fp32(Layout prepared, const Problem& p, const Launch& l) {
  return guarded([&] {
    const Tensor a = all_of(densified_a(p, l, prepared), p, l);
    const int64_t leading = p.c_layout == Layout::kRowMajor ? p.n : p.m;
    const Tensor sums =
        all_of({l.workspace, DType::kFloat32, p.m, p.n, p.c_layout, leading, p.m * p.n}, p, l);
    call_torch<Tensor>("aten::bmm", "dtype_out", a, all_of(b_of(p, l), p, l), kFloat, sums);
    call_torch<Tensor>("aten::copy_", "", all_of(c_of(p, l), p, l), sums, false);
  });
}

}  // namespace sparse_autotune
