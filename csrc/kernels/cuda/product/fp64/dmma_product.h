// What families here have in common on the host; dmma_sm80 and dmma_sm90 also how C is cut into
// tiles, and what their kernels are told.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/fp64/dmma_part.cuh"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {

// f<kTransposed, kRowMajorB>() for A or A^T and B's layout.
template <typename F>
auto with_forms(const Problem& p, const F& f) {
  const bool rows = p.b_layout == Layout::kRowMajor;
  if (p.transpose) {
    return rows ? f.template operator()<true, true>() : f.template operator()<true, false>();
  }
  return rows ? f.template operator()<false, true>() : f.template operator()<false, false>();
}

// Tiles of `tile_m` rows, 32 or 64, of one block row or of a group of 2 to 8.
class DmmaProduct : public Variant {
 public:
  DmmaProduct(std::string_view name, int tile_m, bool grouped)
      : Variant(DeviceType::kCuda, name), tile_m_(tile_m), grouped_(grouped) {}

  int row_order(const Problem&, const Device&) const override {
    return grouped_ ? kNoRowOrder : kWholeRows;
  }
  int grouping(const Problem& p, const Device&) const override { return grouping_of_rows(p); }

 protected:
  static constexpr int kN = 128;

  // The largest granule that divides the block's rows.
  int side(const Problem& p) const {
    int side = tile_m_;
    while (p.block_m % side != 0) side /= 2;
    return side;
  }

  Support takes_product(const Problem& p) const {
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (Support s = sides_are_multiples_of(8, p); !s) return s;
    if (grouped_) {
      if (p.block_m != side(p) || p.block_m == tile_m_) {
        return Support::no(std::string("needs blocks of ") +
                           (tile_m_ == 64 ? "8, 16 or 32" : "8 or 16") + " rows, got " +
                           std::to_string(p.block_m));
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

  double product_us(const Problem& p, const Device& d, const TileRates& rates) const {
    const TileWork work = grouped_ ? tiles_of_groups(p, tile_m_, kN, grouping_of_rows(p))
                                   : tiles_of_rows(p, std::min<int64_t>(p.block_m, tile_m_), kN,
                                                   block_rows(p), p.longest_row);
    return tiled_us(work, rates, d.fp64_tensor_tflops, p, d);
  }

  bool grouped() const { return grouped_; }
  int64_t tiles(const Problem& p) const { return rows(p) * ceil_div(p.n, kN) * p.batch; }

 private:
  int64_t group(const Problem& p) const { return grouped_ ? tile_m_ / p.block_m : 1; }
  int grouping_of_rows(const Problem& p) const {
    return grouped_ ? sparse_autotune::grouping_of(static_cast<int>(group(p))) : kNoGrouping;
  }
  int64_t strips(const Problem& p) const { return grouped_ ? 1 : ceil_div(p.block_m, tile_m_); }
  int64_t rows(const Problem& p) const { return ceil_div(block_rows(p), group(p)) * strips(p); }

  int tile_m_;
  bool grouped_;
};

}  // namespace sparse_autotune
