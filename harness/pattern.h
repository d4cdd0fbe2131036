// Random block-sparse patterns as pruned and structured models have them.
#pragma once

#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace harness {

struct Pattern {
  int64_t block_rows, block_cols;  // of blocks
  std::vector<int64_t> crow_indices, col_indices;
  int64_t nnzb() const { return static_cast<int64_t>(col_indices.size()); }
};

// Throws BadArgument where there is no such pattern.
void require_pattern(const std::string& name);

// `count` blocks, where the pattern does not set them. Throws BadArgument where it has no room.
Pattern make_pattern(const std::string& name, int64_t block_rows, int64_t block_cols, int64_t count,
                     std::mt19937_64& random);

// All blocks.
Pattern full_pattern(int64_t block_rows, int64_t block_cols);

}  // namespace harness
