// The tuner's operands of attention, what it checks of the results, and what is right there.
#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <tuple>

#include "half.h"
#include "operators/attention/attention_operator.h"
#include "operators/attention/attention_reference.h"

namespace sparse_autotune::attention {
namespace {

constexpr int64_t kMaxTiles = 4096;  // 64 MiB of expected elements
constexpr int kRandomTiles = 96;

// Operands by number: the first are those of either pass.
enum : size_t { kCrow, kCol, kQ, kK, kV, kOut, kLse, kCcol, kRow, kDout, kDlse, kDq, kDk, kDv };

// A strided tensor of four dimensions, as all that it spans.
Strides span_of(const TensorStrides& s, int64_t batch, int64_t heads, int64_t rows, int64_t dim) {
  const int64_t span = (batch - 1) * s.batch + (heads - 1) * s.head + (rows - 1) * s.row + dim;
  return {1, span, span, 1, 1, 0};
}

Strides rows_of(int64_t rows, int64_t dim) { return {rows, dim, dim, 1, 1, 0}; }

struct HostElement {
  template <typename Number>
  struct Of {
    using T = Number;
    static double load(Number x) { return widened(x); }
  };
};

template <typename F>
void with_reference(const Problem& p, const Launch& l, F&& f) {
  with_type(p.dtype,
            [&]<typename T>(T*) { f(Reference<typename HostElement::template Of<T>>(p, l)); });
}

// One output: heads x rows x dim, `each` of the heads in a batch entry.
struct Output {
  int32_t number;
  TensorStrides strides;
  int64_t heads, each, rows, dim;
  double row_flops;  // of its reference, for one strip of a row

  int64_t row_tiles() const { return ceil_div(rows, kTileRows); }
  int64_t strips() const { return ceil_div(dim, kTileCols); }
  int64_t tiles() const { return heads * row_tiles() * strips(); }
  Tile tile(int64_t head, int64_t row_tile, int64_t strip) const {
    const int64_t row = row_tile * kTileRows, col = strip * kTileCols;
    return {.output = number,
            .rows = static_cast<int16_t>(std::min<int64_t>(kTileRows, rows - row)),
            .cols = static_cast<int16_t>(std::min<int64_t>(kTileCols, dim - col)),
            .offset =
                head / each * strides.batch + head % each * strides.head + row * strides.row + col,
            .row_stride = strides.row,
            .col_stride = 1,
            .origin = {head, row, col, 0}};
  }
};

std::vector<Output> outputs_of(const Problem& p) {
  const double part = has_mask(p) ? density(p) : 1.0;
  const double along = 4.0 * part * static_cast<double>(p.columns) * static_cast<double>(p.dim);
  const double across = 4.0 * part * static_cast<double>(p.rows) * static_cast<double>(p.dim) *
                        static_cast<double>(p.heads / p.kv_heads);
  const int64_t heads = p.batch * p.heads, kv_heads = p.batch * p.kv_heads;
  if (p.pass == Pass::kForward) {
    const TensorStrides of_lse{p.heads * p.rows, p.rows, 1};
    return {{0, strides_of_out(p), heads, p.heads, p.rows, p.dim, along},
            {1, of_lse, heads, p.heads, p.rows, 1, along}};
  }
  return {{0, strides_of_out(p), heads, p.heads, p.rows, p.dim, 2 * along},
          {1, strides_of_dk(p), kv_heads, p.kv_heads, p.columns, p.dim, 3 * across},
          {2, strides_of_dv(p), kv_heads, p.kv_heads, p.columns, p.dim, 3 * across}};
}

}  // namespace

std::vector<Operand> AttentionOperator::operands(const Problem& p, const Launch& user) const {
  const int64_t queries = p.batch * p.heads * p.rows, keys = p.batch * p.kv_heads * p.columns;
  const auto index_bytes = [&](int64_t lines) { return p.patterns * (lines + 1) * 4; };
  const bool forward = p.pass == Pass::kForward;
  const DType of_rows = row_dtype(p);
  std::vector<Operand> all = {
      Operand::copied(user.crow_indices, has_mask(p) ? index_bytes(block_rows(p)) : 0),
      Operand::copied(user.col_indices, has_mask(p) ? p.capacity * 4 : 0),
      Operand::input(p.dtype, span_of(p.q, p.batch, p.heads, p.rows, p.dim), p.q_alignment),
      Operand::input(p.dtype, span_of(p.k, p.batch, p.kv_heads, p.columns, p.dim), p.k_alignment),
      Operand::input(p.dtype, span_of(p.v, p.batch, p.kv_heads, p.columns, p.dim), p.v_alignment),
  };
  if (forward) {
    all.push_back(Operand::output(p.dtype, rows_of(queries, p.dim), 16));
    all.push_back(Operand::output(of_rows, rows_of(1, queries), 16));
    return all;
  }
  all.push_back(Operand::derived(p.dtype, rows_of(queries, p.dim), 16));
  all.push_back(Operand::derived(of_rows, rows_of(1, queries), 16));
  all.push_back(
      Operand::copied(user.ccol_indices, has_mask(p) ? index_bytes(block_columns(p)) : 0));
  all.push_back(Operand::copied(user.row_indices, has_mask(p) ? p.row_capacity * 4 : 0));
  all.push_back(
      Operand::input(p.dtype, span_of(p.dout, p.batch, p.heads, p.rows, p.dim), p.dout_alignment));
  all.push_back(Operand::input(of_rows, rows_of(1, p.has_dlse ? queries : 0), 16));
  all.push_back(Operand::output(p.dtype, rows_of(queries, p.dim), 16));
  all.push_back(Operand::output(p.dtype, rows_of(keys, p.dim), 16));
  all.push_back(Operand::output(p.dtype, rows_of(keys, p.dim), 16));
  return all;
}

void AttentionOperator::bind(const Problem& p, char* const* at, Launch* l) const {
  const auto indices = [&](size_t operand) {
    return has_mask(p) ? reinterpret_cast<const int32_t*>(at[operand]) : nullptr;
  };
  l->crow_indices = indices(kCrow);
  l->col_indices = indices(kCol);
  l->q = at[kQ];
  l->k = at[kK];
  l->v = at[kV];
  l->out = at[kOut];
  l->lse = at[kLse];
  l->handed_over = nullptr;  // what is not written cannot be checked
  // Not the caller's, under which all columns may weigh the same, or one alone.
  l->scale = (p.nonpositive_scale ? -1 : 1) / std::sqrt(static_cast<double>(p.dim));
  if (p.pass == Pass::kForward) return;
  l->ccol_indices = indices(kCcol);
  l->row_indices = indices(kRow);
  l->dout = at[kDout];
  l->dlse = p.has_dlse ? at[kDlse] : nullptr;
  l->dq = at[kDq];
  l->dk = at[kDk];
  l->dv = at[kDv];
}

Status AttentionOperator::derive(const Problem& p, const Launch& l) const {
  if (p.pass == Pass::kForward) return Status::ok();
  if (p.device == DeviceType::kCuda) return derive_forward_cuda(p, l);
  with_type(p.dtype, [&]<typename T>(T*) {
    const Reference<typename HostElement::template Of<T>> reference(p, l);
    const int64_t rows = p.batch * p.heads * p.rows;
    parallel_for(l.parallel, 0, rows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t head = row / p.rows;
        Expected found[kTileCols] = {}, lse{};
        for (int64_t first = 0; first < p.dim; first += kTileCols) {
          const int count = static_cast<int>(std::min<int64_t>(kTileCols, p.dim - first));
          reference.forward(head / p.heads, head % p.heads, row % p.rows, first, count, found,
                            &lse);
          T* const out =
              const_cast<T*>(reference.out(head / p.heads, head % p.heads, row % p.rows)) + first;
          for (int c = 0; c < count; ++c) out[c] = narrowed<T>(found[c].value);
        }
        if (p.dtype == DType::kFloat64) {
          static_cast<double*>(l.lse)[row] = lse.value;
        } else {
          static_cast<float*>(l.lse)[row] = static_cast<float>(lse.value);
        }
      }
    });
  });
  return Status::ok();
}

Status AttentionOperator::choose_tiles(const Problem& p, const ReadBack&, double flop_limit,
                                       std::vector<Tile>* tiles) const {
  const std::vector<Output> outputs = outputs_of(p);
  double flops = 0;
  int64_t count = 0;
  for (const Output& o : outputs) {
    flops += static_cast<double>(o.heads * o.rows * o.strips()) * o.row_flops;
    count += o.tiles();
  }
  const bool all = flops <= flop_limit && count <= kMaxTiles;
  std::mt19937_64 random(2026);
  for (const Output& o : outputs) {
    if (o.tiles() == 0) continue;
    std::set<std::tuple<int64_t, int64_t, int64_t>> seen;
    const auto add = [&](int64_t head, int64_t row_tile, int64_t strip) {
      if (seen.insert({head, row_tile, strip}).second) {
        tiles->push_back(o.tile(head, row_tile, strip));
      }
    };
    if (all) {
      for (int64_t i = 0; i < o.tiles(); ++i) {
        const int64_t row = i / o.strips();
        add(row / o.row_tiles(), row % o.row_tiles(), i % o.strips());
      }
      continue;
    }
    const auto any = [&](int64_t limit) {
      return static_cast<int64_t>(random() % static_cast<uint64_t>(limit));
    };
    add(0, 0, 0);
    add(o.heads - 1, o.row_tiles() - 1, o.strips() - 1);
    const double each = o.row_flops * kTileRows;
    const double affordable = flop_limit / static_cast<double>(outputs.size()) / each;
    const int wanted = static_cast<int>(std::clamp<double>(affordable, 6, kRandomTiles));
    for (int i = 0; i < wanted; ++i) add(any(o.heads), any(o.row_tiles()), any(o.strips()));
  }
  return Status::ok();
}

Status AttentionOperator::expect(const Problem& p, const Launch& l, const Tile* tiles,
                                 int64_t count, Expected* expected) const {
  if (p.device == DeviceType::kCuda) return expect_tiles_cuda(p, l, tiles, count, expected);
  with_reference(p, l, [&](const auto& reference) {
    parallel_for(l.parallel, 0, count * kTileRows, 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const Tile& tile = tiles[i / kTileRows];
        const int row = static_cast<int>(i % kTileRows);
        if (row < tile.rows) {
          reference.row_of_tile(tile, row,
                                expected + i / kTileRows * kTileElements + row * kTileCols);
        }
      }
    });
  });
  return Status::ok();
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status expect_tiles_cuda(const Problem&, const Launch&, const Tile*, int64_t, Expected*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
Status derive_forward_cuda(const Problem&, const Launch&) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune::attention
