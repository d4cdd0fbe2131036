// Tensor cores through mma.sync: the portable fast kernel, from Ampere on.
//
// A thread block owns one tile of C: kM rows of one block row (a strip; a block taller than kM has
// several) by kN columns. Steps of kStepBytes along k walk the block row's stored blocks as if they
// stood side by side, in slices of 32 bytes (16 halves, 8 floats): a step may span several blocks,
// a block several steps.
// Data path: cp.async keeps `stages` - 1 steps of A and B on their way to a ring in shared memory
// -> ldmatrix -> mma.sync, fp32 accumulators -> shared memory -> C. Longest rows first, in panels
// of columns that stay in L2.
// A^T: tiles of A are copied with m contiguous, from where Launch::positions says, and transposed
// on the way to registers: halves by ldmatrix, fp32 by loads of single words.
// Requires: fp16, bf16, or fp32 with TF32 allowed; block sides that are multiples of 16. Any n, any
// alignment (16 bytes is fastest).
// Wins: most blocks from 16 up, where no Hopper kernel applies. Bound by L2 -> shared memory
// traffic for blocks up to 64: kM * kN / (kM + kN) FLOP a byte.
#include <algorithm>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/large_blocks/mma_launch.cuh"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

constexpr TileRates kRates{.start_us = 5.7, .compute = 0.46, .l2 = 0.51, .alone = 1.3};

// A tile as the host sees it.
struct Shape {
  int m, n, step_bytes, stages, threads;
  MmaCodes codes[2];  // for A and for A^T
};

// `codes`: for A.
template <typename Tile>
Shape shape_of(const MmaCodes& codes) {
  return {Tile::kM,      Tile::kN,       Tile::kStepBytes,
          Tile::kStages, Tile::kThreads, {codes, mma_codes_apart<Tile, true>()}};
}

class MmaSm80 final : public Variant {
 public:
  MmaSm80(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype == DType::kFloat64) return Support::no("mma_sm80 has no fp64");
    if (p.dtype == DType::kFloat32 && !p.allow_tf32) {
      return Support::no("multiplies fp32 in TF32, which the caller's settings do not allow");
    }
    if (code_of(p) == nullptr) return Support::no("no form for TF32");
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = sides_are_multiples_of(16, p); !s) return s;
    if (Support s = blocks_fill_rows(p, shape_.m); !s) return s;
    if (std::max({p.block_m * p.block_k, p.k, p.nnzb}) > INT32_MAX) {
      return Support::no("a block, k or the number of blocks is beyond 2^31 - 1");
    }
    if (thread_blocks(p) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return code_of(p)->runs_on(d, shared_bytes(p));
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    TileWork work = tiles_of_rows(p, shape_.m, shape_.n, block_rows(p), p.longest_row);
    // Four-byte copies and single halves take more instructions.
    const int alignment = std::min(p.b_alignment, p.values_alignment);
    work.fetched /= alignment >= 16 ? 1 : alignment >= 4 ? 0.4 : 0.15;
    return tiled_us(work, kRates, peak_tflops(p, d), p, d);
  }

  int row_order(const Problem&, const Device&) const override { return kWholeRows; }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<MmaArguments>(p, l);
    a.strips = static_cast<int>(strips(p));
    const int64_t l2 = l.device->l2_bytes;
    a.panels = panels_of(block_rows(p) * strips(p), ceil_div(p.n, shape_.n), p.batch,
                         panel_width(p, shape_.n, l2 / 2, l2 / 4), l.row_orders[kWholeRows]);
    a.slices = static_cast<int>(p.block_k * size_of(p.dtype) / kSliceBytes);
    const int step_slices = shape_.step_bytes / kSliceBytes;
    a.step_blocks = step_slices / a.slices;
    a.step_slices = step_slices % a.slices;
    const int64_t slice = kSliceBytes / size_of(p.dtype);  // elements
    a.step_a = a.step_blocks * p.block_m * p.block_k + a.step_slices * slice;
    a.wrap_a = p.block_m * p.block_k - p.block_k;
    const int64_t line_a = (p.transpose ? p.block_m : p.block_k) * size_of(p.dtype);
    const int64_t line_b = p.ldb * size_of(p.dtype);
    a.line_a = static_cast<uint32_t>(line_a);
    a.line_b = static_cast<uint32_t>(line_b);
    a.straight = std::max(line_a, line_b) <= UINT32_MAX &&
                 std::min(p.values_alignment, p.b_alignment) >= kChunkBytes;
    return code_of(p)->launch(a, static_cast<unsigned>(thread_blocks(p)), shape_.threads,
                              shared_bytes(p), l.stream, name());
  }

 private:
  int64_t strips(const Problem& p) const { return ceil_div(p.block_m, shape_.m); }
  int64_t thread_blocks(const Problem& p) const {
    return block_rows(p) * strips(p) * ceil_div(p.n, shape_.n) * p.batch;
  }
  int64_t shared_bytes(const Problem& p) const {
    const int64_t ring = int64_t{shape_.stages} * (shape_.m + shape_.n) * shape_.step_bytes;
    return std::max(ring, staged_bytes(shape_.m, shape_.n, size_of(p.dtype), p.activation));
  }
  KernelCode<MmaArguments>* code_of(const Problem& p) const {
    const MmaCodes& codes = shape_.codes[p.transpose ? 1 : 0];
    return codes.of[static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  Registration registration_{*this};
};

const MmaSm80 kM128N128{"mma_sm80/m128_n128_s3",
                        shape_of<MmaM128N128>(mma_codes<MmaM128N128, false>())};
const MmaSm80 kM64N256{"mma_sm80/m64_n256_s2",
                       shape_of<MmaM64N256>(mma_codes<MmaM64N256, false>())};
const MmaSm80 kM64N128{"mma_sm80/m64_n128_s3",
                       shape_of<MmaM64N128>(mma_codes_apart<MmaM64N128, false>())};
const MmaSm80 kM32N256{"mma_sm80/m32_n256_s4",
                       shape_of<MmaM32N256>(mma_codes_apart<MmaM32N256, false>())};
const MmaSm80 kM32N128{"mma_sm80/m32_n128_s3",
                       shape_of<MmaM32N128>(mma_codes_apart<MmaM32N128, false>())};
const MmaSm80 kM16N128{"mma_sm80/m16_n128_s4",
                       shape_of<MmaM16N128>(mma_codes_apart<MmaM16N128, false>())};

}  // namespace
}  // namespace sparse_autotune
