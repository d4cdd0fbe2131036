// The union family's warps that multiply: each walks the group's block columns, with its block
// row's own blocks and what the ring holds of B for them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/product/small_blocks/block_stream.cuh"
#include "kernels/cuda/product/small_blocks/union_tile.cuh"
#include "variant.h"

namespace sparse_autotune {

// Where tiles of B that a batch of block columns needs lie in the ring. Bit i of each word is of
// the batch's column i.
template <typename Tile>
struct SpanMap {
  uint32_t begins;      // a stage of the ring begins here
  uint32_t slot, part;  // of a stage's spans, of a span's block columns: the number's bit 0
  uint32_t slot_high = 0, part_high;  // bit 1
  int spans = 0, last = -1;           // of the tile, up to this batch

  __device__ __forceinline__ void next_batch(int column, int many) {
    const int lane = threadIdx.x % 32;
    static_assert(Tile::kSpan <= 4 && (Tile::kSpans == 2 || Tile::kSpans == 4),
                  "numbers of two bits");
    const int span = column / Tile::kSpan;
    const int before = __shfl_up_sync(~0u, span, 1);
    const bool starts = lane < many && span != (lane == 0 ? last : before);
    const uint32_t all = __ballot_sync(~0u, starts);
    const int number = spans + __popc(all & ((2u << lane) - 1)) - 1;
    begins = __ballot_sync(~0u, starts && number % Tile::kSpans == 0);
    slot = __ballot_sync(~0u, number & 1);
    if constexpr (Tile::kSpans == 4) slot_high = __ballot_sync(~0u, number & 2);
    part = __ballot_sync(~0u, column & 1);
    part_high = __ballot_sync(~0u, Tile::kSpan == 4 && (column & 2));
    spans += __popc(all);
    last = __shfl_sync(~0u, span, many - 1);
  }
  __device__ __forceinline__ uint32_t tile(int i) const {
    return ((slot >> i & 1) + 2 * (slot_high >> i & 1)) * Tile::kSpanBytes;
  }
  // What the part's number changes in the address within a swizzled line.
  __device__ __forceinline__ uint32_t flip(int i) const {
    return ((part >> i & 1) + 2 * (part_high >> i & 1)) * Tile::kBlockK * 2;
  }
};

// The place of b_offsets()' number i in a tile. With two rows to a warp registers are dear; offsets
// differ by what swizzling flips.
template <typename Tile>
__device__ __forceinline__ uint32_t b_at(uint32_t tile, const uint32_t (&offset)[4], int i) {
  return Tile::kOwn == 1 ? tile + offset[i] : (tile + offset[0]) ^ i * 32;
}

// Multiplies a block with its tile of B: all of the warp's columns.
template <typename T, typename Tile>
__device__ __forceinline__ void multiply(
    float (&sum)[Tile::kBlockM / 16][Tile::kWarpN / 8][4],
    const uint32_t (&a)[Tile::kBlockK / 16][Tile::kBlockM / 16][4], uint32_t tile, uint32_t flip,
    const uint32_t (&offset)[4]) {
#pragma unroll
  for (int step = 0; step < Tile::kBlockK / 16; ++step) {
#pragma unroll
    for (int j = 0; j < Tile::kWarpN / 16; ++j) {
      uint32_t b[4];
      if constexpr (Tile::kCopies == UnionCopies::kTiles) {
        ldmatrix_transposed(b, b_at<Tile>(tile, offset, j % 4) + step * 16 * kLineBytes +
                                   j / 4 * Tile::kBlockK * kLineBytes);
      } else if constexpr (Tile::kSpan == 1) {
        ldmatrix(b, b_at<Tile>(tile, offset, step) + j * 16 * Tile::kBlockK * 2);
      } else {
        ldmatrix(b, (b_at<Tile>(tile, offset, step) ^ flip) + j * 16 * kLineBytes);
      }
#pragma unroll
      for (int i = 0; i < Tile::kBlockM / 16; ++i) {
        mma<T>(sum[i][2 * j], a[step][i], b);
        mma<T>(sum[i][2 * j + 1], a[step][i], b + 2);
      }
    }
  }
}

// Where this lane reads B's tiles: for each 16 columns of 64 (row-major), or each 16 k.
template <typename Tile>
__device__ __forceinline__ void b_offsets(int part, uint32_t (&offset)[4]) {
  const uint32_t lane = threadIdx.x % 32;
#pragma unroll
  for (uint32_t i = 0; i < 4; ++i) {
    if constexpr (Tile::kCopies == UnionCopies::kTiles) {
      offset[i] = part * (Tile::kWarpN / kLineHalves) * Tile::kBlockK * kLineBytes +
                  lane % 16 * kLineBytes + ((2 * i + lane / 16) ^ lane % 8) * 16;
    } else if constexpr (Tile::kSpan == 1) {
      offset[i] = chunk_offset<Tile::kBlockK * 2>(part * Tile::kWarpN + lane / 16 * 8 + lane % 8,
                                                  (2 * i + lane / 8 % 2) % (Tile::kBlockK / 8));
    } else {
      offset[i] = (part * Tile::kWarpN + lane / 16 * 8 + lane % 8) * kLineBytes +
                  ((2 * i + lane / 8 % 2) ^ lane % 8) * 16;
    }
  }
}

// Multiplies those of a block row's blocks, `left` of the batch, that meet a stage's tiles of B.
template <typename T, typename Tile, typename Stream>
__device__ __forceinline__ void multiply_stage(
    const UnionArguments& args, Stream& stream, int own, uint32_t left, uint32_t tiles,
    const SpanMap<Tile>& map, const uint32_t (&offset)[4],
    float (&sum)[Tile::kBlockM / 16][Tile::kWarpN / 8][4]) {
  while (left != 0) {
    const int i = __ffs(static_cast<int>(left)) - 1;
    left &= left - 1;
    uint32_t tile = tiles, flip = 0;
    if constexpr (Tile::kSpan > 1) {
      tile += map.tile(i);
      flip = map.flip(i);
    } else {
      tile += i % Tile::kColumns * Tile::kTileBytes;
    }
    uint32_t a[Tile::kBlockK / 16][Tile::kBlockM / 16][4];
    stream.take(a, own);
    multiply<T, Tile>(sum, a, tile, flip, offset);
    stream.refill(args, own);
  }
}

// One of the warps that multiply.
template <typename T, typename Tile, bool kTransposedA>
__device__ __forceinline__ void consume_union(const UnionArguments& args,
                                              const UnionShared<Tile>& shared, int warp) {
  constexpr int kOwn = Tile::kOwn;
  using Stream = BlockStream<Tile, kTransposedA, kOwn>;
  const int lane = threadIdx.x % 32, row = warp / Tile::kWarpsN;
  uint32_t offset[4];
  b_offsets<Tile>(warp % Tile::kWarpsN, offset);
  RingPlace<Tile::kStages> at;
  typename Tile::Queue queue(shared.queue());
  StripStore<T, Tile> store(shared.store(), warp);
  Stream stream(shared.stream(warp));

  int2 column{};   // this lane's of the next batch of 32
  int rows[kOwn];  // this warp's block rows
  const auto start = [&]() {
    UnionPlace place;
    const TileTask task = queue.pop(&place);
    if (task.valid) {
      column = load_group_column(args.columns, task.begin + lane, task.end);
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        const int own_row = own * Tile::kRows + row;
        rows[own] = __shfl_sync(~0u, place.row, own_row);
        stream.start(args, __shfl_sync(~0u, place.begin, own_row),
                     __shfl_sync(~0u, place.end, own_row), own);
      }
    }
    return task;
  };
  const auto release = [&]() {
    if constexpr (Tile::kCopies == UnionCopies::kChunks) {
      // Each lane for itself: racecheck looks at cp.async, unlike at TMA, and does not see that one
      // lane may speak for its warp.
      mbarrier_arrive(shared.empty(at.stage));
    } else {
      __syncwarp();
      if (lane == 0) mbarrier_arrive(shared.empty(at.stage));
    }
    at.advance();
  };

  for (TileTask task = start(); task.valid;) {
    float sum[kOwn][Tile::kWarpM / 16][Tile::kWarpN / 8][4] = {};
    SpanMap<Tile> map;
    for (int begin = task.begin; begin < task.end; begin += 32) {
      const int many = min(task.end - begin, 32);
      uint32_t present[kOwn];
#pragma unroll
      for (int own = 0; own < kOwn; ++own) {
        present[own] = __ballot_sync(~0u, column.y >> (own * Tile::kRows + row) & 1);
      }
      if constexpr (Tile::kSpan > 1) map.next_batch(column.x, many);
      column = load_group_column(args.columns, begin + 32 + lane, task.end);
      for (int first = 0; first < many;) {
        uint32_t here;  // of the batch, what the stage holds
        if constexpr (Tile::kSpan > 1) {
          if (map.begins >> first & 1) {
            if (begin + first > task.begin) release();
            mbarrier_wait(shared.full(at.stage), at.parity);
          }
          // Up to where the next stage begins.
          const uint32_t later = map.begins & ~((2u << first) - 1);
          here = ((later & -later) - 1) & ~((1u << first) - 1);
          first = later != 0 ? __ffs(static_cast<int>(later)) - 1 : 32;
        } else {
          mbarrier_wait(shared.full(at.stage), at.parity);
          here = ((1u << Tile::kColumns) - 1) << first;
          first += Tile::kColumns;
        }
        const uint32_t tiles = shared.stage(at.stage);
#pragma unroll
        for (int own = 0; own < kOwn; ++own) {
          multiply_stage<T, Tile>(args, stream, own, present[own] & here, tiles, map, offset,
                                  sum[own]);
        }
        if constexpr (Tile::kSpan == 1) release();
      }
    }
    if (Tile::kSpan > 1 && task.begin < task.end) release();
    const TileTask done = task;
    int done_rows[kOwn];
#pragma unroll
    for (int own = 0; own < kOwn; ++own) done_rows[own] = rows[own] * Tile::kBlockM;
    task = start();  // its first blocks are on their way while this tile leaves
#pragma unroll
    for (int own = 0; own < kOwn; ++own) {
      store.write(args, sum[own], done_rows[own], done.column, done.batch);
    }
  }
  store.close();
}

}  // namespace sparse_autotune
