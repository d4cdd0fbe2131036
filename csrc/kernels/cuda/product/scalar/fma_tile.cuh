// A tile of C that a group of warps computes with plain FMA, and how it lies in threads and in
// shared memory.
#pragma once

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

}  // namespace sparse_autotune
