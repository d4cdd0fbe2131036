// Products of small square blocks with few columns in fp32 and fp64 where rows differ much.
//
// merge_rows.cuh has the kernel. Data path of A: global -> shared, a chunk ahead -> registers; of
// B: through L1, 16 bytes a lane. Rows that borders cut are added up by the last of their shares to
// end: one launch, and nothing is planned. A B that is not whole rows of 16 bytes is laid anew
// first, in the workspace.
// Requires: blocks of 1 to 4, 2 to 256 columns, a longest row of several times the mean.
// Wins: nearly everywhere there.
#include "kernels/cuda/product/scalar/merge_rows.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/product/scalar/small_blocks.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxBlock = 4, kMaxColumns = 256;
// Items of the path that are worth a thread block; of a share's, an eighth may be one whole row.
constexpr int64_t kLeastShare = 256, kWholeRow = 8;

constexpr int64_t aligned(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

// Of values and columns: two chunks and the sums of runs within 48 KB.
int64_t chunk_bytes(const Problem& p) { return (p.block_m < 4 ? 16 : 12) << 10; }

// How a launch is laid out, and what its workspace holds.
struct Plan {
  int64_t strips, lanes;   // of columns: how many, lanes of each
  int64_t shares, share;   // of the path: how many, items of each
  int64_t b, sums, ended;  // bytes: B, if it is turned; sums of cut rows; counters, if need be
};

Plan plan_of(const Problem& p, const Device& d) {
  Plan plan{};
  const int64_t lanes = row_words(p);
  const int64_t items = std::max<int64_t>(block_rows(p) + p.nnzb, 1);
  plan.strips = ceil_div(lanes, 32);
  plan.lanes = ceil_div(lanes, plan.strips);
  const int64_t resident =
      std::max(d.multiprocessors, 1) * merge_resident(static_cast<int>(p.block_m));
  const int64_t most = std::min<int64_t>(resident, kPartCounters) / (plan.strips * p.batch);
  const int64_t shares = std::clamp<int64_t>(items / kLeastShare, 1, std::max<int64_t>(most, 1));
  plan.share = ceil_div(items, shares);
  plan.shares = ceil_div(items, plan.share);
  const int64_t tasks = plan.strips * p.batch * plan.shares;
  plan.b = aligned(laid_b_bytes(p));
  plan.sums = aligned(2 * tasks * p.block_m * plan.lanes * 16);
  plan.ended = tasks * static_cast<int64_t>(sizeof(unsigned));
  return plan;
}

class MergeRows final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    // Where the tuner's signature has a border.
    constexpr double kUneven = 2.83;
    if (p.longest_row >= 0 && static_cast<double>(p.longest_row) * block_rows(p) <=
                                  kUneven * static_cast<double>(p.nnzb)) {
      return Support::no("leaves rows of even length to staged_rows and warp_rows");
    }
    const int64_t c_bytes = p.block_m * p.ldc * size_of(p.dtype);
    if (std::max({p.block_k * most_b_row_bytes(p), c_bytes, 2 * p.m, 2 * p.nnzb}) > INT32_MAX) {
      return Support::no("has 30 bits for rows and blocks, 31 for the bytes of a block's B and C");
    }
    if (const Plan plan = plan_of(p, d); plan.strips * p.batch > kPartCounters) {
      return Support::no("is for at most " + std::to_string(kPartCounters / plan.strips) +
                         " matrices of as many columns in a batch");
    }
    return takes_small_blocks(p, d, kMaxBlock, kMaxColumns);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // On an H200: a multiprocessor's lines of B, a share of the memory's rate, a thread block from
    // its search to its end, a launch that turns B.
    constexpr double kLinesPerUs = 350, kGbps = 500, kAloneUs = 8, kTurnUs = 3;
    const Plan plan = plan_of(p, d);
    const double turned = 2 * static_cast<double>(plan.b);
    const double lines = static_cast<double>(p.nnzb * p.block_k * p.batch) *
                         std::max(1.0, static_cast<double>(p.n * size_of(p.dtype)) / 128);
    return kAloneUs + (turned > 0 ? kTurnUs : 0.0) +
           std::max((compulsory_bytes(p) + turned) / (d.memory_gbps * kGbps),
                    lines / (kLinesPerUs * std::max(d.multiprocessors, 1)));
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Plan plan = plan_of(p, d);
    return plan.b + plan.sums + plan.ended;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Plan plan = plan_of(p, *l.device);
    const int64_t item = size_of(p.dtype), index = size_of(p.index_type);
    const auto stream = static_cast<cudaStream_t>(l.stream);
    char* const workspace = static_cast<char*>(l.workspace);
    auto a = arguments_of<MergeRowsArguments>(p, l);
    DenseLines b;
    const Status status = lay_b(p, l, workspace, &b);
    if (!status) return status;
    a.b = b.memory;
    a.partials = workspace + plan.b;
    a.counters = part_counters(l.device->ordinal, stream);
    if (a.counters == nullptr) {
      // The supply is used up: a launch more clears some.
      a.counters = reinterpret_cast<unsigned*>(workspace + plan.b + plan.sums);
      const cudaError_t error =
          cudaMemsetAsync(a.counters, 0, static_cast<size_t>(plan.ended), stream);
      if (error != cudaSuccess) return to_status(error, name());
    }
    const bool c_rows = p.c_layout == Layout::kRowMajor;
    a.b_batch = b.batch_stride * item;
    a.c_batch = p.c_batch_stride * item;
    a.c_row = static_cast<int>((c_rows ? p.ldc : 1) * item);
    a.c_column = static_cast<int>((c_rows ? 1 : p.ldc) * item);
    a.b_k = static_cast<int>(b.pitch * item);
    a.rows = static_cast<int>(block_rows(p));
    a.items = static_cast<int>(block_rows(p) + p.nnzb);
    a.share = static_cast<int>(plan.share);
    a.limit = a.share / static_cast<int>(kWholeRow);
    a.column_lanes = static_cast<int>(plan.lanes);
    a.by_column_lanes = static_cast<unsigned>(ceil_div(1 << 16, plan.lanes));
    a.groups = kMergeThreads / a.column_lanes;
    a.stores_words = c_rows && p.c_alignment >= 16 && p.n % word_columns(p) == 0;
    const int64_t block_bytes = p.block_m * p.block_k * item;
    // Chunks of one length.
    const int64_t longest = a.share + a.limit, fit = chunk_bytes(p) / (block_bytes + index);
    a.chunk = static_cast<int>(ceil_div(longest, ceil_div(longest, fit)));
    const auto part = [](int64_t bytes) { return static_cast<int>(ceil_div(bytes, 16) + 1) * 16; };
    a.columns_at = part(a.chunk * block_bytes);
    a.next_at = a.columns_at + part(a.chunk * index);
    a.ends_at = 2 * a.next_at;
    a.sums_at = a.ends_at + kMergeEnds * static_cast<int>(sizeof(int));
    const int64_t shared = a.sums_at + (a.groups + 1) * p.block_m * plan.lanes * 16;
    const dim3 blocks(static_cast<unsigned>(plan.shares), static_cast<unsigned>(plan.strips),
                      static_cast<unsigned>(p.batch));
    with_block_side<kMaxBlock>(p.dtype, p.block_m, [&]<typename T, int kBlock>() {
      const auto kernel =
          p.transpose ? &merge_rows_kernel<T, kBlock, true> : &merge_rows_kernel<T, kBlock, false>;
      kernel<<<blocks, kMergeThreads, static_cast<size_t>(shared), stream>>>(a);
    });
    return to_status(cudaGetLastError(), name());
  }
};

const MergeRows kMergeRows{DeviceType::kCuda, "merge_rows/lanes"};
const Registration kRegister{kMergeRows};

}  // namespace
}  // namespace sparse_autotune
