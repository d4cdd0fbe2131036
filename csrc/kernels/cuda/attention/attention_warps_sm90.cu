// attention_warps_sm90: Hopper's attention on masks of small blocks, without products of blocks
// that the mask does not store.
//
// A thread block owns 192 rows of q. Producer warps copy what any of them sees of k and v; each of
// twelve consumer warps owns 16 rows and multiplies what its own block row stores. Data path: TMA
// -> swizzled shared memory -> ldmatrix -> mma.sync. Requires: compute capability 9.0, half types,
// heads of 64 or 128. Wins: blocks of 16 and 32 that lie scattered.
#include <algorithm>

#include "kernels/cuda/attention/attention_maps_sm90.h"
#include "kernels/cuda/attention/attention_requirements.h"
#include "kernels/cuda/attention/attention_warps_kernel_sm90.cuh"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/tile_counters.h"

namespace sparse_autotune {
namespace {

template <int kDim>
using Tile = WarpRowsTile<kDim, kDim == 64 ? 9 : 6, 4>;
constexpr int kRows = Tile<128>::kRows;

template <typename T, int kDim>
constinit KernelCode<WarpRowsArguments> code{&attention_warps_kernel_sm90<T, Tile<kDim>>, true};

template <typename T, int kDim>
Status launch_warps(const AttentionForward& a, DType dtype, const Device& device, unsigned* counter,
                    std::string_view name) {
  const AttentionShape& s = a.shape;
  WarpRowsArguments args;
  const auto map = [&](const AttentionTensor& t, uint32_t box, CUtensorMap* to) {
    return make_tensor_map(boxes_of(t, dtype, s.columns, s.kv_heads, s, box), to);
  };
  if (auto made = map(a.k, Tile<kDim>::kPiece, &args.k); !made) return made;
  if (auto made = map(a.v, Tile<kDim>::kPiece, &args.v); !made) return made;
  if (auto made = map(a.k, Tile<kDim>::kLines, &args.k_stages); !made) return made;
  if (auto made = map(a.v, Tile<kDim>::kLines, &args.v_stages); !made) return made;
  if (auto made =
          make_tile_lists(a.mask, s, kRows, a.workspace, a.stream, &args.lists, kWideEntryBits);
      !made) {
    return made;
  }
  args.q = a.q;
  describe_work(a, kRows, device, counter, &args);
  const auto blocks = static_cast<unsigned>(std::min(args.items, device.multiprocessors));
  return code<T, kDim>.launch(args, blocks, Tile<kDim>::kThreads, Tile<kDim>::kSharedBytes,
                              a.stream, name);
}

class AttentionWarpsSm90 final : public attention::Variant {
 public:
  using Variant::Variant;

  Support supports(const attention::Problem& p, const Device& d) const override {
    if (auto s = on_hopper(d); !s) return s;
    if (auto s = halves_by_16_bytes(p); !s) return s;
    if (auto s = copied_by_tma(p); !s) return s;
    if (!has_mask(p) || (p.block_m != 16 && p.block_m != 32)) {
      return Support::no("needs a mask whose block rows have 16 or 32 rows");
    }
    if (auto s = block_sides_are_multiples_of(p, 16, 16); !s) return s;
    if (p.patterns > 65535) return Support::no("has more patterns than a grid's side");
    if (p.columns > kMaxWideEntryColumns * p.block_n) {
      return Support::no("has more than 65536 block columns");
    }
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return code<T, kDim>.runs_on(d, Tile<kDim>::kSharedBytes);
    });
  }

  // Products, or copies of what 192 rows see, at what L2 can hand out.
  double estimate_us(const attention::Problem& p, const Device& d) const override {
    const double products = attention_us(p, 16, 0.28 * d.tensor_tflops, 6);
    const double tiles = all_pairs(p) / kRows * merged_density(p, kRows);
    const double copied = tiles * static_cast<double>(p.dim) * 4;
    return std::max(products, 6 + copied / (0.7 * d.l2_gbps * 1e3));
  }

  int64_t workspace_bytes(const attention::Problem& p, const Device&) const override {
    const AttentionForward a = attention::forward_arguments(p, {});
    return tile_lists_bytes(a.mask, a.shape, kRows, p.capacity);
  }

  Status launch(const attention::Problem& p, const attention::Launch& l) const override {
    unsigned* counter = tile_counter(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
    const AttentionForward a = attention::forward_arguments(p, l);
    return with_half_and_dim(p, [&]<typename T, int kDim>(T*, std::integral_constant<int, kDim>) {
      return launch_warps<T, kDim>(a, p.dtype, *l.device, counter, name());
    });
  }
};

const AttentionWarpsSm90 kAttentionWarps{DeviceType::kCuda, "attention_warps_sm90/16x12"};
const Registration kRegisterAttentionWarps{kAttentionWarps};

}  // namespace
}  // namespace sparse_autotune
