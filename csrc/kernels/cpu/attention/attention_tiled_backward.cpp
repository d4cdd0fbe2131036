// The gradients of attention_tiled, in two passes that each write what nobody else does: results do
// not depend on the number of threads.
//
// dq: tiles with a query a lane, as in the forward pass. dk and dv: tiles with a key a lane, over
// all query heads of its group and their rows that see it. Both recompute the probabilities from
// the scores and lse; a chunk is scores, gradients of probabilities, and from both the tile's sums,
// by the one multiplication that reads its left operand where it lies.
#include "kernels/cpu/attention/attention_tiled_variant.h"

namespace sparse_autotune::cpu_attention {
namespace {

class Backward {
 public:
  Backward(const AttentionBackward& a, DType dtype, const Steps& steps, int threads)
      : a_(a),
        shape_(a.shape),
        dtype_(dtype),
        steps_(steps),
        threads_(threads),
        arena_(a.workspace) {
    const AttentionShape& s = shape_;
    q_ = floats_of(a.q, dtype, s.heads, s.rows, s.dim, s.batch, &arena_);
    dout_ = floats_of(a.dout, dtype, s.heads, s.rows, s.dim, s.batch, &arena_);
    k_ = floats_of(a.k, dtype, s.kv_heads, s.columns, s.dim, s.batch, &arena_);
    v_ = floats_of(a.v, dtype, s.kv_heads, s.columns, s.dim, s.batch, &arena_);
    lse_ = arena_.floats(s.batch * s.heads * s.rows);
    delta_ = arena_.floats(s.batch * s.heads * s.rows);
    slot_floats_ = (4 * s.dim + 2 * kChunkLines + 2) * 2 * steps.lanes;
    slots_ = arena_.floats(slot_floats_ * threads);
  }
  int64_t bytes() const { return arena_.used(); }

  void run(const Parallel& parallel) const {
    const AttentionShape& s = shape_;
    widen(a_.q, dtype_, s.batch, s.heads, s.rows, s.dim, q_, parallel);
    widen(a_.dout, dtype_, s.batch, s.heads, s.rows, s.dim, dout_, parallel);
    widen(a_.k, dtype_, s.batch, s.kv_heads, s.columns, s.dim, k_, parallel);
    widen(a_.v, dtype_, s.batch, s.kv_heads, s.columns, s.dim, v_, parallel);
    prepare_rows(parallel);
    const bool dense = a_.mask.crow_indices == nullptr;
    const Tiling rows(s.batch, s.heads, s.rows, dense ? kDenseSide : a_.mask.block_m, steps_.lanes);
    for_each_tile(rows, parallel, threads_, [&](int64_t slot, const Tiling::Tile& tile) {
      run_queries(tile, slots_ + slot * slot_floats_);
    });
    const Tiling columns(s.batch, s.kv_heads, s.columns, dense ? kDenseSide : a_.mask.block_n,
                         steps_.lanes);
    for_each_tile(columns, parallel, threads_, [&](int64_t slot, const Tiling::Tile& tile) {
      run_keys(tile, slots_ + slot * slot_floats_);
    });
  }

 private:
  // `left` and `right` are the operands of scores and of probabilities' gradients.
  struct Scratch {
    float *left, *right, *sums, *more_sums, *scores, *gradients, *lse, *delta;
  };
  Scratch scratch(float* memory, int64_t width) const {
    Scratch s{};
    s.left = memory;
    s.right = s.left + shape_.dim * width;
    s.sums = s.right + shape_.dim * width;
    s.more_sums = s.sums + shape_.dim * width;
    s.scores = s.more_sums + shape_.dim * width;
    s.gradients = s.scores + kChunkLines * width;
    s.lse = s.gradients + kChunkLines * width;
    s.delta = s.lse + width;
    std::fill(s.sums, s.scores, 0.0f);
    return s;
  }

  // lse to base 2, and delta, of every row.
  void prepare_rows(const Parallel& parallel) const {
    const AttentionShape& s = shape_;
    parallel_for(parallel, 0, s.batch * s.heads * s.rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t i = row % s.rows, head = row / s.rows % s.heads,
                      batch = row / s.rows / s.heads;
        const double lse = value(a_.lse, batch, head, i) * kLog2E;
        lse_[row] = static_cast<float>(std::max<double>(lse, kLeastScore));
        double delta = a_.dlse.data == nullptr ? 0.0 : -value(a_.dlse, batch, head, i);
        const float* const dout = dout_.row(batch, head, i);
        with_type(dtype_, [&]<typename T>(T*) {
          const T* const out = static_cast<const T*>(a_.out.data) + batch * a_.out.batch_stride +
                               head * a_.out.head_stride + i * a_.out.row_stride;
          for (int64_t d = 0; d < s.dim; ++d)
            delta += static_cast<double>(widened(out[d])) * dout[d];
        });
        delta_[row] = static_cast<float>(delta);
      }
    });
  }
  static double value(const AttentionRowValues& v, int64_t batch, int64_t head, int64_t i) {
    return v.data[batch * v.batch_stride + head * v.head_stride + i * v.row_stride];
  }
  int64_t row_number(int64_t batch, int64_t head, int64_t i) const {
    return (batch * shape_.heads + head) * shape_.rows + i;
  }

  // result[lines of pieces] = rows of `a` * the tile's operand.
  void multiply_rows(const Tiling::Tile& tile, const Floats& a, int64_t head, const Piece* pieces,
                     int64_t count, const float* b, float* result) const {
    const int64_t width = tile.vectors * steps_.lanes;
    for (int64_t i = 0; i < count; ++i) {
      steps_.multiply[tile.vectors - 1]({.a = a.row(tile.batch, head, pieces[i].first),
                                         .a_line = a.row_stride,
                                         .a_step = 1,
                                         .lines = pieces[i].count,
                                         .depth = shape_.dim,
                                         .b = b,
                                         .result = result,
                                         .add = false});
      result += pieces[i].count * width;
    }
  }
  // sums[d] += columns of `a` * the lines of a chunk.
  void add_columns(const Tiling::Tile& tile, const Floats& a, int64_t head, const Piece* pieces,
                   int64_t count, const float* b, float* sums) const {
    const int64_t width = tile.vectors * steps_.lanes;
    for (int64_t i = 0; i < count; ++i) {
      steps_.multiply[tile.vectors - 1]({.a = a.row(tile.batch, head, pieces[i].first),
                                         .a_line = 1,
                                         .a_step = a.row_stride,
                                         .lines = shape_.dim,
                                         .depth = pieces[i].count,
                                         .b = b,
                                         .result = sums,
                                         .add = true});
      b += pieces[i].count * width;
    }
  }

  void run_queries(const Tiling::Tile& tile, float* memory) const {
    const int64_t width = tile.vectors * steps_.lanes, dim = shape_.dim;
    const int64_t kv_head = tile.head / (shape_.heads / shape_.kv_heads);
    const Scratch s = scratch(memory, width);
    pack_tile(q_.row(tile.batch, tile.head, tile.first), q_.row_stride, tile.rows, dim, width,
              a_.scale * kLog2E, s.left);
    pack_tile(dout_.row(tile.batch, tile.head, tile.first), dout_.row_stride, tile.rows, dim, width,
              1, s.right);
    const int64_t at = row_number(tile.batch, tile.head, tile.first);
    for (int64_t r = 0; r < width; ++r) {
      s.lse[r] = r < tile.rows ? lse_[at + r] : 0.0f;
      s.delta[r] = r < tile.rows ? delta_[at + r] : 0.0f;
    }
    Chunks chunks([&](const Piece* pieces, int64_t count, int64_t lines) {
      multiply_rows(tile, k_, kv_head, pieces, count, s.left, s.scores);
      if (a_.is_causal) hide_columns(tile, pieces, count, s.scores, width);
      multiply_rows(tile, v_, kv_head, pieces, count, s.right, s.gradients);
      steps_.gradients[tile.vectors - 1]({s.scores, s.gradients, lines, s.lse, s.delta, false});
      add_columns(tile, k_, kv_head, pieces, count, s.gradients, s.sums);
    });
    const int64_t limit = a_.is_causal ? tile.first + tile.rows : shape_.columns;
    for_each_span(rows_of(a_.mask, shape_, tile.batch, tile.head), tile.block, a_.mask.block_n,
                  shape_.columns,
                  [&](int64_t first, int64_t end) { chunks.add(first, std::min(end, limit)); });
    chunks.flush();
    for (int64_t r = 0; r < tile.rows; ++r) {
      store_lane(a_.dq, dtype_, tile.batch, tile.head, tile.first + r, dim, s.sums + r, width,
                 static_cast<float>(a_.scale));
    }
  }

  void run_keys(const Tiling::Tile& tile, float* memory) const {
    const int64_t width = tile.vectors * steps_.lanes, dim = shape_.dim;
    const int64_t group = shape_.heads / shape_.kv_heads;
    const Scratch s = scratch(memory, width);
    pack_tile(k_.row(tile.batch, tile.head, tile.first), k_.row_stride, tile.rows, dim, width,
              a_.scale * kLog2E, s.left);
    pack_tile(v_.row(tile.batch, tile.head, tile.first), v_.row_stride, tile.rows, dim, width, 1,
              s.right);
    for (int64_t head = tile.head * group; head < (tile.head + 1) * group; ++head) {
      Chunks chunks([&](const Piece* pieces, int64_t count, int64_t) {
        run_rows(tile, head, pieces, count, s);
      });
      for_each_span(columns_of(a_.mask, a_.by_column, shape_, tile.batch, head), tile.block,
                    a_.mask.block_m, shape_.rows, [&](int64_t first, int64_t end) {
                      chunks.add(a_.is_causal ? std::max(first, tile.first) : first, end);
                    });
      chunks.flush();
    }
    for (int64_t r = 0; r < tile.rows; ++r) {
      const int64_t row = tile.first + r;
      store_lane(a_.dv, dtype_, tile.batch, tile.head, row, dim, s.sums + r, width, 1.0f);
      store_lane(a_.dk, dtype_, tile.batch, tile.head, row, dim, s.more_sums + r, width,
                 static_cast<float>(a_.scale));
    }
  }

  void run_rows(const Tiling::Tile& tile, int64_t head, const Piece* pieces, int64_t count,
                const Scratch& s) const {
    const int64_t width = tile.vectors * steps_.lanes;
    multiply_rows(tile, q_, head, pieces, count, s.left, s.scores);
    multiply_rows(tile, dout_, head, pieces, count, s.right, s.gradients);
    int64_t line = 0;
    for (int64_t i = 0; i < count; ++i) {
      float* const scores = s.scores + line * width;
      if (a_.is_causal) hide_rows(tile, pieces[i], scores, width);
      const int64_t at = row_number(tile.batch, head, pieces[i].first);
      steps_.gradients[tile.vectors - 1](
          {scores, s.gradients + line * width, pieces[i].count, lse_ + at, delta_ + at, true});
      line += pieces[i].count;
    }
    add_columns(tile, dout_, head, pieces, count, s.scores, s.sums);
    add_columns(tile, q_, head, pieces, count, s.gradients, s.more_sums);
  }

  // Columns behind a lane's row.
  static void hide_columns(const Tiling::Tile& tile, const Piece* pieces, int64_t count,
                           float* scores, int64_t width) {
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < pieces[i].count; ++j, scores += width) {
        const int64_t hidden = std::clamp<int64_t>(pieces[i].first + j - tile.first, 0, width);
        std::fill(scores, scores + hidden, -std::numeric_limits<float>::infinity());
      }
    }
  }
  // Lanes' columns behind a row.
  static void hide_rows(const Tiling::Tile& tile, const Piece& piece, float* scores,
                        int64_t width) {
    for (int64_t i = 0; i < piece.count; ++i, scores += width) {
      const int64_t seen = std::clamp<int64_t>(piece.first + i - tile.first + 1, 0, width);
      std::fill(scores + seen, scores + width, -std::numeric_limits<float>::infinity());
    }
  }

  const AttentionBackward& a_;
  const AttentionShape& shape_;
  DType dtype_;
  const Steps& steps_;
  int threads_;
  Arena arena_;
  Floats q_, dout_, k_, v_;
  float *lse_, *delta_;
  int64_t slot_floats_;
  float* slots_;
};

using Tiled = AttentionTiled<Backward, &attention::backward_arguments, attention::Pass::kBackward>;
const Tiled kAvx2Variant{"cpu_attention_tiled_backward/avx2", kAvx2};
const Tiled kAvx512Variant{"cpu_attention_tiled_backward/avx512", kAvx512};

}  // namespace
}  // namespace sparse_autotune::cpu_attention
