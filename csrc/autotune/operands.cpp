#include "autotune/operands.h"

namespace sparse_autotune {
namespace {

int64_t aligned_up(int64_t offset) {
  return ceil_div(offset, kOperandAlignment) * kOperandAlignment;
}

// An offset at or above `at` whose address is a multiple of `alignment` bytes and of nothing more
// (16 and above count as alike).
int64_t place(int64_t at, int64_t alignment) {
  return aligned_up(at) + (alignment < 16 ? alignment : 0);
}

Strides strides(int64_t rows, int64_t cols, Layout layout, int64_t ld, const Problem& p,
                int64_t batch_stride) {
  const bool row_major = layout == Layout::kRowMajor;
  return {rows, cols, row_major ? ld : 1, row_major ? 1 : ld, p.batch, batch_stride};
}

}  // namespace

Strides strides_of_values(const Problem& p) {
  return {p.block_m, p.block_k, p.block_k, 1, p.nnzb, p.block_m * p.block_k};
}
Strides strides_of_b(const Problem& p) {
  return strides(p.k, p.n, p.b_layout, p.ldb, p, p.b_batch_stride);
}
Strides strides_of_c(const Problem& p) {
  return strides(p.m, p.n, p.c_layout, p.ldc, p, p.c_batch_stride);
}
Strides strides_of_output(const Problem& p) {
  return p.op == Op::kSampled ? strides_of_values(p) : strides_of_c(p);
}

OperandLayout lay_out_operands(const Problem& p) {
  const int64_t item = size_of(p.dtype), index = size_of(p.index_type);
  OperandLayout l{};
  int64_t end = 0;
  const auto put = [&](int64_t bytes, int64_t alignment) {
    const int64_t offset = place(end, alignment);
    end = offset + bytes;
    return offset;
  };
  l.crow_indices = put((block_rows(p) + 1) * index, 16);
  l.col_indices = put(p.nnzb * index, 16);
  l.positions = put(p.transpose ? p.nnzb * index : 0, 16);
  l.b = put(strides_of_b(p).span() * item, p.b_alignment);
  l.bias = put(p.has_bias ? p.m * item : 0, item);
  const auto put_values = [&] {
    return put(p.nnzb * p.block_m * p.block_k * item, p.values_alignment);
  };
  const auto put_c = [&] { return put(strides_of_c(p).span() * item, p.c_alignment); };
  const bool sampled = p.op == Op::kSampled;
  (sampled ? l.c : l.values) = sampled ? put_c() : put_values();
  l.output_begin = aligned_up(end);
  end = l.output_begin + kGuardBytes;
  l.output = sampled ? put_values() : put_c();
  (sampled ? l.values : l.c) = l.output;
  l.bytes = aligned_up(end + kGuardBytes);
  l.output_bytes = l.bytes - l.output_begin;
  return l;
}

std::vector<Input> inputs_of(const OperandLayout& layout, const Problem& p) {
  const auto number = [](uint64_t operand) { return operand << 60; };
  std::vector<Input> inputs = {{layout.b, strides_of_b(p), number(1)}};
  if (p.op == Op::kSampled) {
    inputs.push_back({layout.c, strides_of_c(p), number(3)});
  } else {
    inputs.push_back({layout.values, strides_of_values(p), number(0)});
  }
  if (p.has_bias) inputs.push_back({layout.bias, Strides{1, p.m, 0, 1, 1, 0}, number(2)});
  return inputs;
}

Launch launch_on(const OperandLayout& layout, const Problem& p, const Launch& user, char* base) {
  Launch l = user;
  l.crow_indices = base + layout.crow_indices;
  l.col_indices = base + layout.col_indices;
  l.positions = p.transpose ? base + layout.positions : nullptr;
  l.b = base + layout.b;
  l.bias = p.has_bias ? base + layout.bias : nullptr;
  l.c = base + layout.c;
  if (p.op == Op::kSampled) {
    l.values = nullptr;
    l.sampled = base + layout.values;
  } else {
    l.values = base + layout.values;
  }
  return l;
}

}  // namespace sparse_autotune
