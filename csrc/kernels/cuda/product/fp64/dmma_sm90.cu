// fp64 on Hopper's tensor cores, with operands by TMA.
//
// Two persistent thread blocks a multiprocessor work through tiles of C: 64 rows by 128 columns, of
// one block row or of a group of 2 to 8 (blocks of 32, 16, 8), which share what is fetched of B. A
// warp copies, ahead into the next tile, each of 4 others computes all rows of 32 columns.
// Data path: TMA -> 16 k a step in a ring of 4 steps in shared memory -> registers -> mma.sync
// (16x8x16, or 16x8x8) -> C.
// A^T: boxes of 16 rows of A by 16 k, or 8 by 8, from where Launch::positions says.
// Requires: fp64, block sides that are multiples of 8, values and B aligned to 16 bytes, n a
// multiple of 16 where B is row-major.
// Wins: fp64 from some 32 columns up. Bound by the tensor cores for blocks from 32 up, by L2 for
// blocks of 16.
#include <algorithm>
#include <string>

#include "kernels/cuda/device/dmma_lanes.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/product/fp64/dmma_part.cuh"
#include "kernels/cuda/product/fp64/dmma_producer.cuh"
#include "kernels/cuda/product/fp64/dmma_product.h"
#include "kernels/cuda/product/fp64/dmma_store.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

template <typename Tile>
__device__ __forceinline__ void consume_steps(const DmmaArguments& args,
                                              const DmmaRing<Tile>& ring) {
  const int lane = threadIdx.x % 32;
  const DmmaLanes<Tile> lanes;
  const auto unit_at = [&](uint32_t stage, int unit) {
    return ring.memory + stage * Tile::kStageBytes + unit * Tile::kUnitBytes;
  };
  using ColumnsOfB = double[Tile::kTilesM][4 * Tile::kSlices];
  const auto load_b = [&](ColumnsOfB& b, uint32_t stage, int unit) {
    lanes.load_columns(unit_at(stage, unit), b);
  };
  double sum[Tile::kTilesN][Tile::kTilesM][4] = {};
  const auto multiply = [&](const ColumnsOfB& b, uint32_t stage, int unit, uint32_t mask) {
    multiply_granules<Tile>(sum, b, unit_at(stage, unit), mask,
                            [&](const char* granule, int tile, double(&a)[2 * Tile::kSlices]) {
                              lanes.load_rows(granule, tile, a);
                            });
  };
  // Where a step has two units, the columns of B of each are loaded while the one before is being
  // multiplied.
  constexpr bool kAhead = Tile::kUnits == 2;
  ColumnsOfB b, other;
  RingPlace<Tile::kStages> place;
  mbarrier_wait(ring.full(0), 0);
  StepNote note = load_note(ring.note(0));
  if constexpr (kAhead) load_b(b, 0, 0);
#pragma unroll 1
  while (note.tile != kNoTile) {
    const uint32_t stage = place.stage;
    load_b(kAhead ? other : b, stage, kAhead ? 1 : 0);
    multiply(b, stage, 0, note.masks[0]);
    place.advance();
    mbarrier_wait(ring.full(place.stage), place.parity);
    const StepNote next = load_note(ring.note(place.stage));
    if constexpr (kAhead) {
      load_b(b, place.stage, 0);
      multiply(other, stage, 1, note.masks[1]);
    }
    const bool last = (note.row & kLastStep) != 0;
    const bool scratch = last && args.activation > Activation::kRelu;
    __syncwarp();
    if (!scratch && lane == 0) mbarrier_arrive(ring.empty(stage));
    if (last) {
      DmmaPart part;
      place_dmma_part<Tile>(args, locate(args.panels, note.tile), note.row & ~kLastStep, part);
      finish_fp64_step<Tile>(sum, ring, stage, place_of(args, part), scratch);
    }
    note = next;
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kLaunched, Tile::kResident)
    dmma_tma_kernel(const __grid_constant__ TmaArguments args) {
  extern __shared__ char memory[];
  const DmmaRing<Tile> ring(memory);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.values);
    tma_prefetch_map(args.b);
    ring.init_barriers();
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  // 40 + 216 registers for a thread of each warpgroup: the 2 * 128 that were launched.
  if (warp >= Tile::kWarps) {
    give_up_registers<40>();
    if (warp == Tile::kWarps) produce_steps<Tile>(args, ring);
  } else {
    take_registers<216>();
    consume_steps<Tile>(args.rest, ring);
  }
}

template <typename Tile>
constinit KernelCode<TmaArguments> tma_code{&dmma_tma_kernel<Tile>};

struct Code {
  KernelCode<TmaArguments>* code;
  int shared_bytes, slices;
};

template <int kSide, int kSlices>
Code tma_code_of(const Problem& p) {
  return with_forms(
      p, []<bool... kForms>() {
        using Tile = DmmaTmaTile<kSide, kSlices, kForms...>;
        return Code{&tma_code<Tile>, Tile::kSharedBytes, kSlices};
      });
}

class DmmaSm90 final : public DmmaProduct {
 public:
  using DmmaProduct::DmmaProduct;

  Support supports(const Problem& p, const Device& d) const override {
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (Support s = takes_product(p); !s) return s;
    if (grouped() && side_of(p) != p.block_m) {
      return Support::no("has no granules of " + std::to_string(p.block_m) +
                         " rows for a block_k of " + std::to_string(p.block_k));
    }
    if (p.b_layout == Layout::kRowMajor && p.n % 16 != 0) {
      return Support::no("copies a row-major B by 16 columns, there are " + std::to_string(p.n));
    }
    if (Support s = copied_by_16(p); !s) return s;
    if (p.nnzb * std::max(p.block_m, p.block_k) > INT32_MAX - kN) {
      return Support::no("values have more rows than TMA's 32-bit coordinates");
    }
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return product_us(p, d, {.start_us = 1.7, .compute = 0.85, .l2 = 0.53, .alone = 1.65});
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Code code = code_of(p);
    TmaArguments a{{}, {}, arguments(p, l)};
    const unsigned blocks = share_out(&a.rest.panels, l, 2);
    // Lines of one slice are copied as they are, those of two swizzled, and so is a row-major B.
    const auto unit = static_cast<uint32_t>(8 * code.slices);
    const bool plain = code.slices == 1;
    // Stored blocks are lines of a matrix.
    const int64_t line = p.transpose ? p.block_m : p.block_k;
    const uint32_t across = p.transpose ? unit : static_cast<uint32_t>(side_of(p));
    Status status = make_tensor_map({l.values,
                                     p.dtype,
                                     2,
                                     {line, p.nnzb * p.block_m * p.block_k / line},
                                     {line},
                                     {unit, across},
                                     plain && !p.transpose},
                                    &a.values);
    if (!status) return status;
    const int64_t batch = p.b_batch_stride != 0 ? p.batch : 1;
    if (p.b_layout == Layout::kRowMajor) {
      status = make_tensor_map({l.b,
                                p.dtype,
                                4,
                                {16, p.k, p.n / 16, batch},
                                {p.ldb, 16, p.b_batch_stride},
                                {16, unit, kN / 16, 1}},
                               &a.b);
    } else {
      BoxedTensor b = tensor_of_b(p, l.b, unit, kN);
      b.plain = plain;
      status = make_tensor_map(b, &a.b);
    }
    if (!status) return status;
    return code.code->launch(a, blocks, kThreads, code.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kThreads = 256;

  // Two slices are multiplied together where block_k has pairs of them; those that are not are of
  // granules of 8 rows.
  int side_of(const Problem& p) const { return p.block_k % 16 == 0 ? side(p) : 8; }
  Code code_of(const Problem& p) const {
    const int side = side_of(p);
    if (side == 64) return tma_code_of<64, 2>(p);
    if (side == 32) return tma_code_of<32, 2>(p);
    return side == 16 ? tma_code_of<16, 2>(p) : tma_code_of<8, 1>(p);
  }

  Registration registration_{*this};
};

const DmmaSm90 kRows{"dmma_sm90/m64_n128", 64, false};
const DmmaSm90 kGroups{"dmma_sm90/m64_n128_groups", 64, true};

}  // namespace
}  // namespace sparse_autotune
