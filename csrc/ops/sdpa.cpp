// PyTorch's scaled_dot_product_attention on the CPU, its flash kernel, with the mask as a dense
// one: it computes every block. Wins without a mask, and where a mask leaves out little.
#include "ops/sdpa_operands.h"

#include <limits>

namespace sparse_autotune {
namespace {

class Sdpa final : public DenseMaskSdpa {
 public:
  using DenseMaskSdpa::DenseMaskSdpa;

  Support supports(const attention::Problem&, const Device&) const override {
    return Support::yes();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return guarded([&] {
      const SdpaOperands o(p, l);
      const bool causal = p.is_causal && !o.mask.has_value();
      const auto [out, lse] =
          call_torch_for<2>("aten::_scaled_dot_product_flash_attention_for_cpu", {}, o.q, o.k, o.v,
                            0.0, causal, o.mask, std::optional<double>(l.scale));
      call_torch<Tensor>("aten::copy_", "", o.out, out, false);
      call_torch<Tensor>("aten::copy_", "", o.lse, lse, false);
      clear_unseeing_rows(p, l);
    });
  }

 private:
  static void clear_unseeing_rows(const attention::Problem& p, const attention::Launch& l) {
    const int64_t bytes = p.dim * size_of(p.dtype);
    for_each_unseeing_row(p, l, [&](int64_t batch, int64_t head, int64_t row) {
      const int64_t number = (batch * p.heads + head) * p.rows + row;
      std::memset(static_cast<char*>(l.out) + number * bytes, 0, static_cast<size_t>(bytes));
      if (p.dtype == DType::kFloat64) {
        static_cast<double*>(l.lse)[number] = -std::numeric_limits<double>::infinity();
      } else {
        static_cast<float*>(l.lse)[number] = -std::numeric_limits<float>::infinity();
      }
    });
  }
};

const Sdpa kSdpa{DeviceType::kCpu, "sdpa/flash"};
const Registration kRegisterSdpa{kSdpa};

}  // namespace
}  // namespace sparse_autotune
