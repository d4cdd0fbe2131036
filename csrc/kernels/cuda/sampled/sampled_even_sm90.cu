// Sampled products of more blocks of 128 than one wave of thread blocks takes, in equal shares.
//
// A persistent thread block works on two blocks of a row at a time (128 x 256 values), or on one
// and a half, so that every thread block gets equally much; tasks are found from the indices. One
// producer thread, a warp that finds tasks, two warpgroups that multiply. Data path: global -> TMA
// -> shared (swizzled) -> wgmma -> registers -> global, either layout that both have, through one
// ring that they share. Requires: compute capability 9.0, fp16 or bf16, blocks of 128x128, at most
// 32768 in up to 256 block rows, 16-byte aligned C and B. Wins: wherever it is legal and there is
// more to do than in one wave (sampled_wave_sm90). Bound by the tensor cores at what clock the
// device's power allows, and by L2 -> shared memory (85 FLOP/B).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/sampled/sampled_codes.h"
#include "kernels/cuda/sampled/sampled_even.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "kernels/cuda/sampled/sampled_wave_arguments.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

template <typename T, bool kTerms>
constinit KernelCode<ShareArguments> even_code{&sampled_even_kernel<T, kTerms>, true};

template <typename T>
constexpr AlikeCodes<ShareArguments> kEvenCodes{{&even_code<T, true>, &even_code<T, false>}};

class SampledEvenSm90 final : public Variant {
 public:
  SampledEvenSm90() : Variant(DeviceType::kCuda, "sampled_even_sm90/m128_n256", Op::kSampled) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (Support s = lie_alike(p); !s) return s;
    if (p.block_m != kSide || p.block_k != kSide || p.nnzb > kShareBlocks ||
        block_rows(p) > kShareRows) {
      return Support::no("needs blocks of 128x128, at most " + std::to_string(kShareBlocks) +
                         " in " + std::to_string(kShareRows) + " block rows, got " +
                         std::to_string(p.nnzb) + " of " + std::to_string(p.block_m) + "x" +
                         std::to_string(p.block_k) + " in " + std::to_string(block_rows(p)));
    }
    if (Support s = sampled_by_tma(p, wave_steps(p)); !s) return s;
    return kernels_.of(p).runs_on(d, EvenShared::kBytes);
  }

  // As if there were enough rows to cut into tasks of three pieces.
  double estimate_us(const Problem& p, const Device& d) const override {
    const int64_t share = ceil_div(2 * p.nnzb, wave_places(d));
    const int64_t tasks = ceil_div(share, kPieces), threes = tasks * kPieces - share;
    return kStartUs + static_cast<double>(tasks) * kTaskUs +
           static_cast<double>(wave_steps(p)) * kStepUs *
               (static_cast<double>(tasks) - kThreeSaves * static_cast<double>(threes));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    ShareArguments a{};
    Status status = set_wave_arguments(p, l, kSide, &a);
    if (status) status = map_sampled_b(p, l, kSide / 2, &a.b_half);
    if (!status) return status;
    // Neighbours, which share a path to L2, have blocks of the same row for the most part.
    const int64_t blocks =
        std::min(wave_places(*l.device), ceil_div(p.nnzb, kWaveNeighbours) * kWaveNeighbours);
    return kernels_.of(p).launch(a, static_cast<unsigned>(blocks), kThreads, EvenShared::kBytes,
                                 l.stream, name(), kWaveNeighbours);
  }

 private:
  static constexpr int64_t kSide = EvenTile::kSide, kPieces = EvenTile::kPieces;
  // Microseconds, fitted to times on an H200: a launch, a task besides its steps, a step; and what
  // of a step a task of three pieces saves.
  static constexpr double kStartUs = 2.5, kTaskUs = 2.0, kStepUs = 0.74, kThreeSaves = 0.2;

  SampledKernels<AlikeCodes<ShareArguments>> kernels_{kEvenCodes<__half>,
                                                      kEvenCodes<__nv_bfloat16>};
  Registration registration_{*this};
};

const SampledEvenSm90 kEven;

}  // namespace
}  // namespace sparse_autotune
