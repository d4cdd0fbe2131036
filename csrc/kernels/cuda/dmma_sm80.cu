// fp64 on tensor cores, from Ampere on.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/device/dmma_tile.cuh"
#include "kernels/cuda/kernel_code.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

template <typename Tile>
constinit KernelCode<DmmaArguments> dmma_code{&dmma_kernel<Tile>};

constexpr int kSides[] = {64, 32, 16, 8};

// A tile as the host sees it, and its kernels by granule, A or A^T, and Layout of B.
struct Shape {
  int m, n, threads, resident;
  struct Code {
    KernelCode<DmmaArguments>* code;
    int shared_bytes;
  } of[4][2][2];
};

template <typename Tile>
constexpr Shape::Code code_of() {
  return {&dmma_code<Tile>, Tile::kSharedBytes};
}

template <bool kWithTransposed, int kIndex, int kM, int kWarpN, int kWarps, int kStages,
          int kResident>
constexpr void add_codes(Shape& s) {
  constexpr int kSide = kSides[kIndex];
  s.of[kIndex][0][0] =
      code_of<DmmaTile<kM, kWarpN, kWarps, kSide, kStages, kResident, false, true>>();
  s.of[kIndex][0][1] =
      code_of<DmmaTile<kM, kWarpN, kWarps, kSide, kStages, kResident, false, false>>();
  if constexpr (kWithTransposed) {
    s.of[kIndex][1][0] =
        code_of<DmmaTile<kM, kWarpN, kWarps, kSide, kStages, kResident, true, true>>();
    s.of[kIndex][1][1] =
        code_of<DmmaTile<kM, kWarpN, kWarps, kSide, kStages, kResident, true, false>>();
  }
}

template <bool kWithTransposed, int... kNumbers>
constexpr Shape shape_of(Shape s) {
  add_codes<kWithTransposed, 0, kNumbers...>(s);
  add_codes<kWithTransposed, 1, kNumbers...>(s);
  add_codes<kWithTransposed, 2, kNumbers...>(s);
  add_codes<kWithTransposed, 3, kNumbers...>(s);
  return s;
}
template <bool kWithTransposed, int kM, int kWarpN, int kWarps, int kStages, int kResident>
constexpr Shape shape_of() {
  return shape_of<kWithTransposed, kM, kWarpN, kWarps, kStages, kResident>(
      Shape{kM, kWarpN * kWarps, kWarps * 32, kResident, {}});
}

class DmmaSm80 final : public Variant {
 public:
  DmmaSm80(std::string_view name, const Shape& shape, bool grouped)
      : Variant(DeviceType::kCuda, name), shape_(shape), grouped_(grouped) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype != DType::kFloat64) return Support::no("multiplies fp64 only");
    if (d.compute_capability < 80) return Support::no("needs compute capability 8.0 or newer");
    if (p.block_m % 8 != 0 || p.block_k % 8 != 0) {
      return Support::no("needs block sides that are multiples of 8, got " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (grouped_) {
      if (p.block_m != side(p) || 2 * p.block_m > shape_.m) {
        return Support::no("needs blocks of 8, 16 or 32 rows, got " + std::to_string(p.block_m));
      }
      if (p.nnzb == 0) return Support::no("there is no stored block");
      if (p.group_counts.columns[grouping(p)] <= 0) {
        return Support::no("nobody has looked which block columns its groups of " +
                           std::to_string(group(p)) + " block rows have");
      }
    }
    if (std::max({p.m, p.k, p.nnzb}) > INT32_MAX - shape_.m ||
        std::max(p.ldb, p.block_m * p.block_k) > UINT32_MAX / 8) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    if (code_of(p).code == nullptr) return Support::no("no form for A^T");
    if (tiles(p) > INT32_MAX) return Support::no("more than 2^31 - 1 thread blocks in a grid");
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override { return 1; }

  int row_order(const Problem&, const Device&) const override {
    return grouped_ ? kNoRowOrder : kWholeRows;
  }
  int grouping(const Problem& p, const Device&) const override { return grouping(p); }

  Status launch(const Problem& p, const Launch& l) const override {
    DmmaArguments a{};
    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.positions = l.positions;
    a.values = l.values;
    a.b = l.b;
    a.bias = l.bias;
    a.c = l.c;
    const OrderedRow* order = l.row_orders[kWholeRows];
    if (grouped_) {
      const RowGroups& groups_of = l.row_groups[grouping(p)];
      a.columns = groups_of.columns;
      order = groups_of.groups;
    }
    const int64_t l2 = l.device->l2_bytes;
    a.panels = panels_of(rows(p), ceil_div(p.n, shape_.n), p.batch,
                         panel_width(p, shape_.n, l2 / 2, l2 / 4), order);
    a.n = p.n;
    a.ldb = p.ldb;
    a.ldc = p.ldc;
    a.b_batch_stride = p.b_batch_stride;
    a.c_batch_stride = p.c_batch_stride;
    a.m = static_cast<int>(p.m);
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.block_rows = static_cast<int>(block_rows(p));
    a.blocks = static_cast<int>(p.nnzb);
    a.group = static_cast<int>(group(p));
    a.strips = static_cast<int>(strips(p));
    a.slices = static_cast<int>(p.block_k / 8);
    a.activation = p.activation;
    a.wide_indices = p.index_type == IndexType::kInt64;
    a.c_rows = p.c_layout == Layout::kRowMajor;
    a.pairs = p.c_alignment >= 16;
    a.chunks = std::min(p.values_alignment, p.b_alignment) >= 16;
    a.line_a = static_cast<uint32_t>((p.transpose ? p.block_m : p.block_k) * 8);
    a.line_b = static_cast<uint32_t>(p.ldb * 8);
    a.block_bytes = static_cast<uint32_t>(p.block_m * p.block_k * 8);
    const Shape::Code& code = code_of(p);
    return code.code->launch(a, static_cast<unsigned>(tiles(p)), shape_.threads, code.shared_bytes,
                             l.stream, name());
  }

 private:
  static int index(const Problem& p) {
    int i = 0;
    while (p.block_m % kSides[i] != 0) ++i;
    return i;
  }
  static int side(const Problem& p) { return kSides[index(p)]; }
  int64_t group(const Problem& p) const { return grouped_ ? shape_.m / p.block_m : 1; }
  int grouping(const Problem& p) const {
    return grouped_ ? grouping_of(static_cast<int>(group(p))) : kNoGrouping;
  }
  int64_t strips(const Problem& p) const { return grouped_ ? 1 : ceil_div(p.block_m, shape_.m); }
  int64_t rows(const Problem& p) const { return ceil_div(block_rows(p), group(p)) * strips(p); }
  int64_t tiles(const Problem& p) const { return rows(p) * ceil_div(p.n, shape_.n) * p.batch; }
  const Shape::Code& code_of(const Problem& p) const {
    return shape_.of[index(p)][p.transpose ? 1 : 0][static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  bool grouped_;
  Registration registration_{*this};
};

const DmmaSm80 kWide{"dmma_sm80/m64_n128", shape_of<true, 64, 32, 4, 3, 2>(), false};
const DmmaSm80 kWideGroups{"dmma_sm80/m64_n128_groups", shape_of<true, 64, 32, 4, 3, 2>(), true};

#ifdef DMMA_EXTRA
const DmmaSm80 kX1{"x/wide_s4_groups", shape_of<false, 64, 32, 4, 4, 2>(), true};
const DmmaSm80 kX1b{"x/wide_s4", shape_of<false, 64, 32, 4, 4, 2>(), false};
const DmmaSm80 kX2{"x/tall_s4_groups", shape_of<false, 128, 16, 8, 4, 1>(), true};
const DmmaSm80 kX4{"x/tall_s4", shape_of<false, 128, 16, 8, 4, 1>(), false};
#endif

}  // namespace
}  // namespace sparse_autotune
