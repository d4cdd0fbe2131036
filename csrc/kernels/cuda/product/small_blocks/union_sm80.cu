// Small blocks of half precision from Ampere on: block rows that share B's tiles, past the limit of
// L2. The portable form of union_sm90.
//
// A thread block owns a tile of C: a group of 4 to 16 neighbouring block rows by 64 or 128 columns.
// Warps of their own bring B's tiles to a ring in shared memory, as in union_sm90; each of the
// other warps owns one block row. Data path: cp.async (B and A) -> shared memory -> ldmatrix ->
// mma.sync, fp32 sums in registers -> shared memory -> C. Requires: fp16 or bf16, block_m and
// block_k of 16 or 32, values and B aligned to 16 bytes; any n. Wins: blocks of 16 and 32 where
// several rows of a group have blocks in the same columns, and union_sm90 does not run. Bound by L2
// -> shared memory traffic where blocks are few, by shared memory's own traffic (B's tile is read
// for each block) where they are many.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/device/epilogue.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/small_blocks/union_tile_sm80.cuh"
#include "operators/product/product.h"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile, bool kTransposedA>
__global__ void __launch_bounds__(Tile::kLaunched, Tile::kResident)
    union_sm80_kernel(const __grid_constant__ UnionArgumentsSm80 args) {
  extern __shared__ __align__(256) char memory[];
  const UnionSharedSm80<Tile> shared{static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) shared.init_barriers();
  const TilePlace at = locate(args.panels, blockIdx.x);
  const OrderedRow group = load_entry(args.panels.order, at.row);
  const int64_t n0 = int64_t{at.column} * Tile::kN;
  const auto columns = static_cast<int>(min(args.n - n0, static_cast<int64_t>(Tile::kN)));
  __syncthreads();

  if (warp >= Tile::kWarps) {
    const T* b = static_cast<const T*>(args.b) + at.batch * args.b_batch_stride +
                 (Tile::kRowMajorB ? n0 : n0 * args.ldb);
    const CopiesOfTiles<T, Tile> copies(b, args.line_b, columns);
    produce_tiles(args, shared, copies, warp - Tile::kWarps, group.begin, group.end);
    return;  // later barriers are for the threads that are left
  }
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};
  consume_tiles<T, Tile, kTransposedA>(args, shared, group.row * Tile::kGroup + warp, warp,
                                       group.begin, group.end, sum);
  __syncthreads();

  const int64_t row = int64_t{group.row} * Tile::kM;
  const auto rows = static_cast<int>(min(args.m - row, static_cast<int64_t>(Tile::kM)));
  write_tile<T, Tile>(sum, memory, output_at<T>(args, at.batch, row, n0, rows, columns));
}

template <typename T, typename Tile, bool kTransposedA>
constinit KernelCode<UnionArgumentsSm80> union_code{&union_sm80_kernel<T, Tile, kTransposedA>};

constexpr TileRates kRates{.start_us = 1.6, .compute = 0.21, .l2 = 0.39, .alone = 1.25};

// A tile as the host sees it, and its kernels by A or A^T, DType and Layout of B.
struct Shape {
  int group, block_m, block_k, m, n, launched;
  int64_t shared_bytes;
  KernelCode<UnionArgumentsSm80>* of[2][2][2];
};

template <int... kNumbers>
constexpr Shape shape_of() {
  using Rows = UnionTileSm80<kNumbers..., true>;
  using Columns = UnionTileSm80<kNumbers..., false>;
  using Bf16 = __nv_bfloat16;
  return {Rows::kGroup,
          Rows::kBlockM,
          Rows::kBlockK,
          Rows::kM,
          Rows::kN,
          Rows::kLaunched,
          sizeof(UnionLayoutSm80<Rows>),
          {{{&union_code<__half, Rows, false>, &union_code<__half, Columns, false>},
            {&union_code<Bf16, Rows, false>, &union_code<Bf16, Columns, false>}},
           {{&union_code<__half, Rows, true>, &union_code<__half, Columns, true>},
            {&union_code<Bf16, Rows, true>, &union_code<Bf16, Columns, true>}}}};
}

class UnionSm80 final : public Variant {
 public:
  UnionSm80(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape), grouping_(grouping_of(shape.group)) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = blocks_are(p, shape_.block_m, shape_.block_k); !s) return s;
    if (Support s = groups_are_known(p, grouping_); !s) return s;
    if (Support s = n_fills_columns(p, shape_.n); !s) return s;
    if (Support s = copied_by_16(p); !s) return s;
    if (std::max({p.m, p.k, p.nnzb, tiles(p)}) > INT32_MAX ||
        p.ldb * size_of(p.dtype) > UINT32_MAX) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    return code_of(p)->runs_on(d, shared_bytes(p));
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return tiled_us(tiles_of_groups(p, shape_.m, shape_.n, grouping_), kRates, peak_tflops(p, d), p,
                    d);
  }

  int grouping(const Problem&, const Device&) const override { return grouping_; }

  Status launch(const Problem& p, const Launch& l) const override {
    const RowGroups& groups_of = l.row_groups[grouping_];
    auto a = arguments_of<UnionArgumentsSm80>(p, l);
    a.columns = groups_of.columns;
    const int64_t l2 = l.device->l2_bytes;
    a.panels = panels_of(groups(p), columns(p), p.batch, panel_width(p, shape_.n, l2 / 4, l2 / 8),
                         groups_of.groups);
    a.line_b = static_cast<uint32_t>(p.ldb * size_of(p.dtype));
    return code_of(p)->launch(a, a.panels.tiles, shape_.launched, shared_bytes(p), l.stream,
                              name());
  }

 private:
  int64_t groups(const Problem& p) const { return ceil_div(block_rows(p), shape_.group); }
  int64_t columns(const Problem& p) const { return ceil_div(p.n, shape_.n); }
  int64_t tiles(const Problem& p) const { return groups(p) * columns(p) * p.batch; }
  int64_t shared_bytes(const Problem& p) const {
    return std::max(shape_.shared_bytes,
                    staged_bytes(shape_.m, shape_.n, size_of(p.dtype), p.activation));
  }
  KernelCode<UnionArgumentsSm80>* code_of(const Problem& p) const {
    return shape_.of[p.transpose ? 1 : 0][static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  int grouping_;
  Registration registration_{*this};
};

// Numbers of UnionTileSm80. For each block there is one that 99 KB of shared memory are enough for.
const UnionSm80 kB16R16{"union_sm80/b16_r16", shape_of<16, 16, 16, 128, 8, 3, 4, 4, 1>()};
const UnionSm80 kB16R16N64{"union_sm80/b16_r16_n64", shape_of<16, 16, 16, 64, 8, 4, 4, 4, 1>()};
const UnionSm80 kB16R8{"union_sm80/b16_r8", shape_of<8, 16, 16, 128, 4, 4, 4, 2, 2>()};
const UnionSm80 kB32R4{"union_sm80/b32_r4", shape_of<4, 32, 32, 128, 2, 3, 4, 2, 2>()};

}  // namespace
}  // namespace sparse_autotune
