// Tensor cores through mma.sync for sampled products: the portable fast kernel, from Ampere on.
//
// A thread block owns kM rows of one block row (a strip) against up to kN columns of its stored
// blocks, which lie side by side in the tile: they share the strip of C. Steps of kStepBytes walk
// the terms of the sums, through the batch.
// Data path: cp.async keeps `stages` - 1 steps on their way to a ring in shared memory -> ldmatrix
// -> mma.sync, fp32 sums in registers -> shared memory -> values. Whole steps of aligned operands
// are copied by straight code, which the compiler spreads among the mma.
// Which tile is whose needs no plan: row r's tiles begin at number crow[r] / blocks + r, which
// leaves room for all of them; at most one thread block a row has nothing to do.
// Requires: fp16, bf16, or fp32 with TF32 allowed; block sides that are multiples of 16. Any n, any
// layout, any alignment (16 bytes is fastest).
// Wins: where no Hopper kernel applies. Bound by L2 -> shared memory traffic,
// kM * kN / (kM + kN) FLOP a byte.
#include <algorithm>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/sampled/sampled_launch_sm80.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

template <typename Tile>
class SampledSm80 final : public Variant {
 public:
  SampledSm80(std::string_view name, const SampledCodesSm80& codes)
      : Variant(DeviceType::kCuda, name, Op::kSampled), codes_(codes) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype == DType::kFloat64) return Support::no("sampled_sm80 has no fp64");
    if (p.dtype == DType::kFloat32 && !p.allow_tf32) {
      return Support::no("multiplies fp32 in TF32, which the caller's settings do not allow");
    }
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = sides_are_multiples_of(16, p); !s) return s;
    if (Support s = blocks_fill_rows(p, Tile::kM); !s) return s;
    if (std::max({p.m, p.k, p.block_m * p.block_k}) > INT32_MAX) {
      return Support::no("a block, m or k has more than 2^31 - 1 elements");
    }
    if (sampled_length(p) > INT32_MAX) {
      return Support::no("sums of more than 2^31 - 1 terms");
    }
    if (thread_blocks(p) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return code_of(p).runs_on(d, shared_bytes());
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double multiprocessors = std::max(d.multiprocessors, 1);
    const double terms = static_cast<double>(sampled_length(p)), size = size_of(p.dtype);
    const double row_blocks = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
    // What a row's last tile has is anything from one block to all that fit: half on average.
    const double tiles = static_cast<double>(block_rows(p)) *
                         (row_blocks / static_cast<double>(blocks(p)) + 0.5) * strips(p);
    const double flops = 2.0 * Tile::kM * Tile::kN * terms;
    const double bytes = (Tile::kM + Tile::kN) * terms * size;
    const bool hopper = d.compute_capability >= 90;
    const int alignment = std::min(p.b_alignment, p.c_alignment);
    const double access = alignment >= 16 ? 1 : alignment >= 4 ? 0.4 : 0.15;
    const double tflops = peak_tflops(p, d) * (hopper ? 0.5 : 0.7) / multiprocessors;
    const double gbps = (hopper ? 72.0 : 40.0) * access;
    const double work_us = std::max(flops / (tflops * 1e6), bytes / (gbps * 1e3));
    constexpr double kLatencyUs = 0.7, kRampUs = 1.2;
    const double steps = terms * size / Tile::kStepBytes;
    const double latency_us = kRampUs + steps * kLatencyUs / (Tile::kStages - 1);
    const double waves = std::ceil(tiles / (Tile::kResident * multiprocessors));
    return roofline_us(0, 0, compulsory_bytes(p), d.memory_gbps * 0.85, 2.5) +
           std::max(std::max(1.0, tiles / multiprocessors + 0.5) * work_us, waves * latency_us);
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<SampledArgumentsSm80>(p, l);
    a.blocks = static_cast<int>(blocks(p));
    a.strips_m = static_cast<int>(strips_m(p));
    a.strips_k = static_cast<int>(strips_k(p));
    a.straight = std::min(p.b_alignment, p.c_alignment) >= kChunkBytes && p.n <= INT32_MAX &&
                 std::max(p.ldb, p.ldc) * size_of(p.dtype) <= UINT32_MAX;
    return code_of(p).launch(a, static_cast<unsigned>(thread_blocks(p)), Tile::kThreads,
                             shared_bytes(), l.stream, name());
  }

 private:
  int64_t strips_m(const Problem& p) const { return ceil_div(p.block_m, Tile::kM); }
  int64_t strips_k(const Problem& p) const { return ceil_div(p.block_k, Tile::kN); }
  int64_t strips(const Problem& p) const { return strips_m(p) * strips_k(p); }
  // Side by side in a tile.
  int64_t blocks(const Problem& p) const { return std::max<int64_t>(Tile::kN / p.block_k, 1); }
  int64_t thread_blocks(const Problem& p) const {
    return (p.nnzb / blocks(p) + block_rows(p)) * strips(p);
  }
  int64_t shared_bytes() const {
    const int64_t lines = Tile::kM + Tile::kN, size = sizeof(int64_t);
    return lines * (Tile::kStages * Tile::kStepBytes + static_cast<int64_t>(sizeof(int))) + size;
  }
  KernelCode<SampledArgumentsSm80>& code_of(const Problem& p) const {
    return codes_.of[static_cast<int>(p.dtype)].of(p);
  }

  SampledCodesSm80 codes_;
  Registration registration_{*this};
};

const SampledSm80<SampledM128N128> kM128N128{"sampled_sm80/m128_n128",
                                             make_sampled_codes_sm80<SampledM128N128>()};
const SampledSm80<SampledM64N128> kM64N128{"sampled_sm80/m64_n128",
                                           make_sampled_codes_sm80<SampledM64N128>()};
const SampledSm80<SampledM32N128> kM32N128{"sampled_sm80/m32_n128",
                                           sampled_codes_sm80<SampledM32N128>()};
const SampledSm80<SampledM16N128> kM16N128{"sampled_sm80/m16_n128",
                                           sampled_codes_sm80<SampledM16N128>()};

}  // namespace
}  // namespace sparse_autotune
