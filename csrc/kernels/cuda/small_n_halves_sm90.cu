// Products with 9 to 16 columns on Hopper, of square blocks and a column-major B, as
// small_n_units_sm90 computes them, with B in shared memory. See device/small_n_halves.cuh.
//
// Blocks of 16 have B in lines of 32 bytes, 16 for each block: more of them than L1 misses are
// served beside the values. Here each thread block of a pair copies one half of B, once.
// Requires: fp16 or bf16; blocks of 16; values and B aligned to 16 bytes. Any C.
#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/device/small_n_halves.cuh"
#include "kernels/cuda/small_n_launch.cuh"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile>
constinit KernelCode<HalvesArguments> code{&small_n_halves_kernel<T, Tile>, true,
                                           cudaSharedmemCarveoutMaxL1};

struct Shape {
  int side, strips, threads, turn_k, spread, fixed_bytes;  // fixed_bytes: of shared memory
  KernelCode<HalvesArguments>* codes[2];                   // by DType
};

template <typename Tile>
Shape shape_of() {
  return {Tile::kBlockSide,
          Tile::kStripsMost,
          Tile::kThreads,
          Tile::kAhead * Tile::kShare * Tile::kBlockSide,
          Tile::kSpread,
          Tile::kFixedBytes,
          {&code<__half, Tile>, &code<__nv_bfloat16, Tile>}};
}

class SmallNHalvesSm90 final : public Variant {
 public:
  SmallNHalvesSm90(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.transpose) return Support::no("does not multiply by A^T");
    if (p.block_m != shape_.side || p.block_k != shape_.side) {
      const std::string side = std::to_string(shape_.side);
      return Support::no("needs blocks of " + side + "x" + side + ", got " +
                         std::to_string(p.block_m) + "x" + std::to_string(p.block_k));
    }
    if (p.n <= kWidth / 2 || p.n > kWidth) {
      return Support::no("is for 9 to 16 columns, got " + std::to_string(p.n));
    }
    if (block_cols(p) < 2) return Support::no("has no second half of one block column");
    if (p.b_layout != Layout::kColMajor) return Support::no("needs column-major B");
    if (std::min(p.values_alignment, p.b_alignment) < 16) {
      return Support::no(
          "needs addresses, leading dimensions and batch strides of values and B that are "
          "multiples of 16 bytes, one is a multiple of " +
          std::to_string(std::min(p.values_alignment, p.b_alignment)));
    }
    if (std::max({p.nnzb, p.m, p.k, p.n * p.ldb}) > INT32_MAX || p.batch > kMaxGrid) {
      return Support::no("a size is beyond a grid's coordinates or 2^31");
    }
    return code_of(p).runs_on(d, shape_.fixed_bytes + shared_bytes(p));
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Fitted to times on an H200: setting up; L2 to one multiprocessor, bytes a microsecond; what a
    // strip's warps have on their way, once.
    constexpr double kStartUs = 2.7, kRate = 50e3, kTurnUs = 0.38;
    const double rows = static_cast<double>(std::max<int64_t>(block_rows(p), 1));
    const double row_k = static_cast<double>(p.nnzb) * p.block_k / rows;
    const double longest_k = std::max(row_k, static_cast<double>(p.longest_row) * p.block_k);
    const int64_t pairs = pairs_of(p, d);
    const auto strips = static_cast<double>(ceil_div(strips_of(p), pairs));
    const auto waves =
        static_cast<double>(ceil_div(2 * pairs * p.batch, std::max(d.multiprocessors, 1)));
    const double bytes = (strips * kStripRows * row_k + static_cast<double>(p.k * p.n)) *
                         static_cast<double>(size_of(p.dtype)) / 2;
    const double turns_us = std::ceil(longest_k / 2 / shape_.turn_k) * kTurnUs;
    const double memory = compulsory_bytes(p) - static_cast<double>(d.l2_bytes);
    return kStartUs +
           std::max(waves * std::max(bytes / kRate, turns_us), memory / (d.memory_gbps * 850));
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
    a.value_lines = 0;
    return code_of(p).launch(a, grid, shape_.threads, shared_bytes(p), l.stream, name(), 2);
  }

 private:
  static constexpr int64_t kMaxGrid = 65535;  // along y
  static constexpr int kWidth = 16, kStripRows = 16;

  static int64_t strips_of(const Problem& p) { return p.m / kStripRows; }

  // One on two multiprocessors, or more where these have more strips than warps.
  int64_t pairs_of(const Problem& p, const Device& d) const {
    const int64_t most = std::max(d.multiprocessors / 2, 1);
    return std::min(strips_of(p), std::max<int64_t>(most, ceil_div(strips_of(p), shape_.strips)));
  }

  // Of a column of B in shared memory.
  int line_bytes(const Problem& p) const {
    constexpr int64_t kBanks = 128;
    const int64_t bytes = ceil_div(block_cols(p), 2) * shape_.side * 2;
    return static_cast<int>(ceil_div(bytes - shape_.spread, kBanks) * kBanks + shape_.spread);
  }
  int64_t shared_bytes(const Problem& p) const { return int64_t{kWidth} * line_bytes(p); }

  KernelCode<HalvesArguments>& code_of(const Problem& p) const {
    return *shape_.codes[p.dtype == DType::kFloat16 ? 0 : 1];
  }

  Shape shape_;
  Registration registration_{*this};
};

const SmallNHalvesSm90 kB16{"small_n_halves_sm90/b16_n16", shape_of<HalvesTile<16>>()};

}  // namespace
}  // namespace sparse_autotune
