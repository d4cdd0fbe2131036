// The kernel of small_n_halves_sm90: few columns, B in shared memory, by halves.
//
// Two thread blocks on two multiprocessors (a cluster) own up to 14 strips of 16 rows by up to 16
// columns of C; each has one half of k, and of B that half alone. Of both, two warps share out a
// strip's stored blocks within the half, in turn: the first from the row's beginning on, the second
// from its end, so that neither has to look for its first block.
// Data path: B, a column at a time by bulk copies -> shared memory; values straight from global
// memory to registers, 112 KB of them on their way -> mma.sync, whose M are the columns of C ->
// fp32 sums in registers -> to one warp of the four (st.async), which adds them up in a fixed order
// -> C.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/product/few_columns/ask_ahead.cuh"
#include "kernels/cuda/product/few_columns/bulk_load.cuh"
#include "kernels/cuda/product/few_columns/gathered_sums.cuh"
#include "kernels/cuda/product/few_columns/load_index_word.cuh"
#include "kernels/cuda/product/few_columns/small_n_kernel.cuh"
#include "variant.h"

namespace sparse_autotune {

// A unit is a stored block.
struct HalvesTile {
  static constexpr int kBlockSide = 16, kLine = kBlockSide * 2, kBlockBytes = kBlockSide * kLine;
  static constexpr int kWidth = 16;                   // columns of C
  static constexpr int kStripsMost = 14, kShare = 2;  // kShare: warps of a thread block for a strip
  static constexpr int kThreads = 32 * kStripsMost * kShare;
  static constexpr int kFinished = kStripsMost / 2;  // strips that a thread block finishes
  static constexpr int kOthers = 2 * kShare - 1;     // warps whose sums one warp adds to its own
  static constexpr int kPiece = 8;                   // bytes of a row that a lane multiplies
  static constexpr int kAhead = 8;                   // units on their way, 4 KB a warp
  // Columns of B lie so far apart, modulo 128 bytes, that those of a load meet no bank conflicts.
  static constexpr int kSpread = 32;
  static constexpr int kSumBytes = kBlockSide * kWidth * 4;
  // Of shared memory, beside B: received sums, barriers.
  static constexpr int kFixedBytes = kFinished * kOthers * kSumBytes + (1 + kFinished) * 8;
};

struct HalvesArguments : SmallNArguments {
  int index_bytes;
  bool stores_quads;        // 8 bytes of a column of C at a time
  int strips_each, more;    // strips of a pair; so many pairs have one more
  int half, block_columns;  // block columns in the first half, and in all
  int line_bytes;           // from one column of B to the next in shared memory
  // Of the values, asked into L2 by each warp before the kernel may read, value_step apart.
  unsigned value_bytes;
};

// Where a warp works. `thread` is volatile so that what follows from it need not be kept in
// registers over the loop but is found again behind it.
struct HalvesPlace {
  int lane, local, part;  // local: of the pair's strips; part: of the warps that share it out
  int rank, strip, strips;

  static __device__ __forceinline__ HalvesPlace find(const HalvesArguments& args) {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;\n" : "=r"(thread));
    const int warp = __shfl_sync(~0u, thread / 32, 0);  // the same in all lanes
    const int pair = static_cast<int>(blockIdx.x / 2), local = warp / HalvesTile::kShare;
    return {thread % 32,
            local,
            warp % HalvesTile::kShare,
            static_cast<int>(blockIdx.x % 2),
            pair * args.strips_each + min(pair, args.more) + local,
            args.strips_each + (pair < args.more ? 1 : 0)};
  }
};

// A lane's piece of a row of values, if it is present. Not ld.global.nc: see load_index_word.
__device__ __forceinline__ void load_values(bool present, uint32_t* to, const char* from) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.u32 p, %3, 0;\n"
      "@p ld.global.L1::no_allocate.v2.u32 {%0, %1}, [%2];\n}\n"
      : "+r"(to[0]), "+r"(to[1])
      : "l"(from), "r"(static_cast<int>(present)));
}

// Of a place in this thread block's shared memory, the same in another of the cluster.
__device__ __forceinline__ uint32_t shared_of(uint32_t address, uint32_t rank) {
  uint32_t there;
  asm("mapa.shared::cluster.u32 %0, %1, %2;\n" : "=r"(there) : "r"(address), "r"(rank));
  return there;
}

// 16 bytes into a shared memory of the cluster; they arrive at `barrier`, which lies there too.
__device__ __forceinline__ void send(uint32_t to, const float (&x)[4], uint32_t barrier) {
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, "
      "[%5];\n" ::"r"(to),
      "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]), "r"(barrier)
      : "memory");
}

// Bias, activation, C. Lane 4g + t has columns g and 8 + g of rows 2t, 2t + 1, 8 + 2t and 9 + 2t:
// sum[rows below or from 8][two of a column, two of the other].
template <typename T>
__device__ __forceinline__ void finish_strip(const HalvesArguments& args, float (&sum)[2][4],
                                             int64_t row, int lane) {
  const int g = lane / 4, t = lane % 4;
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    float& x = sum[i / 4][i % 4];
    if (args.bias != nullptr) {
      x += static_cast<float>(static_cast<const T*>(args.bias)[row + i / 4 * 8 + 2 * t + i % 2]);
    }
    if (args.activation != Activation::kNone) x = activate_apart(x, args.activation);
  }
  T* const c = static_cast<T*>(args.c) + blockIdx.y * args.c_batch + row * args.c_row;
#pragma unroll
  for (int high = 0; high < 2; ++high) {
    const int column = g + 8 * high;
    alignas(4) const T low_rows[2] = {static_cast<T>(sum[0][2 * high]),
                                      static_cast<T>(sum[0][2 * high + 1])};
    alignas(4) const T high_rows[2] = {static_cast<T>(sum[1][2 * high]),
                                       static_cast<T>(sum[1][2 * high + 1])};
    if (args.stores_quads) {
      // Neighbours exchange a pair, so that each has four rows that lie together.
      const uint32_t pairs[2] = {*reinterpret_cast<const uint32_t*>(low_rows),
                                 *reinterpret_cast<const uint32_t*>(high_rows)};
      const bool odd = t % 2 != 0;
      const uint32_t other = __shfl_xor_sync(~0u, odd ? pairs[0] : pairs[1], 1);
      if (column < args.n) {
        *reinterpret_cast<uint2*>(c + column * args.c_column + 2 * t + (odd ? 6 : 0)) =
            odd ? make_uint2(other, pairs[1]) : make_uint2(pairs[0], other);
      }
    } else if (column < args.n) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        c[(2 * t + i) * args.c_row + column * args.c_column] = low_rows[i];
        c[(8 + 2 * t + i) * args.c_row + column * args.c_column] = high_rows[i];
      }
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(HalvesTile::kThreads, 1)
    small_n_halves_kernel(const __grid_constant__ HalvesArguments args) {
  using Tile = HalvesTile;
  constexpr int kAhead = Tile::kAhead, kShare = Tile::kShare;
  extern __shared__ __align__(128) char b_half[];
  __shared__ __align__(16) float received[Tile::kFinished][Tile::kOthers][2][32][4];
  __shared__ __align__(8) uint64_t barriers[1 + Tile::kFinished];
  const HalvesPlace place = HalvesPlace::find(args);
  const int lane = place.lane, g = lane / 4, t = lane % 4, part = place.part, rank = place.rank;
  const int strip = place.strip, warp = place.local * kShare + part;
  const int pair = static_cast<int>(blockIdx.x / 2), batch = static_cast<int>(blockIdx.y);
  const auto b_base = static_cast<uint32_t>(__cvta_generic_to_shared(b_half));
  const auto b_barrier = static_cast<uint32_t>(__cvta_generic_to_shared(barriers));
  const int first_column = rank == 0 ? 0 : args.half;
  const int own_columns = rank == 0 ? args.half : args.block_columns - args.half;
  const int own_bytes = own_columns * Tile::kLine;  // of a column of B

  if (threadIdx.x <= Tile::kFinished) {
    const uint32_t barrier = b_barrier + threadIdx.x * 8;
    mbarrier_init(barrier, 1);
    mbarrier_init_fence();
    __syncwarp((2u << Tile::kFinished) - 1);
    mbarrier_arrive_expect(barrier,
                           threadIdx.x == 0 ? own_bytes * args.n : Tile::kOthers * Tile::kSumBytes);
  }
  ask_ahead<T>(args);
  if (lane == 0 && batch == 0 && args.value_bytes > 0) {
    const unsigned place_in_grid = blockIdx.x * (Tile::kThreads / 32) + warp;
    ask_bulk(static_cast<const char*>(args.values) + place_in_grid * args.value_step,
             args.value_bytes);
  }
  __syncwarp();
  // Both thread blocks' barriers are ready. Relaxed: mbarrier_init_fence() has released them, and
  // arrive.release would wait for what was just asked into L2.
  asm volatile("barrier.cluster.arrive.relaxed.aligned;\nbarrier.cluster.wait.acquire.aligned;\n" ::
                   : "memory");
  follow_launch_before();

  // Pairs begin with different columns, so that they do not all want the same lines of L2 at once.
  // As a loop, though it has one turn at most: its code keeps these warps from asking for values
  // right away, in front of B, which takes 0.1 us longer.
  if (lane == 0) {
    for (int i = warp; i < args.n; i += Tile::kThreads / 32) {
      const int j = (i + pair) % args.n;
      const T* const from = static_cast<const T*>(args.b) + batch * args.b_batch +
                            static_cast<int64_t>(j) * args.b_column +
                            first_column * Tile::kBlockSide;
      bulk_load(b_base + j * args.line_bytes, from, own_bytes, b_barrier);
    }
  }
  __syncwarp();
  if (place.local >= place.strips) return;

  const char* const crow =
      static_cast<const char*>(args.crow_indices) + static_cast<int64_t>(strip) * args.index_bytes;
  const int begin = load_index_word<true>(crow);
  const int length = load_index_word<true>(crow + args.index_bytes) - begin;
  // The half's units in their order: the second has the row's last block first.
  const auto block_of = [&](int unit) {
    return static_cast<int64_t>(begin + (rank == 0 ? unit : length - 1 - unit));
  };
  // A lane a unit of the warp's: its block column within the half, if it is in there.
  const auto look_up = [&](int from) {
    const int unit = (from + lane) * kShare + part;
    if (unit >= length) return -1;
    return load_index_word<true>(static_cast<const char*>(args.col_indices) +
                                 block_of(unit) * args.index_bytes) -
           first_column;
  };
  uint32_t a[kAhead][4] = {};
  const char* next = static_cast<const char*>(args.values) + block_of(part) * Tile::kBlockBytes +
                     g * Tile::kLine + t * Tile::kPiece;  // of the next unit, this lane's piece
  int64_t step = kShare * (rank == 0 ? Tile::kBlockBytes : -Tile::kBlockBytes);
  asm("" : "+l"(step));  // in a register, instead of found anew for each unit
  const auto load_unit = [&](bool present, uint32_t(&to)[4]) {
    load_values(present, to, next);
    load_values(present, to + 2, next + 8 * Tile::kLine);
    next += step;
  };
  // Columns ascend: the half's units are the first ones.
  const auto count_own = [&](int of) {
    const bool own = static_cast<unsigned>(of) < static_cast<unsigned>(own_columns);
    return __popc(__ballot_sync(~0u, own));
  };
  // Half of the first units as long as their columns are not known, then those that are the half's:
  // B comes sooner, and no other values come.
  int column = look_up(0);
#pragma unroll
  for (int i = 0; i < kAhead / 2; ++i) load_unit(i * kShare + part < length, a[i]);
  int count = count_own(column);  // of `column`, not multiplied yet
#pragma unroll
  for (int i = kAhead / 2; i < kAhead; ++i) load_unit(i < count, a[i]);
  int later_column = look_up(32);

  const uint32_t low_b = b_base + g * args.line_bytes + t * Tile::kPiece;
  const uint32_t high_b = low_b + 8 * args.line_bytes;
  float sum[2][4] = {};  // see finish_strip
  // mma wants four registers in a row, which two loads of pairs do not leave so. The compiler would
  // move them there for each mma by itself; sums with a zero that it does not know serve both.
  const uint32_t zero = blockIdx.z;
  const auto multiply = [&](int unit) {
    const uint32_t at = __shfl_sync(~0u, column, unit) * Tile::kLine;
    uint32_t low[2], high[2];
    load_shared<2>(low, low_b + at);
    load_shared<2>(high, high_b + at);
    const uint32_t columns[4] = {low[0] + zero, high[0] + zero, low[1] + zero, high[1] + zero};
    mma<T>(sum[0], columns, a[unit]);
    mma<T>(sum[1], columns, a[unit] + 2);
  };
  mbarrier_wait(b_barrier, 0);
  // While there is more than what is on its way, as many units as that at a time. No branch parts
  // them, here and below, so that a unit's pieces of B are loaded while others are multiplied.
#pragma unroll 1
  for (int looked_up = 2 * 32;;) {
    const int later = count == kAhead ? count_own(later_column) : 0;
    const int present = count + later;
    if (present <= kAhead) break;
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      multiply(i);
      load_unit(i + kAhead < present, a[i]);
    }
    count -= kAhead;
    column = __shfl_down_sync(~0u, column, kAhead);
    if (count == 0) {
      column = later_column;
      count = later;
      later_column = look_up(looked_up);
      looked_up += 32;
    }
  }
  const auto multiply_some = [&]<int kFrom, int kCount>() {
#pragma unroll
    for (int i = kFrom; i < kFrom + kCount; ++i) multiply(i);
  };
  const auto multiply_up_to_three = [&]<int kFrom>(int units) {
    if (units >= 2) {
      multiply_some.template operator()<kFrom, 2>();
      if (units == 3) multiply_some.template operator()<kFrom + 2, 1>();
    } else if (units == 1) {
      multiply_some.template operator()<kFrom, 1>();
    }
  };
  static_assert(kAhead == 8);
  if (count == 8) {
    multiply_some.template operator()<0, 8>();
  } else if (count >= 4) {
    multiply_some.template operator()<0, 4>();
    multiply_up_to_three.template operator()<4>(count - 4);
  } else {
    multiply_up_to_three.template operator()<0>(count);
  }

  // The thread blocks finish every other strip, by the first of its warps there.
  const HalvesPlace end = HalvesPlace::find(args);
  const int finisher = end.local % 2 * kShare, own = end.rank * kShare + end.part;
  auto& others = received[end.local / 2];
  const uint32_t sum_barrier = b_barrier + 8 + end.local / 2 * 8;
  if (own != finisher) {
    const auto to = static_cast<uint32_t>(
        __cvta_generic_to_shared(others[own < finisher ? own : own - 1][0][end.lane]));
    const uint32_t there = shared_of(to, end.local % 2);
    const uint32_t barrier = shared_of(sum_barrier, end.local % 2);
    send(there, sum[0], barrier);
    send(there + Tile::kSumBytes / 2, sum[1], barrier);
    return;
  }
  mbarrier_wait(sum_barrier, 0);
#pragma unroll
  for (int i = 0; i < Tile::kOthers * 2; ++i) {
    const float4 other = *reinterpret_cast<const float4*>(others[i / 2][i % 2][end.lane]);
    sum[i % 2][0] += other.x;
    sum[i % 2][1] += other.y;
    sum[i % 2][2] += other.z;
    sum[i % 2][3] += other.w;
  }
  finish_strip<T>(args, sum, static_cast<int64_t>(end.strip) * Tile::kBlockSide, end.lane);
}

}  // namespace sparse_autotune
