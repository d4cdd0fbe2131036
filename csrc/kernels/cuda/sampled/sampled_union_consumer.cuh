// What the warps of sampled_union_sm90 do that multiply: each holds the sums of some units of a
// region, stores them or, where sums have parts, leaves its part and adds them up if its thread
// block is the last.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/sampled/sampled_union_region.cuh"
#include "kernels/cuda/sampled/sampled_union_tile.cuh"
#include "row_orders.h"

namespace sparse_autotune {

// 16 rows (kLeft) or columns of values by 16 terms, as mma.sync wants them, from boxes that TMA
// swizzled. kTerms: lines have 32 terms of one row or column; otherwise 64 of those for one term.
template <bool kLeft, bool kTerms>
struct BoxFragment {
  // Byte offset that this lane reads in the ring's stage, for the first 16 terms.
  static __device__ __forceinline__ uint32_t offset(int sixteen) {
    const uint32_t lane = threadIdx.x % 32, low = lane / 8 % 2, high = lane / 16;
    if constexpr (kTerms) {
      const uint32_t line = lane % 8 + (kLeft ? low : high) * 8, chunk = kLeft ? high : low;
      return sixteen * (16 * kBoxTerms * 2) + line / 2 * 128 +
             (line % 2 * 4 + (chunk ^ line / 2 % 4)) * 16;
    } else {
      const uint32_t line = lane % 8 + (kLeft ? high : low) * 8, chunk = kLeft ? low : high;
      return sixteen / 4 * kBoxBytes + line * 128 + ((sixteen % 4 * 2 + chunk) ^ lane % 8) * 16;
    }
  }
  // The same for the unit's 16 number i, and terms 16 * slice on.
  static __device__ __forceinline__ void load(uint32_t (&word)[4], uint32_t address, int i,
                                              int slice) {
    if constexpr (kTerms) {
      ldmatrix(word, (address ^ slice * 32) + i * (16 * kBoxTerms * 2));
    } else {
      ldmatrix_transposed(word, (address ^ i * 32) + slice * 16 * 128);
    }
  }
};

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
class SampledUnionConsumer {
 public:
  __device__ __forceinline__ SampledUnionConsumer(const SampledUnionArguments& args,
                                                  const SampledUnionShared<Tile>& shared)
      : args_(args), shared_(shared), warp_(threadIdx.x / 32) {}

  // A region's units over `steps` stages. `part`: of its sums, -1: the only one.
  __device__ __forceinline__ void work(const SampledRegion& region, int steps, int part) {
    const int first = part_begin(region.units, Tile::kWarps, warp_);
    const int count = part_begin(region.units, Tile::kWarps, warp_ + 1) - first;
    float sum[Tile::kSlots][Tile::kUnitSums] = {};
    multiply(shared_.units() + first, count, region, steps, sum);
    if (part >= 0 && !add_parts(count, part, sum)) return;
    // Counted anew, as there are registers for little more than the sums meanwhile.
    const SampledUnit* const units =
        shared_.units() + part_begin(shared_.notes().units, Tile::kWarps, warp_);
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i) {
      if (i < count) store(units[i], sum[i]);
    }
  }

 private:
  using Left = BoxFragment<true, kTermsC>;
  using Right = BoxFragment<false, kTermsB>;
  static constexpr int kSlices = kBoxTerms / 16;

  __device__ __forceinline__ void multiply(const SampledUnit* units, int count,
                                           const SampledRegion& region, int steps,
                                           float (&sum)[Tile::kSlots][Tile::kUnitSums]) {
    // Offsets of both operands in 16s of bytes, and which units have another row than that before.
    uint32_t places[Tile::kSlots], fresh = 0;
    int row = -1;
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i) {
      places[i] = 0;
      if (i >= count) continue;
      const SampledUnit unit = units[i];
      places[i] = Left::offset(unit.row) / 16 |
                  (Right::offset(unit.column) + region.boxes * kBoxBytes) / 16 << 16;
      if (unit.row != row) fresh |= 1u << i;
      row = unit.row;
    }
    const int boxes = region.boxes + region.panels, stages = ring_stages(boxes);
    SampledUnionPlace at;
    for (int step = 0; step < steps; ++step) {
      mbarrier_wait(shared_.full(at.stage), at.parity);
      const uint32_t stage = shared_.ring + at.stage * boxes * kBoxBytes;
      uint32_t left[kSlices][Tile::kTilesM][4];
#pragma unroll
      for (int i = 0; i < Tile::kSlots; ++i) {
        if (i >= count) break;
        if (fresh >> i & 1) {
          const uint32_t from = stage + (places[i] & 0xffff) * 16;
#pragma unroll
          for (int s = 0; s < kSlices; ++s) {
#pragma unroll
            for (int m = 0; m < Tile::kTilesM; ++m) Left::load(left[s][m], from, m, s);
          }
        }
        const uint32_t from = stage + (places[i] >> 16) * 16;
#pragma unroll
        for (int s = 0; s < kSlices; ++s) {
          uint32_t right[Tile::kTilesK][4];
#pragma unroll
          for (int k = 0; k < Tile::kTilesK; ++k) Right::load(right[k], from, k, s);
#pragma unroll
          for (int m = 0; m < Tile::kTilesM; ++m) {
#pragma unroll
            for (int k = 0; k < 2 * Tile::kTilesK; ++k) {
              mma<T>(sum[i] + (m * 2 * Tile::kTilesK + k) * 4, left[s][m],
                     right[k / 2] + k % 2 * 2);
            }
          }
        }
      }
      __syncwarp();
      if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_.empty(at.stage));
      at.advance(stages);
    }
  }

  // A unit's sums to values.
  __device__ __forceinline__ void store(const SampledUnit& unit,
                                        const float (&sum)[Tile::kUnitSums]) const {
    const int lane = threadIdx.x % 32;
    T* const to = static_cast<T*>(args_.sampled) +
                  int64_t{unit.block} * (args_.block_m * args_.block_k) + unit.within +
                  lane / 4 * args_.block_k + lane % 4 * 2;
#pragma unroll
    for (int m = 0; m < Tile::kTilesM; ++m) {
#pragma unroll
      for (int k = 0; k < 2 * Tile::kTilesK; ++k) {
        const float* const x = sum + (m * 2 * Tile::kTilesK + k) * 4;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const T pair[2] = {static_cast<T>(x[2 * half]), static_cast<T>(x[2 * half + 1])};
          *reinterpret_cast<uint32_t*>(to + (m * 16 + half * 8) * args_.block_k + k * 8) =
              *reinterpret_cast<const uint32_t*>(pair);
        }
      }
    }
  }

  // Leaves a part's sums in the workspace, in fp32. The last to come adds all up in their order,
  // and is told so.
  __device__ __forceinline__ bool add_parts(int count, int part,
                                            float (&sum)[Tile::kSlots][Tile::kUnitSums]) {
    const int tile = shared_.notes().tile;  // no register holds it while others are wanted
    const auto place = [&](int of) {
      return reinterpret_cast<float4*>(args_.partials +
                                       (int64_t{tile} * args_.parts + of) * Tile::kPartFloats) +
             threadIdx.x;
    };
    float4* const mine = place(part);
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i) {
      if (i >= count) break;
#pragma unroll
      for (int j = 0; j < Tile::kUnitSums; j += 4) {
        const float* const x = sum[i] + j;
        __stcg(mine + (i * Tile::kUnitSums + j) / 4 * Tile::kConsumers,
               make_float4(x[0], x[1], x[2], x[3]));
      }
    }
    __threadfence();
    Tile::sync_consumers();
    if (threadIdx.x == 0) {
      // 0 again then.
      shared_.notes().is_last = atomicInc(args_.counters + tile, args_.parts - 1) ==
                                static_cast<unsigned>(args_.parts - 1);
    }
    Tile::sync_consumers();
    if (shared_.notes().is_last == 0) return false;
    __threadfence();
#pragma unroll
    for (int i = 0; i < Tile::kSlots; ++i) {
#pragma unroll
      for (float& x : sum[i]) x = 0;
    }
    constexpr int kAtOnce = 4;  // loads on their way
    const int loads = count * Tile::kUnitSums / 4;
    for (int of = 0; of < args_.parts; ++of) {
      const float4* const from = place(of);
#pragma unroll
      for (int first = 0; first < Tile::kSlots * Tile::kUnitSums / 4; first += kAtOnce) {
        if (first >= loads) break;
        float4 found[kAtOnce];
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          found[i] = first + i < loads ? __ldcg(from + (first + i) * Tile::kConsumers) : float4{};
        }
#pragma unroll
        for (int i = 0; i < kAtOnce; ++i) {
          const int at = 4 * (first + i);
          if (at >= Tile::kSlots * Tile::kUnitSums) continue;
          float* const x = &sum[at / Tile::kUnitSums][at % Tile::kUnitSums];
          x[0] += found[i].x;
          x[1] += found[i].y;
          x[2] += found[i].z;
          x[3] += found[i].w;
        }
      }
    }
    return true;
  }

  const SampledUnionArguments& args_;
  const SampledUnionShared<Tile>& shared_;
  const int warp_;
};

}  // namespace sparse_autotune
