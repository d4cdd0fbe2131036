// cpu_rows: C = A * B on a CPU for small blocks and few columns, bound by reading A once.
//
// One thread owns whole block rows and keeps their sums in registers while it walks their blocks.
// One column (`matmul` with a vector; few columns of a column-major B, one at a time): lanes lie
// along a block's elements as they are stored, so A is read in whole vectors whatever its blocks
// are; each lane's element of B is picked from the block's own by a permutation, or gathered where
// a vector holds several blocks. More columns: lanes along them, each element of A broadcast. B is
// copied (turned) first where its layout is not the one that the form reads.
// Threads take parts of equal length, in stored blocks; a row that is long beside them is cut into
// segments whose sums are added up in order behind the walk. Where it is cut depends on the pattern
// alone, so results do not depend on the number of threads.
// A^T is read in place: its blocks in their own order, the lanes' elements of B picked accordingly.
// Half types are widened on the way: rows_product.h.
#include "kernels/cpu/microkernels/rows.h"
#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/product/rows_product.h"

namespace sparse_autotune::cpu_rows {
namespace {

class Rows final : public Variant {
 public:
  Rows(std::string_view name, const cpu_tiled::Level& level, const RowKernels* (*kernels)(DType))
      : Variant(DeviceType::kCpu, name), level_(level), kernels_(kernels) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    if (p.k > INT32_MAX) return Support::no("k does not fit into 31 bits");
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double share = shape_of(p, kernels_of(p).lanes).vectors
                             ? 0.15
                             : 0.35 * cpu_tiled::lanes_used(p, kernels_of(p).lanes);
    const double widened = is_half(p.dtype) ? values_bytes(p) : 0;
    return roofline_us(nnz_flops(p), fma_tflops(p, d) * share * level_.width(d),
                       compulsory_bytes(p) + widened, d.memory_gbps, 3.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Shape s = shape_of(p, kernels_of(p).lanes);
    return s.b_bytes + s.sums_bytes + s.bias_bytes + cpu_tiled::count_slots(p, d) * s.slot_bytes;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    if (p.dtype == DType::kFloat64) {
      Product<double>(p, l, kernels_of(p), *level_.kernels(p.dtype)).run();
    } else {
      Product<float>(p, l, kernels_of(p), *level_.kernels(p.dtype)).run();
    }
    return Status::ok();
  }

 private:
  const RowKernels& kernels_of(const Problem& p) const {
    return *kernels_(is_half(p.dtype) ? DType::kFloat32 : p.dtype);
  }

  const cpu_tiled::Level& level_;
  const RowKernels* (*kernels_)(DType);
  Registration registration_{*this};
};

const Rows kVariants[] = {
    {"cpu_rows/avx2", cpu_tiled::kAvx2, avx2_row_kernels},
    {"cpu_rows/avx512", cpu_tiled::kAvx512, avx512_row_kernels},
};

}  // namespace
}  // namespace sparse_autotune::cpu_rows
