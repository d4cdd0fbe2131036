// Sampled products in fp64 on Hopper's tensor cores.
//
// Each thread block computes a run of as many stored blocks as the others: those of a block row
// that are 64 columns together are a tile, or a strip of a larger block is. Where blocks are few,
// parts of the terms go to thread blocks of their own, and a second kernel adds up their sums.
// Data path: TMA -> 16 terms a step in a ring in shared memory -> registers -> mma.sync (16x8x16)
// -> values, or sums in L2. Operands in either layout.
// Requires: fp64, block_m a multiple of 8, block_k of 16, operands aligned to 16 bytes.
// Wins: wherever it may run. Bound by the tensor cores for blocks from 64 up, by L2 for 16.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/device/dmma_lanes.cuh"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/sampled/sampled_dmma.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

template <typename Tile>
__device__ __forceinline__ void write_blocks(const double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                             const SampledDmmaArguments& args, const DmmaStep& step,
                                             int strip_m, int strip_k) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int columns = static_cast<int>(step.what >> kStepBlocksAt) * args.strip_cols;
  const int rows = min(args.strip_rows, args.block_m - strip_m * args.strip_rows);
  const int strip_end = min(args.strip_cols, args.block_k - strip_k * args.strip_cols);
  const int in_16 = Tile::kRowMajorB ? lane / 4 * 2 : line_of(lane / 4);
  const unsigned tiles = static_cast<unsigned>(args.strips_m * args.strips_k);
  double* const sampled = args.sampled + blockIdx.x / tiles % args.parts * args.elements;
  const int64_t down = int64_t{8} * args.block_k, half_down = down / 2;
#pragma unroll
  for (int j = 0; j < Tile::kTilesM; ++j) {
    const int column = warp * Tile::kWarpN + j * 16;
    const int block = column / args.strip_cols, in_strip = column - block * args.strip_cols;
    if (column >= columns || in_strip >= strip_end) continue;
    double* to = sampled + (int64_t{step.row} + block) * (int64_t{args.block_m} * args.block_k) +
                 (strip_m * args.strip_rows + lane % 4) * args.block_k + strip_k * args.strip_cols +
                 in_strip + in_16;
#pragma unroll
    for (int i = 0; i < Tile::kTilesN; ++i, to += down) {
      if (i * 8 >= rows) break;
      const double(&x)[4] = sum[i][j];
      if constexpr (Tile::kRowMajorB) {
        *reinterpret_cast<double2*>(to) = make_double2(x[0], x[2]);
        *reinterpret_cast<double2*>(to + half_down) = make_double2(x[1], x[3]);
      } else {
        to[0] = x[0];
        to[8] = x[2];
        to[half_down] = x[1];
        to[half_down + 8] = x[3];
      }
    }
  }
}

template <typename Tile>
__device__ __forceinline__ void consume_sampled(const SampledDmmaArguments& args,
                                                const DmmaRing<Tile>& ring) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int strip = static_cast<int>(blockIdx.x % (args.strips_m * args.strips_k));
  const DmmaLanes<Tile> lanes;
  double sum[Tile::kTilesN][Tile::kTilesM][4] = {};
  RingPlace<Tile::kStages> place;
#pragma unroll 1
  for (;;) {
    mbarrier_wait(ring.full(place.stage), place.parity);
    const DmmaStep step = load_dmma_step(ring.note(place.stage));
    if (step.what == kStepsEnd) break;
    // A tile of few blocks leaves warps without columns. Of 64 rows the condition would spill.
    if (Tile::kM == 64 ||
        warp * Tile::kWarpN < static_cast<int>(step.what >> kStepBlocksAt) * args.strip_cols) {
      lanes.multiply(sum, ring.memory + place.stage * Tile::kStageBytes);
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(ring.empty(place.stage));
    if ((step.what & kStepIsLast) != 0) {
      write_blocks<Tile>(sum, args, step, strip / args.strips_k, strip % args.strips_k);
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) (&sum[0][0][0])[i] = 0;
    }
    place.advance();
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kLaunched, Tile::kResident)
    sampled_dmma_kernel(const __grid_constant__ SampledDmmaArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const DmmaRing<Tile> ring(memory);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    ring.init_barriers();
  }
  __syncthreads();
  wait_for_launch_before();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (warp == Tile::kWarps) {
    produce_sampled<Tile>(args, ring);
  } else {
    consume_sampled<Tile>(args, ring);
  }
#else
  __trap();
#endif
}

struct PartsArguments {
  const double* sums;
  double* sampled;
  int64_t elements;
  int parts;
};
constexpr int kAddThreads = 256;

// Adds up the parts of the terms, two elements a thread.
__global__ void __launch_bounds__(kAddThreads)
    add_parts_kernel(const __grid_constant__ PartsArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  const int64_t at = 2 * (int64_t{blockIdx.x} * kAddThreads + threadIdx.x);
  follow_launch_before();  // which multiplies
  if (at >= args.elements) return;
  double2 sum = make_double2(0, 0);
  constexpr int kAtOnce = 4;
  for (int first = 0; first < args.parts; first += kAtOnce) {
    double2 some[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= args.parts) break;
      some[i] =
          __ldcg(reinterpret_cast<const double2*>(args.sums + (first + i) * args.elements + at));
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= args.parts) break;
      sum.x += some[i].x;
      sum.y += some[i].y;
    }
  }
  *reinterpret_cast<double2*>(args.sampled + at) = sum;
#else
  __trap();
#endif
}

template <typename Tile>
constinit KernelCode<SampledDmmaArguments> sampled_code{&sampled_dmma_kernel<Tile>, true};
constinit KernelCode<PartsArguments> add_code{&add_parts_kernel, true};

struct Code {
  KernelCode<SampledDmmaArguments>* code;
  int threads, shared_bytes, resident;
};

template <int kRows>
constexpr Code sampled_code_of(bool c_turned, bool b_turned) {
  const auto code = []<typename Tile>(Tile) {
    return Code{&sampled_code<Tile>, Tile::kLaunched, Tile::kSharedBytes, Tile::kResident};
  };
  if (c_turned) {
    return b_turned ? code(DmmaStepTile<kRows, 64, true, true>{})
                    : code(DmmaStepTile<kRows, 64, true, false>{});
  }
  return b_turned ? code(DmmaStepTile<kRows, 64, false, true>{})
                  : code(DmmaStepTile<kRows, 64, false, false>{});
}

class SampledDmmaSm90 final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (p.block_m % 8 != 0 || p.block_k % 16 != 0) {
      return Support::no("needs blocks of multiples of 8 rows and 16 columns, got " +
                         block_text(p.block_m, p.block_k));
    }
    // What the kernel counts: stored blocks, and steps.
    if (Support s = sampled_by_tma(p, std::max(p.nnzb, steps(p)) + 128); !s) return s;
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Measured on an H200: of the tensor cores' rate what smaller blocks leave, and a launch.
    const double share = p.block_m > 32 ? 0.57 : p.block_m > 16 ? 0.45 : 0.38;
    const double flops = nnz_flops(p);
    const Cut cut = cut_of(p, d);
    return 4 + std::max({cut.us, flops / (share * d.fp64_tensor_tflops * 1e6), uncached_us(p, d)});
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const int64_t count = cut_of(p, d).parts;
    return count > 1 ? count * elements(p) * 8 : 0;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Code code = code_of(p);
    auto a = arguments_of<SampledDmmaArguments>(p, l);
    a.sampled = static_cast<double*>(l.sampled);
    a.nnzb = static_cast<int>(p.nnzb);
    a.strips_m = static_cast<int>(strips(p.block_m, kM));
    a.strips_k = static_cast<int>(strips(p.block_k, kN));
    a.strip_rows = static_cast<int>(strip_rows(p));
    a.strip_cols = static_cast<int>(strip(p.block_k, kN, 16));
    a.together = static_cast<int>(together(p));
    a.steps = static_cast<int>(ceil_div(p.n, 16));
    const int64_t count = cut_of(p, *l.device).parts;
    a.parts = static_cast<int>(count);
    a.elements = elements(p);
    if (count > 1) a.sampled = static_cast<double*>(l.workspace);
    a.shares = static_cast<int>(shares(p, *l.device, count));
    const auto rows = static_cast<uint32_t>(a.strip_rows),
               cols = static_cast<uint32_t>(a.strip_cols);
    Status status = make_tensor_map(tensor_of_c(p, l.c, 16, c_turned(p) ? 16 : rows), &a.c);
    if (!status) return status;
    status = make_tensor_map(tensor_of_b(p, l.b, 16, b_turned(p) ? 16 : cols), &a.b);
    if (!status) return status;
    const auto blocks = static_cast<unsigned>(a.shares * count * tiles(p));
    status = code.code->launch(a, blocks, code.threads, code.shared_bytes, l.stream, name());
    if (!status || count == 1) return status;
    const PartsArguments all{a.sampled, static_cast<double*>(l.sampled), a.elements, a.parts};
    return add_code.launch(all, static_cast<unsigned>(ceil_div(a.elements, 2 * kAddThreads)),
                           kAddThreads, 0, l.stream, name());
  }

 private:
  static constexpr int kM = 64, kN = 64;  // of a tile, at most

  static bool c_turned(const Problem& p) { return p.c_layout != Layout::kRowMajor; }
  static bool b_turned(const Problem& p) { return p.b_layout != Layout::kRowMajor; }
  // Of a side: how many strips, and each but the last one's length.
  static int64_t strips(int64_t side, int64_t most) { return ceil_div(side, most); }
  static int64_t strip(int64_t side, int64_t most, int64_t unit) {
    return ceil_div(ceil_div(side, strips(side, most)), unit) * unit;
  }
  static int64_t strip_rows(const Problem& p) { return strip(p.block_m, kM, 8); }
  static int64_t tiles(const Problem& p) { return strips(p.block_m, kM) * strips(p.block_k, kN); }
  static int64_t steps(const Problem& p) { return ceil_div(p.n, 16) * p.batch; }
  static int64_t elements(const Problem& p) { return p.nnzb * p.block_m * p.block_k; }
  // Thread blocks for each strip and part of the terms.
  static int64_t shares(const Problem& p, const Device& d, int64_t parts) {
    const int64_t most = int64_t{code_of(p).resident} * d.multiprocessors / (tiles(p) * parts);
    return std::clamp<int64_t>(most, 1, p.nnzb);
  }
  // Parts of the terms: as many as end soonest, which is several where blocks are few.
  struct Cut {
    int64_t parts;
    double us;
  };
  static Cut cut_of(const Problem& p, const Device& d) {
    // Measured on an H200: a step of a thread block, the second kernel.
    constexpr double kStepUs = 0.65, kAddUs = 3, kL2Gbps = 3000;
    constexpr int64_t kMost = 16, kLeastSteps = 8, kMaxWorkspace = int64_t{256} << 20;
    const int64_t most = std::clamp<int64_t>(steps(p) / kLeastSteps, 1, kMost);
    Cut best{1, INFINITY};
    for (int64_t parts = 1; parts <= most; ++parts) {
      if (parts > 1 && parts * elements(p) * 8 > kMaxWorkspace) break;
      const auto of_steps = static_cast<double>(ceil_div(steps(p), parts));
      const int64_t blocks = ceil_div(p.nnzb, shares(p, d, parts));
      const double bytes = 16.0 * static_cast<double>(parts * elements(p));
      const double added = parts == 1 ? 0 : kAddUs + bytes / (kL2Gbps * 1e3);
      const double us =
          static_cast<double>(ceil_div(blocks, together(p))) * of_steps * kStepUs + added;
      if (us < best.us) best = {parts, us};
    }
    return best;
  }
  static int64_t together(const Problem& p) { return p.block_k > kN ? 1 : kN / p.block_k; }

  static Code code_of(const Problem& p) {
    if (strip_rows(p) > 32) return sampled_code_of<64>(c_turned(p), b_turned(p));
    if (strip_rows(p) > 16) return sampled_code_of<32>(c_turned(p), b_turned(p));
    return sampled_code_of<16>(c_turned(p), b_turned(p));
  }

  Registration registration_{*this};
};

const SampledDmmaSm90 kN64{DeviceType::kCuda, "sampled_dmma_sm90/n64", Op::kSampled};

}  // namespace
}  // namespace sparse_autotune
