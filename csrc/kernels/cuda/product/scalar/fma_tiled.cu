// fp32 without tensor cores, in all of its precision: register tiles and plain FMA.
//
// A group of warps owns a tile of C: kM rows of one block row (a strip; a taller block has several)
// by kN columns; a thread keeps 8 x 8 of its sums or fewer. Steps along k walk the block row's
// stored blocks as if they stood side by side. A thread block is several groups: of neighbouring
// block rows, or, where there are few tiles, of one tile, whose steps they share out and whose sums
// they add up at the end in the groups' order.
// Long or few rows are cut into parts of the plan's order, whose sums a second kernel adds up.
// Data path: cp.async keeps two steps of A and B on their way to a ring in shared memory, where
// what has k contiguous arrives transposed -> registers -> C.
// Requires: fp32; block sides that are multiples of 4. Any n, any layout; rows of 16-byte alignment
// are fastest.
// Wins: fp32 where TF32 is not allowed, from some 16 columns up.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/cuda_status.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/scalar/cut_rows.cuh"
#include "kernels/cuda/product/scalar/fma_kernel.cuh"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

template <typename Tile>
constinit KernelCode<FmaArguments> fma_code{&fma_tiled_kernel<Tile>};

// A tile as the host sees it.
struct Shape {
  int m, n, groups, threads, resident;
  int64_t shared_bytes;
  KernelCode<FmaArguments>* codes[2];  // by Layout of B
};

template <int... kNumbers>
constexpr Shape shape_of() {
  using Rows = FmaTile<kNumbers..., true>;
  using Columns = FmaTile<kNumbers..., false>;
  return {Rows::kM,
          Rows::kN,
          Rows::kGroups,
          Rows::kThreads * Rows::kGroups,
          Rows::kResident,
          std::max(Rows::kSharedBytes, Columns::kSharedBytes),
          {&fma_code<Rows>, &fma_code<Columns>}};
}

class FmaTiled final : public Variant {
 public:
  // `efficiency`: the share of the device's FMA rate that full multiprocessors reach.
  FmaTiled(std::string_view name, const Shape& shape, double efficiency)
      : Variant(DeviceType::kCuda, name), shape_(shape), efficiency_(efficiency) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype != DType::kFloat32) return Support::no("multiplies fp32 only");
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = sides_are_multiples_of(4, p); !s) return s;
    if (std::min({p.values_alignment, p.b_alignment, p.c_alignment}) < 4) {
      return Support::no("needs operands that are aligned to 4 bytes");
    }
    if (Support s = blocks_fill_rows(p, shape_.m); !s) return s;
    if (Support s = n_fills_columns(p, shape_.n); shape_.n >= 128 && !s) return s;
    if (std::max({p.block_m * p.block_k, p.k, p.nnzb, p.longest_row * p.block_k}) > INT32_MAX ||
        p.nnzb * p.block_m * p.block_k / 4 > UINT32_MAX || p.ldb * 4 > UINT32_MAX) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    const int order = row_order(p, d);
    if (thread_blocks(p, order, 1) > INT32_MAX || tile_rows(p, order) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return estimate_us(p, d, row_order(p, d));
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return sums_bytes(p, row_order(p, d));
  }

  // Parts where the longest row, or few rows, would keep few multiprocessors busy for long.
  int row_order(const Problem& p, const Device& d) const override {
    constexpr double kWorth = 0.9;
    if (p.longest_row < 0 || p.batch > kMaxGrid) return kWholeRows;
    const double whole_us = kWorth * estimate_us(p, d, kWholeRows);
    return cheapest_order(p, kWholeRows, whole_us, kWholeRows + 1, [&](int order) -> double {
      return sums_bytes(p, order) > kMaxWorkspace ? INFINITY : estimate_us(p, d, order);
    });
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<FmaArguments>(p, l);
    const Device& d = *l.device;
    const int wanted = row_order(p, d);
    // Without a list of parts rows stay whole.
    const int order = l.row_orders[wanted] == nullptr ? kWholeRows : wanted;
    a.shares = static_cast<unsigned>(shares_of(p, d, order));
    a.tile_rows = static_cast<unsigned>(tile_rows(p, order));
    a.panels = panels_of(
        ceil_div(tile_rows(p, order), shape_.groups / a.shares), ceil_div(p.n, shape_.n), p.batch,
        panel_width(p, shape_.n, d.l2_bytes / 2, d.l2_bytes / 2), l.row_orders[order]);
    a.a_row = static_cast<uint32_t>(row_stride_in_block(p) * 4);
    a.a_col = static_cast<uint32_t>(k_stride_in_block(p) * 4);
    a.b_line = static_cast<uint32_t>(p.ldb * 4);
    a.strips = static_cast<unsigned>(strips(p));
    a.block_units = static_cast<unsigned>(p.block_k / kUnitLines);
    a.block_quads = static_cast<unsigned>(p.block_m * p.block_k / 4);
    a.unit_quads = static_cast<unsigned>(p.transpose ? p.block_m : 1);
    a.partials = static_cast<float*>(l.workspace);
    a.slots = p.row_cuts.parts[order];
    a.part_pitch = part_pitch(p);
    a.part_words = part_lines(p) * part_pitch(p);
    a.b_aligned = p.b_alignment >= 16;
    a.c_aligned = p.c_alignment >= 16;
    const Status status = code_of(p)->launch(a, a.panels.tiles, shape_.threads, shape_.shared_bytes,
                                             l.stream, name());
    return status && order != kWholeRows ? add_parts(p, order, a, l) : status;
  }

 private:
  // Fitted to times on an H200: of one k, and of a launch.
  static constexpr double kUsOfK = 0.06, kStartUs = 5;
  static constexpr int64_t kMaxWorkspace = int64_t{256} << 20, kMaxGrid = 65535;

  double estimate_us(const Problem& p, const Device& d, int order) const {
    const double multiprocessors = std::max(d.multiprocessors, 1);
    const double row_k = static_cast<double>(p.nnzb) * p.block_k /
                         static_cast<double>(std::max<int64_t>(entries_of(p, order), 1));
    const double shares = static_cast<double>(shares_of(p, d, order));
    // Of one thread block: idle rows and columns are multiplied, too. A column-major B comes in
    // shorter lines; rows that are not aligned, in single elements.
    const double flops = 2.0 * shape_.m * shape_.n * row_k * shape_.groups / shares;
    const double access = p.b_alignment < 16                ? 1 / (1 + 10.0 / shape_.m)
                          : p.b_layout == Layout::kRowMajor ? 1
                          : shape_.m < 16                   ? 0.82
                                                            : 0.93;
    const double rate = fma_tflops(p, d) * 1e6 * efficiency_ * access / multiprocessors;
    const double rounds =
        static_cast<double>(thread_blocks(p, order, shares_of(p, d, order))) / multiprocessors;
    const double work_us = (rounds > 1 ? rounds + 0.5 : 1) * flops / rate;
    // A group that has a multiprocessor's lanes for itself takes as long for its steps, whatever
    // its tile, and twice that among others: the longest row's are the end.
    const int64_t longest_row =
        order == kWholeRows ? p.longest_row : std::min(p.longest_row, part_limit(order));
    const double longest = std::max(row_k, static_cast<double>(longest_row) * p.block_k);
    const double alone_us = longest / shares * kUsOfK * (rounds > shape_.resident ? 2 : 1);
    const double us = std::max({work_us, alone_us, compulsory_bytes(p) / (d.memory_gbps * 850)});
    if (order == kWholeRows) return us + kStartUs;
    constexpr double kSumsUs = 2, kPartUs = 0.05, kL2Gbps = 4000;
    const double parts = static_cast<double>(p.longest_row) / static_cast<double>(longest_row);
    return us + kStartUs + kSumsUs + parts * kPartUs +
           2 * static_cast<double>(sums_bytes(p, order)) / (kL2Gbps * 1e3);
  }

  int64_t strips(const Problem& p) const { return ceil_div(p.block_m, shape_.m); }
  int64_t tile_rows(const Problem& p, int order) const { return entries_of(p, order) * strips(p); }
  int64_t thread_blocks(const Problem& p, int order, int64_t shares) const {
    return ceil_div(tile_rows(p, order), shape_.groups / shares) * ceil_div(p.n, shape_.n) *
           p.batch;
  }
  // As many groups share a tile as leave no thread block waiting for its turn.
  int64_t shares_of(const Problem& p, const Device& d, int order) const {
    int64_t shares = shape_.groups;
    while (shares > 1 &&
           thread_blocks(p, order, shares) > int64_t{d.multiprocessors} * shape_.resident) {
      shares /= 2;
    }
    return shares;
  }

  // The sums of a part lie as its block row does in C.
  static int64_t part_lines(const Problem& p) {
    return p.c_layout == Layout::kRowMajor ? p.block_m : p.n;
  }
  static int64_t part_pitch(const Problem& p) {
    return p.c_layout == Layout::kRowMajor ? ceil_div(p.n, 4) * 4 : p.block_m;
  }
  static int64_t sums_bytes(const Problem& p, int order) {
    if (order == kWholeRows) return 0;
    return p.batch * p.row_cuts.parts[order] * part_lines(p) * part_pitch(p) * 4;
  }

  Status add_parts(const Problem& p, int order, const FmaArguments& a, const Launch& l) const {
    auto s = arguments_of<CutRowSums>(p, l);
    s.rows = reinterpret_cast<const CutRow*>(l.row_orders[order] + entries_of(p, order));
    s.partials = a.partials;
    s.slots = a.slots;
    s.lines = static_cast<int>(part_lines(p));
    s.pitch = static_cast<int>(part_pitch(p));
    s.line_elements = static_cast<int>(a.c_rows ? p.n : p.block_m);
    return to_status(add_cut_rows<float>(s, p.row_cuts.rows[order], l.stream), name());
  }

  KernelCode<FmaArguments>* code_of(const Problem& p) const {
    return shape_.codes[static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  double efficiency_;
  Registration registration_{*this};
};

// Numbers of FmaTile.
const FmaTiled kM64N128{"fma_tiled/m64_n128", shape_of<64, 128, 8, 8, 4, 3, 1, 3>(), 0.62};
const FmaTiled kM32N128{"fma_tiled/m32_n128", shape_of<32, 128, 8, 8, 4, 3, 1, 6>(), 0.57};
const FmaTiled kM16N256{"fma_tiled/m16_n256", shape_of<16, 256, 8, 8, 2, 2, 1, 6>(), 0.51};
const FmaTiled kM16N128{"fma_tiled/m16_n128", shape_of<16, 128, 8, 8, 2, 2, 4, 2>(), 0.46};
const FmaTiled kM16N32{"fma_tiled/m16_n32", shape_of<16, 32, 4, 4, 4, 2, 8, 2>(), 0.35};
const FmaTiled kM8N64{"fma_tiled/m8_n64", shape_of<8, 64, 4, 4, 2, 2, 4, 5>(), 0.32};

}  // namespace
}  // namespace sparse_autotune
