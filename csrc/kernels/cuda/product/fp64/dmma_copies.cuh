// dmma_sm80's copies: slices of A and B by cp.async to a ring in shared memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/product/fp64/dmma_part.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// Rows that are present or absent together, which divide block_m; forms of A and B.
template <int kSide, bool kTransposed, bool kRowMajor>
struct DmmaTile {
  static constexpr int kM = 32, kWarpN = 32, kWarps = 4, kGranule = kSide;
  static constexpr int kStages = 3, kResident = 3;
  static constexpr bool kTransposedA = kTransposed, kRowMajorB = kRowMajor;
  static constexpr int kN = kWarpN * kWarps, kThreads = kWarps * 32, kGranules = kM / kGranule;
  static constexpr int kUnits = 1;   // slices of a step
  static constexpr int kSlices = 1;  // of those that are multiplied together
  // An operand's slice has a line of 8 k for each row of A or column of B; or, of a transposed A
  // and a row-major B, 8 rows with 16 bytes between them. Neither has bank conflicts.
  static constexpr int kPitchA = kGranule * 8 + 16, kPitchB = kN * 8 + 16;
  static constexpr int kGranuleBytes = kTransposedA ? 8 * kPitchA : kGranule * 64;
  static constexpr int kBytesA = kGranules * kGranuleBytes;
  static constexpr int kBytesB = kRowMajorB ? 8 * kPitchB : kN * 64;
  static constexpr int kUnitBytes = kBytesA + kBytesB, kStageBytes = kUnits * kUnitBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + kUnits * 4);
  static constexpr int kTilesN = kM / 8, kTilesM = kWarpN / 16, kSums = kTilesN * kTilesM * 4;
  static_assert(kStages >= 3 && 16 * kThreads * 8 <= kStages * kStageBytes && kSums % 16 == 0,
                "activations go through the ring");
};

// This thread's share of the copies, a slice at a time: of every slice the same chunks of B, and
// the same chunks of some granules of A.
template <typename Tile>
class DmmaCopies {
 public:
  __device__ __forceinline__ DmmaCopies(const DmmaArguments& args, const DmmaPart& part)
      : at_(part.begin), end_(part.begin + part.length) {
    const int thread = threadIdx.x;
    const double* b = static_cast<const double*>(args.b) + part.batch * args.b_batch_stride;
    if constexpr (Tile::kRowMajorB) {
      const int row = thread / (Tile::kN / 2), chunk = thread % (Tile::kN / 2);
      b += row * args.ldb + part.n0 + 2 * chunk;
      b_to_ = Tile::kBytesA + row * Tile::kPitchB + chunk * 16;
      b_left_ = min(max(part.columns - 2 * chunk, 0), 2) * 8;
    } else {
      b += (part.n0 + thread / 4) * args.ldb + thread % 4 * 2;
      b_to_ = Tile::kBytesA + thread * 16;
      b_left_ = part.columns - thread / 4;
    }
    b_ = reinterpret_cast<const char*>(b);
    const int chunk = thread / 32 % kShare * (kChunks * 32) + thread % 32;
    granule_ = thread / 32 / kShare * kMine;
    const bool grouped = args.columns != nullptr;
    a_ = static_cast<const char*>(args.values);
    if constexpr (Tile::kTransposedA) {
      const int row = chunk / (Tile::kGranule / 2), pair = chunk % (Tile::kGranule / 2);
      a_ += int64_t{row} * args.line_a + (part.m0 + pair * 2) * 8;
      a_to_ = row * Tile::kPitchA + pair * 16;
      granule_stride_ = grouped ? 0 : Tile::kGranule * 8;
    } else {
      a_ += int64_t{part.m0 + chunk / 4} * args.line_a + chunk % 4 * 16;
      a_to_ = chunk * 16;
      granule_stride_ = grouped ? 0 : Tile::kGranule * args.line_a;
    }
    all_ = (1u << (part.rows / Tile::kGranule)) - 1;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      cursor_[i] = part.begin;
      if (grouped) {
        const int row = min(part.block_row + granule_ + i, args.block_rows);
        cursor_[i] = load_narrow_index(args.crow_indices, row, args.wide_indices);
      }
      if constexpr (Tile::kTransposedA) {
        place_[i] = position(args, cursor_[i]);
        next_place_[i] = position(args, cursor_[i] + 1);
      }
    }
    item_ = fetch(args, at_);
    next_ = fetch(args, at_ + 1);
  }

  // Starts the copies of a step, and says which of its granules are there.
  __device__ __forceinline__ void start(uint32_t stage, uint32_t* masks,
                                        const DmmaArguments& args) {
#pragma unroll
    for (int unit = 0; unit < Tile::kUnits; ++unit, stage += Tile::kUnitBytes) {
      const bool any = at_ < end_;
      if (threadIdx.x == 0) masks[unit] = any ? item_.mask : 0;
      if (!any) continue;
      if (args.chunks) {
        start_unit<true>(stage, args);
      } else {
        start_unit<false>(stage, args);
      }
      advance(args);
    }
  }

 private:
  // A warp's granules, or the warps that share one; chunks of each granule for a thread.
  static constexpr int kMine = Tile::kGranules >= Tile::kWarps ? Tile::kGranules / Tile::kWarps : 1;
  static constexpr int kShare =
      Tile::kGranules >= Tile::kWarps ? 1 : Tile::kWarps / Tile::kGranules;
  static constexpr int kChunks = Tile::kGranule * 4 / kShare / 32;
  static constexpr int kChunksB = Tile::kN * 4 / Tile::kThreads;
  static_assert(kChunks >= 1 && Tile::kThreads % (Tile::kN / 2) == 0,
                "threads share out whole lines of B");

  struct Item {
    int column;
    uint32_t mask;
  };

  __device__ __forceinline__ Item fetch(const DmmaArguments& args, int i) const {
    if (i >= end_) return {};
    if (args.columns != nullptr) {
      const int2 column = __ldg(reinterpret_cast<const int2*>(args.columns) + i);
      return {column.x, static_cast<uint32_t>(column.y)};
    }
    return {load_narrow_index(args.col_indices, i, args.wide_indices), all_};
  }
  // Of a block that may be behind the last one.
  __device__ __forceinline__ int position(const DmmaArguments& args, int block) const {
    return block < args.blocks ? load_narrow_index(args.positions, block, args.wide_indices) : 0;
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_unit(uint32_t stage, const DmmaArguments& args) const {
    start_b<kWhole>(stage + b_to_, args);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const uint32_t bit = 1u << (granule_ + i);
      if ((item_.mask & bit) == 0) continue;
      start_a<kWhole>(stage + a_to_ + __popc(item_.mask & (bit - 1)) * Tile::kGranuleBytes, i,
                      args);
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_b(uint32_t to, const DmmaArguments& args) const {
    const uint32_t k = item_.column * args.block_k + slice_ * 8;
    const char* from = Tile::kRowMajorB ? b_ + uint64_t{k} * args.line_b : b_ + uint64_t{k} * 8;
    constexpr int kApart = Tile::kThreads / (Tile::kRowMajorB ? Tile::kN / 2 : 4);
    constexpr int kPitch = Tile::kRowMajorB ? Tile::kPitchB : 64;
#pragma unroll(kWhole ? kChunksB : 1)
    for (int i = 0; i < kChunksB; ++i) {
      const char* line = from + uint64_t{args.line_b} * (i * kApart);
      const uint32_t at = to + i * kApart * kPitch;
      const int bytes = Tile::kRowMajorB ? b_left_ : i * kApart < b_left_ ? 16 : 0;
      if constexpr (!kWhole) {
        if (bytes > 0) copy_chunk_narrow(at, reinterpret_cast<const double*>(line), bytes, 8);
      } else if constexpr (Tile::kRowMajorB) {
        cp_async_16(at, line, bytes);
      } else {
        cp_async_16_if(bytes > 0, at, line);
      }
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_a(uint32_t to, int i, const DmmaArguments& args) const {
    const uint32_t block = Tile::kTransposedA ? place_[i] : cursor_[i];
    const char* from =
        a_ + uint64_t{block} * args.block_bytes +
        ((granule_ + i) * granule_stride_ +
         static_cast<uint32_t>(slice_) * (Tile::kTransposedA ? 8 * args.line_a : 64));
    constexpr int kRows = Tile::kTransposedA ? 64 / Tile::kGranule : 8;  // of 32 chunks
    constexpr int kPitch = Tile::kTransposedA ? Tile::kPitchA : 64;
#pragma unroll(kWhole ? kChunks : 1)
    for (int j = 0; j < kChunks; ++j) {
      const char* line = from + uint64_t{args.line_a} * (j * kRows);
      if constexpr (kWhole) {
        cp_async_16(to + j * kRows * kPitch, line);
      } else {
        copy_chunk_narrow(to + j * kRows * kPitch, reinterpret_cast<const double*>(line), 16, 8);
      }
    }
  }

  __device__ __forceinline__ void advance(const DmmaArguments& args) {
    if (++slice_ < args.slices) return;
    slice_ = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if ((item_.mask >> (granule_ + i) & 1) == 0) continue;
      ++cursor_[i];
      if constexpr (Tile::kTransposedA) {
        place_[i] = next_place_[i];
        next_place_[i] = position(args, cursor_[i] + 1);
      }
    }
    ++at_;
    item_ = next_;
    next_ = fetch(args, at_ + 1);
  }

  const char *a_, *b_;
  uint32_t a_to_, b_to_;
  int b_left_;  // bytes of each chunk of a row-major B, or columns from the thread's first one on
  int at_, end_, slice_ = 0;
  int granule_;
  uint32_t granule_stride_;                               // bytes
  int cursor_[kMine], place_[kMine], next_place_[kMine];  // the granule's block
  uint32_t all_;
  Item item_, next_;  // a step ahead of its use
};

}  // namespace sparse_autotune
