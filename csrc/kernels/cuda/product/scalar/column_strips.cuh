// A warp multiplies some rows of a block row by a strip of columns of a row-major B.
//
// The blocks of the row stand side by side: a step is one k of one block, and needs one line of B
// and a column of A of `kRows` elements. The warp fetches up to 32 steps of A at a time, coalesced
// and ahead of their use, and leaves them in shared memory step by step, from where all lanes read
// the same element. A strip narrower than the warp leaves lanes over: teams of them take steps in
// turn and add up their sums at the end.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/product/scalar/load_words.cuh"
#include "kernels/cuda/product/scalar/strip_steps.cuh"

namespace sparse_autotune {

// The end of a warp's work: each team finishes some of the rows.
template <typename T, int kRows, int kLoads, typename Acc>
__device__ __forceinline__ void finish_strip(const StripArguments& args, const StripUnit& unit,
                                             Acc (&sum)[kRows][kLoads * kChunkElements<T>]) {
  constexpr int kElements = kChunkElements<T>, kVector = 16 / sizeof(Acc);
  using Chunk = Several<T, kElements>;
  const int lane = static_cast<int>(threadIdx.x % 32), teams = 32 >> args.lane_bits;
  const int team = lane >> args.lane_bits, in_team = lane & (args.lanes - 1);
  const int first_column = unit.column * args.lanes * (kLoads * kElements) + in_team * kElements;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if (r >= unit.rows || (r & (teams - 1)) != team) continue;
    const int row_in_block = unit.first_row + r;
    const int64_t row = int64_t{unit.block_row} * args.block_m + row_in_block;
    T* const line = static_cast<T*>(args.c) + unit.batch * args.c_batch_stride + row * args.ldc;
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int column = first_column + j * args.lanes * kElements;
      if (column >= args.n) continue;
      Acc* own = &sum[r][j * kElements];
      if (unit.slot >= 0) {
        Acc* to = static_cast<Acc*>(args.partials) +
                  ((int64_t{unit.batch} * args.slots + unit.slot) * args.block_m + row_in_block) *
                      args.partial_pitch +
                  column;
#pragma unroll
        for (int e = 0; e < kElements; e += kVector) {
          Several<Acc, kVector> some;
#pragma unroll
          for (int v = 0; v < kVector; ++v) some.of[v] = own[e + v];
          *reinterpret_cast<Several<Acc, kVector>*>(to + e) = some;
        }
        continue;
      }
      if (args.bias != nullptr) {
        const Acc bias = static_cast<Acc>(static_cast<const T*>(args.bias)[row]);
#pragma unroll
        for (int e = 0; e < kElements; ++e) own[e] += bias;
      }
      if (args.activation != Activation::kNone) {
#pragma unroll
        for (int e = 0; e < kElements; ++e) own[e] = activate_apart(own[e], args.activation);
      }
      Chunk done;
#pragma unroll
      for (int e = 0; e < kElements; ++e) done.of[e] = static_cast<T>(own[e]);
      *reinterpret_cast<Chunk*>(line + column) = done;
    }
  }
}

// Lines of B on their way.
template <int kRows, int kLoads>
constexpr int kStripAhead = kLoads > 1 && kRows > 4 ? 2 : 4;

// Thread blocks on a multiprocessor: as many as leave a thread the registers that it needs, beside
// these for its sums and for what is on its way.
template <typename T, int kRows, int kLoads>
constexpr int kStripResident = [] {
  constexpr int words = 4 * kLoads * (kRows + kStripAhead<kRows, kLoads>);
  return words <= 28 ? 4 : words <= (sizeof(T) == 8 ? 32 : 40) ? 3 : words <= 72 ? 2 : 1;
}();

// The steps of a lane's team, from number `first` on, by its chunks of a strip: kStripAhead at a
// time. kWhole: there are as many.
template <bool kWhole, typename T, int kRows, int kLoads, typename Acc, typename Steps>
__device__ __forceinline__ void multiply_steps(const StripArguments& args, const Steps& steps,
                                               const char* const (&b)[kLoads], int first, int count,
                                               Acc (&sum)[kRows][kLoads * kChunkElements<T>]) {
  constexpr int kElements = kChunkElements<T>, kAhead = kStripAhead<kRows, kLoads>;
  using Chunk = Several<T, kElements>;
  using Word = std::conditional_t<sizeof(Chunk) == 16, uint4, uint2>;
  Chunk x[kAhead][kLoads];
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (!kWhole && first + u >= count) continue;
    const auto line = static_cast<unsigned>(steps.line[first + u]);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const Word found = __ldg(reinterpret_cast<const Word*>(at_step(b[j], line, args.line_b)));
      x[u][j] = *reinterpret_cast<const Chunk*>(&found);
    }
  }
#pragma unroll
  for (int u = 0; u < kAhead; ++u) {
    if (!kWhole && first + u >= count) continue;
    Acc a[Steps::kPitch];
    steps.load(first + u, a);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) {
        const Acc value = static_cast<Acc>(x[u][j].of[e]);
#pragma unroll
        for (int r = 0; r < kRows; ++r) sum[r][j * kElements + e] += a[r] * value;
      }
    }
  }
}

// kLoads: chunks of a line of B that a lane holds.
template <typename T, int kRows, int kLoads>
__global__ void __launch_bounds__(kStripWarps * 32, (kStripResident<T, kRows, kLoads>))
    column_strips_kernel(const __grid_constant__ StripArguments args) {
  using Acc = typename Accumulator<T>::Type;
  using Steps = StagedSteps<T, kRows>;
  constexpr int kElements = kChunkElements<T>, kValues = kLoads * kElements;
  constexpr int kAhead = kStripAhead<kRows, kLoads>;
  __shared__ Steps staged[kStripWarps];
  const int warp = static_cast<int>(threadIdx.x / 32), lane = static_cast<int>(threadIdx.x % 32);
  Steps& steps = staged[warp];
  __shared__ RoundPlaces<T, kRows> places;
  __shared__ StripUnit units[kStripWarps];
  places.fill(args);
  __syncthreads();

  // The divisions of locate() show in short rows.
  const bool one_column = args.panels.rows == args.panels.tiles;
  const TilePlace at = one_column ? TilePlace{blockIdx.x, 0, 0} : locate(args.panels, blockIdx.x);
  const auto tile = static_cast<int>(at.row);
  const bool is_part = tile < args.part_tiles;
  const int unit = (is_part ? tile : tile - args.part_tiles) * kStripWarps + warp;
  if (unit >= (is_part ? args.part_units : args.units)) return;
  int block_row = args.strips == 1 ? unit : unit / args.strips, begin, end, slot = -1;
  const int first_row = (unit - block_row * args.strips) * kRows;
  const int rows = min(args.block_m - first_row, kRows);
  if (is_part) {
    const int4 part = __ldg(reinterpret_cast<const int4*>(args.part_list) + block_row);
    block_row = part.x;
    begin = part.y;
    end = part.z;
    slot = part.w;
  } else {
    begin = load_narrow_index(args.crow_indices, block_row, args.wide_indices);
    end = load_narrow_index(args.crow_indices, block_row + 1, args.wide_indices);
    if (end - begin > args.limit) return;
  }

  const int team = lane / args.lanes, in_team = lane - team * args.lanes;
  const int first_column = static_cast<int>(at.column) * args.lanes * kValues + in_team * kElements;
  StripUnit& own = units[warp];
  if (lane == 0) {
    own = {end,
           rows,
           block_row,
           first_row,
           slot,
           static_cast<int>(at.column),
           static_cast<int>(at.batch)};
  }
  __syncwarp();
  const int last = (args.n - 1) / kElements * kElements;
  // Lanes behind the last column load it once more.
  const char* b[kLoads];
#pragma unroll
  for (int j = 0; j < kLoads; ++j) {
    b[j] = reinterpret_cast<const char*>(static_cast<const T*>(args.b) +
                                         at.batch * args.b_batch_stride +
                                         min(first_column + j * args.lanes * kElements, last));
  }

  Acc sum[kRows][kValues] = {};

  StepLoader<T, kRows> loader(args, places, own, begin);
  for (int count = loader.fetch(args); count > 0;) {
    __syncwarp();
    loader.stage(args, steps);
    __syncwarp();
    const int next = loader.fetch(args);
    int first = 0;
#pragma unroll 1
    for (; first + args.stride <= count; first += args.stride) {
      multiply_steps<true, T>(args, steps, b, first + team * kAhead, count, sum);
    }
    if (first < count) multiply_steps<false, T>(args, steps, b, first + team * kAhead, count, sum);
    count = next;
  }
#pragma unroll 1
  for (int other = args.lanes; other < 32; other *= 2) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int v = 0; v < kValues; ++v) sum[r][v] += __shfl_xor_sync(~0u, sum[r][v], other);
    }
  }

  finish_strip<T, kRows, kLoads>(args, own, sum);
}

}  // namespace sparse_autotune
