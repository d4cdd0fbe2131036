// The GPU's dense product: A densified, then aten::mm (cuBLAS) under torch's own precision
// settings. Those allow reduced-precision split-K partials in half types by default; verification
// disqualifies the variant where that shows. Wins at high density.
#include "kernels/cuda/apply_epilogue.h"
#include "kernels/cuda/convert/densify.h"
#include "ops/dispatched.h"

namespace sparse_autotune {
namespace {

class CublasDense final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem&, const Device&) const override { return Support::yes(); }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double product = roofline_us(2.0 * p.m * p.k * p.n * p.batch, 0.75 * peak_tflops(p, d),
                                       compulsory_bytes(p), d.memory_gbps, 5.0);
    if (p.frozen) return product;
    return product + roofline_us(0, 0, 2.0 * prepared_bytes(p, d), d.memory_gbps, 5.0);
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return p.m * p.k * size_of(p.dtype);
  }

  Status prepare(const Problem& p, const Launch& l) const override {
    return densify_cuda(p, l, l.prepared);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Status status = mm_into_c(dense_operand(p, l), p, l);
    return status ? apply_epilogue(p, l) : std::move(status);
  }

  bool multiplies_padding() const override { return true; }

 private:
  // op(A), where `prepared` holds A as stored.
  static Tensor dense_operand(const Problem& p, const Launch& l) {
    return tensor_over(l.prepared, {p.m, p.k}, {p.transpose ? 1 : p.k, p.transpose ? p.m : 1},
                       torch_dtype(p.dtype), *l.device);
  }
};

const CublasDense kCublasDense{DeviceType::kCuda, "cublas_dense/mm"};
const Registration kRegisterCublasDense{kCublasDense};

}  // namespace
}  // namespace sparse_autotune
