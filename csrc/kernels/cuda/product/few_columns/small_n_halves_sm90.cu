// Products with 9 to 16 columns on Hopper, of square blocks and a column-major B, as
// small_n_units_sm90 computes them, with B in shared memory. See small_n_halves.cuh.
//
// Blocks of 16 have B in lines of 32 bytes, 16 for each block: more of them than L1 misses are
// served beside the values. Here each thread block of a pair copies one half of B, once.
// Requires: fp16 or bf16; blocks of 16; values and B aligned to 16 bytes. Any C.
#include <algorithm>
#include <cmath>

#include "kernels/cuda/product/few_columns/small_n_halves.cuh"
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"

namespace sparse_autotune {
namespace {

using Tile = HalvesTile;

template <typename T>
constinit KernelCode<HalvesArguments> code{&small_n_halves_kernel<T>, true,
                                           cudaSharedmemCarveoutMaxL1};

class SmallNHalvesSm90 final : public Variant {
 public:
  SmallNHalvesSm90() : Variant(DeviceType::kCuda, "small_n_halves_sm90/b16_n16") {}

  Support supports(const Problem& p, const Device& d) const override {
    const Support common = small_n_square_supports(
        {Tile::kBlockSide, Tile::kWidth / 2 + 1, Tile::kWidth, Layout::kColMajor}, p, d);
    if (!common) return common;
    if (block_cols(p) < 2) return Support::no("has no second half of one block column");
    if (p.n * p.ldb > INT32_MAX) return Support::no("B has 2^31 elements or more");
    return code_of(p).runs_on(d, Tile::kFixedBytes + shared_bytes(p));
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Fitted to times on an H200: setting up; L2 to one multiprocessor, bytes a microsecond; what a
    // strip's warps have on their way, once.
    constexpr double kStartUs = 2.7, kRate = 50e3, kTurnUs = 0.38;
    constexpr int kTurnK = Tile::kAhead * Tile::kShare * Tile::kBlockSide;
    const double rows = static_cast<double>(std::max<int64_t>(block_rows(p), 1));
    const double row_k = static_cast<double>(p.nnzb) * p.block_k / rows;
    const double longest_k = std::max(row_k, static_cast<double>(p.longest_row) * p.block_k);
    const int64_t pairs = pairs_of(p, d);
    const auto strips = static_cast<double>(ceil_div(strips_of(p), pairs));
    const auto waves =
        static_cast<double>(ceil_div(2 * pairs * p.batch, std::max(d.multiprocessors, 1)));
    const double bytes = (strips * Tile::kBlockSide * row_k + static_cast<double>(p.k * p.n)) *
                         static_cast<double>(size_of(p.dtype)) / 2;
    const double turns_us = std::ceil(longest_k / 2 / kTurnK) * kTurnUs;
    return kStartUs + std::max(waves * std::max(bytes / kRate, turns_us), uncached_us(p, d));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    HalvesArguments a{small_n_operands(p, l)};
    a.index_bytes = static_cast<int>(size_of(p.index_type));
    a.stores_quads = p.c_layout == Layout::kColMajor && p.c_alignment >= 8;
    const int64_t strips = strips_of(p), pairs = pairs_of(p, *l.device);
    a.strips_each = static_cast<int>(strips / pairs);
    a.more = static_cast<int>(strips % pairs);
    a.half = static_cast<int>(ceil_div(block_cols(p), 2));
    a.block_columns = static_cast<int>(block_cols(p));
    a.line_bytes = line_bytes(p);
    const dim3 grid(static_cast<unsigned>(2 * pairs), static_cast<unsigned>(p.batch));
    set_small_n_ahead(p, *l.device, BAccess::kAlongK, grid.x, &a);
    set_values_ahead(p, grid.x, &a);
    return code_of(p).launch(a, grid, Tile::kThreads, shared_bytes(p), l.stream, name(), 2);
  }

 private:
  static int64_t strips_of(const Problem& p) { return block_rows(p); }

  // One on two multiprocessors, or more where these have more strips than warps.
  static int64_t pairs_of(const Problem& p, const Device& d) {
    const int64_t most = std::max(d.multiprocessors / 2, 1);
    return std::min(strips_of(p),
                    std::max<int64_t>(most, ceil_div(strips_of(p), Tile::kStripsMost)));
  }

  // What of the values goes into L2 in advance: of the 4 KB that a warp has on their way, the most
  // that costs nothing.
  static void set_values_ahead(const Problem& p, int64_t blocks, HalvesArguments* a) {
    constexpr int64_t kLine = 128, kMost = 1536, kWarps = Tile::kThreads / 32;
    a->value_lines = 0;
    a->value_step = static_cast<int64_t>(values_bytes(p)) / (blocks * kWarps) / kLine * kLine;
    a->value_bytes = static_cast<unsigned>(std::min(kMost, a->value_step));
  }

  // Of a column of B in shared memory.
  static int line_bytes(const Problem& p) {
    constexpr int64_t kBanks = 128;
    const int64_t bytes = ceil_div(block_cols(p), 2) * Tile::kLine;
    return static_cast<int>(ceil_div(bytes - Tile::kSpread, kBanks) * kBanks + Tile::kSpread);
  }
  static int64_t shared_bytes(const Problem& p) { return int64_t{Tile::kWidth} * line_bytes(p); }

  static KernelCode<HalvesArguments>& code_of(const Problem& p) {
    return p.dtype == DType::kFloat16 ? code<__half> : code<__nv_bfloat16>;
  }

  Registration registration_{*this};
};

const SmallNHalvesSm90 kVariant;

}  // namespace
}  // namespace sparse_autotune
