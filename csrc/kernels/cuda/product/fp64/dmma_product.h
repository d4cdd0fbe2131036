// What dmma_sm80 and dmma_sm90 have in common on the host: how C is cut into tiles, and what their
// kernels are told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/fp64/dmma_part.cuh"
#include "variant.h"

namespace sparse_autotune {

// Tiles of 64 rows, of one block row or of a group of 2 to 8.
class DmmaProduct : public Variant {
 public:
  DmmaProduct(std::string_view name, bool grouped)
      : Variant(DeviceType::kCuda, name), grouped_(grouped) {}

  int row_order(const Problem&, const Device&) const override {
    return grouped_ ? kNoRowOrder : kWholeRows;
  }
  int grouping(const Problem& p, const Device&) const override { return grouping_of_rows(p); }

 protected:
  static constexpr int kM = 64, kN = 128;

  // The largest granule that divides the block's rows.
  static int side(const Problem& p) {
    int side = kM;
    while (p.block_m % side != 0) side /= 2;
    return side;
  }

  Support takes_product(const Problem& p) const {
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (Support s = sides_are_multiples_of(8, p); !s) return s;
    if (grouped_) {
      if (p.block_m != side(p) || p.block_m == kM) {
        return Support::no("needs blocks of 8, 16 or 32 rows, got " + std::to_string(p.block_m));
      }
      if (Support s = groups_are_known(p, grouping_of_rows(p)); !s) return s;
    }
    if (std::max({p.m, p.n, p.k, p.nnzb, tiles(p)}) > INT32_MAX - kN ||
        std::max(p.ldb, p.block_m * p.block_k) > UINT32_MAX / 8) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    return Support::yes();
  }

  DmmaArguments arguments(const Problem& p, const Launch& l) const {
    auto a = arguments_of<DmmaArguments>(p, l);
    const OrderedRow* order = l.row_orders[kWholeRows];
    if (grouped_) {
      const RowGroups& groups_of = l.row_groups[grouping_of_rows(p)];
      a.columns = groups_of.columns;
      order = groups_of.groups;
    }
    const int64_t l2 = l.device->l2_bytes;
    a.panels =
        panels_of(rows(p), ceil_div(p.n, kN), p.batch, panel_width(p, kN, l2 / 2, l2 / 4), order);
    a.blocks = static_cast<int>(p.nnzb);
    a.group = static_cast<int>(group(p));
    a.strips = static_cast<int>(strips(p));
    a.slices = static_cast<int>(p.block_k / 8);
    a.line_a = static_cast<uint32_t>((p.transpose ? p.block_m : p.block_k) * 8);
    a.line_b = static_cast<uint32_t>(p.ldb * 8);
    a.block_bytes = static_cast<uint32_t>(p.block_m * p.block_k * 8);
    a.chunks = std::min(p.values_alignment, p.b_alignment) >= 16;
    a.pairs = p.c_alignment >= 16;
    return a;
  }

  // `slice_us`: of each slice of B besides what is multiplied by it. `share`: of the tensor cores'
  // rate that the rest reaches.
  double product_us(const Problem& p, const Device& d, double slice_us, double share) const {
    constexpr double kStartUs = 4, kAlone = 1.3;  // a tile alone on a multiprocessor
    const double multiprocessors = std::max(d.multiprocessors, 1);
    const double columns = static_cast<double>(ceil_div(p.n, kN) * p.batch);
    const double slices = fetched_blocks(p) * columns * static_cast<double>(p.block_k / 8);
    if (slices == 0) return kStartUs + compulsory_bytes(p) / (d.memory_gbps * 850);
    const double flops = 2.0 * static_cast<double>(p.nnzb * p.block_m * p.block_k) * columns * kN;
    const double each_us =
        slice_us + flops / slices / (share * d.fp64_tensor_tflops / multiprocessors * 1e6);
    const double busy_us =
        each_us * (slices / multiprocessors + 0.5 * slices / static_cast<double>(tiles(p)));
    const double longest_us =
        kAlone * each_us * longest_blocks(p) * static_cast<double>(p.block_k / 8);
    return kStartUs + std::max({busy_us, longest_us, uncached_us(p, d)});
  }

  bool grouped() const { return grouped_; }
  int64_t tiles(const Problem& p) const { return rows(p) * ceil_div(p.n, kN) * p.batch; }

 private:
  // Of all tiles from top to bottom: block columns of B that are fetched.
  double fetched_blocks(const Problem& p) const {
    return static_cast<double>(grouped_ ? p.group_counts.columns[grouping_of_rows(p)]
                                        : p.nnzb * strips(p));
  }
  // Of one tile.
  double longest_blocks(const Problem& p) const {
    return static_cast<double>(grouped_ ? p.group_counts.longest[grouping_of_rows(p)]
                                        : std::max<int64_t>(p.longest_row, 0));
  }
  int64_t group(const Problem& p) const { return grouped_ ? kM / p.block_m : 1; }
  int grouping_of_rows(const Problem& p) const {
    return grouped_ ? sparse_autotune::grouping_of(static_cast<int>(group(p))) : kNoGrouping;
  }
  int64_t strips(const Problem& p) const { return grouped_ ? 1 : ceil_div(p.block_m, kM); }
  int64_t rows(const Problem& p) const { return ceil_div(block_rows(p), group(p)) * strips(p); }

  bool grouped_;
};

}  // namespace sparse_autotune
