// attention_backward_warps_sm90: Hopper's gradients of attention on masks of small blocks, without
// products of blocks that the mask does not store.
//
// Two launches of one kernel, as attention_backward_tiled_sm80 has them: the first owns rows of q
// and adds up dq, the second owns rows of k and v. A thread block owns 128 rows; each of eight
// consumer warps has 16 of them, and multiplies what its own block row stores. Data path: as
// attention_warps_sm90. Requires: compute capability 9.0, half types, heads of 64 or 128. Wins:
// blocks of 16 that lie scattered, and where results must be repeatable.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_backward_rows.cuh"
#include "kernels/cuda/attention/attention_backward_warps_consumer_sm90.cuh"
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/attention_warps_kernel_sm90.cuh"
#include "kernels/cuda/attention/attention_warps_launch_sm90.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {
namespace {

// Registers: 40 + 2 * 232 for a thread of each warpgroup, the 3 * 168 that were launched.
template <int kDim, WarpRowsPass kPass>
using Tile = WarpRowsTile<kDim, 16, 8, 16, 4, kDim == 64 ? 10 : 6, 40, 232, kPass>;
constexpr int kRows = Tile<128, WarpRowsPass::kOfRows>::kRows;

template <typename T, int kDim, WarpRowsPass kPass>
constinit KernelCode<WarpRowsBackwardArguments> code{
    &attention_warps_kernel_sm90<BackwardWarpConsumer<T, Tile<kDim, kPass>>,
                                 WarpRowsBackwardArguments, Tile<kDim, kPass>>,
    true};

int64_t lists_bytes(const AttentionBackward& a, int64_t capacity, int64_t row_capacity) {
  return std::max(tile_lists_bytes(a.mask, a.shape, kRows, capacity),
                  tile_lists_bytes(by_column(a), by_column(a.shape), kRows, row_capacity));
}
// Rows of q with lse and delta: whole tiles of 64, and so whole blocks.
int64_t row_tiles_of(const AttentionShape& s) { return ceil_div(s.rows, 64); }

// `args` has x, the sums, the mask and what both passes have alike.
template <typename T, int kDim, WarpRowsPass kPass>
Status launch_pass(const AttentionBackward& a, const AttentionTensor& y1, const AttentionTensor& y2,
                   DType dtype, const Device& device, void* lists, std::string_view name,
                   WarpRowsBackwardArguments args) {
  using Own = Tile<kDim, kPass>;
  constexpr bool kOfColumns = kPass == WarpRowsPass::kOfColumns;
  const AttentionShape s = kOfColumns ? by_column(a.shape) : a.shape;
  const int64_t x_heads = kOfColumns ? s.kv_heads : s.heads;
  const int64_t y_heads = kOfColumns ? s.heads : s.kv_heads;
  count_work(s, x_heads, y_heads, Own::kRows, device, &args);
  if (auto made = map_pieces<Own>(y1, y2, dtype, s, y_heads, &args); !made) return made;
  if (auto made = list_pieces<Own>(s, lists, a.stream, &args); !made) return made;
  const auto blocks = static_cast<unsigned>(std::min(args.items, device.multiprocessors));
  return code<T, kDim, kPass>.launch(args, blocks, Own::kThreads, Own::kSharedBytes, a.stream,
                                     name);
}

template <typename T, int kDim>
Status launch_both(const AttentionBackward& a, DType dtype, const Device& device, unsigned* counter,
                   std::string_view name) {
  const BackwardRows rows = backward_rows(a, row_tiles_of(a.shape));
  if (auto launched = launch_before<T, kDim, false>(rows, a, name); !launched) return launched;
  WarpRowsBackwardArguments args;
  args.counter = counter;
  args.lse = rows.scaled_lse;
  args.delta = rows.delta;
  args.padded_rows = rows.row_tiles * 64;
  args.scale_log2 = static_cast<float>(a.scale * M_LOG2E);
  args.scale = rows.scale;
  args.is_causal = a.is_causal;
  args.x1 = a.q;
  args.x2 = a.dout;
  args.sum1 = a.dq;
  args.sum2 = {};
  args.mask = a.mask;
  if (auto launched = launch_pass<T, kDim, WarpRowsPass::kOfRows>(a, a.k, a.v, dtype, device,
                                                                  rows.sums, name, args);
      !launched) {
    return launched;
  }
  args.x1 = a.k;
  args.x2 = a.v;
  args.sum1 = a.dk;
  args.sum2 = a.dv;
  args.mask = by_column(a);
  return launch_pass<T, kDim, WarpRowsPass::kOfColumns>(a, a.q, a.dout, dtype, device, rows.sums,
                                                        name, args);
}

class AttentionBackwardWarpsSm90 final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = halves_on_hopper(p, d); !s) return s;
    const auto small = [](int64_t side) { return side == 16 || side == 32; };
    if (!has_mask(p) || !small(p.block_m) || !small(p.block_n)) {
      return Support::no("needs a mask of blocks with sides of 16 or 32");
    }
    if (auto s = has_tile_lists(p); !s) return s;
    if (std::max(p.columns / p.block_n, p.rows / p.block_m) >= kMaxWideEntryColumns) {
      return Support::no("has more than 65536 block rows or columns");
    }
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      constexpr auto kOfRows = WarpRowsPass::kOfRows, kOfColumns = WarpRowsPass::kOfColumns;
      constexpr int kShared = Tile<kDim, kOfRows>::kSharedBytes;
      if (auto s = code<T, kDim, kOfRows>.runs_on(d, kShared); !s) return s;
      return code<T, kDim, kOfColumns>.runs_on(d, Tile<kDim, kOfColumns>::kSharedBytes);
    });
  }

  double estimate_us(const attention::Problem& p, const Device& d) const override {
    return attention_us(p, 16, 0.2 * d.tensor_tflops, 25);
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    const AttentionBackward a = attention::backward_arguments(p, {});
    return row_values_bytes(a.shape, row_tiles_of(a.shape)) +
           lists_bytes(a, p.capacity, p.row_capacity);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    unsigned* counter = tile_counter(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
    const AttentionBackward a = attention::backward_arguments(p, l);
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return launch_both<T, kDim>(a, p.dtype, *l.device, counter, name());
    });
  }
};

const AttentionBackwardWarpsSm90 kBackwardWarps{
    DeviceType::kCuda, "attention_backward_warps_sm90/16x8", attention::Pass::kBackward};
const Registration kRegisterBackwardWarps{kBackwardWarps};

}  // namespace
}  // namespace sparse_autotune
