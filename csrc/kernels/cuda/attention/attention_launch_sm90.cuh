// From what the caller says to a launch of attention_sm90 with one tile.
#pragma once

#include <algorithm>

#include "kernels/cuda/attention/attention_consumer_sm90.cuh"
#include "kernels/cuda/attention/attention_kernel_sm90.cuh"
#include "kernels/cuda/attention/attention_maps_sm90.h"
#include "kernels/cuda/attention/attention_producer_sm90.cuh"
#include "kernels/cuda/attention/item_split.h"
#include "kernels/cuda/host/kernel_code.h"

namespace sparse_autotune {

template <typename T, typename TileShape>
struct AttentionPassSm90 {
  using Tile = TileShape;
  using Arguments = AttentionArgumentsSm90;
  using Shared = AttentionShared<Tile>;
  using Producer = AttentionProducer<Tile>;
  using Consumer = AttentionConsumer<T, Tile>;
  static constexpr bool kIsBackward = false;
  static constexpr int kProducerRegisters = Tile::kUsers == 3 ? 32 : 40;
  static constexpr int kConsumerRegisters = Tile::kUsers == 3 ? 160 : 232;
};

template <typename T, typename Tile>
constinit KernelCode<AttentionArgumentsSm90> attention_code_sm90{
    &attention_kernel_sm90<AttentionPassSm90<T, Tile>>, true};

template <typename T, typename Tile>
Status launch_attention_sm90(const attention::Problem& p, const attention::Launch& l,
                             const ItemSplit& split, std::string_view name) {
  const AttentionForward a = attention::forward_arguments(p, l);
  const AttentionShape& s = a.shape;
  const Device& device = *l.device;
  AttentionArgumentsSm90 args;
  const auto map = [&](const AttentionTensor& t, int64_t rows, int64_t heads, uint32_t box,
                       CUtensorMap* to) { return map_boxes(t, p.dtype, rows, heads, s, box, to); };
  if (auto made = map(a.q, s.rows, s.heads, kUserRows, &args.q); !made) return made;
  if (auto made = map(a.k, s.columns, s.kv_heads, Tile::kPiece, &args.k); !made) return made;
  if (auto made = map(a.v, s.columns, s.kv_heads, Tile::kPiece, &args.v); !made) return made;
  if (Tile::kCopiesOut) {
    if (auto made = map(a.out, s.rows, s.heads, kWarpRows, &args.out_rows); !made) return made;
  }
  if (Tile::kMerges) {
    if (auto made = make_tile_lists(a.mask, s, Tile::kRows, a.workspace, a.stream, &args.lists);
        !made) {
      return made;
    }
  }
  unsigned* counter = tile_counter(device.ordinal, static_cast<cudaStream_t>(l.stream));
  describe_work(a, Tile::kRows, device, counter, &args);
  if (Tile::kSplits) split.apply(lists_bytes(p, Tile::kRows), l, &args);
  const auto blocks = static_cast<unsigned>(
      std::min<int64_t>(ceil_div(args.items, Tile::kPipelines), device.multiprocessors));
  return attention_code_sm90<T, Tile>.launch(args, blocks, threads_of<AttentionPassSm90<T, Tile>>(),
                                             Tile::kSharedBytes, a.stream, name);
}

}  // namespace sparse_autotune
