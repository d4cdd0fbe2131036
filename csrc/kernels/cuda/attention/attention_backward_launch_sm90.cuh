// From what the caller says to the launches of attention_backward_sm90 with one tile.
#pragma once

#include <algorithm>
#include <cmath>

#include "kernels/cuda/attention/attention_backward_consumer_sm90.cuh"
#include "kernels/cuda/attention/attention_backward_producer_sm90.cuh"
#include "kernels/cuda/attention/attention_backward_rows.cuh"
#include "kernels/cuda/attention/attention_kernel_sm90.cuh"
#include "kernels/cuda/attention/attention_maps_sm90.h"
#include "kernels/cuda/host/kernel_code.h"

namespace sparse_autotune {

template <typename T, typename TileShape>
struct AttentionBackwardPassSm90 {
  using Tile = TileShape;
  using Arguments = AttentionBackwardArgumentsSm90;
  using Shared = AttentionBackwardShared<Tile>;
  using Producer = AttentionBackwardProducer<Tile>;
  using Consumer = AttentionBackwardConsumer<T, Tile>;
  static constexpr bool kIsBackward = true;
  static constexpr int kProducerRegisters = 24, kConsumerRegisters = 240;
};

template <typename T, typename Tile>
constinit KernelCode<AttentionBackwardArgumentsSm90> attention_backward_code_sm90{
    &attention_kernel_sm90<AttentionBackwardPassSm90<T, Tile>>, true};

// Tiles of 64 rows of q, those of a ragged last step or block row included: its rows past the end
// have exponentials of zero.
inline int64_t row_tiles_of(const AttentionShape& s, const AttentionMask& m) {
  const int64_t block = std::max<int64_t>(m.block_m, 1);
  return ceil_div(ceil_div(s.rows, block) * block, kMostStepRows) * (kMostStepRows / kDqRows);
}

// Bytes of values, of sums of dq and of counters; lists of merged columns are behind them.
inline int64_t row_sums_bytes(const AttentionShape& s, const AttentionMask& m) {
  const int64_t tiles = row_tiles_of(s, m);
  return row_values_bytes(s, tiles) + s.batch * s.heads * tiles * kDqRows * s.dim * 4 +
         ceil_div(s.batch * s.heads, 4) * 16;
}

template <typename T, typename Tile>
Status launch_attention_backward_sm90(const AttentionBackward& a, DType dtype, const Device& device,
                                      unsigned* counter, std::string_view name) {
  const AttentionShape& s = a.shape;
  AttentionBackwardArgumentsSm90 args;
  const auto map = [&](const AttentionTensor& t, int64_t rows, int64_t heads, uint32_t box,
                       CUtensorMap* to) { return map_boxes(t, dtype, rows, heads, s, box, to); };
  if (auto made = map(a.q, s.rows, s.heads, Tile::kPiece, &args.q); !made) return made;
  if (auto made = map(a.k, s.columns, s.kv_heads, kUserColumns, &args.k); !made) return made;
  if (auto made = map(a.v, s.columns, s.kv_heads, kUserColumns, &args.v); !made) return made;
  if (auto made = map(a.dout, s.rows, s.heads, Tile::kPiece, &args.dout); !made) return made;
  BackwardRows rows = backward_rows(a, row_tiles_of(s, a.mask));
  args.dk = a.dk;
  args.dv = a.dv;
  args.mask = by_column(a);
  if constexpr (Tile::kMerges) {
    auto* lists = static_cast<char*>(a.workspace) + row_sums_bytes(s, a.mask);
    if (auto made =
            make_tile_lists(args.mask, by_column(s), Tile::kColumns, lists, a.stream, &args.lists);
        !made) {
      return made;
    }
  }
  args.lse = rows.scaled_lse;
  args.delta = rows.delta;
  args.counter = counter;
  args.rows = static_cast<int>(s.rows);
  args.columns = static_cast<int>(s.columns);
  args.heads = static_cast<int>(s.heads);
  args.group = static_cast<int>(s.heads / s.kv_heads);
  args.row_tiles = rows.row_tiles;
  args.column_tiles = static_cast<int>(ceil_div(s.columns, Tile::kColumns));
  const int heads = static_cast<int>(s.batch * s.kv_heads);
  args.items = args.column_tiles * heads;
  const bool items_differ = a.is_causal || args.mask.crow_indices != nullptr;
  args.ordered = items_differ ? std::min(args.items, Tile::kOrdered) : 0;
  rows.heads_cleared = args.group;
  rows.cleared = reinterpret_cast<int*>(rows.sums + (rows.delta - rows.scaled_lse) * s.dim);
  args.dq = {rows.sums, rows.cleared, heads, args.column_tiles, args.group * rows.row_tiles};
  args.scale_log2 = static_cast<float>(a.scale * M_LOG2E);
  args.scale = rows.scale;
  args.is_causal = a.is_causal;

  if (auto launched = launch_before<T, Tile::kDim, true>(rows, a, name); !launched) return launched;
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(ceil_div(args.items, Tile::kPipelines), device.multiprocessors));
  if (auto launched = attention_backward_code_sm90<T, Tile>.launch(
          args, blocks, threads_of<AttentionBackwardPassSm90<T, Tile>>(), Tile::kSharedBytes,
          a.stream, name);
      !launched) {
    return launched;
  }
  return launch_after<T, Tile::kDim>(rows, a, name);
}

}  // namespace sparse_autotune
