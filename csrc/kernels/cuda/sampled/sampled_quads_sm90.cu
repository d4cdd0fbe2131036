// Sampled products of so few blocks of 64 that one wave of thread blocks does them all.
//
// A thread block works on four stored blocks in turn, wherever rows end, found from the indices in
// one round trip to memory. One thread asks for all that a step takes, rows and columns, so that
// thread blocks which share lines ask for them at about the same time. Data path: global -> TMA ->
// shared (swizzled) -> wgmma -> registers -> global, either layout that both have. L2 fetches the
// first steps while the launch before this one ends. Requires: compute capability 9.0, fp16 or
// bf16, blocks of 64x64, 16-byte aligned C and B. Wins: where about four blocks are stored for each
// multiprocessor. Bound by L2 -> shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/sampled/sampled_codes.h"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "kernels/cuda/sampled/sampled_quads.cuh"
#include "kernels/cuda/sampled/sampled_wave_arguments.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

template <typename T, bool kTerms>
constinit KernelCode<WaveArguments> quads_code{&sampled_quads_kernel<T, kTerms>, true};

template <typename T>
constexpr AlikeCodes<WaveArguments> kQuadCodes{{&quads_code<T, true>, &quads_code<T, false>}};

class SampledQuadsSm90 final : public Variant {
 public:
  explicit SampledQuadsSm90(std::string_view name)
      : Variant(DeviceType::kCuda, name, Op::kSampled) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (Support s = lie_alike(p); !s) return s;
    if (Support s = blocks_are(p, QuadTile::kSide, QuadTile::kSide); !s) return s;
    const int64_t most = std::min<int64_t>(kQuad * wave_places(d), kQuadBlocks);
    if (p.nnzb > most || block_rows(p) > kQuadRows) {
      return Support::no("needs at most " + std::to_string(most) + " stored blocks in " +
                         std::to_string(kQuadRows) + " block rows, got " + std::to_string(p.nnzb) +
                         " in " + std::to_string(block_rows(p)));
    }
    if (Support s = sampled_by_tma(p, wave_steps(p)); !s) return s;
    return kernels_.of(p).runs_on(d, QuadShared::kBytes);
  }

  double estimate_us(const Problem& p, const Device&) const override {
    return kStartUs + kStepUs * static_cast<double>(wave_steps(p));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    WaveArguments a{};
    const Status status = set_wave_arguments(p, l, QuadTile::kSide, &a);
    if (!status) return status;
    const int64_t blocks = ceil_div(ceil_div(p.nnzb, kQuad), kWaveNeighbours) * kWaveNeighbours;
    return kernels_.of(p).launch(a, static_cast<unsigned>(blocks), kThreads, QuadShared::kBytes,
                                 l.stream, name(), kWaveNeighbours);
  }

 private:
  // Fitted to times on an H200: of a step, and of all that comes before and after.
  static constexpr double kStepUs = 0.55, kStartUs = 4;

  SampledKernels<AlikeCodes<WaveArguments>> kernels_{kQuadCodes<__half>, kQuadCodes<__nv_bfloat16>};
  Registration registration_{*this};
};

const SampledQuadsSm90 kN64{"sampled_quads_sm90/n64"};

}  // namespace
}  // namespace sparse_autotune
