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
#include "kernels/cuda/attention/attention_maps_sm90.h"
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/attention_warps_kernel_sm90.cuh"
#include "kernels/cuda/attention/balanced_lists.h"
#include "kernels/cuda/host/cuda_status.h"
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
int64_t padded_rows(const AttentionBackward& a) { return ceil_div(a.shape.rows, 64) * 64; }
int64_t values_of(const AttentionBackward& a) {
  return a.shape.batch * a.shape.heads * padded_rows(a);
}

// `args` has x, the sums, the mask and the number of x's heads.
template <typename T, int kDim, WarpRowsPass kPass>
Status launch_pass(const AttentionBackward& a, const AttentionTensor& y1, const AttentionTensor& y2,
                   DType dtype, const Device& device, unsigned* counter, std::string_view name,
                   WarpRowsBackwardArguments args) {
  using Own = Tile<kDim, kPass>;
  constexpr bool kOfColumns = kPass == WarpRowsPass::kOfColumns;
  const AttentionShape s = kOfColumns ? by_column(a.shape) : a.shape;
  const int64_t y_heads = kOfColumns ? s.heads : s.kv_heads;
  const auto map = [&](const AttentionTensor& t, uint32_t box, CUtensorMap* to) {
    return make_tensor_map(boxes_of(t, dtype, s.columns, y_heads, s, box), to);
  };
  if (auto made = map(y1, Own::kPiece, &args.k); !made) return made;
  if (auto made = map(y2, Own::kPiece, &args.v); !made) return made;
  if (auto made = map(y1, Own::kLines, &args.k_stages); !made) return made;
  if (auto made = map(y2, Own::kLines, &args.v_stages); !made) return made;
  const int64_t values = values_of(a);
  auto* lse = static_cast<float*>(a.workspace);
  if (auto made = make_tile_lists(args.mask, s, kRows, lse + 2 * values, a.stream, &args.lists,
                                  kWideEntryBits);
      !made) {
    return made;
  }
  if (auto balanced = balance_lists(args.mask, s, kRows, args.lists, a.stream); !balanced) {
    return balanced;
  }
  args.lse = lse;
  args.delta = lse + values;
  args.padded_rows = padded_rows(a);
  args.counter = counter;
  args.rows = static_cast<int>(s.rows);
  args.columns = static_cast<int>(s.columns);
  args.group = static_cast<int>(s.heads / s.kv_heads);
  args.heads = static_cast<int>(kOfColumns ? s.kv_heads : s.heads);
  args.batch_heads = static_cast<int>(s.batch) * args.heads;
  args.row_tiles = static_cast<int>(ceil_div(s.rows, kRows));
  args.items = args.row_tiles * args.batch_heads;
  const double y_bytes =
      4.0 * static_cast<double>(s.columns * s.dim) * (kOfColumns ? args.group : 1. / args.group);
  args.heads_at_once = static_cast<int>(heads_that_fit(y_bytes, args.batch_heads, device.l2_bytes));
  args.scale_log2 = static_cast<float>(a.scale * M_LOG2E);
  args.scale = static_cast<float>(a.scale);
  args.is_causal = a.is_causal;
  const auto blocks = static_cast<unsigned>(std::min(args.items, device.multiprocessors));
  return code<T, kDim, kPass>.launch(args, blocks, Own::kThreads, Own::kSharedBytes, a.stream,
                                     name);
}

template <typename T, int kDim>
Status launch_both(const AttentionBackward& a, DType dtype, const Device& device, unsigned* counter,
                   std::string_view name) {
  const AttentionShape& s = a.shape;
  auto* lse = static_cast<float*>(a.workspace);
  const BackwardRows rows{a.out,
                          a.dout,
                          {},
                          a.lse,
                          a.dlse,
                          lse,
                          lse + values_of(a),
                          nullptr,
                          static_cast<int>(s.rows),
                          static_cast<int>(padded_rows(a) / 64),
                          static_cast<int>(s.heads)};
  const dim3 grid(static_cast<unsigned>(padded_rows(a) / kRowsOfBlock),
                  static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
  attention_backward_before<T, kDim, false>
      <<<grid, kRowsThreads, 0, static_cast<cudaStream_t>(a.stream)>>>(rows);
  if (auto launched = to_status(cudaGetLastError(), name); !launched) return launched;
  WarpRowsBackwardArguments args;
  args.x1 = a.q;
  args.x2 = a.dout;
  args.sum1 = a.dq;
  args.sum2 = {};
  args.mask = a.mask;
  if (auto launched = launch_pass<T, kDim, WarpRowsPass::kOfRows>(a, a.k, a.v, dtype, device,
                                                                  counter, name, args);
      !launched) {
    return launched;
  }
  args.x1 = a.k;
  args.x2 = a.v;
  args.sum1 = a.dk;
  args.sum2 = a.dv;
  args.mask = by_column(a);
  return launch_pass<T, kDim, WarpRowsPass::kOfColumns>(a, a.q, a.dout, dtype, device, counter,
                                                        name, args);
}

class AttentionBackwardWarpsSm90 final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = on_hopper(d); !s) return s;
    if (auto s = halves_by_16_bytes(p); !s) return s;
    if (auto s = copied_by_tma(p); !s) return s;
    const auto small = [](int64_t side) { return side == 16 || side == 32; };
    if (!has_mask(p) || !small(p.block_m) || !small(p.block_n)) {
      return Support::no("needs a mask of blocks with sides of 16 or 32");
    }
    if (p.patterns > 65535) return Support::no("has more patterns than a grid's side");
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
    return 2 * 4 * values_of(a) + lists_bytes(a, p.capacity, p.row_capacity);
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
