#include "operators/product/product_tiles.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>

namespace sparse_autotune {
namespace {

constexpr size_t kRandomPairs = 64;
constexpr size_t kMaxTilesPerPair = 8;
constexpr int64_t kMaxTiles = 4096;  // 64 MiB of expected elements

// How many tiles of a block's height are taken, and which: all of them, or some of a tall block.
template <typename Add>
void spread(int64_t stack, size_t limit, Add&& add) {
  const int64_t taken = std::min<int64_t>(stack, static_cast<int64_t>(limit));
  for (int64_t i = 0; i < taken; ++i) add(taken == 1 ? 0 : i * (stack - 1) / (taken - 1));
}

int64_t longest_row(const std::vector<int64_t>& crow) {
  size_t longest = 0;
  for (size_t r = 1; r + 1 < crow.size(); ++r) {
    if (crow[r + 1] - crow[r] > crow[longest + 1] - crow[longest]) longest = r;
  }
  return static_cast<int64_t>(longest);
}

// Of C: a tile's sums are as long as its block row.
class ProductTiles {
 public:
  ProductTiles(const Problem& p, const std::vector<int64_t>& crow)
      : p_(p), crow_(crow), strips_(ceil_div(p.n, kTileCols)) {}

  int64_t lines() const { return block_rows(p_); }
  int64_t strips() const { return strips_; }
  int64_t batch() const { return p_.batch; }
  std::vector<int64_t> named() const { return {0, lines() - 1, longest_row(crow_)}; }

  double flops(int64_t row) const {
    return 4.0 * kTileElements * static_cast<double>(crow_[row + 1] - crow_[row]) * p_.block_k;
  }
  ProductTile tile(int64_t batch, int64_t row, int64_t strip, int64_t height) const {
    return {batch, row * p_.block_m + height * kTileRows, strip * kTileCols, row};
  }

 private:
  const Problem& p_;
  const std::vector<int64_t>& crow_;
  int64_t strips_;
};

// Of a sampled product's values: all sums are equally long.
class SampledTiles {
 public:
  SampledTiles(const Problem& p, const std::vector<int64_t>& crow)
      : p_(p), crow_(crow), strips_(ceil_div(p.block_k, kTileCols)) {}

  int64_t lines() const { return p_.nnzb; }
  int64_t strips() const { return strips_; }
  int64_t batch() const { return 1; }
  // Where the first and the last row may be empty, their neighbours' blocks serve.
  std::vector<int64_t> named() const {
    const int64_t longest = longest_row(crow_);
    return {0, p_.nnzb - 1, crow_[longest], crow_[longest + 1] - 1};
  }

  double flops(int64_t) const {
    return 4.0 * kTileElements * static_cast<double>(sampled_length(p_));
  }
  ProductTile tile(int64_t, int64_t block, int64_t strip, int64_t height) const {
    const auto row = std::upper_bound(crow_.begin(), crow_.end(), block) - crow_.begin() - 1;
    return {block, height * kTileRows, strip * kTileCols, row};
  }

 private:
  const Problem& p_;
  const std::vector<int64_t>& crow_;
  int64_t strips_;
};

// A line is a block row (of C) or a stored block (of values).
template <typename Tiles>
std::vector<ProductTile> choose(const Tiles& of, const Problem& p, double flop_limit) {
  const int64_t lines = of.lines(), strips = of.strips(), batch = of.batch();
  const int64_t stack = ceil_div(p.block_m, kTileRows);
  std::vector<ProductTile> tiles;
  std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
  double flops = 0;
  const auto add = [&](int64_t matrix, int64_t line, int64_t strip, size_t limit) {
    if (!seen.insert({matrix, line, strip}).second) return;
    spread(stack, limit, [&](int64_t height) {
      tiles.push_back(of.tile(matrix, line, strip, height));
      flops += of.flops(line);
    });
  };
  if (2 * nnz_flops(p) <= flop_limit && lines * strips * stack * batch <= kMaxTiles) {
    for (int64_t t = 0; t < batch; ++t) {
      for (int64_t l = 0; l < lines; ++l) {
        for (int64_t s = 0; s < strips; ++s) add(t, l, s, static_cast<size_t>(stack));
      }
    }
    return tiles;
  }
  const std::vector<int64_t> named = of.named();
  for (const int64_t line : named) {
    add(0, line, 0, kMaxTilesPerPair);
    add(batch - 1, line, strips - 1, kMaxTilesPerPair);
  }
  std::mt19937_64 random(2026);
  const auto any = [&](int64_t count) {
    return static_cast<int64_t>(random() % static_cast<uint64_t>(count));
  };
  for (size_t i = 0; i < kRandomPairs; ++i) {
    const int64_t matrix = any(batch), line = any(lines), strip = any(strips);
    add(matrix, line, strip, kMaxTilesPerPair);
  }
  // The rest of the named lines, as far as it is cheap.
  for (int64_t s = 0; s < std::min<int64_t>(strips, 64) && flops < flop_limit; ++s) {
    for (const int64_t line : named) add(0, line, s, kMaxTilesPerPair);
  }
  return tiles;
}

}  // namespace

std::vector<ProductTile> choose_tiles(const Problem& p, const std::vector<int64_t>& crow,
                                      double flop_limit) {
  if (p.op == Op::kSampled) return choose(SampledTiles(p, crow), p, flop_limit);
  return choose(ProductTiles(p, crow), p, flop_limit);
}

Tile on_output(const ProductTile& tile, const Problem& p) {
  const Strides s = strides_of_output(p);
  return {.output = 0,
          .rows = static_cast<int16_t>(tile_rows(tile, p)),
          .cols = static_cast<int16_t>(tile_cols(tile, p)),
          .offset = tile.batch * s.batch_stride + tile.row * s.row_stride + tile.col * s.col_stride,
          .row_stride = s.row_stride,
          .col_stride = s.col_stride,
          .origin = {tile.batch, tile.row, tile.col, tile.block_row}};
}

}  // namespace sparse_autotune
