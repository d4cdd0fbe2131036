// Products with at most 16 columns in fp32 and fp64, blocks of any shape: what bounds them is A.
//
// warp_rows.cuh has the kernels. Values stream through lanes in whole lines, B comes through L1.
// How lanes lie is worked out for each launch from the block's shape, n and the blocks per row.
// Rows that would keep a group busy longer than the card as a whole are multiplied in segments of
// the stream of stored blocks, whose sums a second kernel adds up in order: nothing is planned.
// Half types too where their tensor-core families take no such block. Requires: nothing but n.
// Wins: few columns of blocks that flat_rows, staged_rows and tensor cores do not take.
#include <cuda_runtime.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "kernels/cuda/host/remembered.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/scalar/warp_rows.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxColumns = 16;
constexpr int64_t kMaxGrid = 65535;  // along y
constexpr unsigned kTurns = 8;       // tasks that a group does one after another, at most

using Kernel = void (*)(WarpRowsArguments);

struct Code {
  int vector, columns, rows;  // of a lane
  RowsAccess access;
  Kernel kernels[2];  // [1]: a lane has one vector of each block, and blocks lie in order
};

template <typename T, int kVector, int kColumns, int kRows, RowsAccess kAccess>
constexpr Code kCode{kVector,
                     kColumns,
                     kRows,
                     kAccess,
                     {&warp_rows_kernel<T, kVector, kColumns, kRows, kAccess, false>,
                      &warp_rows_kernel<T, kVector, kColumns, kRows, kAccess, true>}};

// How a launch is laid out.
struct Shape {
  const Code* code = nullptr;
  int log_lanes = 0, blocks = 0, row_lanes = 0, vector_lanes = 0, column_lanes = 0;
  int vectors = 0, steps = 0;  // in a block: vectors, steps of a lane over its vectors
  int64_t strips = 0;
  double cost_us = 0;  // to choose by
  double us = 0;       // expected
};

bool b_along_k(const Problem& p) { return p.b_layout == Layout::kColMajor || p.ldb == 1; }

// Rows of which some keep a group busy much longer than others, or may.
bool is_uneven(const Problem& p) {
  return p.longest_row < 0 || p.longest_row * block_rows(p) > 4 * p.nnzb;
}

Shape shape_of(const Code& code, int log_lanes, const Problem& p, const Device& d) {
  Shape s{.code = &code, .log_lanes = log_lanes};
  const auto over = [](int64_t a, int64_t b) { return static_cast<int>(ceil_div(a, b)); };
  const int block_m = static_cast<int>(p.block_m);
  s.vectors = static_cast<int>(p.block_k) / code.vector;
  s.column_lanes = static_cast<int>(p.n) / code.columns;
  const int lanes = (1 << log_lanes) / s.column_lanes;
  if (lanes == 0) return s;
  // The direction in which neighbouring values lie first.
  if (p.transpose) s.row_lanes = std::min(lanes, over(block_m, code.rows));
  s.steps = over(s.vectors, p.transpose ? lanes / s.row_lanes : lanes);
  s.vector_lanes = over(s.vectors, s.steps);
  s.row_lanes = std::min(lanes / s.vector_lanes, over(block_m, code.rows));
  s.strips = over(block_m, code.rows * s.row_lanes);
  s.row_lanes = over(block_m, code.rows * s.strips);
  s.blocks = lanes / (s.vector_lanes * s.row_lanes);
  // Of a multiprocessor, fitted to times on an H200: lines that L1 hands out, one a cycle;
  // instructions, four a cycle; the waits of a group, from a task's first load to its last, where
  // some 24 warps wait together.
  constexpr double kLine = 128, kCyclesPerUs = 1500, kLineWeight = 0.45, kCostShare = 0.6;
  constexpr double kTaskUs = 1.2, kTurnUs = 0.3, kAloneUs = 0.45, kWarps = 24, kSetUp = 200;
  const double item = static_cast<double>(size_of(p.dtype)), words = std::max(item / 4, 1.0);
  const double groups = 32.0 / (1 << log_lanes);  // of a warp
  const double rows = static_cast<double>(std::max<int64_t>(block_rows(p), 1));
  const double mean = static_cast<double>(p.nnzb) / rows;
  const double vector_bytes = s.vector_lanes * code.vector * item;
  const double left_lines =
      std::min(s.blocks * std::max(1.0, s.row_lanes * vector_bytes / kLine),
               s.blocks * static_cast<double>(p.block_m * p.block_k) * item / kLine + 1);
  double loads, right_lines;
  if (b_along_k(p)) {
    loads = code.columns * (code.access == RowsAccess::kElements ? code.vector : 1);
    right_lines = s.column_lanes * std::max(1.0, vector_bytes / kLine);
  } else {
    const double row_bytes = static_cast<double>(p.n) * item;
    loads = code.access == RowsAccess::kAlongColumns
                ? code.vector * std::max(1.0, code.columns * item / 16)
                : code.vector * code.columns;
    right_lines = std::min(s.vector_lanes * std::max(1.0, row_bytes / kLine),
                           s.vector_lanes * code.vector * row_bytes / kLine + 0.5);
  }
  const auto halvings = [](int count) { return count > 1 ? 32 - __builtin_clz(count - 1) : 0; };
  const double exchanged =
      words * code.rows * code.columns * (halvings(s.blocks) + halvings(s.vector_lanes));
  // Of rows of uneven length those of a warp wait for the longest.
  const double longest = is_uneven(p) ? mean * (1 + 0.5 * std::log2(groups)) : mean;
  const double turns = std::ceil(longest / s.blocks) * s.steps;
  const double lines =
      exchanged + turns * groups * (code.rows * left_lines + loads * s.blocks * right_lines + 1);
  const double issued =
      kSetUp + 3 * exchanged +
      turns * (6 + 2 * code.rows + 2 * loads + code.rows * code.vector * code.columns * words);
  // A block's own vectors are loaded together, those of other blocks behind them.
  const int together =
      rows_steps_at_once(code.vector, code.columns, code.rows, static_cast<int>(item));
  const double waits = s.steps == 1
                           ? turns / together
                           : turns / s.steps * (s.steps / together + s.steps % together + 1);
  const double warps =
      rows * static_cast<double>(s.strips * p.batch) / groups / std::max(d.multiprocessors, 1);
  const double line_us = kLineWeight * lines * warps / kCyclesPerUs;
  const double issue_us = issued / 4 * warps / kCyclesPerUs;
  const double wait_us = (kTaskUs + kTurnUs * waits) * warps / kWarps;
  const double memory_us = compulsory_bytes(p) / (d.memory_gbps * 850);
  s.cost_us = std::max({line_us, issue_us, wait_us, memory_us, kTaskUs + kAloneUs * waits}) +
              line_us + issue_us + wait_us;
  s.us = std::max({memory_us, kCostShare * s.cost_us, kTaskUs + kAloneUs * waits});
  return s;
}

constexpr RowsAccess kAlongK = RowsAccess::kAlongK, kAlongColumns = RowsAccess::kAlongColumns,
                     kElements = RowsAccess::kElements;

// By type, at most a minute's compilation in all: half types are rare here, and have few.
template <typename T>
constexpr std::array kCodes{
    kCode<T, 2, 1, 2, kAlongK>,
    kCode<T, 1, 4, 3, kAlongColumns>,
    kCode<T, 1, 1, 1, kElements>,
    kCode<T, 1, 1, 3, kElements>,
};
template <>
constexpr std::array kCodes<double>{
    kCode<double, 2, 1, 1, kAlongK>,       kCode<double, 2, 1, 4, kAlongK>,
    kCode<double, 2, 4, 4, kAlongK>,       kCode<double, 2, 2, 4, kAlongColumns>,
    kCode<double, 2, 4, 4, kAlongColumns>, kCode<double, 2, 2, 2, kAlongColumns>,
    kCode<double, 2, 4, 2, kAlongColumns>, kCode<double, 1, 2, 1, kAlongColumns>,
    kCode<double, 1, 2, 3, kAlongColumns>, kCode<double, 1, 4, 3, kAlongColumns>,
    kCode<double, 1, 1, 1, kElements>,     kCode<double, 1, 1, 3, kElements>,
    kCode<double, 1, 4, 3, kElements>,
};
template <>
constexpr std::array kCodes<float>{
    kCode<float, 4, 1, 1, kAlongK>,       kCode<float, 4, 1, 4, kAlongK>,
    kCode<float, 2, 1, 2, kAlongK>,       kCode<float, 2, 1, 3, kAlongK>,
    kCode<float, 4, 4, 4, kAlongK>,       kCode<float, 4, 4, 4, kAlongColumns>,
    kCode<float, 2, 4, 2, kAlongColumns>, kCode<float, 1, 4, 1, kAlongColumns>,
    kCode<float, 1, 4, 3, kAlongColumns>, kCode<float, 1, 2, 3, kAlongColumns>,
    kCode<float, 1, 1, 1, kElements>,     kCode<float, 1, 1, 3, kElements>,
    kCode<float, 1, 4, 3, kElements>,
};

bool takes(const Code& code, const Problem& p) {
  const int64_t item = size_of(p.dtype);
  if (p.n % code.columns != 0 || p.block_k % code.vector != 0) return false;
  if (code.vector > 1 && (p.transpose || p.values_alignment < code.vector * item)) return false;
  if (code.access == RowsAccess::kAlongK) {
    return b_along_k(p) && p.b_alignment >= code.vector * item;
  }
  if (code.access == RowsAccess::kAlongColumns) {
    return p.b_layout == Layout::kRowMajor &&
           p.b_alignment >= std::min<int64_t>(code.columns * item, 16);
  }
  return true;
}

Shape best_shape(const Problem& p, const Device& d) {
  Shape best;
  with_type(p.dtype, [&]<typename T>(T*) {
    for (const Code& code : kCodes<T>) {
      if (!takes(code, p)) continue;
      for (int log_lanes = 2; log_lanes <= 5; ++log_lanes) {
        const Shape s = shape_of(code, log_lanes, p, d);
        if (s.strips > 0 && (best.code == nullptr || s.cost_us < best.cost_us)) best = s;
      }
    }
  });
  return best;
}

// Segments: of at most how many blocks, and how many stretches of as many there are; none where no
// row is longer.
struct Segments {
  int64_t limit = 0, stretches = 0;
};

Segments segments_of(const Shape& s, const Problem& p, const Device& d) {
  // Steps of a group: fewer end soon enough, more keep others waiting.
  constexpr int64_t kLeastSteps = 32, kMostSteps = 256, kGroupsEach = 32;
  const int64_t share =
      ceil_div(p.nnzb * s.strips * p.batch, std::max(d.multiprocessors, 1) * kGroupsEach);
  const int64_t step = std::max<int64_t>(s.blocks / s.steps, 1);
  const int64_t limit = std::clamp(2 * share, kLeastSteps * step, kMostSteps * step);
  const bool few = block_rows(p) * s.strips * p.batch < d.multiprocessors * kGroupsEach;
  if (limit >= (p.longest_row >= 0 ? p.longest_row : p.nnzb) || !(few || is_uneven(p))) return {};
  return {limit, ceil_div(p.nnzb, limit)};
}

class WarpRows final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    if (is_half(p.dtype) && p.block_k % 8 == 0 && (!p.transpose || p.block_m % 8 == 0) &&
        p.values_alignment >= 16) {
      return Support::no("leaves fp16 and bf16 in blocks of a multiple of 8 to tensor cores");
    }
    if (Support s = columns_are_within(p, 1, kMaxColumns); !s) return s;
    const int64_t b_k = b_along_k(p) ? 1 : p.ldb;
    const int64_t block_bytes = p.block_k * std::max(p.block_m, b_k) * size_of(p.dtype);
    if (std::max({block_bytes, p.m, p.ldc, 2 * p.nnzb}) > INT32_MAX) {
      return Support::no(
          "has 31 bits for rows, twice the blocks, C's stride and the bytes of a block and its B");
    }
    if (p.batch > kMaxGrid) {
      return Support::no("is for at most " + std::to_string(kMaxGrid) + " matrices in a batch");
    }
    const Shape s = best_shape(p, d);
    const Segments segments = segments_of(s, p, d);
    if ((block_rows(p) + 2 * segments.stretches) * s.strips > INT32_MAX) {
      return Support::no("needs more thread blocks than a grid has");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const Shape s = best_shape(p, d);
    constexpr double kLaunchUs = 2.0, kSumsUs = 3.0;
    return s.us + kLaunchUs + (segments_of(s, p, d).stretches > 0 ? kSumsUs : 0.0);
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const int64_t stretches = segments_of(best_shape(p, d), p, d).stretches;
    return sums_bytes(p, stretches) + stretches * static_cast<int64_t>(sizeof(int));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Shape s = remembered<best_shape>(p, *l.device);
    const Segments segments = segments_of(s, p, *l.device);
    const bool b_rows = !b_along_k(p);
    const int64_t item = size_of(p.dtype);
    auto a = arguments_of<WarpRowsArguments>(p, l);
    a.partials = l.workspace;
    a.heads =
        reinterpret_cast<int*>(static_cast<char*>(l.workspace) + sums_bytes(p, segments.stretches));
    a.b_batch = p.b_batch_stride * item;
    a.b_column = (b_rows ? 1 : p.ldb) * item;
    a.b_k = static_cast<int>((b_rows ? p.ldb : 1) * item);
    a.b_block = static_cast<int>(p.block_k) * a.b_k;
    a.a_block = static_cast<int>(p.block_m * p.block_k * item);
    a.a_row = static_cast<int>(row_stride_in_block(p) * item);
    a.a_k = static_cast<int>(k_stride_in_block(p) * item);
    a.rows = static_cast<int>(block_rows(p));
    a.nnzb = static_cast<int>(p.nnzb);
    a.vectors = s.vectors;
    a.limit = segments.stretches > 0 ? static_cast<int>(segments.limit) : INT32_MAX;
    a.strips = static_cast<unsigned>(s.strips);
    a.slots = static_cast<unsigned>(2 * segments.stretches);
    a.segments = a.slots * a.strips;
    a.tasks = a.segments + static_cast<unsigned>(a.rows) * a.strips;
    a.log_lanes = s.log_lanes;
    a.blocks = s.blocks;
    a.row_lanes = s.row_lanes;
    a.vector_lanes = s.vector_lanes;
    a.column_lanes = s.column_lanes;
    const auto reciprocal = [](int x) { return static_cast<unsigned>(ceil_div(1 << 16, x)); };
    a.by_row_lanes = reciprocal(s.row_lanes);
    a.by_vector_lanes = reciprocal(s.vector_lanes);
    a.by_column_lanes = reciprocal(s.column_lanes);
    const auto half = [](int x) { return x > 1 ? 1 << (31 - __builtin_clz(x - 1)) : 0; };
    a.half_blocks = half(s.blocks);
    a.half_vectors = half(s.vector_lanes);

    const unsigned groups = kRowsThreads >> s.log_lanes;
    const auto wave = static_cast<unsigned>(std::max(l.device->multiprocessors, 1)) * 16 * groups;
    a.turns = is_uneven(p) ? 1 : std::clamp(a.tasks / (4 * wave), 1u, kTurns);
    const unsigned thread_blocks = (a.tasks + groups * a.turns - 1) / (groups * a.turns);
    const auto stream = static_cast<cudaStream_t>(l.stream);
    const auto batches = static_cast<unsigned>(p.batch);
    const bool plain = s.steps == 1 && l.positions == nullptr;
    s.code->kernels[plain ? 1 : 0]<<<dim3(thread_blocks, batches), kRowsThreads, 0, stream>>>(a);
    Status status = to_status(cudaGetLastError(), name());
    if (!status || a.segments == 0) return status;
    const dim3 stretches(static_cast<unsigned>(ceil_div(segments.stretches, kStretchesEach)),
                         batches);
    with_type(p.dtype, [&]<typename T>(T*) {
      sum_segments_kernel<T><<<stretches, kRowsThreads, 0, stream>>>(a);
    });
    return to_status(cudaGetLastError(), name());
  }

 private:
  static int64_t sums_bytes(const Problem& p, int64_t stretches) {
    return 2 * stretches * p.block_m * p.n * p.batch * std::max<int64_t>(size_of(p.dtype), 4);
  }
};

const WarpRows kWarpRows{DeviceType::kCuda, "warp_rows/lanes"};
const Registration kRegister{kWarpRows};

}  // namespace
}  // namespace sparse_autotune
