// fp64 on tensor cores, from Ampere on.
//
// A thread block owns a tile of C: 32 rows by 128 columns, of one block row or of a group of 2 or 4
// (blocks of 16, 8), which share what is fetched of B. Each of its 4 warps computes all rows of 32
// columns. Three or four thread blocks on a multiprocessor work while one waits.
// Data path: cp.async -> a slice of k a step in a ring of 3 steps in shared memory -> registers ->
// mma.sync (8x8x4) -> C.
// A^T: slices of A are copied with m contiguous, from where Launch::positions says.
// Requires: fp64, block sides that are multiples of 8. Any n, any alignment (16 bytes is fastest).
// Wins: fp64 on A100, and on Hopper what TMA does not take. Bound by instructions of the
// copies for blocks of 8 and 16.
#include <algorithm>

#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/fp64/dmma_copies.cuh"
#include "kernels/cuda/product/fp64/dmma_product.h"
#include "kernels/cuda/product/fp64/dmma_store.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

// Multiplies a step. `masks` and `stage` are its own.
template <typename Tile>
__device__ __forceinline__ void multiply_step(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                              const char* stage, const uint32_t* masks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int a_at = Tile::kTransposedA ? lane % 4 * 2 * Tile::kPitchA + lane / 4 * 8 : lane * 16;
  const auto load_a = [=](const char* granule, int tile, double(&a)[2]) {
    const char* from = granule + a_at + tile * (Tile::kTransposedA ? 64 : 512);
    if constexpr (Tile::kTransposedA) {
      a[0] = *reinterpret_cast<const double*>(from);
      a[1] = *reinterpret_cast<const double*>(from + Tile::kPitchA);
    } else {
      const auto x = *reinterpret_cast<const double2*>(from);
      a[0] = x.x;
      a[1] = x.y;
    }
  };
  const char* b_at =
      stage + Tile::kBytesA +
      (Tile::kRowMajorB ? lane % 4 * 2 * Tile::kPitchB + warp * Tile::kWarpN * 8 + lane / 4 * 16
                        : warp * Tile::kWarpN * 64 + lane * 16);
#pragma unroll
  for (int unit = 0; unit < Tile::kUnits; ++unit) {
    double b[Tile::kTilesM][4];
#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
      const char* from = b_at + unit * Tile::kUnitBytes + i * (Tile::kRowMajorB ? 128 : 1024);
      load_pairs<Tile::kRowMajorB>(from, from + (Tile::kRowMajorB ? Tile::kPitchB : 512), b[i]);
    }
    multiply_granules<Tile>(sum, b, stage + unit * Tile::kUnitBytes, masks[unit], load_a);
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    dmma_kernel(const __grid_constant__ DmmaArguments args) {
  extern __shared__ __align__(128) char shared[];
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  auto* const masks = reinterpret_cast<uint32_t*>(shared + Tile::kStages * Tile::kStageBytes);
  const DmmaPart part = find_dmma_part<Tile>(args, blockIdx.x);
  const int steps = (part.length * args.slices + Tile::kUnits - 1) / Tile::kUnits;
  DmmaCopies<Tile> copies(args, part);
  double sum[Tile::kTilesN][Tile::kTilesM][4] = {};

#pragma unroll 1
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    copies.start(ring + i * Tile::kStageBytes, masks + i * Tile::kUnits, args);
    cp_async_commit();
  }
  int stage = 0, filled = Tile::kStages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();
    copies.start(ring + filled * Tile::kStageBytes, masks + filled * Tile::kUnits, args);
    cp_async_commit();
    multiply_step<Tile>(sum, shared + stage * Tile::kStageBytes, masks + stage * Tile::kUnits);
    filled = stage;
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncthreads();
  write_fp64_sums<Tile>(sum, shared, place_of(args, part));
}

template <typename Tile>
constinit KernelCode<DmmaArguments> dmma_code{&dmma_kernel<Tile>};

struct Code {
  KernelCode<DmmaArguments>* code;
  int shared_bytes;
};

template <int kSide>
Code dmma_code_of(const Problem& p) {
  return with_forms(
      p, []<bool... kForms>() {
        using Tile = DmmaTile<kSide, kForms...>;
        return Code{&dmma_code<Tile>, Tile::kSharedBytes};
      });
}

class DmmaSm80 final : public DmmaProduct {
 public:
  using DmmaProduct::DmmaProduct;

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = takes_product(p); !s) return s;
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return product_us(p, d, {.start_us = 4.5, .compute = 0.44, .l2 = 0.25, .alone = 1.6});
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Code code = code_of(p);
    return code.code->launch(arguments(p, l), static_cast<unsigned>(tiles(p)), kThreads,
                             code.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kThreads = 128;

  static Code code_of(const Problem& p) {
    if (p.block_m % 32 == 0) return dmma_code_of<32>(p);
    return p.block_m % 16 == 0 ? dmma_code_of<16>(p) : dmma_code_of<8>(p);
  }

  Registration registration_{*this};
};

const DmmaSm80 kRows{"dmma_sm80/m32_n128", 32, false};
const DmmaSm80 kGroups{"dmma_sm80/m32_n128_groups", 32, true};

}  // namespace
}  // namespace sparse_autotune
