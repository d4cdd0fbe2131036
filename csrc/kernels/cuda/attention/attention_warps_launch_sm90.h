// What launches of attention_warps_sm90 and attention_backward_warps_sm90 share: maps and lists of
// pieces.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/attention_maps_sm90.h"
#include "kernels/cuda/attention/attention_warps_tile_sm90.cuh"
#include "kernels/cuda/attention/tile_lists.h"

namespace sparse_autotune {

// `heads`: of k and v.
template <typename Tile>
Status map_pieces(const AttentionTensor& k, const AttentionTensor& v, DType dtype,
                  const AttentionShape& s, int64_t heads, WarpRowsMaps* maps) {
  const auto map = [&](const AttentionTensor& t, uint32_t box, CUtensorMap* to) {
    return map_boxes(t, dtype, s.columns, heads, s, box, to);
  };
  if (auto made = map(k, Tile::kPiece, &maps->k); !made) return made;
  if (auto made = map(v, Tile::kPiece, &maps->v); !made) return made;
  if (auto made = map(k, Tile::kLines, &maps->k_stages); !made) return made;
  return map(v, Tile::kLines, &maps->v_stages);
}

// Of the work's mask, in memory of as many bytes as tile_lists_bytes() says.
template <typename Tile>
Status list_pieces(const AttentionShape& s, void* memory, void* stream, AttentionWork* work) {
  const AttentionMask& mask = work->mask;
  const int columns = std::max(1, Tile::kLines / mask.block_n);  // of a stage
  // Copies bound the forward pass where fewer than two warps of 16 rows multiply a piece.
  const int least_warps = Tile::kPass == WarpRowsPass::kForward && !Tile::kSharesQ ? 2 : 0;
  return make_tile_lists(mask, s, Tile::kRows, memory, stream, &work->lists, columns,
                         least_warps * Tile::kWarpRows / mask.block_m);
}

}  // namespace sparse_autotune
