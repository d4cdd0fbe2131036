// What attention_tiled's forward and backward passes share: operands as fp32, tiles with a query
// (or key) a lane, and chunks of the lines that a tile meets.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "half.h"
#include "kernels/cpu/attention/attention_steps.h"
#include "kernels/cpu/attention/visible_columns.h"
#include "kernels/cpu/shared/tiled_partition.h"
#include "variant.h"

namespace sparse_autotune::cpu_attention {

// An instruction-set level with its steps.
struct Level {
  CpuIsa needed;
  const char* name;
  const Steps* (*steps)();

  Support supports(const Device& d, DType dtype) const {
    if (d.isa < needed) return Support::no(std::string("this processor lacks ") + name);
    if (dtype == DType::kFloat64) return Support::no("it computes in fp32");
    return Support::yes();
  }
  // The share of fma_tflops() that it reaches, which are those of the widest vectors.
  double share(const Device& d) const {
    return needed == CpuIsa::kAvx2 && d.isa > CpuIsa::kAvx2 ? 0.25 : 0.45;
  }
};
inline constexpr Level kAvx2{CpuIsa::kAvx2, "AVX2", avx2_steps};
inline constexpr Level kAvx512{CpuIsa::kAvx512, "AVX-512", avx512_steps};

inline constexpr int64_t kDenseSide = 64;  // of a block where there is no mask
inline constexpr double kLog2E = 1.4426950408889634, kLn2 = 0.6931471805599453;
// A chunk's scores are 16 KiB with 32 lanes: they and the tile's operand stay in an L1 and an L2.
inline constexpr int64_t kChunkLines = 128;
// Parts of the work that threads take from a common pile, for each thread: rows differ in length.
inline constexpr int64_t kPartsPerThread = 32;

inline int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

// Memory given out in order; without a base it only counts.
class Arena {
 public:
  explicit Arena(void* base) : base_(static_cast<char*>(base)) {}
  float* floats(int64_t count) {
    char* const at = base_ == nullptr ? nullptr : base_ + used_;
    used_ += aligned(count * 4);
    return reinterpret_cast<float*>(at);
  }
  int64_t used() const { return used_; }

 private:
  char* base_;
  int64_t used_ = 0;
};

// An operand in fp32: itself, or a widened copy in the workspace.
struct Floats {
  const float* data;
  int64_t batch_stride, head_stride, row_stride;

  const float* row(int64_t batch, int64_t head, int64_t i) const {
    return data + batch * batch_stride + head * head_stride + i * row_stride;
  }
};

inline Floats floats_of(const AttentionTensor& t, DType dtype, int64_t heads, int64_t rows,
                        int64_t dim, int64_t batch, Arena* arena) {
  if (dtype == DType::kFloat32) {
    return {static_cast<const float*>(t.data), t.batch_stride, t.head_stride, t.row_stride};
  }
  return {arena->floats(batch * heads * rows * dim), heads * rows * dim, rows * dim, dim};
}

// Fills a copy that `floats_of` made room for; of fp32 there is none.
inline void widen(const AttentionTensor& t, DType dtype, int64_t batch, int64_t heads, int64_t rows,
                  int64_t dim, const Floats& copy, const Parallel& parallel) {
  if (dtype == DType::kFloat32) return;
  parallel_for(parallel, 0, batch * heads * rows, 64, [&](int64_t begin, int64_t end) {
    with_type(dtype, [&]<typename T>(T*) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t head = i / rows;
        const T* const from = static_cast<const T*>(t.data) + head / heads * t.batch_stride +
                              head % heads * t.head_stride + i % rows * t.row_stride;
        float* const to = const_cast<float*>(copy.data) + i * dim;
        for (int64_t d = 0; d < dim; ++d) to[d] = static_cast<float>(widened(from[d]));
      }
    });
  });
}

// Some rows of an operand with a row a lane: number d of lane r is tile[d * width + r]. Lanes
// without a row are zeros.
inline void pack_tile(const float* from, int64_t row_stride, int64_t rows, int64_t dim,
                      int64_t width, double scale, float* tile) {
  const auto factor = static_cast<float>(scale);
  for (int64_t r = 0; r < width; ++r) {
    const float* const row = from + r * row_stride;
    for (int64_t d = 0; d < dim; ++d) tile[d * width + r] = r < rows ? row[d] * factor : 0.0f;
  }
}

// Lane r of a tile as row `first + r` of a tensor.
inline void store_lane(const AttentionTensor& t, DType dtype, int64_t batch, int64_t head,
                       int64_t row, int64_t dim, const float* tile, int64_t width, float factor) {
  with_type(dtype, [&]<typename T>(T*) {
    T* const to = static_cast<T*>(t.data) + batch * t.batch_stride + head * t.head_stride +
                  row * t.row_stride;
    for (int64_t d = 0; d < dim; ++d) to[d] = narrowed<T>(tile[d * width] * factor);
  });
}

// Neighbouring lines that a tile meets.
struct Piece {
  int64_t first, count;
};

// Gathers spans of lines and hands them on as chunks.
template <typename Run>
class Chunks {
 public:
  explicit Chunks(Run run) : run_(run) {}

  void add(int64_t first, int64_t end) {
    while (first < end) {
      if (lines_ == kChunkLines) flush();
      const int64_t count = std::min(end - first, kChunkLines - lines_);
      if (pieces_ > 0 && piece_[pieces_ - 1].first + piece_[pieces_ - 1].count == first) {
        piece_[pieces_ - 1].count += count;
      } else {
        piece_[pieces_++] = {first, count};
      }
      lines_ += count;
      first += count;
    }
  }
  void flush() {
    if (lines_ > 0) run_(static_cast<const Piece*>(piece_), pieces_, lines_);
    pieces_ = lines_ = 0;
  }

 private:
  Run run_;
  Piece piece_[kChunkLines];
  int64_t pieces_ = 0, lines_ = 0;
};

// How the rows (or columns) of all heads are cut into tiles. A tile lies inside of one block row.
class Tiling {
 public:
  Tiling(int64_t batch, int64_t heads, int64_t length, int64_t side, int64_t lanes)
      : heads_(heads), length_(length), side_(side), lanes_(lanes) {
    per_block_ = blocks_along(side, 2 * lanes);
    per_head_ = blocks_along(length, side) * per_block_;
    tiles_ = batch * heads * per_head_;
  }
  struct Tile {
    int64_t batch, head, block, first, rows;
    int vectors;
  };
  int64_t tiles() const { return tiles_; }
  // Of no rows where a ragged last block has none left.
  Tile tile(int64_t i) const {
    const int64_t head = i / per_head_, block = i % per_head_ / per_block_;
    const int64_t first = block * side_ + i % per_block_ * 2 * lanes_;
    const int64_t end = std::min({first + 2 * lanes_, (block + 1) * side_, length_});
    const int64_t rows = std::max<int64_t>(end - first, 0);
    return {head / heads_, head % heads_, block, first, rows, rows > lanes_ ? 2 : 1};
  }

 private:
  int64_t heads_, length_, side_, lanes_, per_block_, per_head_, tiles_;
};

// Calls visit(slot, tile) for each tile that has rows.
template <typename Visit>
void for_each_tile(const Tiling& tiling, const Parallel& parallel, int64_t slots, Visit&& visit) {
  const int64_t tiles = tiling.tiles();
  const int64_t parts = std::min(tiles, slots == 1 ? 1 : slots * kPartsPerThread);
  cpu_tiled::for_each_part(parallel, slots, parts, [&](int64_t slot, int64_t part) {
    const int64_t end = cpu_tiled::part_begin(tiles, parts, part + 1);
    for (int64_t i = cpu_tiled::part_begin(tiles, parts, part); i < end; ++i) {
      if (const Tiling::Tile tile = tiling.tile(i); tile.rows > 0) visit(slot, tile);
    }
  });
}

}  // namespace sparse_autotune::cpu_attention
