// A tile of C that a group of warps computes with plain FMA: how it lies in threads and in shared
// memory, and the sums that a thread keeps of it: outer products of what shared memory holds, and
// their way through shared memory to C.
#pragma once

#include <cstdint>

#include "kernels/activation.h"
#include "operators/product/product.h"

namespace sparse_autotune {

// Lines of k in a unit, units of a step.
constexpr int kUnitLines = 4, kStepUnits = 4;

// Rows and columns of the tile and of one thread; lanes of a warp along m; steps in the ring;
// groups in a thread block; thread blocks a multiprocessor; whether B is row-major.
template <int kRows, int kColumns, int kThreadRows, int kThreadColumns, int kLanesAlongM, int kRing,
          int kGroupsOfBlock, int kBlocks, bool kRowMajorB>
struct FmaTile {
  static constexpr int kM = kRows, kN = kColumns, kThreadM = kThreadRows, kThreadN = kThreadColumns;
  static constexpr int kLanesM = kLanesAlongM, kLanesN = 32 / kLanesM;
  static constexpr int kWarpM = kLanesM * kThreadM, kWarpN = kLanesN * kThreadN;
  static constexpr int kWarpsM = kM / kWarpM, kWarpsN = kN / kWarpN;
  static constexpr int kStep = kStepUnits * kUnitLines, kStages = kRing, kGroups = kGroupsOfBlock;
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
  static_assert(kThreadM % 4 == 0 && kThreadN % 4 == 0, "operands are read in quads");
};

// Lanes i and i ^ 1 read the same columns of B, i and i ^ 2 the same rows of A: so loads of 16
// bytes a lane take two passes of shared memory instead of four.

template <typename Tile>
class FmaSums {
 public:
  // Of this thread's first element within the tile.
  static __device__ __forceinline__ int row(int thread) {
    const int lane = thread % 32;
    const int of_warp = Tile::kLanesM == 1 ? 0 : lane % 2 + lane / (2 * Tile::kLanesN) * 2;
    return thread / 32 / Tile::kWarpsN * Tile::kWarpM + of_warp * 4;
  }
  static __device__ __forceinline__ int column(int thread) {
    const int lane = thread % 32;
    const int of_warp = Tile::kLanesM == 1 ? lane : lane / 2 % Tile::kLanesN;
    return thread / 32 % Tile::kWarpsN * Tile::kWarpN + of_warp * (Tile::kRowsB ? 4 : 1);
  }

  // In all of these `a` and `b` are a step's beginning plus where this thread's first row and
  // column are. To be called once that step is there.
  __device__ __forceinline__ void begin(const float* a, const float* b) {
    load_left(0, a);
    if constexpr (Tile::kRowsB) {
      load_right(0, b);
    } else {
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) load_column(j, b);
    }
  }

  // Multiplies a step. What comes first in the next one is loaded before the last of this one is
  // multiplied: `next()` waits until it is there, and moves `a` and `b` on.
  template <typename Next>
  __device__ __forceinline__ void multiply(const float*& a, const float*& b, const Next& next) {
#pragma unroll
    for (int k = 0; k < Tile::kStep; ++k) {
      const bool last = k + 1 == Tile::kStep;
      if (last) next();
      load_left((k + 1) % 2, a + (last ? 0 : k + 1) * Tile::kPitchA);
      if constexpr (Tile::kRowsB) {
        load_right((k + 1) % 2, b + (last ? 0 : k + 1) * Tile::kPitchB);
      }
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) {
#pragma unroll
        for (int i = 0; i < kThreadM; ++i) {
          const float right = Tile::kRowsB ? right_[k % 2 * kThreadN + j] : right_[j * 4 + k % 4];
          sum_[i][j] = fmaf(left_[k % 2][i], right, sum_[i][j]);
        }
        if (!Tile::kRowsB && k % 4 == 3) load_column(j, b + (last ? 0 : k + 1));
      }
    }
  }

  // Leaves the sums in shared memory, lines of C with what is contiguous there side by side.
  // `own`: the tile's place plus this thread's first element.
  __device__ __forceinline__ void leave(float* own, bool by_rows) const {
#pragma unroll
    for (int i = 0; i < kThreadM; ++i) {
      const int row = i / 4 * kApartM + i % 4;
#pragma unroll
      for (int j = 0; j < kThreadN; ++j) {
        const int column = Tile::kRowsB ? j / 4 * kApartN + j % 4 : j * kApartN;
        own[by_rows ? row * Tile::kPitchRows + column : column * Tile::kPitchColumns + row] =
            sum_[i][j];
      }
    }
  }

 private:
  static constexpr int kThreadM = Tile::kThreadM, kThreadN = Tile::kThreadN;
  // From four of a thread's rows to the next four; of its columns the same, or from one to the
  // next.
  static constexpr int kApartM = 4 * Tile::kLanesM;
  static constexpr int kApartN = Tile::kRowsB ? 4 * Tile::kLanesN : Tile::kLanesN;

  static __device__ __forceinline__ void load_quad(float* to, const float* from) {
    const float4 x = *reinterpret_cast<const float4*>(from);
    to[0] = x.x, to[1] = x.y, to[2] = x.z, to[3] = x.w;
  }
  __device__ __forceinline__ void load_left(int turn, const float* a) {
#pragma unroll
    for (int i = 0; i < kThreadM; i += 4) load_quad(&left_[turn][i], a + i / 4 * kApartM);
  }
  __device__ __forceinline__ void load_right(int turn, const float* b) {
#pragma unroll
    for (int j = 0; j < kThreadN; j += 4) {
      load_quad(&right_[turn * kThreadN + j], b + j / 4 * kApartN);
    }
  }
  __device__ __forceinline__ void load_column(int j, const float* b) {
    load_quad(&right_[j * 4], b + j * kApartN * Tile::kPitchB);
  }

  float sum_[kThreadM][kThreadN] = {};
  float left_[2][kThreadM];                         // of two k
  float right_[(Tile::kRowsB ? 2 : 4) * kThreadN];  // of two k, or four k of each column
};

// Where a tile's sums go, and what is done to them: lines of C, or of the sums of a part of a row.
struct FmaEnd {
  float* to;  // the tile's first element
  int64_t pitch;
  const float* bias;  // of the tile's first row
  Activation activation;
  bool by_rows, aligned;  // lines: to 16 bytes
};

// Adds up the tiles that `tiles` groups have left, Tile::kGroupWords apart, in their order; bias,
// activation. The tile has `rows` and `columns` of C; `thread` of `threads` that do it.
template <typename Tile>
__device__ __forceinline__ void finish_tiles(const FmaEnd& end, const float* sums, int tiles,
                                             int rows, int columns, int thread, int threads) {
  const bool by_rows = end.by_rows;
  const int pitch = by_rows ? Tile::kPitchRows : Tile::kPitchColumns;
  const int quads = (by_rows ? Tile::kN : Tile::kM) / 4;  // of a line
  const int lines = by_rows ? rows : columns, elements = by_rows ? columns : rows;
#pragma unroll 1
  for (int i = thread; i < lines * quads; i += threads) {
    const int line = i / quads, first = i % quads * 4;
    if (first >= elements) continue;
    float x[4] = {};
    for (int tile = 0; tile < tiles; ++tile) {
      const float4 y =
          *reinterpret_cast<const float4*>(sums + tile * Tile::kGroupWords + line * pitch + first);
      x[0] += y.x, x[1] += y.y, x[2] += y.z, x[3] += y.w;
    }
    float* to = end.to + line * end.pitch + first;
    const int some = min(elements - first, 4);
    if (end.bias != nullptr) {
#pragma unroll
      for (int e = 0; e < 4; ++e) x[e] += end.bias[by_rows ? line : first + min(e, some - 1)];
    }
    if (end.activation != Activation::kNone) {
      // Rolled, or the activations' code would stand here four times.
#pragma unroll 1
      for (int e = 0; e < 4; ++e) {
        const float y = activate(x[0], end.activation);
        x[0] = x[1], x[1] = x[2], x[2] = x[3], x[3] = y;
      }
    }
    if (end.aligned && some == 4) {
      *reinterpret_cast<float4*>(to) = make_float4(x[0], x[1], x[2], x[3]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        if (e < some) to[e] = x[e];
      }
    }
  }
}

}  // namespace sparse_autotune
