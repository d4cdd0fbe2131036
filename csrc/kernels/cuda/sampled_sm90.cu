// Sampled products on Hopper's tensor cores: blocks whose sides are multiples of 64.
//
// A persistent thread block works on tasks of equal length: `strip128` on 128 rows of C against 256
// columns of values (two blocks of 128), `strip64` on 64 against 512 (eight blocks of 64). Two
// producer threads, a warp that looks blocks up, two warpgroups that multiply. Tasks are pieces of
// blocks in turn, wherever rows end, or pairs of blocks of 128 that share rows or columns where
// they can, as a task whose blocks share nothing fetches a third more. What is left for the last
// round is taken in halves, or is cut along the sums, in two parts that the thread blocks of a
// cluster exchange or in more that the last to come adds up, in fp32 and in their order. Data path:
// global -> TMA -> shared (swizzled) -> wgmma -> registers -> global, either layout of both
// operands. Requires: compute capability 9.0, fp16 or bf16, 16-byte aligned C and B. Wins: wherever
// it is legal. Bound by L2 -> shared memory (57 and 85 FLOP/B), which takes that all walk the sums
// together, and with blocks of 128 by the tensor cores and the device's power too.
#include <algorithm>
#include <cmath>
#include <string>
#include <string_view>

#include "kernels/cuda/sampled_launch.cuh"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_counters.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

// How tasks are shared out: so many whole; the others in halves or not, and in so many parts, which
// a cluster's thread blocks exchange or not. `panels`: of pairs, 0: tasks run across rows.
struct Share {
  int64_t whole, rest;
  bool halved;
  int64_t parts;
  bool clustered;
  int64_t panels;
  double us;
};

class SampledSm90 final : public Variant {
 public:
  SampledSm90(std::string_view name, const SampledShape& shape)
      : Variant(DeviceType::kCuda, name, Op::kSampled), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.block_m % shape_.rows != 0 || p.block_k % 64 != 0) {
      return Support::no("needs block_m a multiple of " + std::to_string(shape_.rows) +
                         " and block_k of 64, got " + std::to_string(p.block_m) + "x" +
                         std::to_string(p.block_k));
    }
    if (p.nnzb == 0 || p.n == 0) return Support::no("there is nothing to sum up");
    const int alignment = std::min({p.values_alignment, p.b_alignment, p.c_alignment});
    if (alignment < 16) {
      return Support::no(
          "needs addresses, leading dimensions and batch strides of values, B and C that are "
          "multiples of 16 bytes, one is a multiple of " +
          std::to_string(alignment));
    }
    const int64_t longest =
        std::max({p.ldb, p.ldc, p.b_batch_stride, p.c_batch_stride}) * size_of(p.dtype);
    if (std::max({p.m, p.n, p.k, p.batch, pieces(p), steps(p)}) > INT32_MAX ||
        longest >= int64_t{1} << 40) {
      return Support::no("a size is beyond TMA's 32-bit coordinates or 40-bit strides");
    }
    return code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override { return share(p, d).us; }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return parts_bytes(share(p, d));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    SampledArguments a{};
    const Device& d = *l.device;
    Share found = share(p, d);
    const auto map = [&](const void* data, Layout layout, int64_t lines, int64_t ld, int64_t stride,
                         bool batched, int64_t box, CUtensorMap* to) {
      const int64_t matrices = batched ? p.batch : 1;
      // The stride of a dimension of one element is never used, but must be one that TMA takes.
      const int64_t apart = batched ? stride : ld;
      const auto high = static_cast<uint32_t>(box);
      if (layout == Layout::kRowMajor) {  // terms are contiguous
        return make_tensor_map(
            {data, p.dtype, 3, {p.n, lines, matrices}, {ld, apart}, {64, high, 1}}, to);
      }
      return make_tensor_map({data,
                              p.dtype,
                              4,
                              {64, p.n, lines / 64, matrices},
                              {ld, 64, apart},
                              {64, 64, high / 64, 1}},
                             to);
    };
    a.c_batched = p.c_batch_stride != 0;
    a.b_batched = p.b_batch_stride != 0;
    a.wide_boxes = p.block_k % 128 == 0 && shape_.each / (found.halved ? 2 : 1) % 2 == 0;
    Status status =
        map(l.c, p.c_layout, p.m, p.ldc, p.c_batch_stride, a.c_batched, shape_.rows, &a.c);
    if (status) {
      status = map(l.b, p.b_layout, p.k, p.ldb, p.b_batch_stride, a.b_batched,
                   a.wide_boxes ? 128 : 64, &a.b);
    }
    if (!status) return status;
    if (parts_bytes(found) > 0) {
      a.counters = part_counters(d.ordinal, static_cast<cudaStream_t>(l.stream));
      a.partials = static_cast<float*>(l.workspace);
      if (a.counters == nullptr) found.parts = 1;  // as nobody could tell who comes last
    }
    a.whole = static_cast<unsigned>(found.whole);
    a.rest = static_cast<unsigned>(found.rest);
    a.parts = static_cast<unsigned>(found.parts);
    a.halved = found.halved;
    a.clustered = found.clustered;
    a.panels = static_cast<int>(found.panels);
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
    // Clusters of two, which may have one thread block too many; some pairs are taken apart.
    const int64_t units = (found.whole + found.rest * found.parts) * (found.panels > 0 ? 2 : 1);
    const auto blocks = static_cast<unsigned>(std::min(ceil_div(units, 2) * 2, places(d)));
    return code_of(p)->launch(a, blocks, kThreads, shape_.shared_bytes, l.stream, name(), 2);
  }

 private:
  static constexpr int64_t kMaxWorkspace = int64_t{64} << 20;
  static constexpr int64_t kFewestSteps = 4;  // of a part
  // Fitted: a launch; adding parts up, and for each byte of theirs; a cluster's exchange.
  static constexpr double kStartUs = 2.5, kAddUs = 10, kAddGbps = 3500, kExchangeUs = 12;

  int64_t pieces(const Problem& p) const {
    return p.nnzb * (p.block_m / shape_.rows) * (p.block_k / 64);
  }
  // Thread blocks at a time, in clusters of two.
  static int64_t places(const Device& d) { return std::max(d.multiprocessors / 2, 1) * 2; }
  static int64_t steps(const Problem& p) { return ceil_div(p.n, kStepK) * p.batch; }

  KernelCode<SampledArguments>* code_of(const Problem& p) const {
    return shape_.kernels[static_cast<int>(p.dtype)]
        .codes[static_cast<int>(p.c_layout)][static_cast<int>(p.b_layout)];
  }

  int64_t parts_bytes(const Share& share) const {
    if (share.parts == 1 || share.clustered) return 0;
    return share.rest * share.parts * shape_.tile_bytes;
  }

  double step_us(int64_t busy, TaskKind kind, const Device& d) const {
    const double share = static_cast<double>(busy) / static_cast<double>(places(d));
    const SampledPace& pace = shape_.pace;
    return std::max(pace.alone_us[kind], pace.busy_us[kind] * std::min(share, 1.0));
  }

  // Of so many tasks in turn, the last round's by as many thread blocks as it has.
  double rounds_us(int64_t tasks, int64_t steps, TaskKind kind, const Device& d) const {
    if (tasks <= 0) return 0;
    const auto round_us = [&](int64_t busy) {
      return static_cast<double>(steps) * step_us(busy, kind, d) + shape_.pace.task_us;
    };
    const int64_t rounds = ceil_div(tasks, places(d));
    return static_cast<double>(rounds - 1) * round_us(places(d)) +
           round_us(tasks - (rounds - 1) * places(d));
  }

  double adding_us(const Share& s) const {
    if (s.parts == 1) return 0;
    if (s.clustered) return kExchangeUs;
    return kAddUs + static_cast<double>(parts_bytes(s)) / (s.halved ? 2 : 1) / (kAddGbps * 1e3);
  }

  bool can_add(const Share& s, const Device& d) const {
    if (s.parts == 1) return true;
    // Each thread block exchanges once, in its last task.
    if (s.clustered) return s.rest * s.parts <= places(d);
    return parts_bytes(s) <= kMaxWorkspace && 2 * s.rest <= int64_t{kPartCounters};
  }

  // The fastest by the cost model.
  Share share(const Problem& p, const Device& d) const {
    const int64_t length = steps(p);
    Share best{};
    const auto offer = [&](Share s, TaskKind whole, TaskKind rest) {
      if ((s.parts > 1 && s.parts * kFewestSteps > length) || !can_add(s, d)) return;
      s.us = kStartUs + rounds_us(s.whole, length, whole, d) +
             rounds_us(s.rest * s.parts, ceil_div(length, s.parts), rest, d) + adding_us(s);
      if (best.whole + best.rest == 0 || s.us < best.us) best = s;
    };
    const auto full = [&](int64_t tasks) { return tasks / places(d) * places(d); };
    const int64_t all = ceil_div(pieces(p), shape_.pieces);
    offer({.whole = all, .parts = 1}, kAcrossRows, kAcrossRows);
    const int64_t left = pieces(p) - full(all) * shape_.pieces;
    for (bool halved : {false, true}) {
      Share s{.whole = full(all), .halved = halved};
      s.rest = ceil_div(left, shape_.pieces / (halved ? 2 : 1));
      if (s.rest <= 0) continue;
      for (int64_t parts : {1, 2, 3, 4, 6, 8, 12, 16}) {
        s.parts = parts;
        s.clustered = parts == 2;
        offer(s, kAcrossRows, halved ? kHalf : kAcrossRows);
        s.clustered = false;
        offer(s, kAcrossRows, halved ? kHalf : kAcrossRows);
      }
    }
    if (shape_.rows == 128 && p.block_k == 128) {
      const int64_t pairs = ceil_div(p.nnzb, 2) * (p.block_m / shape_.rows);
      Share s{.whole = pairs, .parts = 1, .panels = panels(p, pairs, d)};
      offer(s, kOfOneRow, kOfOneRow);
      s.whole = full(pairs);
      s.rest = pairs - s.whole;
      s.parts = 2;
      s.clustered = true;
      if (s.rest > 0) offer(s, kOfOneRow, kOfOneRow);
    }
    return best;
  }

  // So many that the first rounds together read the fewest rows of C and columns of B, if all rows
  // are alike; but rows have two pairs in each.
  static int64_t panels(const Problem& p, int64_t pairs, const Device& d) {
    constexpr int kRounds = 8;
    const double each = static_cast<double>(places(d)) / static_cast<double>(pairs);
    const int64_t most = std::min<int64_t>(pairs / (2 * block_rows(p)), kRounds);
    int64_t best = 1;
    double least = HUGE_VAL;
    for (int64_t count = 1; count <= most; ++count) {
      double lines = 0;
      for (int round = 0; round < kRounds && round * each < 1; ++round) {
        const double begin = round * each * static_cast<double>(count);
        const double end = std::min((round + 1) * each, 1.0) * static_cast<double>(count);
        const double columns = (std::ceil(end) - std::floor(begin)) / static_cast<double>(count);
        lines += std::min(end - begin, 1.0) * static_cast<double>(p.m) +
                 columns * static_cast<double>(p.k);
      }
      if (lines < least) {
        best = count;
        least = lines;
      }
    }
    return best;
  }

  SampledShape shape_;
  Registration registration_{*this};
};

const SampledSm90 kStrip128{"sampled_sm90/strip128", strip128_shape()};
const SampledSm90 kStrip64{"sampled_sm90/strip64", strip64_shape()};

}  // namespace
}  // namespace sparse_autotune
