// From what the caller says to a launch of attention_tiled_sm80 with one tile.
#pragma once

#include <cmath>

#include "kernels/cuda/attention/tiled_attention_sm80.cuh"
#include "kernels/cuda/host/kernel_code.h"

namespace sparse_autotune {

template <typename T, typename Tile>
constinit KernelCode<AttentionArgumentsSm80> attention_code_sm80{&attention_kernel_sm80<T, Tile>};

template <typename T, typename Tile>
Status launch_attention_sm80(const AttentionForward& a, std::string_view name) {
  const AttentionShape& s = a.shape;
  AttentionArgumentsSm80 args{a.q, a.k, a.v, a.out, a.lse, a.mask, {}};
  if (auto made = make_tile_lists(a.mask, s, Tile::kRows, a.workspace, a.stream, &args.lists);
      !made) {
    return made;
  }
  args.rows = static_cast<int>(s.rows);
  args.columns = static_cast<int>(s.columns);
  args.heads = static_cast<int>(s.heads);
  args.group = static_cast<int>(s.heads / s.kv_heads);
  args.scale_log2 = positive_scale(a.scale);
  args.is_negative = a.scale < 0;
  args.is_causal = a.is_causal;
  const dim3 grid(static_cast<unsigned>(ceil_div(s.rows, Tile::kRows)),
                  static_cast<unsigned>(s.heads), static_cast<unsigned>(s.batch));
  return attention_code_sm80<T, Tile>.launch(args, grid, Tile::kThreads, Tile::kSharedBytes,
                                             a.stream, name);
}

}  // namespace sparse_autotune
