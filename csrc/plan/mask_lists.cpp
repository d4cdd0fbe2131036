#include "plan/mask_lists.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

namespace sparse_autotune {

namespace {

// Rows that are looked at to count a rule's blocks: some microseconds.
constexpr int64_t kMostRows = 128;

// `stores` says of a pattern and a row which columns it stores.
template <typename Rows>
void list(const MaskGrid& shape, const MaskLists& out, const Rows& rows) {
  for (int64_t p = 0; p < shape.patterns; ++p) {
    int32_t* const begins = out.begins + p * (shape.rows + 1);
    auto at = static_cast<int32_t>(p * shape.room());
    for (int64_t r = 0; r < shape.rows; ++r) {
      begins[r] = at;
      const auto stores = rows(p, r);
      for (int32_t c = 0; c < shape.columns; ++c) {
        if (stores(c)) out.entries[at++] = c;
      }
    }
    begins[shape.rows] = at;
    std::fill(out.entries + at, out.entries + (p + 1) * shape.room(), 0);
  }
}

}  // namespace

void list_blocks(const MaskGrid& shape, const uint8_t* grid, const MaskLists& out) {
  list(shape, out, [&](int64_t p, int64_t r) {
    return [row = grid + (p * shape.rows + r) * shape.columns](int32_t c) { return row[c] != 0; };
  });
}

void list_rule(const MaskGrid& shape, const MaskRule& rule, const MaskLists& out) {
  list(shape, out, [&](int64_t p, int64_t r) {
    return [row = rule.row(p, r)](int32_t c) { return row.stores(c); };
  });
}

std::optional<MaskRule> sound(MaskRule rule) {
  const int64_t least = std::min({rule.queries, rule.keys, rule.window, rule.sinks, rule.stride,
                                  rule.local, rule.block_m - 1, rule.block_n - 1});
  if (least < 0) return std::nullopt;
  const int64_t all = rule.queries + rule.keys;
  for (int64_t* tokens : {&rule.window, &rule.sinks}) *tokens = std::min(*tokens, all);
  for (int64_t* blocks : {&rule.stride, &rule.local}) {
    *blocks = std::min<int64_t>(*blocks, std::numeric_limits<int32_t>::max());
  }
  return rule;
}

BlockCount count_blocks(const MaskRule& rule, int64_t patterns) {
  const int64_t rows = rule.rows(), step = std::max<int64_t>(patterns * rows / kMostRows, 1);
  int64_t count = 0, looked_at = 0;
  for (int64_t p = 0; p < patterns; ++p) {
    for (int64_t r = std::min(step, rows) / 2; r < rows; r += step, ++looked_at) {
      count += rule.row(p, r).count();
    }
  }
  if (step == 1) return {count, true};
  const auto part = static_cast<double>(patterns * rows) / static_cast<double>(looked_at);
  return {std::llround(static_cast<double>(count) * part), false};
}

bool list_rows(const MaskGrid& shape, const RowLists& rows, const MaskLists& out) {
  std::vector<uint8_t> grid(static_cast<size_t>(shape.blocks()));
  for (int64_t line = 0; line < shape.lines(); ++line) {
    for (int64_t i = 0; i < rows.count(line); ++i) {
      const int64_t c = rows.column(line, i);
      if (c < 0 || c >= shape.columns) return false;
      grid[line * shape.columns + c] = 1;
    }
  }
  list_blocks(shape, grid.data(), out);
  return true;
}

bool turn_lists(const MaskGrid& shape, const GivenLists& lists, const MaskLists& out) {
  std::vector<uint8_t> grid(static_cast<size_t>(shape.blocks()));
  for (int64_t p = 0; p < shape.patterns; ++p) {
    uint8_t* const turned = grid.data() + p * shape.room();
    for (int64_t r = 0; r < shape.rows; ++r) {
      const int64_t line = p * (shape.rows + 1) + r;
      const int64_t begin = lists.begin(line), end = lists.begin(line + 1);
      if (begin < 0 || end > lists.capacity) return false;
      for (int64_t i = begin; i < end; ++i) {
        const int64_t c = lists.entry(i);
        if (c < 0 || c >= shape.columns) return false;
        turned[c * shape.rows + r] = 1;
      }
    }
  }
  list_blocks({shape.patterns, shape.columns, shape.rows}, grid.data(), out);
  return true;
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
namespace {
Status no_cuda() { return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA"); }
}  // namespace
Status list_blocks_cuda(const MaskGrid&, const uint8_t*, const MaskLists&, void*, void*) {
  return no_cuda();
}
Status list_rule_cuda(const MaskGrid&, const MaskRule&, int64_t, const MaskLists&, void*) {
  return no_cuda();
}
Status list_rows_cuda(const MaskGrid&, const RowLists&, const MaskLists&, void*, void*) {
  return no_cuda();
}
Status turn_lists_cuda(const MaskGrid&, const GivenLists&, const MaskLists&, void*, void*) {
  return no_cuda();
}
#endif

}  // namespace sparse_autotune
