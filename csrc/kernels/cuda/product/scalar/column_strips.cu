// Block sides that tensor cores do not take, in every dtype, by strips of columns.
//
// A warp owns up to 8 rows of one block row and a strip of columns of C (column_strips.cuh): a lane
// holds a chunk of the strip, or two, in all of these rows. The warps of a thread block work on
// neighbouring block rows, which share lines of B in L1. Data path of A: global -> registers ->
// shared -> registers; of B: global (L2, L1) -> registers, several lines on their way. Accumulates
// in fp32 (fp64 for fp64). A B or C that is column-major, or whose rows are not whole chunks of 16
// bytes (8 of half types), stands row by row in the workspace; long rows are cut, and a second
// kernel adds up their parts. Requires: fewer than 2^31 stored blocks and rows of B. Wins: odd
// block sides from 16 columns up. Bound by the lines of B that L1 has not, from L2, or by the load
// units.
#include "kernels/cuda/product/scalar/column_strips.cuh"

#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <string>
#include <utility>

#include "kernels/cuda/convert/turn_dense.h"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/element_types.h"
#include "kernels/cuda/product/scalar/cut_rows.cuh"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

constexpr int kFindThreads = 256;

constexpr int64_t aligned(int64_t bytes) { return ceil_div(bytes, 256) * 256; }

// How the workspace is shared out, bytes, and what stands in it.
struct Scratch {
  bool moves_b = false, moves_c = false;
  int order = kNoRowOrder;  // long rows are cut into parts of part_limit(order)
  int64_t pitch = 0;        // of the lines of all of them, elements
  int64_t b = 0, c = 0, partials = 0, lists = 0;

  int64_t bytes() const { return b + c + partials + lists; }
};

template <int kLoads>
class ColumnStrips final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    if (kLoads > 1 && p.dtype != DType::kFloat64) {
      return Support::no("a chunk of other types than fp64 holds as many columns as two of fp64");
    }
    if (p.nnzb > INT32_MAX || p.k > INT32_MAX || p.n > INT32_MAX / 2 ||
        std::max(units(p), tiles(p)) > INT32_MAX / 2) {
      return Support::no("stored blocks, rows of B and tiles of C are counted in 31 bits");
    }
    if (p.block_m * p.block_k > INT32_MAX / 64) {
      return Support::no("offsets within blocks are counted in 31 bits");
    }
    if (line_bytes(p, scratch(p, d)) > UINT32_MAX) {
      return Support::no("rows of B must lie less than 2^32 bytes apart");
    }
    if (workspace_bytes(p, d) > kMaxWorkspace) {
      return Support::no(
          "B and C in other layouts, or the sums of parts of rows, would take more "
          "than " +
          std::to_string(kMaxWorkspace) + " bytes");
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const Scratch s = scratch(p, d);
    const double moved = 2 * static_cast<double>(s.b + s.c) / (d.memory_gbps * 700);
    const int launches = 1 + (s.moves_b ? 1 : 0) + (s.moves_c ? 1 : 0);
    return std::max(product_us(p, d), ending_us(p, d, s.order)) + moved + 3.0 * launches;
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return scratch(p, d).bytes();
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Scratch s = scratch(p, *l.device);
    StripArguments a = arguments(p, l, s);
    char* const b = static_cast<char*>(l.workspace);
    char* const c = b + s.b;
    if (s.moves_b) {
      const Status status = move_b(p, l, {b, s.pitch, p.k * s.pitch});
      if (!status) return status;
      a.b = b;
      a.b_batch_stride = p.k * s.pitch;
    }
    if (s.moves_c) {
      a.c = c;
      a.ldc = s.pitch;
      a.c_batch_stride = p.m * s.pitch;
    }
    LongRows found{};
    if (s.order != kNoRowOrder) {
      const Status status = cut_rows(p, l, s, c + s.c, &found, &a);
      if (!status) return status;
    }
    a.panels = panels_of(a.part_tiles + ceil_div(a.units, kStripWarps),
                         ceil_div(p.n, strip_columns(p)), p.batch, panel_columns(p), nullptr);
    const auto stream = static_cast<cudaStream_t>(l.stream);
    with_type(p.dtype, [&]<typename T>(T*) {
      with_rows(p, [&]<int kRows>() {
        if constexpr (kLoads == 1 || (sizeof(T) == 8 && kRows <= kMaxRows)) {
          a.stride = 32 / a.lanes * kStripAhead<kRows, kLoads>;
          column_strips_kernel<T, kRows, kLoads>
              <<<a.panels.tiles, kStripWarps * 32, 0, stream>>>(a);
        }
      });
    });
    Status status = to_status(cudaGetLastError(), name());
    if (status && s.order != kNoRowOrder) status = sum_parts(p, l, s, a, found);
    return status && s.moves_c ? move_c(p, l, {a.c, a.ldc, a.c_batch_stride}) : std::move(status);
  }

 private:
  static constexpr int64_t kMaxWorkspace = int64_t{2} << 30;
  static constexpr int kMaxRows = kLoads > 1 ? 6 : 8;  // of a warp

  static int chunk_columns(const Problem& p) { return p.dtype == DType::kFloat64 ? 2 : 4; }

  // Of a warp: of those compiled, the fewest that take the block in as few strips.
  static int rows(const Problem& p) {
    const auto share = static_cast<int>(ceil_div(p.block_m, ceil_div(p.block_m, kMaxRows)));
    return share == 5 ? 6 : share == 7 ? 8 : share;
  }
  static int64_t strips(const Problem& p) { return ceil_div(p.block_m, rows(p)); }
  static int64_t units(const Problem& p) { return block_rows(p) * strips(p); }

  template <typename F>
  static void with_rows(const Problem& p, const F& f) {
    const auto with = [&]<int... kRows>() {
      static_cast<void>(((rows(p) == kRows && (f.template operator()<kRows>(), true)) || ...));
    };
    with.template operator()<1, 2, 3, 4, 6, 8>();
  }

  // Clocks of a multiprocessor for a warp's step, fitted to an H200: of handing out A, for which
  // two chunks leave fewer warps, and of multiplying.
  static double step_clocks(const Problem& p, int lanes) {
    return (kLoads > 1 ? 6.0 : 3.5) + lanes * kLoads / 32.0 * (3 + 1.3 * rows(p));
  }
  // Of a team: what takes the fewest clocks for a step of all strips.
  static int lanes(const Problem& p) {
    const auto clocks = [&](int lanes) {
      const int64_t columns = int64_t{lanes} * kLoads * chunk_columns(p);
      return static_cast<double>(ceil_div(p.n, columns)) * step_clocks(p, lanes);
    };
    int best = 32;
    for (int lanes = 16; lanes >= 4; lanes /= 2) {
      if (clocks(lanes) < clocks(best)) best = lanes;
    }
    return best;
  }
  static int64_t strip_columns(const Problem& p) {
    return int64_t{lanes(p)} * kLoads * chunk_columns(p);
  }
  static int64_t tiles(const Problem& p) {
    return ceil_div(units(p), kStripWarps) * ceil_div(p.n, strip_columns(p)) * p.batch;
  }
  // A B that L2 does not hold is walked in panels that it does. Where not even a strip of it fits,
  // what shares lines are neighbouring rows, and all strips of these stand together.
  static int64_t panel_columns(const Problem& p) {
    constexpr int64_t kWhole = 32 << 20, kPanel = 24 << 20;
    const int64_t strip = strip_columns(p);
    if (p.k * strip * size_of(p.dtype) > kPanel) return ceil_div(p.n, strip);
    return panel_width(p, static_cast<int>(strip), kWhole, kPanel);
  }

  static int64_t line_bytes(const Problem& p, const Scratch& s) {
    return (s.moves_b ? s.pitch : p.ldb) * size_of(p.dtype);
  }

  static Scratch scratch(const Problem& p, const Device& d) {
    Scratch s;
    const int64_t item = size_of(p.dtype), chunk = chunk_columns(p);
    s.pitch = ceil_div(p.n, chunk) * chunk;
    s.moves_b = p.b_layout != Layout::kRowMajor || p.b_alignment < chunk * item || p.n % chunk != 0;
    s.moves_c = p.c_layout != Layout::kRowMajor || p.c_alignment < chunk * item || p.n % chunk != 0;
    if (s.moves_b) s.b = aligned(p.batch * p.k * s.pitch * item);
    if (s.moves_c) s.c = aligned(p.batch * p.m * s.pitch * item);
    s.order = part_order(p, d);
    if (s.order == kNoRowOrder) return s;
    s.partials = aligned(partial_bytes(p, s.order));
    s.lists = aligned(p.row_cuts.parts[s.order] * static_cast<int64_t>(sizeof(OrderedRow)) +
                      p.row_cuts.rows[s.order] * static_cast<int64_t>(sizeof(CutRow)) +
                      2 * static_cast<int64_t>(sizeof(int)));
    return s;
  }

  static int64_t partial_bytes(const Problem& p, int order) {
    const int64_t chunk = chunk_columns(p), item = std::max<int64_t>(size_of(p.dtype), 4);
    return p.batch * p.row_cuts.parts[order] * p.block_m * ceil_div(p.n, chunk) * chunk * item;
  }

  static double product_us(const Problem& p, const Device& d) {
    constexpr double kClockMhz = 1700;
    constexpr double kL2Gbps = 80;  // to a multiprocessor, where neighbours share some lines
    const double strips_of_c = static_cast<double>(ceil_div(p.n, strip_columns(p)) * strips(p));
    const double steps = static_cast<double>(p.nnzb) * p.block_k * strips_of_c * p.batch /
                         std::max(d.multiprocessors, 1);
    const double clocks = steps * step_clocks(p, lanes(p));
    const double l2_bytes = steps * static_cast<double>(strip_columns(p) * size_of(p.dtype));
    const double us = std::max(clocks / kClockMhz, l2_bytes / (kL2Gbps * 1e3));
    return std::max(us, compulsory_bytes(p) / (d.memory_gbps * 800));
  }

  // Until the longest row ends, which may begin late, and the parts of longer ones are summed up.
  static double ending_us(const Problem& p, const Device& d, int order) {
    constexpr double kStepUs = 0.1, kPartUs = 0.02, kL2Gbps = 4000, kLaunchesUs = 5;
    const double step = kStepUs * static_cast<double>(p.block_k * lanes(p)) / 32;
    const double product = product_us(p, d), longest = static_cast<double>(p.longest_row);
    if (order == kNoRowOrder) return longest < 0 ? 0 : product + longest * step;
    const auto limit = static_cast<double>(part_limit(order));
    return product + limit * step + kLaunchesUs + longest / limit * kPartUs +
           2 * static_cast<double>(partial_bytes(p, order)) / (kL2Gbps * 1e3);
  }

  // Fewer than the warps that a multiprocessor needs to have lines of B on their way all the time.
  static bool are_few(const Problem& p, const Device& d) {
    constexpr int64_t kWarps = 16;
    return tiles(p) * kStripWarps < kWarps * std::max(d.multiprocessors, 1);
  }

  // The order that ends soonest; none where the longest row ends in time as it is.
  static int part_order(const Problem& p, const Device& d) {
    if (p.longest_row < 0) return kNoRowOrder;
    const double whole_us = ending_us(p, d, kNoRowOrder);
    return cheapest_order(p, kNoRowOrder, whole_us, 1, [&](int order) -> double {
      // An average row is cut where there are too few to keep multiprocessors busy, and where that
      // gains more than what this leaves out: parts of all rows to be listed and added up.
      constexpr double kAverageUs = 20;
      const bool average = part_limit(order) * block_rows(p) * 2 < p.nnzb * 3;
      const bool fits = partial_bytes(p, order) <= kMaxWorkspace / 8;
      if (!fits || (average && !are_few(p, d))) return INFINITY;
      return ending_us(p, d, order) + (average ? kAverageUs : 0);
    });
  }

  // All but what is in the workspace, the panels and what depends on the kernel.
  static StripArguments arguments(const Problem& p, const Launch& l, const Scratch& s) {
    auto a = arguments_of<StripArguments>(p, l);
    a.line_b = static_cast<unsigned>(line_bytes(p, s));
    a.area = static_cast<int>(p.block_m * p.block_k);
    a.a_row = row_stride_in_block(p);
    a.a_col = k_stride_in_block(p);
    a.strips = static_cast<int>(strips(p));
    a.units = static_cast<int>(units(p));
    a.limit = INT32_MAX;
    a.slices = static_cast<int>(ceil_div(p.block_k, kStripSteps));
    a.slice = static_cast<int>(ceil_div(p.block_k, a.slices));
    a.step_blocks = a.slices > 1 ? 1 : kStripSteps / a.slice;
    a.to_next_slice = a.slice * a.a_col;
    a.to_next_blocks =
        (p.transpose ? 0 : a.step_blocks * int64_t{a.area}) - (a.slices - 1) * a.to_next_slice;
    a.inverse_slice = 65536u / static_cast<unsigned>(a.slice) + 1;
    a.lanes = lanes(p);
    a.lane_bits = std::countr_zero(static_cast<unsigned>(a.lanes));
    a.transposed = p.transpose;
    return a;
  }

  static Status move_b(const Problem& p, const Launch& l, const DenseLines& to) {
    const DenseLines from{const_cast<void*>(l.b), p.ldb, p.b_batch_stride};
    return lay_rows_cuda(p.b_layout, p.k, p.n, p.batch, size_of(p.dtype), from, to, l.stream);
  }

  static Status move_c(const Problem& p, const Launch& l, const DenseLines& from) {
    const DenseLines to{l.c, p.ldc, p.c_batch_stride};
    const bool turned = p.c_layout != Layout::kRowMajor;
    return lay_dense_cuda(turned, p.m, p.n, turned ? p.m : p.n, p.batch, size_of(p.dtype), from, to,
                          l.stream);
  }

  // Lists the long rows and their parts behind the memory for their sums.
  Status cut_rows(const Problem& p, const Launch& l, const Scratch& s, char* memory,
                  LongRows* found, StripArguments* a) const {
    const auto stream = static_cast<cudaStream_t>(l.stream);
    a->partials = memory;
    a->partial_pitch = s.pitch;
    a->slots = p.row_cuts.parts[s.order];
    a->part_units = a->slots * a->strips;
    a->part_tiles = static_cast<int>(ceil_div(a->part_units, kStripWarps));
    a->limit = static_cast<int>(part_limit(s.order));
    found->parts = reinterpret_cast<OrderedRow*>(memory + s.partials);
    found->rows = reinterpret_cast<CutRow*>(found->parts + a->slots);
    found->counts = reinterpret_cast<int*>(found->rows + p.row_cuts.rows[s.order]);
    a->part_list = found->parts;
    const cudaError_t error = cudaMemsetAsync(found->counts, 0, 2 * sizeof(int), stream);
    if (error != cudaSuccess) return to_status(error, name());
    const auto rows = static_cast<int>(block_rows(p));
    find_long_rows_kernel<kFindThreads>
        <<<static_cast<unsigned>(ceil_div(rows, kFindThreads)), kFindThreads, 0, stream>>>(
            l.crow_indices, a->wide_indices, rows, a->limit, *found);
    return to_status(cudaGetLastError(), name());
  }

  Status sum_parts(const Problem& p, const Launch& l, const Scratch& s, const StripArguments& a,
                   const LongRows& found) const {
    auto sums = arguments_of<CutRowSums>(p, l);
    sums.rows = found.rows;
    sums.partials = a.partials;
    sums.c = a.c;  // that of the workspace, where C is moved
    sums.ldc = a.ldc;
    sums.c_batch_stride = a.c_batch_stride;
    sums.slots = a.slots;
    sums.lines = a.block_m;
    sums.pitch = static_cast<int>(a.partial_pitch);
    sums.line_elements = a.n;
    sums.c_rows = true;
    return with_type(p.dtype, [&]<typename T>(T*) {
      return to_status(add_cut_rows<T>(sums, p.row_cuts.rows[s.order], l.stream), name());
    });
  }
};

const ColumnStrips<1> kOneChunk{DeviceType::kCuda, "column_strips/one_chunk"};
const ColumnStrips<2> kTwoChunks{DeviceType::kCuda, "column_strips/two_chunks"};
const Registration kRegisterOneChunk{kOneChunk};
const Registration kRegisterTwoChunks{kTwoChunks};

}  // namespace
}  // namespace sparse_autotune
