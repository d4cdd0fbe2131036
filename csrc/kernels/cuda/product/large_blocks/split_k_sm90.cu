// wgmma_sm90 for few or very uneven block rows: long ones are cut, and multiplied, in parts.
//
// The plan's list of parts takes the place of the list of rows, longest first. Tiles of rows that
// are whole go the way of wgmma_sm90; tiles of parts leave fp32 sums in the workspace. A second
// kernel, ready to start when the first ends, adds up each row's parts in the order of their
// columns, whoever computed them, and finishes the row: bias, activation, TMA store.
// The cost model picks how long parts may be, among the plan's lists whose sums fit.
// Data path of the sums: registers -> L2 -> registers, in the layout of wgmma's fragments.
// Requires: what wgmma_sm90 does, and rows of known lengths that are worth cutting.
// Wins: a few rows much longer than the others, or fewer tiles than multiprocessors. Bound as
// wgmma_sm90 is, plus 2 * 4 bytes through L2 for each element of C and part, and a launch.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

struct SumArguments {
  CUtensorMap c;
  const CutRow* cut_rows;
  const void* bias;
  PartialSums partials;
  unsigned rows, row_units, columns;  // cut rows; units of one, and of C's width
  int tile_rows, tile_columns;        // units in a tile
  int n, block_m;
  Activation activation;
  bool c_rows;
};

// A warpgroup for each unit of 64 x 64 elements of C.
template <typename T>
__global__ void __launch_bounds__(kWarpgroup)
    sum_parts_kernel(const __grid_constant__ SumArguments args) {
  extern __shared__ char memory[];
  const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  DeferredStore<T, 64> store(TmaSink(args.c), align_swizzled(begin), 1, args.n, args.c_rows);
  if (threadIdx.x == 0) tma_prefetch_map(args.c);
  unsigned unit = blockIdx.x;
  const auto column = static_cast<int>(unit % args.columns);
  unit /= args.columns;
  const auto row_unit = static_cast<int>(unit % args.row_units);
  unit /= args.row_units;
  const CutRow cut = load_entry(args.cut_rows, unit % args.rows);
  const auto batch = static_cast<int>(unit / args.rows);
  const int strip = row_unit / args.tile_rows, tile_column = column / args.tile_columns;
  const int in_tile = row_unit % args.tile_rows * args.tile_columns + column % args.tile_columns;
  const int m0 = cut.row * args.block_m + row_unit * 64;
  follow_launch_before();  // which multiplies

  float sum[32] = {};
  constexpr int kAtOnce = 4;  // parts on their way
  for (int first = 0; first < cut.parts; first += kAtOnce) {
    float4 found[kAtOnce][8];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= cut.parts) break;
      const float* tile = args.partials.tile(batch, cut.first + first + i, strip, tile_column);
      load_unit(tile + in_tile * kUnitFloats, found[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= cut.parts) break;
      add_unit(sum, found[i]);
    }
  }
  float low = 0, high = 0;
  if (args.bias != nullptr) {
    const T* bias = static_cast<const T*>(args.bias) + m0 + threadIdx.x / 32 * 16;
    low = static_cast<float>(bias[threadIdx.x % 32 / 4]);
    high = static_cast<float>(bias[threadIdx.x % 32 / 4 + 8]);
  }
  store.begin(m0, column * 64, batch);
  store.finish(sum, low, high, args.activation);
  store.close();
}

constexpr int kSumShared = kSwizzleAlignment + DeferredStore<__half, 64>::kBytes;

constinit KernelCode<SumArguments> sum_half{&sum_parts_kernel<__half>, true};
constinit KernelCode<SumArguments> sum_bfloat16{&sum_parts_kernel<__nv_bfloat16>, true};

class SplitKSm90 final : public Variant {
 public:
  SplitKSm90(std::string_view name, const WgmmaShape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = wgmma_supports(shape_, p, d); !s) return s;
    if (p.longest_row < 0) return Support::no("the lengths of block rows are not known");
    const double blocks = static_cast<double>(p.nnzb);
    const double mean = blocks / static_cast<double>(block_rows(p));
    const double share =  // of a multiprocessor, in blocks: a shorter row ends in time anyway
        mean * static_cast<double>(shape_.tiles(p, block_rows(p))) / std::max(d.multiprocessors, 1);
    const auto longest = static_cast<double>(p.longest_row);
    if (p.row_cuts.rows[kShortestParts] == 0 || longest < std::min(kUneven * mean, share)) {
      return Support::no("the longest block row has " + std::to_string(p.longest_row) +
                         " blocks: too few for its parts to end sooner");
    }
    if (row_order(p, d) == kNoRowOrder) {
      return Support::no("the sums of its parts would take more than " +
                         std::to_string(kMaxWorkspace) + " bytes");
    }
    return sum_code(p).runs_on(d, kSumShared);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return estimate_us(p, d, row_order(p, d));
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const int order = row_order(p, d);
    return order == kNoRowOrder ? 0 : sums_bytes(p, order);
  }

  // The fastest by the cost model, of those that cut a row and whose sums fit.
  int row_order(const Problem& p, const Device& d) const override {
    return cheapest_order(p, kNoRowOrder, INFINITY, kShortestParts, [&](int order) -> double {
      return sums_bytes(p, order) > kMaxWorkspace ? INFINITY : estimate_us(p, d, order);
    });
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const int number = row_order(p, *l.device);
    const OrderedRow* order = number == kNoRowOrder ? nullptr : l.row_orders[number];
    const int64_t entries = order == nullptr ? block_rows(p) : entries_of(p, number);
    WgmmaArguments a{};
    Status status = wgmma_arguments(shape_, p, l, order, entries, &a);
    // Without a list of parts rows stay whole.
    if (!status || order == nullptr) return status ? wgmma_launch(shape_, p, l, a, name()) : status;
    a.partials.memory = static_cast<float*>(l.workspace);
    a.partials.slots = p.row_cuts.parts[number];
    a.partials.strips = a.strips;
    a.partials.columns = static_cast<int>(shape_.columns(p));
    a.partials.tile_units = shape_.m * shape_.n / kUnitFloats;
    status = wgmma_launch(shape_, p, l, a, name());
    if (!status) return status;

    auto s = arguments_of<SumArguments>(p, l);
    s.c = a.c_map;
    s.cut_rows = reinterpret_cast<const CutRow*>(order + entries);
    s.partials = a.partials;
    s.rows = static_cast<unsigned>(p.row_cuts.rows[number]);
    s.row_units = static_cast<unsigned>(p.block_m / 64);
    s.columns = static_cast<unsigned>(ceil_div(p.n, 64));
    s.tile_rows = shape_.m / 64;
    s.tile_columns = shape_.n / 64;
    const auto units = static_cast<unsigned>(s.rows * s.row_units * s.columns * p.batch);
    return sum_code(p).launch(s, units, kWarpgroup, kSumShared, l.stream, name());
  }

 private:
  static constexpr int64_t kMaxWorkspace = int64_t{256} << 20;
  static constexpr double kWholeBytes = 32 << 20;  // of B: up to there it is one panel
  static constexpr int kShortestParts = 2;         // the order that cuts into parts of 4 blocks
  // Longest row over mean row from which on it is worth a race.
  static constexpr double kUneven = 4;

  static KernelCode<SumArguments>& sum_code(const Problem& p) {
    return p.dtype == DType::kFloat16 ? sum_half : sum_bfloat16;
  }

  int64_t sums_bytes(const Problem& p, int order) const {
    return shape_.tiles(p, p.row_cuts.parts[order]) * shape_.m * shape_.n *
           static_cast<int64_t>(sizeof(float));
  }

  double estimate_us(const Problem& p, const Device& d, int order) const {
    if (order == kNoRowOrder) return wgmma_us(shape_, p, d, block_rows(p), p.longest_row);
    // Of the second kernel, fitted to times on an H200. It adds up a row's parts one after another,
    // so that few rows of many parts leave L2 waiting.
    constexpr double kLaunchUs = 0.8, kL2Gbps = 4500, kPartUs = 0.47;
    const int64_t limit = part_limit(order);
    const double parts = static_cast<double>(p.longest_row) / static_cast<double>(limit);
    const double bytes = 2 * static_cast<double>(sums_bytes(p, order));  // written and read
    const int64_t entries = entries_of(p, order);
    // Beside other tiles a long part takes longer than its steps alone: parts of 64 blocks that
    // should have ended with the others, one dense row at 8192^2, kept them waiting for 12%.
    // Charged where B is one panel, as there: each of several panels begins with long parts.
    constexpr double kBeside = 1.6;
    const bool beside = shape_.tiles(p, entries) > d.multiprocessors && b_bytes(p) <= kWholeBytes;
    const int64_t longest = std::min(p.longest_row, limit);
    const auto charged =
        static_cast<int64_t>((beside ? kBeside : 1) * static_cast<double>(longest));
    return wgmma_us(shape_, p, d, entries, charged) +
           std::max(bytes / (kL2Gbps * 1e3), parts * kPartUs) + kLaunchUs;
  }

  WgmmaShape shape_;
  Registration registration_{*this};
};

const SplitKSm90 kM128N256{"split_k_sm90/m128_n256", wgmma_shape<M128N256, true>()};
const SplitKSm90 kM128N128{"split_k_sm90/m128_n128", wgmma_shape<M128N128, true>()};
const SplitKSm90 kM128N64{"split_k_sm90/m128_n64", wgmma_shape<M128N64, true>()};
const SplitKSm90 kM64N512{"split_k_sm90/m64_n512", wgmma_shape<M64N512, true>()};
const SplitKSm90 kM64N256{"split_k_sm90/m64_n256", wgmma_shape<M64N256, true>()};
const SplitKSm90 kM64N128{"split_k_sm90/m64_n128", wgmma_shape<M64N128, true>()};

}  // namespace
}  // namespace sparse_autotune
