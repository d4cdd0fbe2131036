// The micro-kernel of cpu_turned, written once over a vector type, as those of cpu_tiled are; only
// tiled_microkernel.h includes this. No std template is used inside.
#pragma once

#include "kernels/cpu/microkernels/tiled.h"
#include "kernels/cpu/microkernels/vectors.h"

namespace sparse_autotune::cpu_tiled {
namespace {

template <class V, int kRows, int kVectors>
SPARSE_AUTOTUNE_TARGET void turned_tile(const TurnedTask& t) {
  using Acc = typename V::Acc;
  constexpr int kSteps = 4;  // along k, written out
  constexpr int kWidth = turned_width(V::kTurnedRows, V::kLanes);
  typename V::Vec sum[kRows][kVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kVectors; ++v) {
    const typename V::Vec start =
        t.bias == nullptr ? V::zero() : V::load(static_cast<const Acc*>(t.bias) + v * V::kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) sum[r][v] = start;
  }
  const Indices columns = t.columns, positions = t.positions;
  const Acc* const values = static_cast<const Acc*>(t.values);
  const int64_t depth = t.depth;
  const auto block_at = [&](int64_t block) {
    return values + (positions.data == nullptr ? block : positions[block]) * t.block_stride;
  };
  Acc* const out = static_cast<Acc*>(t.out);
  const Acc* unfetched_out = out;
  const Acc* const end_of_out = out + kRows * t.out_stride;
  const Acc* next = t.count > 0 ? block_at(0) : nullptr;
  for (int64_t block = 0; block < t.count; ++block) {
    const Acc* a = next;
    next = block + 1 < t.count ? block_at(block + 1) : static_cast<const Acc*>(t.next_values);
    const Acc* fetched = next;
    const Acc* b = static_cast<const Acc*>(t.b) + columns[block] * depth * kWidth;
    const auto multiply_step = [&](int step) SPARSE_AUTOTUNE_TARGET __attribute__((always_inline)) {
      typename V::Operand row[kVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) {
        row[v] = V::load_operand(a + v * V::kLanes);
        __builtin_prefetch(fetched + v * V::kLanes);
      }
      a += kVectors * V::kLanes;
      fetched += kVectors * V::kLanes;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) {
        const typename V::Operand value = V::broadcast(b + step * kWidth + r);
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) {
          sum[r][v] = V::multiply_add(sum[r][v], value, row[v]);
        }
      }
    };
    int64_t kk = 0;
    for (; kk + kSteps <= depth; kk += kSteps) {
      if (unfetched_out < end_of_out) {
#pragma GCC unroll 16
        for (int v = 0; v < kVectors; ++v) __builtin_prefetch(unfetched_out + v * V::kLanes, 1);
        unfetched_out += t.out_stride;
      }
#pragma GCC unroll 16
      for (int step = 0; step < kSteps; ++step) multiply_step(step);
      b += kSteps * kWidth;
    }
    for (; kk < depth; ++kk) {
      multiply_step(0);
      b += kWidth;
    }
  }
  store_all<V>(out, t.out_stride, sum);
}

template <class V, int... kTiles>
void pick_turned_tile(const TurnedTask& t, std::integer_sequence<int, kTiles...>) {
  static constexpr void (*kBySize[])(const TurnedTask&) = {
      turned_tile<V, kTiles / kTurnedVectors + 1, kTiles % kTurnedVectors + 1>...};
  kBySize[(t.rows - 1) * kTurnedVectors + t.vectors - 1](t);
}

template <class V>
void multiply_turned(const TurnedTask& t) {
  pick_turned_tile<V>(t, std::make_integer_sequence<int, V::kTurnedRows * kTurnedVectors>());
}

}  // namespace
}  // namespace sparse_autotune::cpu_tiled
