// The code of attention's micro-kernels for any vector type. A level's file includes its
// vectors_*.h, defines a struct V with, besides that's members, multiply, max, exp2 and kMostLines
// (lines of a tile of two vectors that registers hold), and includes this.
#pragma once

#include "kernels/cpu/attention/attention_steps.h"

namespace sparse_autotune::cpu_attention {
namespace {

// 2^f for f in [-0.5, 0.5], by its Taylor series: off by 5e-9 at most, a tenth of an fp32 unit.
template <class V>
SPARSE_AUTOTUNE_INLINE typename V::Vec exp2_of_fraction(typename V::Vec f) {
  typename V::Vec y = V::splat(1.5252733804e-5f);
  y = V::multiply_add(V::splat(1.5403530393e-4f), y, f);
  y = V::multiply_add(V::splat(1.3333558146e-3f), y, f);
  y = V::multiply_add(V::splat(9.6181291076e-3f), y, f);
  y = V::multiply_add(V::splat(5.5504108665e-2f), y, f);
  y = V::multiply_add(V::splat(2.4022650696e-1f), y, f);
  y = V::multiply_add(V::splat(6.9314718056e-1f), y, f);
  return V::multiply_add(V::splat(1.0f), y, f);
}

template <class V, int R, int M>
SPARSE_AUTOTUNE_INLINE void multiply_lines(const Products& p, int64_t line) {
  typename V::Vec sums[M][R];
  float* const result = p.result + line * R * V::kLanes;
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) {
      sums[m][r] = p.add ? V::load(result + (m * R + r) * V::kLanes) : V::zero();
    }
  }
  const float* a = p.a + line * p.a_line;
  const float* b = p.b;
  for (int64_t k = 0; k < p.depth; ++k, a += p.a_step, b += R * V::kLanes) {
    typename V::Vec right[R];
    for (int r = 0; r < R; ++r) right[r] = V::load(b + r * V::kLanes);
    for (int m = 0; m < M; ++m) {
      const typename V::Vec left = V::broadcast(a + m * p.a_line);
      for (int r = 0; r < R; ++r) sums[m][r] = V::multiply_add(sums[m][r], left, right[r]);
    }
  }
  for (int m = 0; m < M; ++m) {
    for (int r = 0; r < R; ++r) V::store(result + (m * R + r) * V::kLanes, sums[m][r]);
  }
}

// What is left of the lines after whole tiles, by halves.
template <class V, int R, int M>
SPARSE_AUTOTUNE_INLINE void multiply_rest(const Products& p, int64_t line) {
  if (p.lines - line >= M) {
    multiply_lines<V, R, M>(p, line);
    line += M;
  }
  if constexpr (M > 1) multiply_rest<V, R, M / 2>(p, line);
}

template <class V, int R>
SPARSE_AUTOTUNE_TARGET void multiply(const Products& p) {
  int64_t line = 0;
  for (; p.lines - line >= V::kMostLines; line += V::kMostLines) {
    multiply_lines<V, R, V::kMostLines>(p, line);
  }
  for (; p.lines - line >= 4; line += 4) multiply_lines<V, R, 4>(p, line);
  multiply_rest<V, R, 2>(p, line);
}

template <class V, int R>
SPARSE_AUTOTUNE_TARGET void softmax(const SoftmaxChunk& c) {
  constexpr int kWidth = R * V::kLanes;
  typename V::Vec largest[R], base[R], totals[R];
  for (int r = 0; r < R; ++r) {
    largest[r] = V::load(c.largest + r * V::kLanes);
    totals[r] = V::zero();
  }
  for (int64_t line = 0; line < c.lines; ++line) {
    for (int r = 0; r < R; ++r) {
      largest[r] = V::max(V::load(c.scores + line * kWidth + r * V::kLanes), largest[r]);
    }
  }
  for (int r = 0; r < R; ++r) base[r] = V::max(largest[r], V::splat(kLeastScore));
  for (int64_t line = 0; line < c.lines; ++line) {
    for (int r = 0; r < R; ++r) {
      float* const at = c.scores + line * kWidth + r * V::kLanes;
      const typename V::Vec p = V::exp2(V::subtract(V::load(at), base[r]));
      V::store(at, p);
      totals[r] = V::add(totals[r], p);
    }
  }
  for (int r = 0; r < R; ++r) {
    const int64_t at = r * V::kLanes;
    const typename V::Vec factor = V::exp2(V::subtract(V::load(c.largest + at), base[r]));
    V::store(c.factor + at, factor);
    V::store(c.largest + at, largest[r]);
    V::store(c.totals + at, V::multiply_add(totals[r], V::load(c.totals + at), factor));
  }
}

template <class V, int R>
SPARSE_AUTOTUNE_TARGET void rescale(float* sums, int64_t lines, const float* factor) {
  typename V::Vec factors[R];
  for (int r = 0; r < R; ++r) factors[r] = V::load(factor + r * V::kLanes);
  for (int64_t line = 0; line < lines; ++line) {
    for (int r = 0; r < R; ++r) {
      float* const at = sums + (line * R + r) * V::kLanes;
      V::store(at, V::multiply(V::load(at), factors[r]));
    }
  }
}

template <class V, int R>
SPARSE_AUTOTUNE_TARGET void gradients(const Gradients& g) {
  for (int64_t line = 0; line < g.lines; ++line) {
    for (int r = 0; r < R; ++r) {
      const int64_t at = (line * R + r) * V::kLanes;
      const typename V::Vec lse =
          g.by_line ? V::splat(g.lse[line]) : V::load(g.lse + r * V::kLanes);
      const typename V::Vec delta =
          g.by_line ? V::splat(g.delta[line]) : V::load(g.delta + r * V::kLanes);
      const typename V::Vec p = V::exp2(V::subtract(V::load(g.scores + at), lse));
      V::store(g.scores + at, p);
      V::store(g.gradients + at, V::multiply(p, V::subtract(V::load(g.gradients + at), delta)));
    }
  }
}

template <class V>
constexpr Steps kStepsOf{V::kLanes,
                         {multiply<V, 1>, multiply<V, 2>},
                         {softmax<V, 1>, softmax<V, 2>},
                         {rescale<V, 1>, rescale<V, 2>},
                         {gradients<V, 1>, gradients<V, 2>}};

}  // namespace
}  // namespace sparse_autotune::cpu_attention
