#include "harness/pattern.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <numeric>

#include "harness/arguments.h"

namespace harness {
namespace {

// Positions row * block_cols + col.
using Positions = std::vector<int64_t>;
constexpr int64_t kMostBlocks = int64_t{1} << 27;

struct Grid {
  int64_t rows, cols, count;
  std::mt19937_64& random;
};

// `count` of them, all subsets equally likely.
Positions choose(Positions from, int64_t count, std::mt19937_64& random) {
  const auto size = static_cast<int64_t>(from.size());
  if (count > size) {
    throw BadArgument("--pattern has room for " + std::to_string(size) +
                      " blocks here, and --sparsity asks for " + std::to_string(count));
  }
  for (int64_t i = 0; i < count; ++i) {
    std::uniform_int_distribution<int64_t> other(i, size - 1);
    std::swap(from[static_cast<size_t>(i)], from[static_cast<size_t>(other(random))]);
  }
  from.resize(static_cast<size_t>(count));
  return from;
}

Positions in_rows(const Grid& g, const std::vector<int64_t>& rows) {
  Positions all;
  for (const int64_t row : rows) {
    for (int64_t col = 0; col < g.cols; ++col) all.push_back(row * g.cols + col);
  }
  return all;
}

std::vector<int64_t> shuffled_rows(const Grid& g) {
  std::vector<int64_t> rows(static_cast<size_t>(g.rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), g.random);
  return rows;
}

Positions uniform(const Grid& g) {
  Positions all(static_cast<size_t>(g.rows * g.cols));
  std::iota(all.begin(), all.end(), 0);
  return choose(std::move(all), g.count, g.random);
}

Positions half_empty(const Grid& g) {
  std::vector<int64_t> rows = shuffled_rows(g);
  rows.resize(rows.size() - rows.size() / 2);
  return choose(in_rows(g, rows), g.count, g.random);
}

Positions one_dense_row(const Grid& g) {
  std::vector<int64_t> rows = shuffled_rows(g);
  Positions found = in_rows(g, {rows[0]});
  if (g.count < g.cols) {
    throw BadArgument("--pattern one_dense_row needs at least the " + std::to_string(g.cols) +
                      " blocks of a row, and --sparsity asks for " + std::to_string(g.count));
  }
  rows.erase(rows.begin());
  const Positions rest = choose(in_rows(g, rows), g.count - g.cols, g.random);
  found.insert(found.end(), rest.begin(), rest.end());
  return found;
}

// The blocks nearest to the diagonal.
Positions banded(const Grid& g) {
  Positions all(static_cast<size_t>(g.rows * g.cols));
  std::iota(all.begin(), all.end(), 0);
  const double slope = static_cast<double>(g.cols) / static_cast<double>(g.rows);
  const auto distance = [&](int64_t at) {
    const double centre = (static_cast<double>(at / g.cols) + 0.5) * slope - 0.5;
    return std::abs(static_cast<double>(at % g.cols) - centre);
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](int64_t a, int64_t b) { return distance(a) < distance(b); });
  all.resize(static_cast<size_t>(g.count));
  return all;
}

// Rows of very different lengths: the number of blocks falls off as rank^-0.8.
Positions power_law(const Grid& g) {
  const std::vector<int64_t> rows = shuffled_rows(g);
  std::vector<double> weight(rows.size());
  for (size_t i = 0; i < weight.size(); ++i) weight[i] = std::pow(static_cast<double>(i + 1), -0.8);
  double left_weight = std::accumulate(weight.begin(), weight.end(), 0.0);
  int64_t left = g.count;
  Positions found;
  for (size_t i = 0; i < rows.size(); ++i) {
    const auto rows_left = static_cast<int64_t>(rows.size() - i - 1);
    const auto share = std::llround(static_cast<double>(left) * weight[i] / left_weight);
    const int64_t here = std::clamp<int64_t>(share, left - rows_left * g.cols, g.cols);
    const Positions row = choose(in_rows(g, {rows[i]}), std::min(here, left), g.random);
    found.insert(found.end(), row.begin(), row.end());
    left -= static_cast<int64_t>(row.size());
    left_weight -= weight[i];
  }
  return found;
}

Positions block_diagonal(const Grid& g) {
  Positions found;
  for (int64_t i = 0; i < std::min(g.rows, g.cols); ++i) found.push_back(i * g.cols + i);
  return found;
}

Positions causal(const Grid& g) {
  Positions found;
  for (int64_t row = 0; row < g.rows; ++row) {
    for (int64_t col = 0; col <= std::min(row, g.cols - 1); ++col) {
      found.push_back(row * g.cols + col);
    }
  }
  return found;
}

const std::map<std::string, Positions (*)(const Grid&), std::less<>> kPatterns = {
    {"uniform", uniform}, {"half_empty", half_empty}, {"one_dense_row", one_dense_row},
    {"banded", banded},   {"power_law", power_law},   {"block_diagonal", block_diagonal},
    {"causal", causal},
};

Pattern from_positions(int64_t block_rows, int64_t block_cols, Positions positions) {
  std::sort(positions.begin(), positions.end());
  Pattern p{block_rows, block_cols, {}, {}};
  p.crow_indices.assign(static_cast<size_t>(block_rows) + 1, 0);
  for (const int64_t at : positions) {
    ++p.crow_indices[static_cast<size_t>(at / block_cols) + 1];
    p.col_indices.push_back(at % block_cols);
  }
  std::partial_sum(p.crow_indices.begin(), p.crow_indices.end(), p.crow_indices.begin());
  return p;
}

}  // namespace

void require_pattern(const std::string& name) {
  if (kPatterns.count(name) != 0) return;
  std::string all;
  for (const auto& [known, make] : kPatterns) all += (all.empty() ? "" : ", ") + known;
  throw BadArgument("--pattern must be one of " + all + "; got '" + name + "'");
}

Pattern make_pattern(const std::string& name, int64_t block_rows, int64_t block_cols, int64_t count,
                     std::mt19937_64& random) {
  require_pattern(name);
  if (block_rows > kMostBlocks / block_cols) {
    throw BadArgument("--block makes " + std::to_string(block_rows) + " x " +
                      std::to_string(block_cols) + " blocks, more than 2^27");
  }
  const Grid grid{block_rows, block_cols, count, random};
  return from_positions(block_rows, block_cols, kPatterns.find(name)->second(grid));
}

Pattern full_pattern(int64_t block_rows, int64_t block_cols) {
  Positions all(static_cast<size_t>(block_rows * block_cols));
  std::iota(all.begin(), all.end(), 0);
  return from_positions(block_rows, block_cols, std::move(all));
}

}  // namespace harness
