// cpu_tiled: C = A * B on a CPU, a block row times a strip of B's columns at a time in registers.
//
// Terms: a strip is up to 3 vectors of B's columns (tiled.h), all of nearly equal width; a panel is
// a few strips; a span is up to 64 rows of one block row; a chunk is as many of the row's blocks as
// a configuration walks at a time. In a chunk, tiles of 8 rows (AVX2: 4) broadcast values of A
// against rows of B. docs/kernels/cpu.md tells what bounds it.
// B's rows are read in place (`inplace`), from a copy of each block's rows made when the walk meets
// it (`block`), from panels that all threads pack before (`panel`), or from one panel at a time
// that a thread packs for itself and keeps in its L2 while it walks A (`own_panel`): rows that lie
// a power of two apart evict each other from L1, so packing wins for all but short products, and
// the copy widens fp16 and bf16 (or pairs bf16) and turns column-major B on the way. Panels are so
// narrow that an L2 holds one where it would not hold B. A thread that has many panels packs the
// next one, a few rows a tile, while it multiplies (tiled_packing.h). In place, a chunk is as many
// blocks as leave their rows in L2 for all strips, and each strip fetches the next one's.
// Packed panels are walked a whole row at a time, so that sums stay in registers: a core takes in
// rows from its L2 as fast as it multiplies them. Chunks that keep their rows in L1 are for copies,
// for values that are widened first, and for AVX2, whose lower tiles take rows in twice as often.
// What a tile will need next (its values in the next block, its rows of C) is fetched while it
// multiplies: no hardware foresees it. Absent blocks cost nothing. One thread computes an element,
// in the order of its row's blocks.
// A^T is multiplied from a copy of its blocks, turned and in its own order.
#include <algorithm>
#include <string>

#include "kernels/cpu/convert/layouts_of_a.h"
#include "kernels/cpu/microkernels/tiled_levels.h"
#include "kernels/cpu/product/tiled_product.h"

namespace sparse_autotune::cpu_tiled {
namespace {

// What its source of B leaves of a level's rate, roughly: of a large product a race has time for
// the first few alone.
constexpr double kShareOf[] = {0.95, 0.8, 0.9, 1};  // in Source's order

class Tiled final : public Variant {
 public:
  Tiled(std::string_view name, const Level& level, const Cut& cut)
      : Variant(DeviceType::kCpu, name), level_(level), cut_(cut) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = level_.runs_on(d); !s) return s;
    const Microkernels* kernels = level_.kernels(p.dtype);
    if (kernels == nullptr) return Support::no("the level has no code for this dtype");
    if (p.block_k % kernels->pair != 0) return Support::no("pairs of bf16 need an even block_k");
    if (cut_.source == Source::kInPlace) {
      if (is_half(p.dtype)) return Support::no("half types are widened: nothing to read in place");
      if (p.b_layout != Layout::kRowMajor) return Support::no("B is column-major");
      if (p.n < kernels->lanes) return Support::no("n is below one vector");
    }
    if (cut_.source == Source::kOwnPanel) {
      const Blocking s = make_blocking(p, d, *kernels, cut_);
      if (s.panels * p.batch < s.slots) {
        return Support::no("n is too narrow for a panel of its own for each of " +
                           std::to_string(s.slots) + " threads");
      }
    }
    return Support::yes();
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double turned = p.frozen ? 0 : 2.0 * static_cast<double>(prepared_bytes(p, d));
    // Tiles that are not full, and what a block costs beside its steps along k.
    const double full = lanes_used(p, level_.kernels(p.dtype)->lanes) *
                        static_cast<double>(std::min<int64_t>(p.block_m, 8)) / 8 *
                        static_cast<double>(p.block_k) / static_cast<double>(p.block_k + 1);
    const double share =
        level_.share * level_.width(d) * kShareOf[static_cast<int>(cut_.source)] * full;
    return roofline_us(nnz_flops(p), fma_tflops(p, d) * share, compulsory_bytes(p) + turned,
                       d.memory_gbps, 5.0);
  }

  int64_t prepared_bytes(const Problem& p, const Device&) const override {
    return p.transpose ? p.nnzb * p.block_m * p.block_k * size_of(p.dtype) : 0;
  }

  Status prepare(const Problem& p, const Launch& l) const override {
    transpose_blocks_cpu(p, l, *level_.kernels(p.dtype), l.prepared);
    return Status::ok();
  }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    const Blocking s = make_blocking(p, d, *level_.kernels(p.dtype), cut_);
    return s.slots * s.slot_bytes + s.packed_bytes;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    Launch blocks = l;
    if (p.transpose) blocks.values = l.prepared;
    Product(p, blocks, *level_.kernels(p.dtype), cut_).run();
    return Status::ok();
  }

 private:
  const Level& level_;
  Cut cut_;
  Registration registration_{*this};
};

// Chunks in bytes are half of the smallest L1 in use; AMX's loads and stores of sums want deeper
// ones, as do rows in place, which come from L2, and AVX2's panels.
constexpr Cut kInPlace{Source::kInPlace, 768, 48 << 10};
constexpr Cut kBlock{Source::kBlock, 384, 16 << 10};
constexpr Cut kPanel{Source::kPanel, 48, kWholeRow};
constexpr Cut kOwnPanel{Source::kOwnPanel, 48, kWholeRow};
constexpr Cut kAvx2Panel{Source::kPanel, 48, 24 << 10};
constexpr Cut kAvx2OwnPanel{Source::kOwnPanel, 96, 24 << 10};

const Tiled kVariants[] = {
    {"cpu_tiled/avx2_panel", kAvx2, kAvx2Panel},
    {"cpu_tiled/avx2_own_panel", kAvx2, kAvx2OwnPanel},
    {"cpu_tiled/avx2_block", kAvx2, kBlock},
    {"cpu_tiled/avx2_inplace", kAvx2, kInPlace},
    {"cpu_tiled/avx512_panel", kAvx512, kPanel},
    {"cpu_tiled/avx512_own_panel", kAvx512, kOwnPanel},
    {"cpu_tiled/avx512_block", kAvx512, kBlock},
    {"cpu_tiled/avx512_inplace", kAvx512, kInPlace},
    {"cpu_tiled/avx512_bf16_panel", kAvx512Bf16, {Source::kPanel, 192, 16 << 10}},
    {"cpu_tiled/avx512_bf16_own_panel", kAvx512Bf16, {Source::kOwnPanel, 192, 16 << 10}},
    {"cpu_tiled/avx512_bf16_block", kAvx512Bf16, kBlock},
    {"cpu_tiled/amx_panel", kAmx, {Source::kPanel, 256, 32 << 10}},
    {"cpu_tiled/amx_deep_panel", kAmx, {Source::kPanel, 256, 128 << 10}},
    {"cpu_tiled/amx_own_panel", kAmx, {Source::kOwnPanel, 256, 32 << 10}},
    {"cpu_tiled/amx_block", kAmx, {Source::kBlock, 256, 32 << 10}},
};

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
