// Products with up to 16 columns on Hopper, of square blocks: a layer of a model that decodes. B is
// column-major, as `linear` has it, or has 9 to 16 columns in rows. See small_n_units.cuh.
//
// small_n_sm90 takes any blocks and pays for it in instructions: some 780 a warp at 16 columns and
// 12.5% of 14336x4096, where seven warps share a scheduler; this one about half of them.
// Requires: fp16 or bf16; blocks of 16, 32 or 64; values and B aligned to 16 bytes. Any C.
#include <algorithm>
#include <string>

#include "kernels/cuda/product/few_columns/small_n_launch.cuh"
#include "kernels/cuda/product/few_columns/small_n_units.cuh"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile>
constinit KernelCode<UnitArguments> code{&small_n_units_kernel<T, Tile>, true,
                                         cudaSharedmemCarveoutDefault};

struct Shape {
  int side, n, rows, strips, threads, groups, ahead;
  Layout b_layout;
  KernelCode<UnitArguments>* codes[2];  // by DType
  SmallNShape like;                     // of small_n_sm90, for the estimate
};

template <typename Tile>
Shape shape_of() {
  SmallNShape like{};
  like.m = Tile::kRows;
  like.n = Tile::kWidth;
  like.warps_k = Tile::kGroups;
  like.unroll = Tile::kAhead * 2;  // chunks of 32 k
  like.resident = Tile::kResident;
  like.column_load = 2 * Tile::kColumnTiles;
  like.overlaps = true;
  return {Tile::kBlockSide,
          Tile::kWidth,
          Tile::kRows,
          Tile::kStrips,
          Tile::kThreads,
          Tile::kGroups,
          Tile::kAhead,
          Tile::kRowMajorB ? Layout::kRowMajor : Layout::kColMajor,
          {&code<__half, Tile>, &code<__nv_bfloat16, Tile>},
          like};
}

class SmallNUnitsSm90 final : public Variant {
 public:
  SmallNUnitsSm90(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    const int least = shape_.n > 8 ? shape_.n / 2 + 1 : 1;
    const Support common =
        small_n_square_supports({shape_.side, least, shape_.n, shape_.b_layout}, p, d);
    if (!common) return common;
    const bool b_rows = shape_.b_layout == Layout::kRowMajor;
    if (b_rows && p.n % 4 != 0) {
      return Support::no("loads four columns of B at a time, got " + std::to_string(p.n));
    }
    if ((b_rows ? p.k : p.n) * p.ldb > INT32_MAX) {
      return Support::no("B has 2^31 elements or more");
    }
    return code_of(p).runs_on(d, 0);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // As small_n_sm90 with tiles of this shape, less what the fewer instructions spare on an H200.
    constexpr double kSparedUs = 0.3;
    return small_n_us(shape_.like, p, d) - kSparedUs;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    UnitArguments a{small_n_operands(p, l)};
    a.index_bytes = static_cast<int>(size_of(p.index_type));
    a.stores_quads = p.c_layout == Layout::kColMajor && p.c_alignment >= 8;
    const dim3 grid(static_cast<unsigned>(block_rows(p) * shape_.strips),
                    static_cast<unsigned>(p.batch));
    // A few KB of values cost nothing where L2 has them already.
    constexpr int64_t kRowBytes = 256;
    set_small_n_ahead(p, l, grid.x, shape_.rows * kRowBytes, &a);
    // What a row has beyond the mean.
    constexpr int64_t kUnitK = 64;
    const int64_t turn = shape_.groups * kUnitK / shape_.side;  // blocks
    const int64_t turns = ceil_div(p.nnzb, std::max<int64_t>(block_rows(p), 1) * turn);
    a.excess = static_cast<int>(std::max<int64_t>(shape_.ahead, turns));
    return code_of(p).launch(a, grid, shape_.threads, 0, l.stream, name());
  }

 private:
  KernelCode<UnitArguments>& code_of(const Problem& p) const {
    return *shape_.codes[p.dtype == DType::kFloat16 ? 0 : 1];
  }

  Shape shape_;
  Registration registration_{*this};
};

// Side, eights of columns, sixteens of rows, warps, units of values and of B ahead, thread blocks a
// multiprocessor, when the next launch may begin, whether values come in whole lines. Eight warps
// are for few block rows. The next launch begins early where the values are few.
constexpr Release kAtOnce = Release::kAtOnce, kLoading = Release::kLoading,
                  kSummed = Release::kSummed;
template <int kSide, int kRowSixteens, int kWarps, int kAhead, int kBlocks, Release kNextFrom>
using Rows = UnitTile<kSide, 2, kRowSixteens, kWarps, kAhead, 1, kBlocks, kNextFrom, kSide == 64,
                      Layout::kRowMajor>;
const SmallNUnitsSm90 kVariants[] = {
    {"small_n_units_sm90/b16_n8", shape_of<UnitTile<16, 1, 1, 4, 2, 2, 7, kAtOnce>>()},
    {"small_n_units_sm90/b32_n8", shape_of<UnitTile<32, 1, 1, 4, 2, 2, 7, kAtOnce>>()},
    {"small_n_units_sm90/b64_n8", shape_of<UnitTile<64, 1, 1, 4, 2, 2, 7, kAtOnce>>()},
    {"small_n_units_sm90/b64_n8_w8", shape_of<UnitTile<64, 1, 1, 8, 1, 1, 3, kAtOnce, true>>()},
    {"small_n_units_sm90/b16_n16", shape_of<UnitTile<16, 2, 1, 4, 2, 1, 7, kAtOnce>>()},
    {"small_n_units_sm90/b32_n16", shape_of<UnitTile<32, 2, 2, 4, 2, 1, 4, kSummed>>()},
    {"small_n_units_sm90/b32_n16_early", shape_of<UnitTile<32, 2, 2, 4, 2, 1, 4, kLoading>>()},
    {"small_n_units_sm90/b64_n16", shape_of<UnitTile<64, 2, 2, 5, 1, 1, 4, kSummed, true>>()},
    {"small_n_units_sm90/b64_n16_w8", shape_of<UnitTile<64, 2, 1, 8, 1, 1, 3, kAtOnce, true>>()},
    // Of a row-major B.
    {"small_n_units_sm90/b16_rows", shape_of<Rows<16, 1, 4, 1, 7, kAtOnce>>()},
    {"small_n_units_sm90/b32_rows", shape_of<Rows<32, 2, 4, 2, 4, kSummed>>()},
    {"small_n_units_sm90/b32_rows_early", shape_of<Rows<32, 2, 4, 2, 4, kLoading>>()},
    {"small_n_units_sm90/b64_rows", shape_of<Rows<64, 2, 5, 1, 4, kSummed>>()},
    {"small_n_units_sm90/b64_rows_early", shape_of<Rows<64, 2, 5, 1, 4, kLoading>>()},
};

}  // namespace
}  // namespace sparse_autotune
