// Sampled products on Hopper's tensor cores: blocks whose sides are multiples of 64.
//
// A persistent thread block works on tasks of equal length: `strip128` on 128 rows of C against 256
// columns of values (two blocks of 128), `strip64` on 64 against 512 (eight blocks of 64). Two
// producer threads, a warp that looks blocks up, two warpgroups that multiply. Tasks are pieces of
// blocks in turn, wherever rows end. As a task of two rows costs a quarter more, pairs of blocks of
// 128 take them from a row order instead. What is left for the last round is taken in halves, or is
// cut along the sums: the last to come adds the parts up, in fp32 and in their order; or all tasks
// of strip64 are smaller. Data path: global -> TMA -> shared (swizzled) -> wgmma -> registers ->
// global, either layout of both operands. Requires: compute capability 9.0, fp16 or bf16, 16-byte
// aligned C and B. Wins: wherever it is legal and there is more to do than in one wave
// (sampled_wave_sm90, sampled_quads_sm90). Bound by
// L2 -> shared memory (57 and 85 FLOP/B), which takes that all walk the sums together, and with
// blocks of 128 by the tensor cores and the device's power too.
#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/sampled/sampled_launch.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

// How tasks are shared out: so many whole; the others in halves or not, and in so many parts.
struct Share {
  int64_t whole, rest;
  bool halved;
  int64_t parts;
  double us;
  int most;  // pieces of a whole task
};

class SampledSm90 final : public Variant {
 public:
  SampledSm90(std::string_view name, const SampledShape& shape)
      : Variant(DeviceType::kCuda, name, Op::kSampled), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (p.block_m % shape_.rows != 0 || p.block_k % 64 != 0) {
      return Support::no("needs block_m a multiple of " + std::to_string(shape_.rows) +
                         " and block_k of 64, got " + std::to_string(p.block_m) + "x" +
                         std::to_string(p.block_k));
    }
    if (Support s = sampled_by_tma(p, std::max(pieces(p), steps(p))); !s) return s;
    return shape_.kernels.of(p).runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return share(p, d, row_order(p, d) != kNoRowOrder).us;
  }

  // Whether or not there is a row order: without one there may be parts.
  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return parts_bytes(share(p, d, false));
  }

  // Where a task is two blocks, and some rows have more.
  int row_order(const Problem& p, const Device& d) const override {
    const bool pairs = shape_.rows == 128 && p.block_k / 64 * 2 == shape_.pieces;
    if (!pairs || p.row_cuts.rows[kPairs] == 0) return kNoRowOrder;
    return share(p, d, true).us < share(p, d, false).us ? kPairs : kNoRowOrder;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    SampledArguments a{};
    const Device& d = *l.device;
    const int order = row_order(p, d);
    a.order = order == kNoRowOrder ? nullptr : l.row_orders[order];
    Share found = share(p, d, a.order != nullptr);
    a.c_batched = p.c_batch_stride != 0;
    a.b_batched = p.b_batch_stride != 0;
    a.most = found.most;
    a.wide_boxes = p.block_k % 128 == 0 && found.most % 2 == 0 &&
                   shape_.each / (found.halved ? 2 : 1) % 2 == 0;
    Status status = map_sampled_c(p, l, static_cast<uint32_t>(shape_.rows), &a.c);
    if (status) status = map_sampled_b(p, l, a.wide_boxes ? 128 : 64, &a.b);
    if (!status) return status;
    if (found.parts > 1) {
      a.counters = part_counters(d.ordinal, static_cast<cudaStream_t>(l.stream));
      a.partials = static_cast<float*>(l.workspace);
      if (a.counters == nullptr) found.parts = 1;  // as nobody could tell who comes last
    }
    a.whole = static_cast<unsigned>(found.whole);
    a.rest = static_cast<unsigned>(found.rest);
    a.parts = static_cast<unsigned>(found.parts);
    a.halved = found.halved;
    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.values = l.sampled;
    a.pieces = static_cast<unsigned>(pieces(p));
    a.steps = static_cast<int>(steps(p));
    a.matrix_steps = static_cast<int>(ceil_div(p.n, kStepK));
    a.block_rows = static_cast<int>(block_rows(p));
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.strips = static_cast<int>(p.block_m / shape_.rows);
    a.wide_indices = p.index_type == IndexType::kInt64;
    // Halves by an order may be absent: nobody counts them here.
    const unsigned units = a.whole + a.rest * std::max(a.parts, a.halved ? 2u : 1u);
    const unsigned blocks = std::min(units, static_cast<unsigned>(d.multiprocessors));
    return shape_.kernels.of(p).launch(a, blocks, kThreads, shape_.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kPairs = 1;  // the order that cuts into parts of 2 blocks
  static constexpr int64_t kMaxWorkspace = int64_t{64} << 20;
  static constexpr int64_t kFewestSteps = 4;  // of a part
  // Fitted: a launch; adding parts up, and for each byte of theirs.
  static constexpr double kStartUs = 2.5, kAddUs = 10, kAddGbps = 3500;

  int64_t pieces(const Problem& p) const {
    return p.nnzb * (p.block_m / shape_.rows) * (p.block_k / 64);
  }
  int64_t tasks(const Problem& p) const { return ceil_div(pieces(p), shape_.pieces); }
  static int64_t steps(const Problem& p) { return ceil_div(p.n, kStepK) * p.batch; }

  int64_t parts_bytes(const Share& share) const {
    return share.parts > 1 ? share.rest * share.parts * shape_.tile_bytes : 0;
  }

  double step_us(int64_t busy, TaskKind kind, const Device& d) const {
    const double share = static_cast<double>(busy) / std::max(d.multiprocessors, 1);
    const SampledPace& pace = shape_.pace;
    return std::max(pace.alone_us[kind], pace.busy_us[kind] * std::min(share, 1.0));
  }

  // Of so many tasks in turn by so many thread blocks, the last round's by as many as it has.
  double rounds_us(int64_t tasks, int64_t places, int64_t steps, TaskKind kind,
                   const Device& d) const {
    if (tasks <= 0) return 0;
    const auto round_us = [&](int64_t busy) {
      return static_cast<double>(steps) * step_us(busy, kind, d) + shape_.pace.task_us;
    };
    const int64_t rounds = ceil_div(tasks, places);
    return static_cast<double>(rounds - 1) * round_us(places) +
           round_us(tasks - (rounds - 1) * places);
  }

  double adding_us(const Share& s, bool half) const {
    if (s.parts == 1) return 0;
    return kAddUs + static_cast<double>(parts_bytes(s)) / (half ? 2 : 1) / (kAddGbps * 1e3);
  }

  bool can_add(const Share& s) const {
    return parts_bytes(s) <= kMaxWorkspace && 2 * s.rest <= int64_t{kPartCounters};
  }

  // The fastest by the cost model.
  Share share(const Problem& p, const Device& d, bool ordered) const {
    return ordered ? share_in_order(p, d) : share_across_rows(p, d);
  }

  Share share_across_rows(const Problem& p, const Device& d) const {
    const int64_t all = tasks(p), places = std::max(d.multiprocessors, 1), length = steps(p);
    Share best{all,          0, false, 1, kStartUs + rounds_us(all, places, length, kAcrossRows, d),
               shape_.pieces};
    // Smaller tasks, for rounds that come out even.
    for (int most = shape_.pieces - 1;
         shape_.rows == 64 && all > places && most > shape_.pieces / 2; --most) {
      const int64_t smaller = ceil_div(pieces(p), most);
      const Share s{smaller,
                    0,
                    false,
                    1,
                    kStartUs + rounds_us(smaller, places, ceil_div(length * most, shape_.pieces),
                                         kAcrossRows, d),
                    most};
      if (s.us < best.us) best = s;
    }
    const int64_t full = all / places * places;
    const double full_us = kStartUs + rounds_us(full, places, length, kAcrossRows, d);
    const int64_t left = pieces(p) - full * shape_.pieces;
    for (bool halved : {false, true}) {
      const int64_t rest = ceil_div(left, shape_.pieces / (halved ? 2 : 1));
      for (int64_t parts : {1, 2, 3, 4, 6, 8, 12, 16}) {
        if (rest == 0 || (parts == 1 && !halved) || parts * kFewestSteps > length) continue;
        Share s{full, rest, halved, parts, full_us, shape_.pieces};
        s.us += rounds_us(rest * parts, places, ceil_div(length, parts),
                          halved ? kHalf : kAcrossRows, d) +
                adding_us(s, halved);
        if ((parts == 1 || can_add(s)) && s.us < best.us) best = s;
      }
    }
    return best;
  }

  // Pairs of blocks, then single ones. How many rows are empty is not known: as if none were.
  Share share_in_order(const Problem& p, const Device& d) const {
    const int64_t places = std::max(d.multiprocessors, 1), length = steps(p);
    const int64_t strips = p.block_m / shape_.rows;
    const int64_t entries = block_rows(p) - p.row_cuts.rows[kPairs] + p.row_cuts.parts[kPairs];
    const int64_t all = entries * strips;
    const int64_t pairs = std::max<int64_t>(p.nnzb - entries, 0) * strips, singles = all - pairs;
    // Single blocks where the last round of pairs leaves room, or in rounds behind.
    const int64_t last = pairs % places, idle = last == 0 ? 0 : places - last;
    const Share whole{all,
                      0,
                      false,
                      1,
                      kStartUs + rounds_us(pairs, places, length, kOfOneRow, d) +
                          rounds_us(singles - idle, places, length, kHalf, d),
                      shape_.pieces};
    // The last round's pairs in halves, with the single blocks.
    const int64_t full = pairs - last;
    const Share halves{full,
                       all - full,
                       true,
                       1,
                       kStartUs + rounds_us(full, places, length, kOfOneRow, d) +
                           rounds_us(2 * last + singles, places, length, kHalf, d),
                       shape_.pieces};
    return halves.us < whole.us ? halves : whole;
  }

  SampledShape shape_;
  Registration registration_{*this};
};

const SampledSm90 kStrip128{"sampled_sm90/strip128", strip128_shape()};
const SampledSm90 kStrip64{"sampled_sm90/strip64", strip64_shape()};

}  // namespace
}  // namespace sparse_autotune
