// sampled_rows: values = C * B^T at the stored blocks, for small blocks and few columns.
//
// Lanes lie along a block's elements as they are stored. For each column, C's elements are laid out
// so once a block row, and B's are picked from its block row, packed before with a block's own
// elements together, by a permutation. Threads take equal shares of the blocks: each is computed by
// one thread, its terms in order.
#include <cmath>
#include <string>

#include "kernels/cpu/microkernels/rows.h"
#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/shared/tiled_blocking.h"
#include "kernels/cpu/shared/tiled_partition.h"

namespace sparse_autotune::cpu_rows {
namespace {

using cpu_tiled::count_slots;
using cpu_tiled::Indices;
using cpu_tiled::round_up;

constexpr int64_t kMostTerms = 256;  // C's elements of a block row should stay in the caches

int64_t packed_bytes(const Problem& p) {
  return round_up(p.k * sampled_length(p) * size_of(p.dtype), 256);
}
int64_t slot_bytes(const Problem& p, const RowKernels& kernels) {
  return round_up(sampled_length(p) * kExpandedVectors * kernels.lanes * size_of(p.dtype), 256) +
         256;
}

template <typename T>
void pack(const Problem& p, const Launch& l, int64_t slots) {
  const int64_t b_row = p.b_layout == Layout::kRowMajor ? p.ldb : 1;
  const int64_t b_column = p.b_layout == Layout::kRowMajor ? 1 : p.ldb;
  const int64_t columns = p.k / p.block_k;
  parallel_each(l.parallel, columns, ceil_div(columns, slots), [&](int64_t column) {
    T* to = static_cast<T*>(l.workspace) + column * sampled_length(p) * p.block_k;
    for (int64_t matrix = 0; matrix < p.batch; ++matrix) {
      const T* from =
          static_cast<const T*>(l.b) + matrix * p.b_batch_stride + column * p.block_k * b_row;
      for (int64_t j = 0; j < p.n; ++j) {
        for (int64_t k = 0; k < p.block_k; ++k) *to++ = from[k * b_row + j * b_column];
      }
    }
  });
}

class SampledRows final : public Variant {
 public:
  SampledRows(std::string_view name, const cpu_tiled::Level& level,
              const RowKernels* (*kernels)(DType))
      : Variant(DeviceType::kCpu, name, Op::kSampled), level_(level), kernels_(kernels) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    const RowKernels* kernels = kernels_(p.dtype);
    if (kernels == nullptr) return Support::no("half types are not summed as they are stored");
    if (p.block_k > kernels->lanes) {
      return Support::no("block_k is more than " + std::to_string(kernels->lanes));
    }
    if (p.block_m * p.block_k > kernels->sampled_elements) {
      return Support::no("blocks have more than " + std::to_string(kernels->sampled_elements) +
                         " elements");
    }
    if (sampled_length(p) > kMostTerms) {
      return Support::no("the sums have more than " + std::to_string(kMostTerms) + " terms");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const auto elements = static_cast<double>(p.block_m * p.block_k);
    const auto lanes = static_cast<double>(kernels_(p.dtype)->lanes);
    const double used = elements / (lanes * std::ceil(elements / lanes));
    return roofline_us(nnz_flops(p), fma_tflops(p, d) * 0.25 * used * level_.width(d),
                       2 * compulsory_bytes(p), d.memory_gbps, 5.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return packed_bytes(p) + count_slots(p, d) * slot_bytes(p, *kernels_(p.dtype));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const RowKernels& kernels = *kernels_(p.dtype);
    const int64_t slots = count_slots(p, *l.device);
    if (p.dtype == DType::kFloat64) {
      pack<double>(p, l, slots);
    } else {
      pack<float>(p, l, slots);
    }
    const Indices crow{l.crow_indices, p.index_type == IndexType::kInt64};
    SampledTask task{};
    task.crow = crow;
    task.columns = {l.col_indices, crow.wide};
    task.block_m = p.block_m;
    task.block_k = p.block_k;
    task.c = l.c;
    task.c_row = p.c_layout == Layout::kRowMajor ? p.ldc : 1;
    task.c_column = p.c_layout == Layout::kRowMajor ? 1 : p.ldc;
    task.c_batch = p.c_batch_stride;
    task.n = p.n;
    task.batch = p.batch;
    task.b = l.workspace;
    task.values = l.sampled;
    const int64_t parts = cpu_tiled::parts_of(slots), rows = p.m / p.block_m;
    cpu_tiled::for_each_part(l.parallel, slots, parts, [&](int64_t slot, int64_t part) {
      SampledTask mine = task;
      mine.expanded =
          static_cast<char*>(l.workspace) + packed_bytes(p) + slot * slot_bytes(p, kernels);
      mine.begin = cpu_tiled::part_begin(p.nnzb, parts, part);
      mine.end = cpu_tiled::part_begin(p.nnzb, parts, part + 1);
      if (mine.begin == mine.end) return;
      mine.row = cpu_tiled::row_at(rows, mine.begin, [&](int64_t row) { return crow[row]; });
      kernels.sample(mine);
    });
    return Status::ok();
  }

 private:
  const cpu_tiled::Level& level_;
  const RowKernels* (*kernels_)(DType);
  Registration registration_{*this};
};

const SampledRows kVariants[] = {
    {"sampled_rows/avx2", cpu_tiled::kAvx2, avx2_row_kernels},
    {"sampled_rows/avx512", cpu_tiled::kAvx512, avx512_row_kernels},
};

}  // namespace
}  // namespace sparse_autotune::cpu_rows
