// Sampled products of so few blocks of 128 that one wave of thread blocks does them all.
//
// A thread block works on one stored block (`single`) or on two that share C's rows or B's columns
// (`pairs`), found from the indices in one round trip to memory. Neighbours, which share a path to
// L2, have blocks of the same row where they can. Data path: global -> TMA -> shared (swizzled) ->
// wgmma -> registers -> global, either layout that both operands have. L2 fetches the first steps
// while the launch before this one ends. Requires: compute capability 9.0, fp16 or bf16, blocks of
// 128x128, 16-byte aligned C and B. Wins: wherever it is legal and about as many blocks are stored
// as one wave takes. Bound by the tensor cores at what clock the device's power allows, and by what
// comes before and after.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/sampled/sampled_codes.h"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "kernels/cuda/sampled/sampled_wave.cuh"
#include "kernels/cuda/sampled/sampled_wave_arguments.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

struct WaveSingle : WaveTile<1, 6> {};
struct WavePairs : WaveTile<2, 4> {};

template <typename T, typename Tile, bool kTerms>
constinit KernelCode<WaveArguments> wave_code{&sampled_wave_kernel<T, Tile, kTerms>, true};

template <typename T, typename Tile>
constexpr AlikeCodes<WaveArguments> kWaveCodes{
    {&wave_code<T, Tile, true>, &wave_code<T, Tile, false>}};

// What the host knows of a tile. Microseconds, fitted to times on an H200: of a step, and of all
// that comes before and after.
struct WaveShape {
  int blocks, shared_bytes;
  double step_us, start_us;
  SampledKernels<AlikeCodes<WaveArguments>> kernels;
};

template <typename Tile>
constexpr WaveShape wave_shape(double step_us, double start_us) {
  return {Tile::kBlocks,
          EarlyShared<Tile>::kBytes,
          step_us,
          start_us,
          {kWaveCodes<__half, Tile>, kWaveCodes<__nv_bfloat16, Tile>}};
}

class SampledWaveSm90 final : public Variant {
 public:
  SampledWaveSm90(std::string_view name, const WaveShape& shape)
      : Variant(DeviceType::kCuda, name, Op::kSampled), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (Support s = lie_alike(p); !s) return s;
    if (Support s = blocks_are(p, kWaveSide, kWaveSide); !s) return s;
    const int64_t most = std::min<int64_t>(shape_.blocks * wave_places(d), kWaveBlocks);
    if (p.nnzb > most || block_rows(p) > kWaveRows) {
      return Support::no("needs at most " + std::to_string(most) + " stored blocks in " +
                         std::to_string(kWaveRows) + " block rows, got " + std::to_string(p.nnzb) +
                         " in " + std::to_string(block_rows(p)));
    }
    if (Support s = sampled_by_tma(p, wave_steps(p)); !s) return s;
    return shape_.kernels.of(p).runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device&) const override {
    return shape_.start_us + shape_.step_us * static_cast<double>(wave_steps(p));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    WaveArguments a{};
    const Status status = set_wave_arguments(p, l, kWaveSide, &a);
    if (!status) return status;
    // All that have room, as some pairs may have to be taken apart: nobody counts these here.
    const int64_t blocks =
        std::min(wave_places(*l.device), ceil_div(p.nnzb, kWaveNeighbours) * kWaveNeighbours);
    return shape_.kernels.of(p).launch(a, static_cast<unsigned>(blocks), kThreads,
                                       shape_.shared_bytes, l.stream, name(), kWaveNeighbours);
  }

 private:
  WaveShape shape_;
  Registration registration_{*this};
};

const SampledWaveSm90 kSingle{"sampled_wave_sm90/single", wave_shape<WaveSingle>(0.41, 4.5)};
const SampledWaveSm90 kPairs{"sampled_wave_sm90/pairs", wave_shape<WavePairs>(0.66, 4.5)};

}  // namespace
}  // namespace sparse_autotune
