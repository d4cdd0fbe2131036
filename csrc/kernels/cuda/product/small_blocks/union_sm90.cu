// Small blocks of half precision on Hopper: block rows that share B's tiles, past the limit of L2.
//
// One persistent thread block a multiprocessor works through tiles of C: a group of 4 to 32 block
// rows by 64 or 128 columns. It walks the block columns in which any of the rows has a block, and
// brings each one's tile of B to a ring in shared memory once for all of them. Rows of a group are
// neighbours or, in configurations named *_matched, rows that share many columns
// (csrc/row_groups.h): then fewer tiles of B are brought, and C must be row-major.
// Each warp owns one or two block rows: a ballot over the columns' rows tells which of the ring's
// tiles it needs, and its blocks come from values in place, through a small ring of the row's own.
// Some configurations are for a column-major B alone, whose copies take their time by the line
// (union_producers.cuh).
// Data path: TMA (B), cp.async (A) -> shared memory -> ldmatrix -> mma.sync, fp32 sums in registers
// -> stmatrix -> TMA, while the next tile's first blocks are on their way.
// Requires: fp16 or bf16, block_m and block_k of 16 or 32, 16-byte alignment everywhere.
// Wins: blocks of 16 and 32 where rows are of similar length. Bound by L2 -> shared memory traffic
// up to 12.5%, by shared memory's own from 25% (each block reads its tile of B).
#include <algorithm>
#include <string>

#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/host/tile_counters.h"
#include "kernels/cuda/product/small_blocks/union_launch.cuh"
#include "tile_roofline.h"

namespace sparse_autotune {
namespace {

// Of B, as shares of L2: what is not worth dividing, and what a panel has; less in a launch of many
// rounds, if each panel finds A in L2; with a column-major B that was not tried.
constexpr double kWholeShare = 0.32, kPanelShare = 0.16, kNarrowShare = 0.04;
constexpr double kLastingShare = 0.2;  // of A
constexpr int64_t kManyRounds = 8;

constexpr TileRates kRates{.start_us = 2.0, .compute = 0.38, .l2 = 0.5, .alone = 0.95};

// A tile as the host sees it.
struct UnionShape {
  int group, neighbours;  // block rows, and the grouping of as many neighbours
  int block_m, block_k, n, strip, threads, shared_bytes;
  int line_k;           // of a column-major B, in which it is fetched
  UnionCodes codes[2];  // for A and for A^T

  int64_t groups(const Problem& p) const { return ceil_div(block_rows(p), group); }
  int64_t columns(const Problem& p) const { return ceil_div(p.n, n); }
  int64_t tiles(const Problem& p) const { return groups(p) * columns(p) * p.batch; }
  KernelCode<UnionArguments>* code_of(const Problem& p) const {
    return codes[p.transpose ? 1 : 0].of[static_cast<int>(p.dtype)][static_cast<int>(p.b_layout)];
  }
};

template <typename Config>
UnionShape union_shape() {
  using Tile = UnionTile<Config, true>;
  return {Tile::kGroup,
          grouping_of(Tile::kGroup),
          Tile::kBlockM,
          Tile::kBlockK,
          Tile::kN,
          Tile::kWarpM,
          Tile::kThreads,
          UnionShared<Tile>::kBytes,
          UnionTile<Config, false>::kSpan * Config::kBlockK,
          {union_codes<Config, false>(), transposed_union_codes<Config>()}};
}

// Which block rows make up a group.
enum class Rows : uint8_t { kNeighbours, kMatched };

class UnionSm90 final : public Variant {
 public:
  UnionSm90(std::string_view name, const UnionShape& shape, Rows rows = Rows::kNeighbours)
      : Variant(DeviceType::kCuda, name),
        shape_(shape),
        matched_(rows == Rows::kMatched),
        grouping_(matched_ ? matched(shape.neighbours) : shape.neighbours) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = half_types_on_hopper(p, d); !s) return s;
    if (Support s = blocks_are(p, shape_.block_m, shape_.block_k); !s) return s;
    if (shape_.code_of(p) == nullptr) return Support::no("needs a column-major B");
    if (Support s = groups_are_known(p, shape_.neighbours); !s) return s;
    if (matched_ && p.c_layout != Layout::kRowMajor) {
      return Support::no("stores each block row by itself, so needs a row-major C");
    }
    if (matched_ && block_rows(p) <= shape_.group) {
      return Support::no("has nothing to match: " + std::to_string(block_rows(p)) +
                         " block rows are one group");
    }
    if (Support s = n_fills_columns(p, shape_.n); !s) return s;
    if (Support s = all_by_16(p); !s) return s;
    if (Support s = c_comes_in_eights(p); !s) return s;
    if (Support s = tma_reaches(p, shape_.tiles(p)); !s) return s;
    return shape_.code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    Problem q = p;
    if (matched_) q.group_counts.columns[shape_.neighbours] = matched_columns(p);
    const TileWork work =
        tiles_of_groups(q, shape_.group * shape_.block_m, shape_.n, shape_.neighbours);
    return tiled_us(work, kRates, d.tensor_tflops, p, d);
  }

  int grouping(const Problem&, const Device&) const override { return grouping_; }

  Status launch(const Problem& p, const Launch& l) const override {
    const bool b_rows = p.b_layout == Layout::kRowMajor, c_rows = p.c_layout == Layout::kRowMajor;
    const RowGroups& groups = l.row_groups[grouping_];
    auto a = arguments_of<UnionArguments>(p, l);
    a.b_whole = p.n % 64 == 0;
    const auto block_k = static_cast<uint32_t>(p.block_k), n = static_cast<uint32_t>(shape_.n);
    const auto line_k = static_cast<uint32_t>(shape_.line_k);
    BoxedTensor b = tensor_of_b(p, l.b, b_rows ? 64 : line_k, b_rows ? block_k : n);
    if (b_rows && a.b_whole) b = in_columns_of_64(b, n);
    const uint32_t c_lines = c_rows ? static_cast<uint32_t>(shape_.strip) : 64;
    Status status = make_tensor_map(b, &a.b_map);
    if (status) status = make_tensor_map(tensor_of_c(p, l.c, 64, c_lines), &a.c_map);
    if (!status) return status;

    a.columns = groups.columns;
    a.rows = groups.rows;
    a.panels = panels_of(shape_.groups(p), shape_.columns(p), p.batch,
                         width_of_panels(p, *l.device), groups.groups);
    const unsigned blocks = share_out(&a.panels, l);
    return shape_.code_of(p)->launch(a, blocks, shape_.threads, shape_.shared_bytes, l.stream,
                                     name());
  }

 private:
  // In tiles.
  int64_t width_of_panels(const Problem& p, const Device& d) const {
    const auto l2 = static_cast<double>(d.l2_bytes);
    const bool narrow = p.b_layout == Layout::kRowMajor &&
                        shape_.tiles(p) >= kManyRounds * d.multiprocessors &&
                        values_bytes(p) <= kLastingShare * l2;
    return panel_width(p, shape_.n, static_cast<int64_t>(kWholeShare * l2),
                       static_cast<int64_t>((narrow ? kNarrowShare : kPanelShare) * l2));
  }

  // Nobody has counted what matched rows share. At random they have a smaller part of neighbours'
  // columns the fewer of all columns these have.
  int32_t matched_columns(const Problem& p) const {
    constexpr double kOfFew = 0.72, kOfAll = 0.94;
    const double columns = p.group_counts.columns[shape_.neighbours];
    const double share = columns / static_cast<double>(shape_.groups(p) * block_cols(p));
    const double least = static_cast<double>(p.nnzb) / shape_.group;
    return static_cast<int32_t>(std::max(least, columns * (kOfFew + (kOfAll - kOfFew) * share)));
  }

  UnionShape shape_;
  bool matched_;
  int grouping_;
  Registration registration_{*this};
};

const UnionSm90 kB16R16{"union_sm90/b16_r16", union_shape<B16R16>()};
const UnionSm90 kB16R16Matched{"union_sm90/b16_r16_matched", union_shape<B16R16>(), Rows::kMatched};
const UnionSm90 kB16R32{"union_sm90/b16_r32", union_shape<B16R32>()};
const UnionSm90 kB16R8{"union_sm90/b16_r8", union_shape<B16R8>()};
const UnionSm90 kB16R8N64{"union_sm90/b16_r8_n64", union_shape<B16R8N64>()};
const UnionSm90 kB16x32R16{"union_sm90/b16x32_r16", union_shape<B16x32R16>()};
const UnionSm90 kB16x32R16Matched{"union_sm90/b16x32_r16_matched", union_shape<B16x32R16>(),
                                  Rows::kMatched};
const UnionSm90 kB32x16R8{"union_sm90/b32x16_r8", union_shape<B32x16R8>()};
const UnionSm90 kB32x16R8Matched{"union_sm90/b32x16_r8_matched", union_shape<B32x16R8>(),
                                 Rows::kMatched};
const UnionSm90 kB32x16R8Spans{"union_sm90/b32x16_r8_spans", union_shape<B32x16R8Spans>()};
const UnionSm90 kB32R8{"union_sm90/b32_r8", union_shape<B32R8>()};
const UnionSm90 kB32R8Matched{"union_sm90/b32_r8_matched", union_shape<B32R8>(), Rows::kMatched};
const UnionSm90 kB32R8Lines{"union_sm90/b32_r8_lines", union_shape<B32R8Lines>()};
const UnionSm90 kB32R4{"union_sm90/b32_r4", union_shape<B32R4>()};
const UnionSm90 kB32R8N64{"union_sm90/b32_r8_n64", union_shape<B32R8N64>()};

}  // namespace
}  // namespace sparse_autotune
