// torch's own BSR product on the CPU (MKL), through the dispatcher.
// Requires square blocks and fp32 or fp64. Its MKL handle is built anew with every call.
#include <optional>
#include <vector>

#include "kernels/cpu/shared/epilogue.h"
#include "ops/dispatched.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kVectorBytes = 64;

class AtenBsr final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override {
    if (p.transpose) return Support::no("aten_bsr computes A @ B, not A^T @ B");
    if (p.block_m != p.block_k) {
      return Support::no("torch's BSR product needs square blocks, got " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (is_half(p.dtype)) {
      return Support::no("torch's BSR product on the CPU has no float16 and bfloat16");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // MKL takes fewer columns than a vector holds an element at a time, and blocks of 4 and 8 then
    // by code that is far slower than that.
    const bool few = p.n < kVectorBytes / size_of(p.dtype);
    const auto n = static_cast<double>(p.n);
    const double share = !few                               ? 0.15 * n / (n + 48)
                         : p.block_m == 4 || p.block_m == 8 ? 2e-4
                                                            : 0.008;
    return roofline_us(nnz_flops(p), share * peak_tflops(p, d), compulsory_bytes(p), d.memory_gbps,
                       10.0);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    std::optional<Tensor> a;
    Status status = guarded([&] { a = sparse_tensor(p, l); });
    if (status) status = mm_into_c(*a, p, l);
    if (status) apply_epilogue_cpu(p, l);
    return status;
  }

 private:
  static Tensor sparse_tensor(const Problem& p, const Launch& l) {
    const ElementType indices = element_type(p.index_type), dtype = element_type(p.dtype);
    const Tensor crow = tensor_over(l.crow_indices, {block_rows(p) + 1}, {1}, indices, *l.device);
    const Tensor col = tensor_over(l.col_indices, {p.nnzb}, {1}, indices, *l.device);
    const Tensor values = tensor_over(l.values, {p.nnzb, p.block_m, p.block_k},
                                      {p.block_m * p.block_k, p.block_k, 1}, dtype, *l.device);
    const auto type = p.dtype == DType::kFloat64 ? torch::headeronly::ScalarType::Double
                                                 : torch::headeronly::ScalarType::Float;
    return call_torch<Tensor>("aten::_sparse_bsr_tensor_unsafe", "", crow, col, values,
                              std::vector<int64_t>{p.m, p.k}, std::optional(type),
                              std::optional<torch::headeronly::Layout>(),
                              std::optional<torch::stable::Device>(), std::optional<bool>());
  }
};

const AtenBsr kAtenBsr{DeviceType::kCpu, "aten_bsr/mkl"};
const Registration kRegisterAtenBsr{kAtenBsr};

}  // namespace
}  // namespace sparse_autotune
