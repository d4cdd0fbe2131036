// Products of small blocks with a vector in fp32 and fp64, whatever the lengths of rows.
//
// flat_rows.cuh has the kernel. Values and B go to registers, what is to be added up to shared
// memory; one launch, and nothing is planned.
// Requires: one column, block_k up to 8, block_m up to 32. Wins: nearly everywhere there.
#include "kernels/cuda/product/scalar/flat_rows.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/product/scalar/small_blocks.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxBlockM = 32, kMaxBlockK = 8, kMaxVectors = kPartCounters / 2;

class FlatRows final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device&) const override {
    if (is_half(p.dtype)) return Support::no("multiplies fp32 and fp64 only");
    if (p.n != 1) return Support::no("is for one column, got " + std::to_string(p.n));
    if (p.block_m > kMaxBlockM || p.block_k > kMaxBlockK) {
      return Support::no("is for blocks of at most 32 rows and 8 columns, got " +
                         block_text(p.block_m, p.block_k));
    }
    if (p.b_layout == Layout::kRowMajor && p.ldb != 1) {
      return Support::no("needs B's elements next to each other");
    }
    const int64_t run = p.block_k * size_of(p.dtype), word = std::min<int64_t>(run & -run, 16);
    const bool aligned = p.transpose || p.values_alignment >= word;
    if (!aligned || p.b_alignment < word) {
      return Support::no("reads values and B " + std::to_string(word) +
                         " bytes at a time, to which they must be aligned");
    }
    if (std::max(p.m, p.nnzb) > INT32_MAX / 2) {
      return Support::no("has 30 bits for rows and blocks");
    }
    if (p.batch > kMaxVectors) {
      return Support::no("is for at most " + std::to_string(kMaxVectors) + " vectors");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // On an H200: shares of the memory's rate, what a chunk of the longest row takes, a launch.
    const double gbps = p.dtype == DType::kFloat64 ? 830 : 730, transposed = p.transpose ? 1.11 : 1;
    constexpr double kChunkUs = 1.5, kLaunchUs = 3;
    const double longest =
        static_cast<double>(std::min(p.longest_row >= 0 ? p.longest_row : p.nnzb, limit(p)));
    return kLaunchUs + compulsory_bytes(p) / (d.memory_gbps * gbps) * transposed +
           longest / chunk(p, rows_each(p, d)) * kChunkUs;
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return 2 * stretches(p) * p.block_m * p.batch * size_of(p.dtype);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<FlatRowsArguments>(p, l);
    const int64_t item = size_of(p.dtype);
    a.b_batch = p.b_batch_stride * item;
    a.a_block = static_cast<int>(p.block_m * p.block_k * item);
    a.a_row = static_cast<int>(row_stride_in_block(p) * item);
    a.a_k = static_cast<int>(k_stride_in_block(p) * item);
    a.rows = static_cast<int>(block_rows(p));
    a.nnzb = static_cast<int>(p.nnzb);
    a.rows_each = rows_each(p, *l.device);
    a.chunk = chunk(p, a.rows_each);
    a.limit = INT32_MAX;
    a.by_block_m = static_cast<unsigned>(ceil_div(int64_t{1} << 31, p.block_m));
    const auto stream = static_cast<cudaStream_t>(l.stream);
    if (const int64_t parts = stretches(p); parts > 0) {
      a.partials = l.workspace;
      a.counters = part_counters(l.device->ordinal, stream);
      // Without them nobody could tell which part of a row ends last.
      if (a.counters != nullptr) {
        a.limit = static_cast<int>(limit(p));
        a.segments = static_cast<int>(2 * parts);
      }
    }
    const dim3 blocks(static_cast<unsigned>(a.segments + ceil_div(a.rows, a.rows_each)),
                      static_cast<unsigned>(p.batch));
    const auto shared = static_cast<size_t>(a.chunk * p.block_m * item);
    with_block_side<kMaxBlockK>(p.dtype, p.block_k, [&]<typename T, int kBlockK>() {
      if (p.transpose) {
        flat_rows_kernel<T, kBlockK, true><<<blocks, kFlatThreads, shared, stream>>>(a);
      } else {
        flat_rows_kernel<T, kBlockK, false><<<blocks, kFlatThreads, shared, stream>>>(a);
      }
    });
    return to_status(cudaGetLastError(), name());
  }

 private:
  // Of a thread block: as many as it has threads for, fewer where multiprocessors would stay idle.
  static int rows_each(const Problem& p, const Device& d) {
    const int64_t share =
        ceil_div(block_rows(p) * p.batch, int64_t{4} * std::max(d.multiprocessors, 1));
    return static_cast<int>(std::clamp<int64_t>(share, 1, kFlatThreads / p.block_m));
  }
  // A thread block's blocks, if these are few, and a tenth more, as rows differ.
  static int chunk(const Problem& p, int rows) {
    constexpr int64_t kMostBytes = 16 << 10;
    const int64_t row_bytes = p.block_m * size_of(p.dtype);
    const int64_t wanted = p.nnzb * rows / std::max<int64_t>(block_rows(p), 1) * 11 / 10 + 1;
    return static_cast<int>(
        std::clamp(wanted, ceil_div(kFlatThreads, p.block_m), kMostBytes / row_bytes));
  }

  // Rows of more blocks are cut. Each stretch of as many stored blocks has a counter.
  static int64_t limit(const Problem& p) {
    return std::max<int64_t>(512, ceil_div(p.nnzb * p.batch, int64_t{kPartCounters} - p.batch));
  }
  static int64_t stretches(const Problem& p) {
    constexpr int64_t kMostItems = 1 << 26;  // as FlatRowsArguments::by_block_m divides them
    const int64_t longest = p.longest_row >= 0 ? p.longest_row : p.nnzb;
    if (longest <= limit(p) || limit(p) * p.block_m > kMostItems) return 0;
    return ceil_div(p.nnzb, limit(p));
  }
};

const FlatRows kFlatRows{DeviceType::kCuda, "flat_rows/items"};
const Registration kRegister{kFlatRows};

}  // namespace
}  // namespace sparse_autotune
