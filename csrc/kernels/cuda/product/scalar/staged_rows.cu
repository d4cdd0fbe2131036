// Products of small square blocks with few columns in fp32 and fp64, by way of shared memory.
//
// staged_rows.cuh has the kernel. Data path of A: global -> shared -> registers; of B: through L1,
// 16 bytes a lane. A B that is not whole rows of 16 bytes is laid anew first, in the workspace.
// Requires: blocks of 1 to 6, 2 to 64 columns. Wins: there, where no row is much longer than
// others.
#include "kernels/cuda/product/scalar/staged_rows.cuh"

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/product/scalar/small_blocks.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxBlock = 6, kMaxColumns = 64, kMaxBatch = 65535;

class StagedRows final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    if (std::max({p.block_k * most_b_row_bytes(p), p.m, 2 * p.nnzb}) > INT32_MAX ||
        p.batch > kMaxBatch) {
      return Support::no("has 31 bits for rows, twice the blocks and the bytes of a block's B");
    }
    return takes_small_blocks(p, d, kMaxBlock, kMaxColumns);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // On an H200: shares of the memory's rate; what a lane's step along the longest row takes, and
    // a multiprocessor's copy of a vector of a block that does not lie in order.
    constexpr double kStepUs = 0.15, kVectorUs = 5e-4, kLaunchUs = 3, kUneven = 1.3;
    const double gbps = p.n * size_of(p.dtype) <= 32 ? 600 : 510;
    const double turned = 2 * static_cast<double>(workspace_bytes(p, d));
    double us = (compulsory_bytes(p) + turned) / (d.memory_gbps * gbps);
    if (p.n % word_columns(p) != 0) us *= kUneven;
    if (p.transpose) {
      const int64_t bytes = p.block_m * p.block_k * size_of(p.dtype);
      const int64_t vectors = p.nnzb * p.batch * bytes / std::min<int64_t>(bytes & -bytes, 16);
      us += static_cast<double>(vectors) * kVectorUs / std::max(d.multiprocessors, 1);
    }
    const double longest = static_cast<double>(std::max<int64_t>(p.longest_row, 0));
    return us + kLaunchUs * (turned > 0 ? 2 : 1) + longest / block_lanes(p) * kStepUs;
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return laid_b_bytes(p);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<StagedRowsArguments>(p, l);
    const int64_t item = size_of(p.dtype);
    DenseLines b;
    const Status status = lay_b(p, l, l.workspace, &b);
    if (!status) return status;
    a.b = b.memory;
    a.b_batch = b.batch_stride * item;
    const bool c_rows = p.c_layout == Layout::kRowMajor;
    a.b_k = static_cast<int>(b.pitch * item);
    a.rows = static_cast<int>(block_rows(p));
    a.column_lanes = static_cast<int>(row_words(p));
    a.block_lanes = block_lanes(p);
    const auto reciprocal = [](int x) { return static_cast<unsigned>(ceil_div(1 << 16, x)); };
    a.by_column_lanes = reciprocal(a.column_lanes);
    a.by_block_lanes = reciprocal(a.block_lanes);
    a.stores_words = c_rows && p.c_alignment >= 16 && p.n % word_columns(p) == 0;

    // As many rows as leave room for several thread blocks on a multiprocessor.
    constexpr int64_t kMostBytes = 32 << 10, kAllBytes = 46 << 10;
    const int64_t block_bytes = p.block_m * p.block_k * item + size_of(p.index_type);
    const double mean = static_cast<double>(p.nnzb) / std::max<double>(1, a.rows);
    const int row_lanes = a.column_lanes * a.block_lanes;
    const int64_t fit = static_cast<int64_t>(kMostBytes / (mean * block_bytes + 1)) + 1;
    const int64_t most = std::max(kStagedThreads / row_lanes, 1);
    const int64_t share = ceil_div(a.rows, int64_t{4} * std::max(l.device->multiprocessors, 1));
    a.rows_each = static_cast<int>(std::clamp<int64_t>(std::min(fit, share), 1, most));
    const auto wanted = static_cast<int64_t>(mean * a.rows_each * 1.1) + 8;
    a.chunk = static_cast<int>(std::clamp<int64_t>(wanted, 16, kAllBytes / block_bytes));
    a.columns_at = static_cast<int>(ceil_div(a.chunk * p.block_m * p.block_k * item, 16) + 1) * 16;
    const int64_t shared = a.columns_at + a.chunk * size_of(p.index_type) + 32;
    const int threads = static_cast<int>(ceil_div(a.rows_each * row_lanes, 32)) * 32;
    const dim3 blocks(static_cast<unsigned>(ceil_div(a.rows, a.rows_each)),
                      static_cast<unsigned>(p.batch));
    with_block_side<kMaxBlock>(p.dtype, p.block_m, [&]<typename T, int kBlock>() {
      const auto kernel = p.transpose ? &staged_rows_kernel<T, kBlock, true>
                                      : &staged_rows_kernel<T, kBlock, false>;
      kernel<<<blocks, threads, static_cast<size_t>(shared), static_cast<cudaStream_t>(l.stream)>>>(
          a);
    });
    return to_status(cudaGetLastError(), name());
  }

 private:
  // Of a block row, over stored blocks: a power of two where there are several, all of one warp.
  static int block_lanes(const Problem& p) {
    const int64_t columns = row_words(p);
    if (p.block_m == 1 || (columns & (columns - 1)) != 0) return 1;
    const int64_t all = p.block_m <= 3 ? size_of(p.dtype) : 16;  // of a block row, measured
    return static_cast<int>(std::clamp<int64_t>(all / columns, 1, columns == 1 ? 8 : 4));
  }
};

const StagedRows kStagedRows{DeviceType::kCuda, "staged_rows/lanes"};
const Registration kRegister{kStagedRows};

}  // namespace
}  // namespace sparse_autotune
