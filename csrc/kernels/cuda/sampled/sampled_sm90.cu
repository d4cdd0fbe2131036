// Sampled products on Hopper's tensor cores: blocks whose sides are multiples of 64.
//
// A persistent thread block works through its tasks of a table that the plan has made of the
// pattern (sampled_tasks.h): strips of 128 rows of C against up to 256 columns of values, of 64
// against up to 512, in shares as equal as rows allow. One thread copies, two warpgroups multiply.
// Where there is less than a block for every second thread block the sums are cut into parts: the
// last to come adds them up, in fp32 and in their order. Data path: global -> TMA -> shared
// (swizzled) -> wgmma -> registers -> global, either layout of both operands. Requires: compute
// capability 9.0, fp16 or bf16, 16-byte aligned C and B. Wins: wherever it is legal. Bound by L2 ->
// shared memory (57 and 85 FLOP/B), which takes that all walk the sums together, and with blocks of
// 128 by the tensor cores and the device's power too.
#include <algorithm>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/sampled/sampled_kernel.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

class SampledSm90 final : public Variant {
 public:
  SampledSm90() : Variant(DeviceType::kCuda, "sampled_sm90/tasks", Op::kSampled) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (Support s = sides_are_multiples_of(kLinesOfUnit, p); !s) return s;
    // Values are counted in runs of 64.
    if (Support s = sampled_by_tma(p, std::max(p.nnzb * p.block_m * p.block_k / 64, steps(p)));
        !s) {
      return s;
    }
    return codes(p).runs_on(d, SampledRing::kBytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override { return share(p, d).us; }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Share s = share(p, d);
    return s.parts > 1 ? s.tasks * s.parts * kTileBytes : 0;
  }

  bool wants_tasks() const override { return true; }

  Status launch(const Problem& p, const Launch& l) const override {
    const Device& d = *l.device;
    const TaskShape shape = task_shape_of(p, d);
    Share found = share(p, d);
    auto a = arguments_of<SampledArguments>(p, l);
    const auto lines = static_cast<uint32_t>(shape.row_units * kLinesOfUnit);
    Status status = map_sampled_c(p, l, lines, &a.c);
    if (status) status = map_sampled_b(p, l, kLinesOfUnit, &a.b);
    if (status) status = map_sampled_b(p, l, 2 * kLinesOfUnit, &a.b_wide);
    if (!status) return status;
    if (found.parts > 1) {
      a.counters = part_counters(d.ordinal, static_cast<cudaStream_t>(l.stream));
      a.partials = static_cast<float*>(l.workspace);
      if (a.counters == nullptr) found.parts = 1;  // as nobody could tell who comes last
    }
    a.table = l.tasks;
    a.tasks = static_cast<int>(found.tasks);
    a.parts = static_cast<int>(found.parts);
    a.steps = static_cast<int>(steps(p));
    a.matrix_steps = static_cast<int>(ceil_div(p.n, kStepK));
    a.strip_bytes = shape.row_units * kUnitBytes;
    const int64_t units = ceil_div(found.tasks * found.parts, kNeighbours) * kNeighbours;
    const auto blocks = static_cast<unsigned>(std::min<int64_t>(units, shape.places));
    return codes(p).launch(a, blocks, kThreads, SampledRing::kBytes, l.stream, name(), kNeighbours);
  }

 private:
  // How the sums are shared out: tasks, at most, and in how many parts.
  struct Share {
    int64_t tasks, parts;
    double us;
  };

  static constexpr int kNeighbours = 2;  // thread blocks of a cluster, which share a path to L2
  static constexpr int64_t kTileBytes = kConsumers * kConsumerFloats * sizeof(float);
  static constexpr int64_t kMostParts = 16, kFewestSteps = 4;  // of a part
  // Measured on an H200, microseconds: a launch with what comes before and after the steps; what
  // copying a unit takes in a step; a task; parts added up, and for each byte of theirs.
  static constexpr double kStartUs = 3, kUnitUs = 0.11, kTaskUs = 1.5, kAddUs = 10;
  static constexpr double kAddGbps = 3500;

  static int64_t steps(const Problem& p) { return ceil_div(p.n, kStepK) * p.batch; }
  KernelCode<SampledArguments>& codes(const Problem& p) const {
    return (p.dtype == DType::kFloat16 ? kSampledCodes<__half> : sampled_bf16_codes()).of(p);
  }

  // The parts are the fastest by the cost model, where there are so few tasks.
  static Share share(const Problem& p, const Device& d) {
    const TaskShape shape = task_shape_of(p, d);
    const double pieces = static_cast<double>(p.nnzb) * shape.strips * shape.across;
    const auto length = static_cast<double>(steps(p));
    if (!are_few(shape, p.nnzb)) {
      const double tasks = std::max(pieces / shape.most(), static_cast<double>(shape.places));
      const double each = pieces / tasks, rounds = tasks / shape.places;
      const double units = each + shape.row_units;
      return {most_tasks(shape, p.nnzb, block_rows(p)), 1,
              kStartUs + rounds * (length * units * kUnitUs + kTaskUs)};
    }
    // A row of blocks that are wider than a task has fewer than its blocks one by one.
    const int64_t tasks =
        std::min(fewest_tasks(shape, p.nnzb), most_tasks(shape, p.nnzb, block_rows(p)));
    const int units = std::min(shape.across, shape.most()) + shape.row_units;
    Share best{tasks, 1, 1e30};
    for (int64_t parts = 1; parts <= std::min(kMostParts, shape.places / tasks); ++parts) {
      if (parts > 1 && (parts * kFewestSteps > steps(p) || 2 * tasks > int64_t{kPartCounters}))
        break;
      double us = kStartUs + length / static_cast<double>(parts) * units * kUnitUs;
      if (parts > 1)
        us += kAddUs + static_cast<double>(tasks * parts * kTileBytes) / (kAddGbps * 1e3);
      if (us < best.us) best = {tasks, parts, us};
    }
    return best;
  }

  Registration registration_{*this};
};

const SampledSm90 kSampled;

}  // namespace
}  // namespace sparse_autotune
