// What mma_eights_sm80.cu and mma_fours_sm80.cu share: the kernel, how C is cut into tiles, and
// what the kernel is told.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <bit>
#include <string>
#include <string_view>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/small_blocks/eights_fours.cuh"
#include "kernels/cuda/product/small_blocks/eights_store.cuh"
#include "kernels/cuda/product/small_blocks/eights_strips.cuh"
#include "kernels/cuda/product/small_blocks/eights_tile.cuh"
#include "variant.h"

namespace sparse_autotune {

template <typename T, typename Tile, typename Strips>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_eights_kernel(const __grid_constant__ EightsArguments args) {
  using Shared = EightsShared<Tile, Strips>;
  extern __shared__ __align__(128) char memory[];
  const Shared shared{static_cast<uint32_t>(__cvta_generic_to_shared(memory))};
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) shared.init_barriers();
  __syncthreads();
  CopiesOfStages<T, Tile, Shared> copies(args);
#pragma unroll 1
  for (int i = 0; i < Tile::kStagesAhead; ++i) copies.start(args, shared);

  // This warp's first strip of a tile of those rows.
  const auto strip_of = [&](const TilePlace& place) {
    return static_cast<int>(place.row) * Tile::kStrips + warp * Tile::kOwn;
  };
  TilePlace place = locate(args.panels, blockIdx.x);
  Strips strips(shared.place(warp), shared.landed(warp));
  strips.begin(args, strip_of(place), Strips::look(args, strip_of(place)));
  RingPlace<Tile::kStages> at;
#pragma unroll 1
  for (unsigned tile = blockIdx.x; tile < args.panels.tiles; tile += gridDim.x) {
    const TilePlace next = locate(args.panels, min(tile + gridDim.x, args.panels.tiles - 1));
    const auto ends = Strips::look(args, strip_of(next));
    float sum[Tile::kOwn][4][4] = {};
#pragma unroll 1
    for (int first = 0; first < args.k; first += Tile::kStageK) {
      copies.start(args, shared);
      mbarrier_wait(shared.full(at.stage), at.parity);
      multiply_stage<T, Tile>(args, strips, shared.stage(at.stage), first / Strips::kBlockK, sum);
      // Each lane for itself: racecheck does not see that one may speak for its warp.
      mbarrier_arrive(shared.empty(at.stage));
      at.advance();
    }
    // What the next tile begins with is on its way while this one's sums leave.
    strips.begin(args, strip_of(next), ends);
    store_eights<T>(sum, args, place.batch, strip_of(place), int64_t{place.column} * Tile::kN);
    place = next;
  }
  cp_async_wait<0>();
}

template <typename T, typename Tile, typename Strips>
constinit KernelCode<EightsArguments> eights_code{&mma_eights_kernel<T, Tile, Strips>};

// Strips of blocks of a kind, of A and of A^T.
template <typename Rows, typename TransposedRows>
struct StripsOf {
  using A = Rows;
  using Transposed = TransposedRows;
  static constexpr int kBytes = Rows::kBytes;
};

// A tile as the host sees it, and its kernels by A or A^T, DType and Layout of B.
struct EightsShape {
  int strips, stage_k, threads, resident;
  int64_t shared_bytes;
  KernelCode<EightsArguments>* of[2][2][2];
};

template <typename Strips, int... kNumbers>
constexpr EightsShape eights_shape() {
  using Rows = EightsTile<kNumbers..., true>;
  using Columns = EightsTile<kNumbers..., false>;
  using A = typename Strips::A;
  using At = typename Strips::Transposed;
  using Bf16 = __nv_bfloat16;
  return {Rows::kStrips,
          Rows::kStageK,
          Rows::kThreads,
          Rows::kResident,
          EightsShared<Rows, A>::kBytes,
          {{{&eights_code<__half, Rows, A>, &eights_code<__half, Columns, A>},
            {&eights_code<Bf16, Rows, A>, &eights_code<Bf16, Columns, A>}},
           {{&eights_code<__half, Rows, At>, &eights_code<__half, Columns, At>},
            {&eights_code<Bf16, Rows, At>, &eights_code<Bf16, Columns, At>}}}};
}

// A variant whose strips are of 8 rows, whatever the blocks.
class EightsProduct : public Variant {
 public:
  // Fitted to an H200, microseconds of a tile: of a stage whatever it holds, of each of its pieces,
  // and of one that a warp multiplies while the others wait.
  struct Pace {
    double stage, piece, alone;
  };

  EightsProduct(std::string_view name, const EightsShape& shape, Pace pace)
      : Variant(DeviceType::kCuda, name), shape_(shape), pace_(pace) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = takes_blocks(p); !s) return s;
    if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
    if (Support s = from_ampere_on(d); !s) return s;
    if (p.nnzb == 0) return Support::no("there is no stored block");
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
    const double rounds =
        static_cast<double>(tiles(p)) / std::max(d.multiprocessors * shape_.resident, 1);
    const auto stages = static_cast<double>(ceil_div(p.k, shape_.stage_k));
    const double pieces =
        static_cast<double>(p.nnzb * wide(p) * std::max<int64_t>(p.block_m / 8, 1)) /
        static_cast<double>(rows(p));
    const double tile_us = stages * pace_.stage + pieces * pace_.piece;
    const double alone_us =
        stages * pace_.stage + static_cast<double>(p.longest_row * wide(p)) * pace_.alone;
    const double busy_us = rounds > 1 ? (rounds + 0.3) * tile_us : tile_us;
    return kStartUs + std::max({busy_us, alone_us, compulsory_bytes(p) / (d.memory_gbps * 850)});
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<EightsArguments>(l);
    const int64_t l2 = l.device->l2_bytes;
    a.panels = panels_of(rows(p), columns(p), p.batch, panel_width(p, kN, l2 / 2, l2 / 4), nullptr);
    a.n = p.n;
    a.ldb = p.ldb;
    a.ldc = p.ldc;
    a.b_batch_stride = p.b_batch_stride;
    a.c_batch_stride = p.c_batch_stride;
    a.line_b = static_cast<uint32_t>(p.ldb * 2);
    a.line_a = static_cast<uint32_t>((p.transpose ? p.block_m : p.block_k) * 2);
    a.block_bytes = static_cast<uint32_t>(p.block_m * p.block_k * 2);
    a.m = static_cast<int>(p.m);
    a.k = static_cast<int>(p.k);
    a.strips = static_cast<int>(ceil_div(p.m, 8));
    a.block_rows = static_cast<int>(block_rows(p));
    a.c_alignment = p.c_alignment;
    a.tall = static_cast<int>(std::max<int64_t>(p.block_m / 8, 1));
    a.wide_log = std::countr_zero(static_cast<uint64_t>(wide(p)));
    a.last_piece = static_cast<int>(p.nnzb * wide(p) - 1);
    a.strip_bytes = static_cast<uint32_t>(16 * row_stride_in_block(p));
    a.activation = p.activation;
    a.wide_indices = p.index_type == IndexType::kInt64;
    a.c_rows = p.c_layout == Layout::kRowMajor;
    const auto places = static_cast<unsigned>(l.device->multiprocessors * shape_.resident);
    return code_of(p)->launch(a, std::min(a.panels.tiles, places), shape_.threads,
                              shape_.shared_bytes, l.stream, name());
  }

 protected:
  // Whether their sides are what the strips are made for.
  virtual Support takes_blocks(const Problem& p) const = 0;

 private:
  static constexpr int kN = 64;

  static int64_t columns(const Problem& p) { return ceil_div(p.n, kN); }
  int64_t rows(const Problem& p) const { return ceil_div(p.m, int64_t{8} * shape_.strips); }
  int64_t tiles(const Problem& p) const { return rows(p) * columns(p) * p.batch; }
  // Pieces of a block side by side.
  static int64_t wide(const Problem& p) { return std::max<int64_t>(p.block_k / 8, 1); }

  KernelCode<EightsArguments>* code_of(const Problem& p) const {
    return shape_.of[p.transpose ? 1 : 0][static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }

  EightsShape shape_;
  Pace pace_;
};

using EightsBlocks = StripsOf<Pieces<false>, Pieces<true>>;
using FoursBlocks = StripsOf<Fours<false>, Fours<true>>;

// Of mma_eights_sm80 and mma_fours_sm80, each in a file of its own, so that none compiles for long.
extern const EightsShape kEightsDeep, kEightsSmall, kFoursSmall;

}  // namespace sparse_autotune
