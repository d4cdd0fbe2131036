// From what the caller says to the launches of attention_backward_tiled_sm80.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_backward_rows.cuh"
#include "kernels/cuda/attention/tiled_backward_sm80.cuh"
#include "kernels/cuda/host/kernel_code.h"

namespace sparse_autotune {

template <typename T, int kDim, bool kOfColumns>
constinit KernelCode<BackwardArgumentsSm80> attention_backward_code_sm80{
    &attention_backward_kernel_sm80<T, kDim, kOfColumns>};

constexpr int kTiledBackwardRows = 64;

// lse and delta, then lists of tiles of rows, or of columns.
inline int64_t tiled_backward_workspace_bytes(const AttentionBackward& a, int64_t capacity,
                                              int64_t row_capacity) {
  constexpr int kRows = kTiledBackwardRows;
  const AttentionShape& s = a.shape;
  return row_values_bytes(s, ceil_div(s.rows, kRows)) +
         std::max(tile_lists_bytes(a.mask, s, kRows, capacity),
                  tile_lists_bytes(by_column(a), by_column(s), kRows, row_capacity));
}

template <typename T, int kDim>
Status launch_tiled_backward_sm80(const AttentionBackward& a, std::string_view name) {
  const AttentionShape& s = a.shape;
  constexpr int kTileRows = kTiledBackwardRows;
  const BackwardRows rows = backward_rows(a, ceil_div(s.rows, kTileRows));
  if (auto launched = launch_before<T, kDim, false>(rows, a, name); !launched) return launched;

  const auto run = [&](auto of_columns, BackwardArgumentsSm80 args, int64_t heads) {
    constexpr bool kOfColumns = decltype(of_columns)::value;
    const AttentionShape shape = kOfColumns ? by_column(s) : s;
    if (auto made = make_tile_lists(args.mask, shape, kTileRows, rows.sums, a.stream, &args.lists);
        !made) {
      return made;
    }
    args.lse = rows.scaled_lse;
    args.delta = rows.delta;
    args.padded_rows = rows.row_tiles * kTileRows;
    args.own_rows = static_cast<int>(shape.rows);
    args.step_rows = static_cast<int>(shape.columns);
    args.heads = static_cast<int>(s.heads);
    args.group = static_cast<int>(s.heads / s.kv_heads);
    args.scale_log2 = static_cast<float>(a.scale * M_LOG2E);
    args.scale = rows.scale;
    args.is_causal = a.is_causal;
    using Kernel = TiledBackward<T, kDim, kOfColumns>;
    const dim3 blocks(static_cast<unsigned>(ceil_div(shape.rows, kTileRows)),
                      static_cast<unsigned>(heads), static_cast<unsigned>(s.batch));
    return attention_backward_code_sm80<T, kDim, kOfColumns>.launch(
        args, blocks, Kernel::kThreads, Kernel::kSharedBytes, a.stream, name);
  };
  if (auto launched = run(std::false_type{}, {a.q, a.dout, a.k, a.v, a.dq, {}, a.mask}, s.heads);
      !launched) {
    return launched;
  }
  return run(std::true_type{}, {a.k, a.v, a.q, a.dout, a.dk, a.dv, by_column(a)}, s.kv_heads);
}

}  // namespace sparse_autotune
