// The simplest correct product on a CPU: every block size, dtype and layout, accumulated in fp64.
// The kernel to copy when writing a new one, and the variant that everything else is compared with.
#include "kernels/activation.h"
#include "kernels/cpu/shared/elements.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

class Reference final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem&, const Device&) const override { return Support::yes(); }

  double estimate_us(const Problem& p, const Device& d) const override {
    return nnz_flops(p) / (0.5e3 * d.threads) + 1.0;  // about 0.5 GFLOP/s a thread
  }

  Status launch(const Problem& p, const Launch& l) const override {
    // About 8 us a thread at least: a team is not worth waking for less.
    const double row_flops = nnz_flops(p) / static_cast<double>(p.m * p.batch) + p.n;
    const auto grain = static_cast<int64_t>(4000 / row_flops) + 1;
    parallel_each(l.parallel, p.m * p.batch, grain,
                  [&](int64_t row) { compute_row(p, l, row / p.m, row % p.m); });
    return Status::ok();
  }

 private:
  // Row i of the result for one matrix of the batch.
  static void compute_row(const Problem& p, const Launch& l, int64_t batch, int64_t i) {
    const int64_t b_row = p.b_layout == Layout::kRowMajor ? p.ldb : 1;
    const int64_t b_col = p.b_layout == Layout::kRowMajor ? 1 : p.ldb;
    const int64_t c_row = p.c_layout == Layout::kRowMajor ? p.ldc : 1;
    const int64_t c_col = p.c_layout == Layout::kRowMajor ? 1 : p.ldc;
    const int64_t first = load_index(l.crow_indices, i / p.block_m, p.index_type);
    const int64_t last = load_index(l.crow_indices, i / p.block_m + 1, p.index_type);
    for (int64_t j = 0; j < p.n; ++j) {
      double sum = p.has_bias ? load(l.bias, i, p.dtype) : 0;
      for (int64_t block = first; block < last; ++block) {
        const int64_t k0 = load_index(l.col_indices, block, p.index_type) * p.block_k;
        const int64_t position = p.transpose ? load_index(l.positions, block, p.index_type) : block;
        const int64_t a0 =
            position * p.block_m * p.block_k + i % p.block_m * row_stride_in_block(p);
        for (int64_t kk = 0; kk < p.block_k; ++kk) {
          const int64_t a_at = a0 + kk * k_stride_in_block(p);
          const int64_t b_at = batch * p.b_batch_stride + (k0 + kk) * b_row + j * b_col;
          sum += load(l.values, a_at, p.dtype) * load(l.b, b_at, p.dtype);
        }
      }
      store(l.c, batch * p.c_batch_stride + i * c_row + j * c_col, p.dtype,
            activate(sum, p.activation));
    }
  }
};

const Reference kReference{DeviceType::kCpu, "reference/fp64"};
const Registration kRegisterReference{kReference};

}  // namespace
}  // namespace sparse_autotune
