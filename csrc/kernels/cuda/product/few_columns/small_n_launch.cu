#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxColumns = 128;
constexpr int64_t kMaxGrid = 65535;  // along y

KernelCode<SmallNArguments>& code_of(const SmallNShape& shape, const Problem& p, BAccess access) {
  return *shape.codes[p.transpose ? 1 : 0]
              .of[p.dtype == DType::kFloat16 ? 0 : 1][static_cast<int>(access)];
}

// How B is loaded. A single column's stride is never used, so only its address must be aligned.
BAccess access_of(const SmallNShape& shape, const Problem& p, const void* b) {
  const bool b_rows = p.b_layout == Layout::kRowMajor;
  const auto address = reinterpret_cast<uintptr_t>(b);
  const bool one_column = p.n == 1 && p.batch == 1 && (!b_rows || p.ldb == 1);
  if (one_column ? address % 16 == 0 : !b_rows && p.b_alignment >= 16) return BAccess::kAlongK;
  const int64_t bytes = shape.column_load * size_of(p.dtype);
  if (b_rows && p.n % shape.column_load == 0 && p.b_alignment >= bytes) {
    return BAccess::kAlongColumns;
  }
  return BAccess::kElements;
}

int64_t strips_of(const SmallNShape& shape, const Problem& p) {
  return ceil_div(p.block_m, shape.m);
}
int64_t columns_of(const SmallNShape& shape, const Problem& p) { return ceil_div(p.n, shape.n); }

}  // namespace

Support small_n_square_supports(const SmallNSquares& squares, const Problem& p, const Device& d) {
  if (Support s = half_types_on_hopper(p, d); !s) return s;
  if (p.transpose) return Support::no("does not multiply by A^T");
  if (Support s = blocks_are(p, squares.side, squares.side); !s) return s;
  if (Support s = columns_are_within(p, squares.least, squares.most); !s) return s;
  if (p.b_layout != squares.b_layout) {
    return Support::no(squares.b_layout == Layout::kRowMajor ? "needs row-major B"
                                                             : "needs column-major B");
  }
  if (std::max({p.nnzb, p.m, p.k}) > INT32_MAX || p.batch > kMaxGrid) {
    return Support::no("a size is beyond a grid's coordinates or 2^31");
  }
  return copied_by_16(p);
}

Support SmallN::supports(const Problem& p, const Device& d) const {
  if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
  if (Support s = shape_.overlaps ? half_types_on_hopper(p, d) : from_ampere_on(d); !s) return s;
  if (Support s = columns_are_within(p, 1, kMaxColumns); !s) return s;
  if (p.block_k % kVector != 0 || (p.transpose && p.block_m % kVector != 0)) {
    return Support::no("needs block_k (of A^T, block_m too) to be a multiple of 8, got " +
                       block_text(p.block_m, p.block_k));
  }
  if (Support s = aligned_to_16("values", p.values_alignment); !s) return s;
  if (Support s = n_fills_columns(p, shape_.n); shape_.n > 8 && !s) return s;
  if (Support s = blocks_fill_rows(p, shape_.m); shape_.m > 16 && !s) return s;
  const int64_t b_elements = (p.b_layout == Layout::kRowMajor ? p.k : p.n) * p.ldb;
  if (std::max({p.block_m * p.k, b_elements, p.nnzb}) > INT32_MAX) {
    return Support::no("a block row's or B's elements or the number of blocks are 2^31 or more");
  }
  if (block_rows(p) * strips_of(shape_, p) > INT32_MAX ||
      columns_of(shape_, p) * p.batch > kMaxGrid) {
    return Support::no("needs more thread blocks than a grid has");
  }
  for (const BAccess access : {BAccess::kAlongK, BAccess::kAlongColumns, BAccess::kElements}) {
    const Support runs = code_of(shape_, p, access).runs_on(d, shape_.shared_bytes);
    if (!runs) return runs;
  }
  return Support::yes();
}

double SmallN::estimate_us(const Problem& p, const Device& d) const {
  return small_n_us(shape_, p, d);
}

double small_n_us(const SmallNShape& shape, const Problem& p, const Device& d) {
  // Fitted to times on an H200: setting up, and the latencies of the row's place, of its blocks'
  // columns and of B; the same without overlap; a turn of the warp that waits longest; these
  // latencies again, for thread blocks that follow others, until enough overlap.
  const double start_us = shape.overlaps ? 2.2 : 3.1;
  constexpr double kTurnUs = 0.38, kWaveUs = 1, kWaves = 3;
  // L2 to one multiprocessor, bytes a nanosecond, while few or all of them load.
  constexpr double kAlone = 85, kTogether = 50;
  const double rows = static_cast<double>(std::max<int64_t>(block_rows(p), 1));
  const double blocks =
      rows * static_cast<double>(strips_of(shape, p) * columns_of(shape, p) * p.batch);
  const double each = blocks / std::max(d.multiprocessors, 1);
  const double row_k = static_cast<double>(p.nnzb) * p.block_k / rows;
  const double longest_k = std::max(row_k, static_cast<double>(p.longest_row) * p.block_k);
  // Values and B, once for each thread block; element by element, B takes as long as much more.
  const bool b_slow = p.n > 1 && p.b_alignment < std::min<int64_t>(16, 2 * shape.column_load);
  const double lines = static_cast<double>(std::min<int64_t>(shape.m, p.block_m)) +
                       static_cast<double>(std::min<int64_t>(shape.n, p.n)) * (b_slow ? 4 : 1);
  const double rate = kAlone - (kAlone - kTogether) * std::min(each, 1.0);
  const double work_us = std::max(each, 1.0) * row_k * size_of(p.dtype) * lines / (rate * 1e3);
  const double turn_k = shape.warps_k * shape.unroll * kChunkK;
  const double waves = std::ceil(each / shape.resident);
  const double turns_us = waves * std::ceil(longest_k / turn_k) * kTurnUs;
  return start_us + (p.transpose ? 0.7 : 0.0) + std::min(waves - 1, kWaves) * kWaveUs +
         std::max({work_us, turns_us, uncached_us(p, d)});
}

SmallNArguments small_n_operands(const Problem& p, const Launch& l) {
  const bool b_rows = p.b_layout == Layout::kRowMajor;
  auto a = arguments_of<SmallNArguments>(p, l);
  a.b_k = b_rows ? static_cast<int>(p.ldb) : 1;
  a.b_column = b_rows ? 1 : static_cast<int>(p.ldb);
  return a;
}

void set_small_n_ahead(const Problem& p, const Launch& l, int64_t blocks, int64_t value_bytes,
                       SmallNArguments* a) {
  constexpr int64_t kLine = 128;
  a->ahead = lines_ahead(p, l);
  a->value_step = static_cast<int64_t>(values_bytes(p)) / blocks / kLine * kLine;
  a->value_bytes = static_cast<unsigned>(std::min(value_bytes, a->value_step));
}

Status SmallN::launch(const Problem& p, const Launch& l) const {
  SmallNArguments a = small_n_operands(p, l);
  a.columns = static_cast<int>(columns_of(shape_, p));
  a.strips = static_cast<unsigned>(strips_of(shape_, p));
  a.vectors = a.block_k / kVector;
  a.blocks_of_vectors = static_cast<unsigned>(ceil_div(1 << 20, a.vectors));
  a.step_blocks = shape_.warps_k * kChunkVectors / a.vectors;
  a.step_k = shape_.warps_k * kChunkVectors % a.vectors * kVector;
  const dim3 grid(static_cast<unsigned>(block_rows(p)) * a.strips,
                  static_cast<unsigned>(a.columns * p.batch));
  if (shape_.overlaps) {
    // Values only where they are many: to ask for a line and read it soon after costs more than the
    // moments that it saves.
    constexpr int64_t kValueBytes = 8192;
    const bool many = 2 * values_bytes(p) > static_cast<double>(l.device->l2_bytes);
    set_small_n_ahead(p, l, grid.x, many ? kValueBytes : 0, &a);
  }
  return code_of(shape_, p, access_of(shape_, p, l.b))
      .launch(a, grid, shape_.threads, shape_.shared_bytes, l.stream, name());
}

}  // namespace sparse_autotune
