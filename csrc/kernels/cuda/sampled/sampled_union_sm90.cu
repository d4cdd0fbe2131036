// Sampled products of small blocks on Hopper: stored blocks share the rows and columns they need.
//
// A thread block owns a region of values: a group of block rows against panels of 64 columns that
// hold about as many stored blocks as its warps have registers for. It fetches the rows of C and
// the columns of B once for all of them. Where there are fewer regions than multiprocessors, sums
// are cut into parts: the last to come adds them up, in fp32 and in their order.
// Data path: global -> TMA -> shared (swizzled) -> ldmatrix -> mma.sync -> registers -> global,
// either layout of both operands. Blocks that are not stored are fetched for, not multiplied.
// Requires: compute capability 9.0, fp16 or bf16, block sides of 16, 32 or 64, 16-byte aligned C
// and B. Wins: blocks of 16 and 32. Bound by L2 -> shared memory, and with blocks of 16 by reading
// shared memory.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "kernels/cuda/sampled/sampled_union_consumer.cuh"
#include "kernels/cuda/sampled/sampled_union_region.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

// The steps of its sums that a thread block takes in a round. The first round's regions are cut;
// more regions than were expected are not, as partial sums have no room of their own.
struct RoundSteps {
  bool cut, mine;
  int first, count;

  __device__ __forceinline__ RoundSteps(const SampledUnionArguments& args, int round, int part)
      : cut(round == 0 && args.parts > 1), mine(cut || round % args.parts == part) {
    first = cut ? part_begin(args.steps, args.parts, part) : 0;
    count = (cut ? part_begin(args.steps, args.parts, part + 1) : args.steps) - first;
  }
};

// One thread: keeps copies of the region's rows and columns under way.
template <typename Tile, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void copy_region(const SampledUnionArguments& args,
                                            const SampledUnionShared<Tile>& shared, int first_row,
                                            const RoundSteps& steps) {
  const int row = first_row * args.block_m;
  const int rows = min(args.group_rows, args.block_rows - first_row);
  const int left = (rows * args.block_m + kPanelWidth - 1) / kPanelWidth;
  const int panels = shared.notes().panels, boxes = left + panels, stages = ring_stages(boxes);
  SampledUnionPlace at;
  int matrix = steps.first / args.matrix_steps;
  int term = steps.first % args.matrix_steps * kBoxTerms;
  for (int step = 0; step < steps.count; ++step) {
    mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
    const uint32_t full = shared.full(at.stage);
    uint32_t to = shared.ring + at.stage * boxes * kBoxBytes;
    mbarrier_arrive_expect(full, boxes * kBoxBytes);
    const int of_c = args.c_batched ? matrix : 0, of_b = args.b_batched ? matrix : 0;
#pragma unroll 4
    for (int i = 0; i < left; ++i, to += kBoxBytes) {
      const int line = row + i * kPanelWidth;
      tma_load(to, args.c, full, kTermsC ? term : line, kTermsC ? line : term, of_c);
    }
#pragma unroll 4
    for (int i = 0; i < panels; ++i, to += kBoxBytes) {
      const int line = shared.notes().panel[i] * kPanelWidth;
      tma_load(to, args.b, full, kTermsB ? term : line, kTermsB ? line : term, of_b);
    }
    at.advance(stages);
    term += kBoxTerms;
    if (term >= args.matrix_steps * kBoxTerms) {
      term = 0;
      ++matrix;
    }
  }
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    sampled_union_kernel(const __grid_constant__ SampledUnionArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const SampledUnionShared<Tile> shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    shared.init_round_barriers();
    shared.init_barriers(false);
    shared.notes().tile = static_cast<int>(blockIdx.x % (gridDim.x / args.parts));
  }
  follow_launch_before();
  __syncthreads();
  const int tiles = gridDim.x / args.parts, tile = blockIdx.x % tiles, part = blockIdx.x / tiles;
  const int group = tile / args.group_regions, first = tile % args.group_regions;
  if (warp >= Tile::kWarps) {
    give_up_registers<Tile::kProducerRegisters>();
    if (warp > Tile::kWarps) return;
    for (int round = 0;; ++round) {
      mbarrier_wait(shared.found(), round % 2);
      const int regions = shared.notes().regions, wanted = first + round * args.group_regions;
      if (wanted >= regions) return;
      const RoundSteps steps(args, round, part);
      if (steps.mine && shared.notes().panels > 0 && elect_one()) {
        copy_region<Tile, kTermsC, kTermsB>(args, shared, group * args.group_rows, steps);
      }
      if (wanted + args.group_regions >= regions) return;
      mbarrier_arrive(shared.copied());
    }
  } else {
    take_registers<Tile::kConsumerRegisters>();
    SampledUnionConsumer<T, Tile, kTermsC, kTermsB> consumer(args, shared);
    for (int round = 0;; ++round) {
      const int wanted = first + round * args.group_regions;
      const SampledRegion region = find_region(args, shared, group, wanted);
      mbarrier_arrive(shared.found());
      Tile::sync_consumers();
      if (wanted >= region.regions) return;
      const RoundSteps steps(args, round, part);
      if (steps.mine && region.panels > 0) {
        consumer.work(region, steps.count, steps.cut ? part : -1);
      }
      if (wanted + args.group_regions >= region.regions) return;
      mbarrier_wait(shared.copied(), round % 2);
      Tile::sync_consumers();
      if (threadIdx.x == 0) shared.init_barriers(true);
    }
  }
#else
  __trap();
#endif
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
constinit KernelCode<SampledUnionArguments> sampled_union_code{
    &sampled_union_kernel<T, Tile, kTermsC, kTermsB>, true};

template <typename T, typename Tile>
constexpr SampledCodes<SampledUnionArguments> kUnionCodes{
    {{&sampled_union_code<T, Tile, true, true>, &sampled_union_code<T, Tile, true, false>},
     {&sampled_union_code<T, Tile, false, true>, &sampled_union_code<T, Tile, false, false>}}};

// How values are cut into regions: block rows of a group, regions of a group, parts of a sum.
struct Share {
  int64_t group_rows, group_regions, parts;
  double us;
};

template <typename Tile>
class SampledUnionSm90 final : public Variant {
 public:
  // `unit_us`: of a unit's step, fitted.
  SampledUnionSm90(std::string_view name, double unit_us)
      : Variant(DeviceType::kCuda, name, Op::kSampled), unit_us_(unit_us) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    const auto divides = [](int64_t side, int64_t unit) {
      return side % unit == 0 && kPanelWidth % side == 0;
    };
    if (!divides(p.block_m, Tile::kUnitM) || !divides(p.block_k, Tile::kUnitK)) {
      return Support::no("needs block_m a multiple of " + std::to_string(Tile::kUnitM) +
                         ", block_k of " + std::to_string(Tile::kUnitK) +
                         ", and both to divide 64, got " + block_text(p.block_m, p.block_k));
    }
    if (Support s = sampled_by_tma(p, std::max(p.nnzb, steps(p))); !s) return s;
    if (block_cols(p) * 16 > kRingBoxes * kBoxBytes) {
      return Support::no("more than " + std::to_string(kRingBoxes * kBoxBytes / 16) +
                         " block columns, got " + std::to_string(block_cols(p)));
    }
    return codes(p).runs_on(d, SampledUnionShared<Tile>::kBytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override { return share(p, d).us; }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return parts_bytes(p, share(p, d));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<SampledUnionArguments>(p, l);
    const Device& d = *l.device;
    Share found = share(p, d);
    // 32 terms of 64 lines, or of each of 32 terms 64 lines.
    const auto along = [](Layout layout) -> uint32_t {
      return layout == Layout::kRowMajor ? kBoxTerms : kPanelWidth;
    };
    constexpr uint32_t kBoxElements = kBoxTerms * kPanelWidth;
    const uint32_t c_along = along(p.c_layout), b_along = along(p.b_layout);
    Status status = make_tensor_map(tensor_of_c(p, l.c, c_along, kBoxElements / c_along), &a.c);
    if (status) {
      status = make_tensor_map(tensor_of_b(p, l.b, b_along, kBoxElements / b_along), &a.b);
    }
    if (!status) return status;
    if (found.parts > 1) {
      a.counters = part_counters(d.ordinal, static_cast<cudaStream_t>(l.stream));
      a.partials = static_cast<float*>(l.workspace);
      if (a.counters == nullptr) found.parts = 1;  // as nobody could tell who comes last
    }
    a.group_rows = static_cast<int>(found.group_rows);
    a.group_regions = static_cast<int>(found.group_regions);
    a.parts = static_cast<int>(found.parts);
    a.steps = static_cast<int>(steps(p));
    a.matrix_steps = static_cast<int>(ceil_div(p.n, kBoxTerms));
    const auto blocks = static_cast<unsigned>(tiles(p, found) * found.parts);
    return codes(p).launch(a, blocks, Tile::kThreads, SampledUnionShared<Tile>::kBytes, l.stream,
                           name());
  }

 private:
  static constexpr int64_t kMaxWorkspace = int64_t{64} << 20;
  static constexpr int64_t kFewestSteps = 8;  // of a part
  // Strips that a region may well have beyond the average.
  static constexpr int64_t kSlack = 2;
  // Fitted: a launch; finding and storing a region; adding parts up; a multiprocessor's share of
  // L2; a box on its way through shared memory.
  static constexpr double kStartUs = 3, kRegionUs = 7, kAddUs = 6, kFetchGbps = 75, kBoxUs = 0.018;

  static KernelCode<SampledUnionArguments>& codes(const Problem& p) {
    return (p.dtype == DType::kFloat16 ? kUnionCodes<__half, Tile>
                                       : kUnionCodes<__nv_bfloat16, Tile>)
        .of(p);
  }
  static int64_t steps(const Problem& p) { return ceil_div(p.n, kBoxTerms) * p.batch; }
  static int64_t tiles(const Problem& p, const Share& s) {
    return ceil_div(block_rows(p), s.group_rows) * s.group_regions;
  }
  int64_t parts_bytes(const Problem& p, const Share& s) const {
    return s.parts > 1 ? tiles(p, s) * s.parts * int64_t{Tile::kPartFloats} * 4 : 0;
  }

  // The fastest by the cost model.
  Share share(const Problem& p, const Device& d) const {
    Share best{};
    best.us = INFINITY;
    for (int high : {128, 256, 320, 384, kMaxRows}) {
      const int64_t groups = ceil_div(block_rows(p), high / p.block_m);
      const int64_t rows = ceil_div(block_rows(p), groups);
      // All blocks of a panel must fit.
      if (rows * (p.block_m / Tile::kUnitM) * (kPanelWidth / Tile::kUnitK) > Tile::kUnits) break;
      consider(p, d, rows, &best);
      if (groups == 1) break;
    }
    return best;
  }

  // Groups of so many block rows: with as few regions as blocks and panels fit in, or with as many
  // as there are multiprocessors for.
  void consider(const Problem& p, const Device& d, int64_t rows, Share* best) const {
    const int64_t groups = ceil_div(block_rows(p), rows), panels = ceil_div(p.k, kPanelWidth);
    const int64_t left = ceil_div(rows * p.block_m, kPanelWidth);
    const double density =
        static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p) * block_cols(p));
    const double blocks = density * static_cast<double>(rows * block_cols(p));  // of a group
    const int64_t units_each = p.block_m / Tile::kUnitM * (p.block_k / Tile::kUnitK);
    // Of blocks anywhere: how many panels have one; and how many more some groups have.
    const double used =
        static_cast<double>(panels) * (1 - std::exp(-blocks / static_cast<double>(panels)));
    const auto at_most = [](double mean, double of) {
      return mean + 2.5 * std::sqrt(mean * std::max(1 - mean / of, 0.0));
    };
    const double most = at_most(blocks, static_cast<double>(rows * block_cols(p)));
    const double room = static_cast<double>(Tile::kUnits / units_each) -
                        1.25 * most / static_cast<double>(block_cols(p));
    const double room_panels = static_cast<double>(kMostBoxes - left - kSlack);
    const auto fewest = static_cast<int64_t>(
        std::ceil(std::max(most / std::max(room, 1.0), at_most(used, static_cast<double>(panels)) /
                                                           std::max(room_panels, 1.0))));
    for (int64_t parts : {1, 2, 3, 4, 6, 8}) {
      if (parts > 1 && parts * kFewestSteps > steps(p)) break;
      const int64_t filling = d.multiprocessors / (groups * parts);
      for (int64_t group_regions : {fewest, filling}) {
        if (group_regions < fewest || group_regions > panels) continue;
        const double width = used / static_cast<double>(group_regions);
        Share s{rows, group_regions, parts, 0};
        if (parts > 1 && (tiles(p, s) > kPartCounters || parts_bytes(p, s) > kMaxWorkspace)) {
          continue;
        }
        s.us = time_us(p, d, s,
                       most * static_cast<double>(units_each) / static_cast<double>(group_regions),
                       static_cast<double>(left) + width);
        if (s.us < best->us) *best = s;
      }
    }
  }

  double time_us(const Problem& p, const Device& d, const Share& s, double units,
                 double boxes) const {
    const bool short_lines = p.b_layout == Layout::kRowMajor || p.c_layout == Layout::kRowMajor;
    const double fetch_us = boxes * kBoxBytes / (kFetchGbps * 1e3) * (short_lines ? 1.15 : 1);
    const double read_us = units * unit_us_ + boxes * kBoxUs;
    const double rounds = std::ceil(static_cast<double>(tiles(p, s) * s.parts) /
                                    static_cast<double>(std::max(d.multiprocessors, 1)));
    const double length = std::ceil(static_cast<double>(steps(p)) / static_cast<double>(s.parts));
    return kStartUs + rounds * (kRegionUs + length * std::max(fetch_us, read_us)) +
           (s.parts > 1 ? kAddUs : 0);
  }

  double unit_us_;
  Registration registration_{*this};
};

// Warps, units of a warp, a unit's sides in 16s.
const SampledUnionSm90<SampledUnionTile<16, 9, 1, 1>> kUnit16{"sampled_union_sm90/unit16", 0.0066};
const SampledUnionSm90<SampledUnionTile<8, 5, 2, 2>> kUnit32{"sampled_union_sm90/unit32", 0.017};

}  // namespace
}  // namespace sparse_autotune
