// Half precision in blocks with a side of 8, on tensor cores, from Ampere on.
//
// A persistent thread block owns tiles of C: 64 strips of 8 rows by 64 columns. It walks all of B's
// rows in stages, whatever blocks there are; each of its warps owns 4 strips and multiplies the
// blocks that these have in a stage, as pieces of 8 x 8, by the stage's rows of B. mma.sync
// computes C^T: 16 columns of C by the 8 rows of a strip, over a k of 16 that two pieces make up,
// wherever in the stage they are.
// Data path: cp.async of B into a ring of 3 stages of 256 rows, and of pieces into places of each
// warp -> ldmatrix -> mma.sync, fp32 sums -> four lanes exchange words -> C.
// Requires: fp16 or bf16, block sides of 8 times a power of two, values and B aligned to 16 bytes.
// Wins: blocks of 8, many columns, up to some 10%. Bound by instructions: of a stage, whatever it
// holds, where blocks are few, else of multiplying a piece.
#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/small_blocks/mma_eights_launch.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

class MmaEights final : public Variant {
 public:
  // Fitted to an H200, microseconds of a tile: of a stage whatever it holds, of each of its pieces,
  // and of one that a warp multiplies while the others wait.
  struct Pace {
    double stage, piece, alone;
  };

  MmaEights(std::string_view name, const EightsShape& shape, Pace pace)
      : Variant(DeviceType::kCuda, name), shape_(shape), pace_(pace) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (!eights_of_two(p.block_m) || !eights_of_two(p.block_k)) {
      return Support::no("needs block sides of 8 times a power of two, got " +
                         block_text(p.block_m, p.block_k));
    }
    if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = n_fills_columns(p, kN); !s) return s;
    if (Support s = copied_by_16(p); !s) return s;
    if (std::max({p.m, p.k, p.nnzb * wide(p), tiles(p)}) > INT32_MAX / 2 ||
        std::max(p.ldb, p.block_m * p.block_k) * 2 > UINT32_MAX) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    return code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    constexpr double kStartUs = 4;
    const double rounds = static_cast<double>(tiles(p)) / std::max(d.multiprocessors, 1);
    const auto stages = static_cast<double>(ceil_div(p.k, shape_.stage_k));
    const double pieces =
        static_cast<double>(p.nnzb * wide(p) * p.block_m / 8) / static_cast<double>(rows(p));
    const double tile_us = stages * pace_.stage + pieces * pace_.piece;
    const double alone_us =
        stages * pace_.stage + static_cast<double>(p.longest_row * wide(p)) * pace_.alone;
    const double busy_us = rounds > 1 ? (rounds + 0.3) * tile_us : tile_us;
    return kStartUs + std::max({busy_us, alone_us, compulsory_bytes(p) / (d.memory_gbps * 850)});
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<EightsArguments>(p, l);
    const int64_t l2 = l.device->l2_bytes;
    a.panels = panels_of(rows(p), columns(p), p.batch, panel_width(p, kN, l2 / 2, l2 / 4), nullptr);
    a.line_b = static_cast<uint32_t>(p.ldb * 2);
    a.line_a = static_cast<uint32_t>((p.transpose ? p.block_m : p.block_k) * 2);
    a.block_bytes = static_cast<uint32_t>(p.block_m * p.block_k * 2);
    a.k = static_cast<int>(p.k);
    a.strips = static_cast<int>(ceil_div(p.m, 8));
    a.tall = static_cast<int>(p.block_m / 8);
    a.wide_log = std::countr_zero(static_cast<uint64_t>(wide(p)));
    a.last_piece = static_cast<int>(p.nnzb * wide(p) - 1);
    a.strip_bytes = static_cast<uint32_t>(16 * row_stride_in_block(p));
    const auto places = static_cast<unsigned>(l.device->multiprocessors);
    return code_of(p)->launch(a, std::min(a.panels.tiles, places), kEightsThreads,
                              shape_.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kN = 64;

  static bool eights_of_two(int64_t side) {
    return side >= 8 && std::has_single_bit(static_cast<uint64_t>(side));
  }

  static int64_t columns(const Problem& p) { return ceil_div(p.n, kN); }
  static int64_t rows(const Problem& p) { return ceil_div(p.m, int64_t{8} * kEightsStrips); }
  static int64_t tiles(const Problem& p) { return rows(p) * columns(p) * p.batch; }
  // Pieces of a block side by side.
  static int64_t wide(const Problem& p) { return p.block_k / 8; }

  KernelCode<EightsArguments>* code_of(const Problem& p) const {
    return shape_.of[p.transpose ? 1 : 0][static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }

  EightsShape shape_;
  Pace pace_;
  Registration registration_{*this};
};

const MmaEights kM512{"mma_eights_sm80/m512", eights_shape<256, 3>(), {0.95, 0.0075, 0.06}};
const MmaEights kM512K512{"mma_eights_sm80/m512_k512", kEightsDeep, {1.5, 0.0095, 0.06}};
const MmaEights kM512K128{"mma_eights_sm80/m512_k128", kEightsSmall, {0.9, 0.0098, 0.06}};

}  // namespace
}  // namespace sparse_autotune
