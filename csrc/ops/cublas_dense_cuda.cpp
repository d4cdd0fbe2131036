// The GPU's dense product: A densified, then aten::mm for each matrix of a batch, or aten::bmm for
// all (cuBLAS), under torch's own precision settings. Those allow reduced-precision split-K
// partials in half types by default; verification disqualifies a variant where that shows. A third
// has the product in fp32 and rounds it at the end. Wins at high density.
#include "kernels/cuda/convert/move_blocks.h"
#include "kernels/cuda/host/apply_epilogue.h"
#include "ops/dispatched.h"

namespace sparse_autotune {
namespace {

enum class Call { kEach, kBatch, kThroughFp32 };

class CublasDense final : public Variant {
 public:
  CublasDense(std::string_view name, Call call) : Variant(DeviceType::kCuda, name), call_(call) {}

  Support supports(const Problem& p, const Device&) const override {
    if (call_ == Call::kBatch && p.batch == 1) {
      return Support::no("multiplies batches, this is one matrix");
    }
    if (call_ == Call::kThroughFp32 && !is_half(p.dtype)) {
      return Support::no("is for fp16 and bf16, whose sums it rounds last");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double calls = call_ == Call::kEach ? static_cast<double>(p.batch) : 1;
    double product = roofline_us(2.0 * p.m * p.k * p.n * p.batch, 0.75 * peak_tflops(p, d),
                                 compulsory_bytes(p), d.memory_gbps, 5.0 * calls);
    if (call_ == Call::kThroughFp32) {
      // Sums of twice C's size, written and read.
      product += roofline_us(0, 0, 4 * c_bytes(p), d.memory_gbps, 3.0);
    }
    return p.frozen ? product : product + densify_us(p, d);
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return call_ == Call::kThroughFp32 ? p.batch * p.m * p.n * size_of(DType::kFloat32) : 0;
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return p.m * p.k * size_of(p.dtype);
  }

  Status prepare(const Problem& p, const Launch& l) const override {
    return densify_cuda(p, l, l.prepared);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Layout as_stored = p.transpose ? Layout::kColMajor : Layout::kRowMajor;
    Status status = call_ == Call::kEach    ? mm_into_c(densified(p, l, as_stored), p, l)
                    : call_ == Call::kBatch ? bmm_into_c(as_stored, p, l)
                                            : bmm_through_fp32(as_stored, p, l);
    return status ? apply_epilogue(p, l) : std::move(status);
  }

  bool multiplies_padding() const override { return true; }

 private:
  Call call_;
  Registration registration_{*this};
};

const CublasDense kEach{"cublas_dense/mm", Call::kEach};
const CublasDense kBatch{"cublas_dense/bmm", Call::kBatch};
const CublasDense kThroughFp32{"cublas_dense/fp32_sums", Call::kThroughFp32};

}  // namespace
}  // namespace sparse_autotune
