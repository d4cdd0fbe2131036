// A tile of C that a group of warps computes with plain FMA, how it lies in threads and in shared
// memory, and where the operands of a block row's products lie: its stored blocks side by side, in
// units of four lines of k, which never straddle two blocks.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/load_index.cuh"

namespace sparse_autotune {

// Rows and columns of the tile and of one thread; lanes of a warp along m; k of a step; steps in
// the ring; groups in a thread block; thread blocks a multiprocessor; whether B is row-major.
template <int kRows, int kColumns, int kThreadRows, int kThreadColumns, int kLanesAlongM,
          int kOfStep, int kRing, int kGroupsOfBlock, int kBlocks, bool kRowMajorB>
struct FmaTile {
  static constexpr int kM = kRows, kN = kColumns, kThreadM = kThreadRows, kThreadN = kThreadColumns;
  static constexpr int kLanesM = kLanesAlongM, kLanesN = 32 / kLanesM;
  static constexpr int kWarpM = kLanesM * kThreadM, kWarpN = kLanesN * kThreadN;
  static constexpr int kWarpsM = kM / kWarpM, kWarpsN = kN / kWarpN;
  static constexpr int kStep = kOfStep, kStages = kRing, kGroups = kGroupsOfBlock;
  static constexpr int kThreads = 32 * kWarpsM * kWarpsN;  // of a group
  static constexpr int kResident = kBlocks;
  static constexpr bool kRowsB = kRowMajorB;

  // In shared memory rows of A^T, and of B where it is row-major, else its columns. Four words
  // behind each: eight neighbours lie in different banks, 16 bytes of each.
  static constexpr int kPitchA = kM + 4, kPitchB = (kRowsB ? kN : kStep) + 4;
  static constexpr int kStageA = kStep * kPitchA,
                       kStageB = (kRowsB ? kStep : kN) * kPitchB;  // words
  static constexpr int kStageWords = kStageA + kStageB, kRingWords = kStages * kStageWords;
  // Where the sums stand at the end, rows of C side by side or columns.
  static constexpr int kPitchRows = kN + 4, kPitchColumns = kM + 4;
  static constexpr int kSumWords =
      kM * kPitchRows > kN* kPitchColumns ? kM* kPitchRows : kN* kPitchColumns;
  static constexpr int kGroupWords = kRingWords > kSumWords ? kRingWords : kSumWords;
  static constexpr int kSharedBytes = kGroups * kGroupWords * 4;

  static_assert(kM % kWarpM == 0 && kN % kWarpN == 0 && kLanesM <= 8,
                "warps share out whole tiles");
  static_assert(kThreadM % 4 == 0 && kThreadN % 4 == 0 && kStep % 8 == 0 && 32 % kStep == 0,
                "operands are read in quads");
};

constexpr int kUnitLines = 4;

// The units that a group of warps multiplies, 32 at a time: one in each lane, those behind on their
// way. Of `shares` groups with the same blocks each takes every shares-th step.
template <int kStepUnits, typename Arguments>
class FmaUnits {
 public:
  __device__ __forceinline__ FmaUnits(const Arguments& args, int begin, int length, int share)
      : begin_(begin), length_(length) {
    const int lane = threadIdx.x % 32;
    const int step = lane / kStepUnits * static_cast<int>(args.shares) + share;
    next_ = step * kStepUnits + lane % kStepUnits;
    fetch(args);
  }

  // To be called before each 32nd unit.
  __device__ __forceinline__ void turn(const Arguments& args) {
    const int units = static_cast<int>(args.block_units);
    const bool inside = next_within_ >= 0;
    const int within = inside ? next_within_ * kUnitLines : 0;
    line_ = inside ? next_column_ * (units * kUnitLines) + within : -1;
    quad_ = inside ? static_cast<uint32_t>(next_position_) * args.block_quads +
                         next_within_ * args.unit_quads
                   : 0;
    next_ += 32 * static_cast<int>(args.shares);
    fetch(args);
  }

  // Of unit i of the 32: B's first line, -1 behind the row's end, and where A's elements begin, in
  // quads of elements. All lanes must ask.
  __device__ __forceinline__ int line(int i) const { return __shfl_sync(~0u, line_, i); }
  __device__ __forceinline__ uint32_t quad(int i) const { return __shfl_sync(~0u, quad_, i); }

 private:
  __device__ __forceinline__ void fetch(const Arguments& args) {
    const auto block = static_cast<int>(static_cast<unsigned>(next_) / args.block_units);
    next_within_ = -1;
    if (block < length_) {
      next_within_ = next_ - block * static_cast<int>(args.block_units);
      const int i = begin_ + block;
      next_column_ = load_narrow_index(args.col_indices, i, args.wide_indices);
      next_position_ =
          args.positions == nullptr ? i : load_narrow_index(args.positions, i, args.wide_indices);
    }
  }

  int begin_, length_;
  int line_ = -1;
  uint32_t quad_ = 0;
  int next_, next_within_, next_column_ = 0, next_position_ = 0;
};

}  // namespace sparse_autotune
