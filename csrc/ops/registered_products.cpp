// Registered variants of products. Of a sparse product the operator is
//   (Tensor crow_indices, Tensor col_indices, Tensor values, Tensor b, Tensor(a!) out,
//    Tensor? bias, Tensor? positions, int activation, bool transpose) -> int
// for one matrix of the batch; `values` are the blocks of op(A), whose block i is number
// positions[i]. Of a sampled product it is
//   (Tensor crow_indices, Tensor col_indices, Tensor x, Tensor b, Tensor(a!) out) -> int
#include <optional>

#include "ops/registered_variant.h"

namespace sparse_autotune {
namespace {

class RegisteredProduct final : public RegisteredAs<Variant, Op, Problem, Launch> {
 public:
  using RegisteredAs::RegisteredAs;

  Support supports(const Problem& p, const Device& d) const override {
    if (p.op == Op::kSampled && p.batch > 1) {
      return Support::no("registered variants of sampled_matmul do not sum over a batch");
    }
    return RegisteredAs::supports(p, d);
  }

 private:
  static Tensor crow_of(const Problem& p, const Launch& l) {
    return tensor_over(l.crow_indices, {block_rows(p) + 1}, {1}, element_type(p.index_type),
                       *l.device);
  }
  static Tensor one_for_each_block(const void* indices, const Problem& p, const Launch& l) {
    return tensor_over(indices, {p.nnzb}, {1}, element_type(p.index_type), *l.device);
  }
  static Tensor blocks_of(const void* values, const Problem& p, const Launch& l) {
    return tensor_over(values, {p.nnzb, p.block_m, p.block_k},
                       {p.block_m * p.block_k, row_stride_in_block(p), k_stride_in_block(p)},
                       element_type(p.dtype), *l.device);
  }

  int64_t call(const char* name, const Problem& p, const Launch& l) const override {
    int64_t code = 0;
    for (int64_t batch = 0; batch < p.batch && code == 0; ++batch) {
      code = p.op == Op::kSampled ? call_sampled(name, p, l) : call_product(name, p, l, batch);
    }
    return code;
  }

  static int64_t call_product(const char* name, const Problem& p, const Launch& l, int64_t batch) {
    std::optional<Tensor> bias, positions;
    if (p.has_bias) bias = tensor_over(l.bias, {p.m}, {1}, element_type(p.dtype), *l.device);
    if (p.transpose) positions = one_for_each_block(l.positions, p, l);
    return call_torch<int64_t>(name, "", crow_of(p, l), one_for_each_block(l.col_indices, p, l),
                               blocks_of(l.values, p, l), view_of_b(p, l, batch),
                               view_of_c(p, l, batch), bias, positions,
                               static_cast<int64_t>(p.activation), p.transpose);
  }

  static int64_t call_sampled(const char* name, const Problem& p, const Launch& l) {
    return call_torch<int64_t>(name, "", crow_of(p, l), one_for_each_block(l.col_indices, p, l),
                               view_of_c(p, l, 0), view_of_b(p, l, 0), blocks_of(l.sampled, p, l));
  }
};

}  // namespace

const AnyVariant* registered_product(const api::RegisteredVariant& facts) {
  for (const Op kind : {Op::kMatmul, Op::kSampled}) {
    if (operator_of(kind).name() == facts.op) return new RegisteredProduct(facts, kind);
  }
  return nullptr;
}

}  // namespace sparse_autotune
