#include "ops/registered.h"

#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "autotune/problem_text.h"
#include "autotune/registry.h"
#include "ops/dispatched.h"

namespace sparse_autotune {
namespace {

class Registered final : public Variant {
 public:
  // Registered objects live as long as the process, and so do their names.
  explicit Registered(api::RegisteredVariant facts)
      : Variant(facts.device, *new std::string(facts.name), facts.op), facts_(std::move(facts)) {}

  Support supports(const Problem& p, const Device&) const override {
    if (p.op == Op::kSampled && p.batch > 1) {
      return Support::no("registered variants of sampled_matmul do not sum over a batch");
    }
    const std::string why = facts_.refusal(problem_text(p));
    return why.empty() ? Support::yes() : Support::no(why);
  }

  double estimate_us(const Problem&, const Device&) const override {
    return std::numeric_limits<double>::infinity();
  }

  // On torch's current stream, which is the launch's.
  Status launch(const Problem& p, const Launch& l) const override {
    int64_t code = 0;
    const Status status = guarded([&] {
      for (int64_t batch = 0; batch < p.batch && code == 0; ++batch) {
        code = p.op == Op::kSampled ? launch_sampled(p, l) : launch_product(p, l, batch);
      }
    });
    if (!status || code == 0) return status;
    return Status::failed(code == 2 ? StatusCode::kOutOfMemory : StatusCode::kLaunchFailed,
                          facts_.failure());
  }

  bool captures() const override { return facts_.captures || device() == DeviceType::kCpu; }
  bool deterministic() const override { return facts_.deterministic; }
  bool multiplies_padding() const override { return facts_.multiplies_padding; }

 private:
  static Tensor crow_of(const Problem& p, const Launch& l) {
    return tensor_over(l.crow_indices, {block_rows(p) + 1}, {1}, torch_dtype(p.index_type),
                       *l.device);
  }
  static Tensor one_for_each_block(const void* indices, const Problem& p, const Launch& l) {
    return tensor_over(indices, {p.nnzb}, {1}, torch_dtype(p.index_type), *l.device);
  }
  static Tensor blocks_of(const void* values, const Problem& p, const Launch& l) {
    return tensor_over(values, {p.nnzb, p.block_m, p.block_k},
                       {p.block_m * p.block_k, row_stride_in_block(p), k_stride_in_block(p)},
                       torch_dtype(p.dtype), *l.device);
  }

  int64_t launch_product(const Problem& p, const Launch& l, int64_t batch) const {
    std::optional<Tensor> bias, positions;
    if (p.has_bias) bias = tensor_over(l.bias, {p.m}, {1}, torch_dtype(p.dtype), *l.device);
    if (p.transpose) positions = one_for_each_block(l.positions, p, l);
    return call_torch<int64_t>(facts_.dispatched.c_str(), "", crow_of(p, l),
                               one_for_each_block(l.col_indices, p, l), blocks_of(l.values, p, l),
                               view_of_b(p, l, batch), view_of_c(p, l, batch), bias, positions,
                               static_cast<int64_t>(p.activation), p.transpose);
  }

  int64_t launch_sampled(const Problem& p, const Launch& l) const {
    return call_torch<int64_t>(facts_.dispatched.c_str(), "", crow_of(p, l),
                               one_for_each_block(l.col_indices, p, l), view_of_c(p, l, 0),
                               view_of_b(p, l, 0), blocks_of(l.sampled, p, l));
  }

  const api::RegisteredVariant facts_;
};

}  // namespace

namespace api {

void register_variant(RegisteredVariant variant) {
  add_variant(*new Registered(std::move(variant)));
}

void unregister_variant(const std::string& name) { remove_variant(name); }

}  // namespace api
}  // namespace sparse_autotune
