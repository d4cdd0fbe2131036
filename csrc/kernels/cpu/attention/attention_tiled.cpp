// attention_tiled: attention over stored blocks, with a query a lane.
//
// A tile is up to 32 (AVX2: 16) rows of one block row and head. Q^T of a tile is packed once; each
// score is then an element of K, read where it lies, times a vector of Q^T, so K is neither packed
// nor transposed, and the softmax needs no sum or maximum across lanes. Up to 128 columns of the
// stored blocks make a chunk: its scores, their softmax relative to the largest so far, and then
// out^T += V^T * probabilities, by the same multiplication. Half types are widened first, once for
// all tiles. Threads take tiles of all heads from a common pile.
// Wins wherever a mask leaves out more than some half of the blocks.
#include "kernels/cpu/attention/attention_tiled_variant.h"

namespace sparse_autotune::cpu_attention {
namespace {

class Forward {
 public:
  Forward(const AttentionForward& a, DType dtype, const Steps& steps, int threads)
      : a_(a),
        shape_(a.shape),
        dtype_(dtype),
        steps_(steps),
        threads_(threads),
        arena_(a.workspace) {
    k_ = floats_of(a.k, dtype, shape_.kv_heads, shape_.columns, shape_.dim, shape_.batch, &arena_);
    v_ = floats_of(a.v, dtype, shape_.kv_heads, shape_.columns, shape_.dim, shape_.batch, &arena_);
    const int64_t width = 2 * steps.lanes;
    slot_floats_ = (3 * shape_.dim + kChunkLines + 3) * width;
    slots_ = arena_.floats(slot_floats_ * threads);
  }
  int64_t bytes() const { return arena_.used(); }

  void run(const Parallel& parallel) const {
    const AttentionShape& s = shape_;
    widen(a_.k, dtype_, s.batch, s.kv_heads, s.columns, s.dim, k_, parallel);
    widen(a_.v, dtype_, s.batch, s.kv_heads, s.columns, s.dim, v_, parallel);
    const int64_t side = a_.mask.crow_indices == nullptr ? kDenseSide : a_.mask.block_m;
    const Tiling tiling(s.batch, s.heads, s.rows, side, steps_.lanes);
    for_each_tile(tiling, parallel, threads_, [&](int64_t slot, const Tiling::Tile& tile) {
      run_tile(tile, slots_ + slot * slot_floats_);
    });
  }

 private:
  struct Scratch {
    float *q, *out, *scores, *largest, *totals, *factor;
  };

  void run_tile(const Tiling::Tile& tile, float* memory) const {
    const int64_t width = tile.vectors * steps_.lanes, dim = shape_.dim;
    const int64_t kv_head = tile.head / (shape_.heads / shape_.kv_heads);
    // The lines of Q as fp32 lie where the scores' room begins later.
    float* const rows = memory;
    Scratch s{};
    s.q = rows + dim * width;
    s.out = s.q + dim * width;
    s.scores = s.out + dim * width;
    s.largest = s.scores + kChunkLines * width;
    s.totals = s.largest + width;
    s.factor = s.totals + width;
    pack_queries(tile, rows, width, s.q);
    std::fill(s.out, s.out + dim * width, 0.0f);
    std::fill(s.largest, s.largest + width, -std::numeric_limits<float>::infinity());
    std::fill(s.totals, s.totals + width, 0.0f);
    Chunks chunks([&](const Piece* pieces, int64_t count, int64_t lines) {
      run_chunk(tile, kv_head, pieces, count, lines, s);
    });
    const int64_t limit = a_.is_causal ? tile.first + tile.rows : shape_.columns;
    for_each_span(rows_of(a_.mask, shape_, tile.batch, tile.head), tile.block, a_.mask.block_n,
                  shape_.columns,
                  [&](int64_t first, int64_t end) { chunks.add(first, std::min(end, limit)); });
    chunks.flush();
    finish(tile, s, width);
  }

  void pack_queries(const Tiling::Tile& tile, float* rows, int64_t width, float* q) const {
    const int64_t dim = shape_.dim;
    const int64_t at = tile.batch * a_.q.batch_stride + tile.head * a_.q.head_stride +
                       tile.first * a_.q.row_stride;
    if (dtype_ == DType::kFloat32) {
      pack_tile(static_cast<const float*>(a_.q.data) + at, a_.q.row_stride, tile.rows, dim, width,
                a_.scale * kLog2E, q);
      return;
    }
    with_type(dtype_, [&]<typename T>(T*) {
      const T* const from = static_cast<const T*>(a_.q.data) + at;
      for (int64_t r = 0; r < tile.rows; ++r) {
        for (int64_t d = 0; d < dim; ++d) {
          rows[r * dim + d] = static_cast<float>(widened(from[r * a_.q.row_stride + d]));
        }
      }
    });
    pack_tile(rows, dim, tile.rows, dim, width, a_.scale * kLog2E, q);
  }

  void run_chunk(const Tiling::Tile& tile, int64_t kv_head, const Piece* pieces, int64_t count,
                 int64_t lines, const Scratch& s) const {
    const int64_t width = tile.vectors * steps_.lanes, dim = shape_.dim;
    const auto multiply = steps_.multiply[tile.vectors - 1];
    float* scores = s.scores;
    for (int64_t i = 0; i < count; ++i) {
      const Piece& piece = pieces[i];
      multiply({.a = k_.row(tile.batch, kv_head, piece.first),
                .a_line = k_.row_stride,
                .a_step = 1,
                .lines = piece.count,
                .depth = dim,
                .b = s.q,
                .result = scores,
                .add = false});
      if (a_.is_causal) hide(tile, piece, scores, width);
      scores += piece.count * width;
    }
    steps_.softmax[tile.vectors - 1]({.scores = s.scores,
                                      .lines = lines,
                                      .largest = s.largest,
                                      .totals = s.totals,
                                      .factor = s.factor});
    steps_.rescale[tile.vectors - 1](s.out, dim, s.factor);
    scores = s.scores;
    for (int64_t i = 0; i < count; ++i) {
      multiply({.a = v_.row(tile.batch, kv_head, pieces[i].first),
                .a_line = 1,
                .a_step = v_.row_stride,
                .lines = dim,
                .depth = pieces[i].count,
                .b = scores,
                .result = s.out,
                .add = true});
      scores += pieces[i].count * width;
    }
  }

  // Columns behind a lane's row.
  static void hide(const Tiling::Tile& tile, const Piece& piece, float* scores, int64_t width) {
    for (int64_t j = 0; j < piece.count; ++j) {
      const int64_t hidden = std::clamp<int64_t>(piece.first + j - tile.first, 0, width);
      std::fill(scores + j * width, scores + j * width + hidden,
                -std::numeric_limits<float>::infinity());
    }
  }

  void finish(const Tiling::Tile& tile, const Scratch& s, int64_t width) const {
    for (int64_t r = 0; r < tile.rows; ++r) {
      const float total = s.totals[r];
      store_lane(a_.out, dtype_, tile.batch, tile.head, tile.first + r, shape_.dim, s.out + r,
                 width, total == 0 ? 0.0f : 1 / total);
      if (a_.lse.data == nullptr) continue;
      const double lse = (s.largest[r] + std::log2(static_cast<double>(total))) * kLn2;
      a_.lse.data[tile.batch * a_.lse.batch_stride + tile.head * a_.lse.head_stride +
                  (tile.first + r) * a_.lse.row_stride] =
          total == 0 ? -std::numeric_limits<float>::infinity() : static_cast<float>(lse);
    }
  }

  const AttentionForward& a_;
  const AttentionShape& shape_;
  DType dtype_;
  const Steps& steps_;
  int threads_;
  Arena arena_;
  Floats k_, v_;
  int64_t slot_floats_;
  float* slots_;
};

using Tiled = AttentionTiled<Forward, &attention::forward_arguments, attention::Pass::kForward>;
const Tiled kAvx2Variant{"cpu_attention_tiled/avx2", kAvx2};
const Tiled kAvx512Variant{"cpu_attention_tiled/avx512", kAvx512};

}  // namespace
}  // namespace sparse_autotune::cpu_attention
