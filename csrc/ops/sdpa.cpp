// PyTorch's scaled_dot_product_attention on the CPU, its flash kernel, with the mask as a dense
// one: it computes every block. Wins without a mask, and where a mask leaves out little.
#include "ops/sdpa_operands.h"

#include <limits>

namespace sparse_autotune {
namespace {

class Sdpa final : public DenseMaskSdpa {
 public:
  using DenseMaskSdpa::DenseMaskSdpa;

  Support supports(const attention::Problem& p, const Device&) const override {
    if (p.nonpositive_scale && p.is_causal && !attention::has_mask(p)) {
      return Support::no("torch's kernel hides scores before it scales them");
    }
    return Support::yes();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return guarded([&] {
      const SdpaOperands o(p, l);
      const bool causal = p.is_causal && !o.mask.has_value();
      const auto found =
          call_torch_for<2>("aten::_scaled_dot_product_flash_attention_for_cpu", {}, o.q, o.k, o.v,
                            0.0, causal, o.mask, std::optional<double>(l.scale));
      clear_unseeing_rows(p, l, view_of(found[0]), view_of(found[1]));
      give_results(l, std::array{o.out, o.lse}, found);
    });
  }

 private:
  static void clear_unseeing_rows(const attention::Problem& p, const attention::Launch& l,
                                  const TensorView& out, const TensorView& lse) {
    for_each_unseeing_row(p, l, [&](int64_t batch, int64_t head, int64_t row) {
      const auto place = [&](const TensorView& t) {
        const int64_t element = batch * t.strides[0] + head * t.strides[1] + row * t.strides[2];
        return static_cast<char*>(t.writable()) + element * size_of(t.type);
      };
      std::memset(place(out), 0, static_cast<size_t>(p.dim * size_of(p.dtype)));
      if (p.dtype == DType::kFloat64) {
        *reinterpret_cast<double*>(place(lse)) = -std::numeric_limits<double>::infinity();
      } else {
        *reinterpret_cast<float*>(place(lse)) = -std::numeric_limits<float>::infinity();
      }
    });
  }
};

const Sdpa kSdpa{DeviceType::kCpu, "sdpa/flash"};
const Registration kRegisterSdpa{kSdpa};

}  // namespace
}  // namespace sparse_autotune
