// Hopper's warpgroup tensor cores, fed by TMA: large blocks of half precision, or in TF32.
//
// One persistent thread block a multiprocessor works through tiles of C: kM rows of one block row
// (a strip, when the block is taller) by kN columns. Steps of 64 k walk the block row's stored
// blocks. One producer warp keeps TMA copies on their way to two rings in shared memory, A's tiles
// of kM x 64 and B's of 64 x kWidth, across the ends of tiles; a second finds the next tile, the
// longest rows first; two consumer warpgroups multiply.
// Tall tiles (kM = 128): each consumer has 64 rows and all columns, so they share B.
// Flat tiles (kM = 64): each consumer has half of the columns, so they share A.
// In m128_n256_x2 (half types, A and a row-major B) a cluster's two thread blocks take neighbouring
// tiles of one strip: each brings half of A's rows to both, by multicast.
// A^T: copies of 64 columns of a stored block make tiles with m contiguous, which wgmma takes too.
// Data path: TMA -> shared memory -> wgmma, fp32 sums in registers -> packed in registers
// -> stmatrix, while the next tile is multiplied -> TMA. In TF32 registers -> C.
// Requires: fp16 or bf16, block_m a multiple of kM and block_k of 64; or fp32 with TF32 allowed and
// a column-major B, block_k a multiple of 32; 16-byte alignment everywhere. Wins: blocks of 64 and
// 128 from n = 64 up. Bound by L2 -> shared memory traffic at 64, kM * kN / (kM + kN) FLOP a byte,
// and by the tensor cores at 128.
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

class WgmmaSm90 final : public Variant {
 public:
  WgmmaSm90(std::string_view name, const WgmmaShape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    return wgmma_supports(shape_, p, d);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    return wgmma_us(shape_, p, d, block_rows(p), p.longest_row);
  }

  int row_order(const Problem&, const Device&) const override { return kWholeRows; }

  Status launch(const Problem& p, const Launch& l) const override {
    WgmmaArguments a{};
    const Status status =
        wgmma_arguments(shape_, p, l, l.row_orders[kWholeRows], block_rows(p), &a);
    return status ? wgmma_launch(shape_, p, l, a, name()) : status;
  }

 private:
  WgmmaShape shape_;
  Registration registration_{*this};
};

const WgmmaSm90 kM128N256{"wgmma_sm90/m128_n256", wgmma_shape<M128N256, false>()};
const WgmmaSm90 kM128N256x2{"wgmma_sm90/m128_n256_x2", wgmma_row_major_shape<TilesInCluster>()};
const WgmmaSm90 kM128N128{"wgmma_sm90/m128_n128", wgmma_shape<M128N128, false>()};
const WgmmaSm90 kM128N64{"wgmma_sm90/m128_n64", wgmma_shape<M128N64, false>()};
const WgmmaSm90 kM64N512{"wgmma_sm90/m64_n512", wgmma_shape<M64N512, false>()};
const WgmmaSm90 kM64N256{"wgmma_sm90/m64_n256", wgmma_shape<M64N256, false>()};
const WgmmaSm90 kM64N128{"wgmma_sm90/m64_n128", wgmma_shape<M64N128, false>()};

}  // namespace
}  // namespace sparse_autotune
