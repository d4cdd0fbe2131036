// The two warpgroups of a wgmma kernel that multiply what the rings of wgmma_tile.cuh hold.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/product/large_blocks/store_tile.cuh"
#include "kernels/cuda/product/large_blocks/wgmma_tile.cuh"

namespace sparse_autotune {

// A warpgroup. `kSplits`: tiles of parts of rows leave as partial sums.
template <typename T, typename Tile, bool kTransposedA, bool kRowMajorB, bool kSplits>
__device__ __forceinline__ void consume_wgmma(const WgmmaArguments& args,
                                              const Shared<Tile>& shared, int consumer) {
  constexpr int kWidth = Tile::kWidth;
  const int lane = threadIdx.x % 32;
  const int slices = args.block_k / kStepOf<T>;
  RingPlace<Tile::kStagesA> at_a;
  RingPlace<Tile::kStagesB> turn_b;
  const uint32_t part = Tile::kTall ? 0 : consumer;
  // The producer fills the stages in turn, with both parts of a step next to each other.
  const auto stage_b = [&] {
    const uint32_t i = turn_b.stage * Tile::kPartsB + part;
    return i < Tile::kStagesB ? i : i - Tile::kStagesB;
  };

  // Of the cluster's other thread block.
  const uint32_t others_empty =
      Tile::kCluster > 1 ? in_block(shared.a_empty(0), cluster_rank() ^ 1) : 0;
  const auto release = [&](uint32_t a, uint32_t b) {
    if (lane != 0) return;
    mbarrier_arrive(shared.a_empty(a));
    if constexpr (Tile::kCluster > 1) cluster_arrive(others_empty + a * 8);
    mbarrier_arrive(shared.b_empty(b));
  };
  const auto wait_for_step = [&] {
    mbarrier_wait(shared.a_full(at_a.stage), at_a.parity);
    mbarrier_wait(shared.b_full(part, turn_b.stage), turn_b.parity);
  };

  Queue queue(shared.queue());
  const uint32_t buffers = shared.store(consumer);
  auto store = [&] {
    if constexpr (sizeof(T) == 4) {
      return ImmediateStore<kWidth>(args.direct, buffers, args.c_rows);
    } else if constexpr (Tile::kDirect) {
      return DeferredStore<T, kWidth, DirectSink>(DirectSink(args.direct), buffers, 1 + consumer,
                                                  args.n, args.c_rows);
    } else {
      return DeferredStore<T, kWidth, TmaSink>(TmaSink(args.c_map), buffers, 1 + consumer, args.n,
                                               args.c_rows);
    }
  }();
  float sum[kWidth / 2];
  for (TileTask task = queue.pop(); task.valid; task = queue.pop()) {
    const int steps = (task.end - task.begin) * slices;
    const int sends = store.sends_each(steps);
    int m0 = task.row + (Tile::kTall ? consumer * 64 : 0);
    int n0 = task.column + (Tile::kTall ? 0 : consumer * kWidth);
    if (Tile::kPairs && consumer == 0) m0 = task.row;
    if (Tile::kPairs && consumer == 1) m0 = max(task.slot, 0) * args.block_m;
    if (Tile::kPairs && consumer == 1 && task.slot < 0) n0 = args.n;  // nothing to store
    float low = 0, high = 0;
    if (args.bias != nullptr) {
      const T* bias = static_cast<const T*>(args.bias) + m0 + threadIdx.x / 32 % 4 * 16 + lane / 4;
      low = static_cast<float>(bias[0]);
      high = static_cast<float>(bias[8]);
    }

    uint32_t last_a = 0, last_b = 0;        // stages of the multiplication before
    bool multiplied = false, held = false;  // whether there was one, and its stages are in use
    for (int step = 0; step < steps; ++step) {
      wait_for_step();
      if constexpr (Tile::kPairs) {
        // Steps of the other consumer's row alone.
        while ((shared.rows_of(at_a.stage) >> consumer & 1) == 0) {
          if (held) {
            wgmma::wait<0>();
            release(last_a, last_b);
            held = false;
          }
          release(at_a.stage, stage_b());
          at_a.advance();
          turn_b.advance();
          if (++step == steps) break;
          wait_for_step();
        }
        if (step == steps) break;
      }
      const uint32_t b_stage = stage_b();
      const uint32_t a_tile =
          shared.a_tile(at_a.stage) + (Tile::kTall ? consumer * 64 : 0) * kLineBytes;
      wgmma::fence();
      wgmma::multiply_lines<T, kWidth, kRowMajorB, kTransposedA>(
          sum, a_tile, shared.b_tile(b_stage), multiplied);
      wgmma::commit();
      wgmma::wait<1>();
      if (held) release(last_a, last_b);
      multiplied = held = true;
      last_a = at_a.stage;
      last_b = b_stage;
      at_a.advance();
      turn_b.advance();
      for (int i = 0; i < sends; ++i) store.advance();
    }
    wgmma::wait<0>();
    if (held) release(last_a, last_b);
    if (multiplied) {
      wgmma::pin(sum);
      if constexpr (kSplits) {
        if (task.slot >= 0) {
          float* units = args.partials.tile(task.batch, task.slot, task.strip / Tile::kM,
                                            task.column / Tile::kN) +
                         consumer * (kWidth / 64) * kUnitFloats;
#pragma unroll
          for (int i = 0; i < kWidth / 64; ++i) {
            if (n0 + i * 64 < args.n) store_unit(units + i * kUnitFloats, sum, i);
          }
          continue;
        }
      }
      store.begin(m0, n0, task.batch);
      store.finish(sum, low, high, args.activation);
    } else {
      store.begin(m0, n0, task.batch);
      store.finish_empty(low, high, args.activation);
    }
  }
  store.close();
}

}  // namespace sparse_autotune
