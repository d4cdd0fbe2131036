#include "autotune/verify.h"

#include <algorithm>
#include <random>
#include <set>
#include <tuple>
#include <utility>

namespace sparse_autotune {
namespace {

constexpr size_t kRandomPairs = 64;
constexpr size_t kMaxTilesPerPair = 8;
constexpr int64_t kMaxTiles = 4096;  // 64 MiB of expected elements

class Sampler {
 public:
  Sampler(const Problem& p, const std::vector<int64_t>& crow) : p_(p), crow_(crow) {}

  double flops() const { return flops_; }
  std::vector<Tile> take() { return std::move(tiles_); }

  // Tiles of one block row and one strip of columns: all of them, or some of a tall block row.
  void add(int64_t batch, int64_t block_row, int64_t strip, size_t limit) {
    if (!seen_.insert({batch, block_row, strip}).second) return;
    const int64_t stack = ceil_div(p_.block_m, kTileRows);
    const int64_t taken = std::min<int64_t>(stack, static_cast<int64_t>(limit));
    for (int64_t i = 0; i < taken; ++i) {
      const int64_t t = taken == 1 ? 0 : i * (stack - 1) / (taken - 1);
      tiles_.push_back({batch, block_row * p_.block_m + t * kTileRows, strip * kTileCols});
      const double length =
          static_cast<double>(crow_[block_row + 1] - crow_[block_row]) * p_.block_k;
      flops_ += 4.0 * kTileElements * length;
    }
  }

 private:
  const Problem& p_;
  const std::vector<int64_t>& crow_;
  std::vector<Tile> tiles_;
  std::set<std::tuple<int64_t, int64_t, int64_t>> seen_;
  double flops_ = 0;
};

}  // namespace

std::vector<Tile> choose_tiles(const Problem& p, const std::vector<int64_t>& crow,
                               double flop_limit) {
  const int64_t rows = block_rows(p), strips = ceil_div(p.n, kTileCols);
  const int64_t stack = ceil_div(p.block_m, kTileRows);
  Sampler sampler(p, crow);
  if (2 * nnz_flops(p) <= flop_limit && rows * strips * stack * p.batch <= kMaxTiles) {
    for (int64_t t = 0; t < p.batch; ++t) {
      for (int64_t r = 0; r < rows; ++r) {
        for (int64_t s = 0; s < strips; ++s) sampler.add(t, r, s, static_cast<size_t>(stack));
      }
    }
    return sampler.take();
  }
  int64_t longest = 0;
  for (int64_t r = 1; r < rows; ++r) {
    if (crow[r + 1] - crow[r] > crow[longest + 1] - crow[longest]) longest = r;
  }
  const int64_t named[] = {0, rows - 1, longest};
  for (const int64_t row : named) {
    sampler.add(0, row, 0, kMaxTilesPerPair);
    sampler.add(p.batch - 1, row, strips - 1, kMaxTilesPerPair);
  }
  std::mt19937_64 random(2026);
  for (size_t i = 0; i < kRandomPairs; ++i) {
    sampler.add(static_cast<int64_t>(random() % static_cast<uint64_t>(p.batch)),
                static_cast<int64_t>(random() % static_cast<uint64_t>(rows)),
                static_cast<int64_t>(random() % static_cast<uint64_t>(strips)), kMaxTilesPerPair);
  }
  // The rest of the named rows, as far as it is cheap.
  for (int64_t s = 0; s < std::min<int64_t>(strips, 64) && sampler.flops() < flop_limit; ++s) {
    for (const int64_t row : named) sampler.add(0, row, s, kMaxTilesPerPair);
  }
  return sampler.take();
}

}  // namespace sparse_autotune
