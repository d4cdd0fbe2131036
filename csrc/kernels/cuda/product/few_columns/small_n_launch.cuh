// What the families of few columns share on the host's side.
#pragma once

#include <string_view>

#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/product/few_columns/small_n_kernel.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

template <typename T, typename Tile, bool kTransposedA, BAccess kAccess, bool kOverlaps>
constinit KernelCode<SmallNArguments> small_n_code{
    &small_n_kernel<T, Tile, kTransposedA, kAccess, kOverlaps>, kOverlaps,
    cudaSharedmemCarveoutDefault};

// A tile's kernels for A or for A^T, by DType and BAccess.
struct SmallNCodes {
  KernelCode<SmallNArguments>* of[2][3];
};

template <typename Tile, bool kTransposedA, bool kOverlaps>
constexpr SmallNCodes small_n_codes() {
  constexpr BAccess kElements = BAccess::kElements, kAlongK = BAccess::kAlongK,
                    kAlongColumns = BAccess::kAlongColumns;
  return {{{&small_n_code<__half, Tile, kTransposedA, kElements, kOverlaps>,
            &small_n_code<__half, Tile, kTransposedA, kAlongK, kOverlaps>,
            &small_n_code<__half, Tile, kTransposedA, kAlongColumns, kOverlaps>},
           {&small_n_code<__nv_bfloat16, Tile, kTransposedA, kElements, kOverlaps>,
            &small_n_code<__nv_bfloat16, Tile, kTransposedA, kAlongK, kOverlaps>,
            &small_n_code<__nv_bfloat16, Tile, kTransposedA, kAlongColumns, kOverlaps>}}};
}

// small_n_codes<Tile, true, true>(), which small_n_transposed_sm90.cu compiles.
template <typename Tile>
SmallNCodes transposed_small_n_sm90_codes();

// A tile as the host sees it.
struct SmallNShape {
  int m, n, warps_k, unroll, threads, resident, shared_bytes;
  int column_load;  // columns that one load takes where columns are contiguous
  bool overlaps;
  SmallNCodes codes[2];  // for A and for A^T
};

template <typename Tile, bool kOverlaps>
SmallNShape small_n_shape() {
  const auto transposed = [] {
    if constexpr (kOverlaps) {
      return transposed_small_n_sm90_codes<Tile>();
    } else {
      return small_n_codes<Tile, true, false>();
    }
  };
  return {Tile::kM,           Tile::kN,
          Tile::kWarpsK,      Tile::kUnroll,
          Tile::kThreads,     Tile::kResident,
          Tile::kSharedBytes, 2 * (Tile::kColumnTiles < 4 ? Tile::kColumnTiles : 4),
          kOverlaps,          {small_n_codes<Tile, false, kOverlaps>(), transposed()}};
}

// What the families that take square blocks on Hopper alone multiply: small_n_units_sm90 and
// small_n_rings_sm90.
struct SmallNSquares {
  int side, least, most;  // of a block; numbers of columns
  Layout b_layout;
};

Support small_n_square_supports(const SmallNSquares& squares, const Problem& problem,
                                const Device& device);

// small_n_sm80 and small_n_sm90.
class SmallN final : public Variant {
 public:
  SmallN(std::string_view name, const SmallNShape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& problem, const Device& device) const override;
  double estimate_us(const Problem& problem, const Device& device) const override;
  Status launch(const Problem& problem, const Launch& launch) const override;

 private:
  SmallNShape shape_;
  Registration registration_{*this};
};

// Expected time with tiles of this shape.
double small_n_us(const SmallNShape& shape, const Problem& problem, const Device& device);

// Arguments that any kernel of few columns takes: where the operands lie.
SmallNArguments small_n_operands(const Problem& problem, const Launch& launch);

// What `blocks` thread blocks along x ask into L2 before they may read it, of the values at most so
// many bytes each.
void set_small_n_ahead(const Problem& problem, const Launch& launch, int64_t blocks,
                       int64_t value_bytes, SmallNArguments* arguments);

// Row tiles and column tiles of a warp, warps along n and along k, chunks in a turn, thread blocks
// on a multiprocessor, whether values are fetched ahead. Seven thread blocks of 16 rows hold all of
// a layer of 14336 rows at once, and a second wave would wait for its first loads anew.
using SmallN16x8K4 = SmallNTile<1, 1, 1, 4, 2, 7, true>;
using SmallN16x8K8 = SmallNTile<1, 1, 1, 8, 2, 4, false>;
using SmallN16x8K16 = SmallNTile<1, 1, 1, 16, 2, 2, false>;
using SmallN32x8K4 = SmallNTile<2, 1, 1, 4, 2, 4, true>;
using SmallN32x8K8 = SmallNTile<2, 1, 1, 8, 2, 3, false>;
using SmallN16x16K4 = SmallNTile<1, 2, 1, 4, 1, 7, true>;
using SmallN16x16K8 = SmallNTile<1, 2, 1, 8, 2, 2, true>;
using SmallN16x16K16 = SmallNTile<1, 2, 1, 16, 2, 1, false>;
using SmallN32x16K8 = SmallNTile<2, 2, 1, 8, 1, 2, true>;
using SmallN16x32K8 = SmallNTile<1, 4, 1, 8, 1, 2, true>;
using SmallN32x32K8 = SmallNTile<2, 4, 1, 8, 1, 2, true>;
using SmallN16x64K4 = SmallNTile<1, 4, 2, 4, 1, 2, true>;
using SmallN32x64K4 = SmallNTile<2, 4, 2, 4, 1, 2, true>;

}  // namespace sparse_autotune
