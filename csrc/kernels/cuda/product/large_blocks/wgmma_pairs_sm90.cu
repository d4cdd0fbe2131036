// Pairs of block rows that share B's tiles: blocks of 64 rows, past the limit of L2.
//
// wgmma_sm90 at blocks of 64 brings a tile of B for each block and 64 rows of C. Here the plan puts
// rows in pairs that have many block columns in common (csrc/row_groups.h, kMatchedPairs). A thread
// block takes a pair by 256 columns, walks the columns in which either row has a block, and brings
// each tile of B once; each consumer has a row and passes on the steps that only the other needs.
// In n256_x2 a cluster's two thread blocks take neighbouring tiles of one pair: each brings one
// row's blocks of A to both.
// Data path: as wgmma_sm90's; in clusters A by multicast.
// Requires: half types, A and a row-major B (others were not tried), block_m 64 and otherwise what
// wgmma_sm90 does. Wins: blocks of 64 where rows share columns, as 128 rows of 64 block columns do
// at random from 5% on. Bound by L2 -> shared memory traffic.
#include <algorithm>

#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/product/large_blocks/wgmma_launch.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

class WgmmaPairsSm90 final : public Variant {
 public:
  WgmmaPairsSm90(std::string_view name, const WgmmaShape& shape)
      : Variant(DeviceType::kCuda, name), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (block_rows(p) > kMaxRows) {
      return Support::no("pairs at most " + std::to_string(kMaxRows) + " block rows");
    }
    if (Support s = groups_are_known(p, kNeighbours); !s) return s;
    return wgmma_supports(shape_, p, d);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Nobody has counted what matched pairs share. Neighbours are pairs too, and at random matched
    // ones have kMatched of their columns.
    constexpr double kMatched = 0.88;
    Problem q = p;
    int32_t& columns = q.group_counts.columns[kNeighbours];
    columns = std::max(static_cast<int32_t>(p.nnzb / 2),
                       static_cast<int32_t>(kMatched * static_cast<double>(columns)));
    TileWork work = tiles_of_groups(q, shape_.m, shape_.n / shape_.cluster, kNeighbours);
    // A thread block of a cluster fetches half of the blocks.
    const double blocks = values_bytes(p) / static_cast<double>(pairs(p));
    work.fetched -= blocks * (1 - 1.0 / shape_.cluster);
    return wgmma_us(shape_, p, d, pairs(p), work);
  }

  int grouping(const Problem&, const Device&) const override { return kMatchedPairs; }

  Status launch(const Problem& p, const Launch& l) const override {
    const RowGroups& groups = l.row_groups[kMatchedPairs];
    WgmmaArguments a{};
    const Status status = wgmma_arguments(shape_, p, l, groups.groups, pairs(p), &a);
    if (!status) return status;
    a.columns = groups.columns;
    a.pairs = groups.rows;
    return wgmma_launch(shape_, p, l, a, name());
  }

 private:
  static constexpr int kNeighbours = 0;         // the grouping of two
  static constexpr int64_t kMaxRows = 1 << 20;  // one thread block sorts the pairs

  static int64_t pairs(const Problem& p) { return ceil_div(block_rows(p), 2); }

  WgmmaShape shape_;
  Registration registration_{*this};
};

const WgmmaPairsSm90 kN256{"wgmma_pairs_sm90/n256", wgmma_row_major_shape<Pairs>()};
const WgmmaPairsSm90 kN256x2{"wgmma_pairs_sm90/n256_x2", wgmma_row_major_shape<PairsInCluster>()};

}  // namespace
}  // namespace sparse_autotune
