// attention_warps_sm90: Hopper's attention on masks of small blocks, without products of blocks
// that the mask does not store.
//
// A thread block owns 192 rows of q, or 256. Producer warps copy what any of them sees of k and v;
// each of twelve consumer warps owns 16 rows, or of eight 32, and multiplies what its own block row
// stores. Data path: TMA -> swizzled shared memory -> ldmatrix -> mma.sync. Requires: compute
// capability 9.0, half types, heads of 64 or 128. Wins: blocks of 16 and 32 that lie scattered.
#include <algorithm>
#include <type_traits>

#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/attention_warps32_consumer_sm90.cuh"
#include "kernels/cuda/attention/attention_warps_consumer_sm90.cuh"
#include "kernels/cuda/attention/attention_warps_kernel_sm90.cuh"
#include "kernels/cuda/attention/attention_warps_launch_sm90.h"
#include "kernels/cuda/attention/item_split.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile>
using ConsumerOf =
    std::conditional_t<Tile::kSharesQ, Warp32RowsConsumer<T, Tile>, WarpRowsConsumer<T, Tile>>;

template <typename T, typename Tile>
constinit KernelCode<WarpRowsArguments> code{
    &attention_warps_kernel_sm90<ConsumerOf<T, Tile>, WarpRowsArguments, Tile>, true};

template <typename T, typename Tile>
Status launch_warps(const attention::Problem& p, const attention::Launch& l,
                    std::string_view name) {
  const AttentionForward a = attention::forward_arguments(p, l);
  const AttentionShape& s = a.shape;
  const Device& device = *l.device;
  WarpRowsArguments args;
  args.q = a.q;
  unsigned* counter = tile_counter(device.ordinal, static_cast<cudaStream_t>(l.stream));
  describe_work(a, Tile::kRows, device, counter, &args);
  split_items(p, device, Tile::kRows, 1).apply(lists_bytes(p, Tile::kRows), l, &args);
  if (auto made = map_pieces<Tile>(a.k, a.v, p.dtype, s, s.kv_heads, &args); !made) return made;
  if (auto made = list_pieces<Tile>(s, a.workspace, a.stream, &args); !made) return made;
  const auto blocks = static_cast<unsigned>(std::min(args.items, device.multiprocessors));
  return code<T, Tile>.launch(args, blocks, Tile::kThreads, Tile::kSharedBytes, a.stream, name);
}

// Warps that own as many rows as the smallest blocks that they take have.
template <template <int> typename Tile>
class AttentionWarpsSm90 final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = halves_on_hopper(p, d); !s) return s;
    if (!has_mask(p) || p.block_m % kLeast != 0 || (p.block_m != 16 && p.block_m != 32)) {
      return Support::no(kLeast == 16 ? "needs a mask whose block rows have 16 or 32 rows"
                                      : "needs a mask whose block rows have 32 rows");
    }
    if (auto s = block_sides_are_multiples_of(p, kLeast, kLeast); !s) return s;
    if (auto s = has_tile_lists(p); !s) return s;
    if (p.columns > kMaxWideEntryColumns * p.block_n) {
      return Support::no("has more than 65536 block columns");
    }
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return code<T, Tile<kDim>>.runs_on(d, Tile<kDim>::kSharedBytes);
    });
  }

  // Products, or copies of what a thread block's rows see, at what L2 can hand out.
  double estimate_us(const attention::Problem& p, const Device& d) const override {
    const double products = attention_us(p, 16, kShare * d.tensor_tflops, 6);
    const double tiles = all_pairs(p) / kRows * merged_density(p, kRows);
    const double copied = tiles * static_cast<double>(p.dim) * 4;
    return std::max(products, 6 + copied / (0.7 * d.l2_gbps * 1e3));
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device& d) const override {
    return lists_bytes(p, kRows) + split_items(p, d, kRows, 1).bytes();
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return launch_warps<T, Tile<kDim>>(p, l, name());
    });
  }

 private:
  static constexpr int kRows = Tile<128>::kRows, kLeast = Tile<128>::kWarpRows;
  // Of the device's tensor-core rate, that long rows reach.
  static constexpr double kShare = kLeast == 16 ? 0.28 : 0.33;
  static_assert(kRows <= kLeast * kWideEntryRows, "a tile of the smallest blocks");
};

const AttentionWarpsSm90<WarpRows16> k16{DeviceType::kCuda, "attention_warps_sm90/16x12"};
const Registration kRegister16{k16};
const AttentionWarpsSm90<WarpRows32> k32{DeviceType::kCuda, "attention_warps_sm90/32x8"};
const Registration kRegister32{k32};

}  // namespace
}  // namespace sparse_autotune
