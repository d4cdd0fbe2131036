// PyTorch's scaled_dot_product_attention on a GPU with the mask of blocks as a dense one: its
// memory-efficient backend, the only one of them that takes a mask and gives lse. It computes every
// block. Wins where a mask leaves out little, or has blocks that no kernel of ours has tiles for.
#include <torch/csrc/stable/ops.h>

#include <algorithm>

#include "kernels/cuda/convert/dense_mask.h"
#include "ops/sdpa_operands.h"

namespace sparse_autotune {
namespace {

// What torch's kernel gets: all batch entries, or one of them where heads of q share heads of k.
// Then heads of k take the place of batch entries, and the heads of q that share one follow each
// other with a stride of 0 in k and v.
class Part {
 public:
  Part(const attention::Problem& p, const attention::Launch& l, int64_t batch)
      : p_(p), l_(l), batch_(batch), group_(p.heads / p.kv_heads) {}

  static int64_t count(const attention::Problem& p) { return p.heads == p.kv_heads ? 1 : p.batch; }

  Tensor of_queries(const void* data, const attention::TensorStrides& s) const {
    if (group_ == 1) return tensor(data, {p_.batch, p_.heads, p_.rows, p_.dim}, s.batch, s.head, s);
    return tensor(at(data, s), {p_.kv_heads, group_, p_.rows, p_.dim}, group_ * s.head, s.head, s);
  }
  Tensor of_keys(const void* data, const attention::TensorStrides& s) const {
    if (group_ == 1) {
      return tensor(data, {p_.batch, p_.heads, p_.columns, p_.dim}, s.batch, s.head, s);
    }
    return tensor(at(data, s), {p_.kv_heads, group_, p_.columns, p_.dim}, s.head, 0, s);
  }
  Tensor mask() const {
    const int64_t leading = dense_mask_leading(p_.columns), one = p_.rows * leading;
    const attention::TensorStrides s{p_.mask_batch_stride * one, p_.mask_head_stride * one,
                                     leading};
    if (group_ == 1) {
      return tensor(l_.prepared, {p_.batch, p_.heads, p_.rows, p_.columns}, s.batch, s.head, s);
    }
    return tensor(at(l_.prepared, s), {p_.kv_heads, group_, p_.rows, p_.columns}, group_ * s.head,
                  s.head, s);
  }
  Tensor out() const { return of_queries(l_.out, attention::strides_of_out(p_)); }
  Tensor lse() const {
    const int64_t first = group_ == 1 ? p_.batch : p_.kv_heads;
    const int64_t second = group_ == 1 ? p_.heads : group_;
    const auto* const rows = static_cast<const float*>(l_.lse) + batch_ * p_.heads * p_.rows;
    return tensor_over(rows, {first, second, p_.rows}, {second * p_.rows, p_.rows, 1},
                       element_type(DType::kFloat32), *l_.device);
  }

 private:
  const void* at(const void* data, const attention::TensorStrides& s) const {
    return static_cast<const char*>(data) + batch_ * s.batch * size_of(p_.dtype);
  }
  Tensor tensor(const void* data, std::initializer_list<int64_t> sizes, int64_t first,
                int64_t second, const attention::TensorStrides& s) const {
    // Along a dimension of one nobody walks, but torch's kernel wants its stride aligned.
    const int64_t* const size = sizes.begin();
    const auto along = [&](int i, int64_t stride) { return size[i] > 1 ? stride : p_.dim; };
    return tensor_over(data, sizes, {along(0, first), along(1, second), along(2, s.row), 1},
                       element_type(p_.dtype), *l_.device);
  }

  const attention::Problem& p_;
  const attention::Launch& l_;
  int64_t batch_, group_;
};

int64_t mask_bytes(const attention::Problem& p) {
  return p.patterns * p.rows * dense_mask_leading(p.columns) * size_of(p.dtype);
}

class TorchSdpaMasked final : public attention::Variant {
 public:
  using attention::Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (!attention::has_mask(p)) return Support::no("there is no mask");
    if (d.compute_capability < 80) return Support::no("needs compute capability 8.0");
    if (p.dtype == DType::kFloat64) return Support::no("needs fp16, bf16 or fp32");
    if (p.dim % 8 != 0) return Support::no("needs heads of a multiple of 8 numbers");
    if (std::min({p.q_alignment, p.k_alignment, p.v_alignment}) < 16) {
      return Support::no("needs addresses and strides that are multiples of 16 bytes");
    }
    if (p.patterns * p.rows > INT32_MAX || p.batch * p.heads * p.rows > INT32_MAX) {
      return Support::no("needs fewer rows than 2^31");
    }
    return Support::yes();
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    const double bytes = attention::compulsory_bytes(p) + static_cast<double>(mask_bytes(p)) +
                         attention::all_pairs(p) * static_cast<double>(size_of(p.dtype));
    return roofline_us(attention::dense_flops(p), 0.25 * peak_tflops(p.dtype, p.allow_tf32, d),
                       bytes, d.memory_gbps, 20.0);
  }

  int64_t prepared_bytes(const attention::Problem& p, const Device&) const override {
    return mask_bytes(p);
  }
  Status prepare(const attention::Problem& p, const attention::Launch& l) const override {
    return write_dense_mask(p, l);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    const Status computed = guarded([&] {
      for (int64_t batch = 0; batch < Part::count(p); ++batch) {
        const Part part(p, l, batch);
        auto found = call_torch_for<2, 4>(
            "aten::_scaled_dot_product_efficient_attention", {2, 3}, part.of_queries(l.q, p.q),
            part.of_keys(l.k, p.k), part.of_keys(l.v, p.v), std::optional<Tensor>(part.mask()),
            true, 0.0, false, std::optional<double>(l.scale));
        call_torch<Tensor>("aten::copy_", "", part.out(), found[0], false);
        // lse is padded to whole tiles.
        const Tensor rows = torch::stable::narrow(found[1], 2, 0, p.rows);
        call_torch<Tensor>("aten::copy_", "", part.lse(), rows, false);
      }
    });
    return computed ? clear_unseeing_rows(p, l) : computed;
  }

  bool multiplies_padding() const override { return true; }
};

const TorchSdpaMasked kTorchSdpaMasked{DeviceType::kCuda, "torch_sdpa_masked/efficient"};
const Registration kRegisterTorchSdpaMasked{kTorchSdpaMasked};

}  // namespace
}  // namespace sparse_autotune
