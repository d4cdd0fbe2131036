// What a consumer of attention_backward_sm90 does with a step: products, and what lies between
// them.
#pragma once

#include <array>
#include <cstdint>

#include "kernels/cuda/attention/attention_backward_tile_sm90.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class AttentionBackwardProducts {
 protected:
  static constexpr int kStepRows = Tile::kStepRows;
  static constexpr int kScores = kStepRows / 2;  // of a thread
  using Scores = float[kScores];
  using Sums = float[Tile::kDim / 2];
  using Words = uint32_t[kScores / 2];
  using Dq = float[kDqRows * kLineHalves / kWarpgroup];  // of a part

  // `user` is the consumer's number in its pipeline.
  __device__ __forceinline__ AttentionBackwardProducts(const AttentionBackwardArgumentsSm90& args,
                                                       const AttentionBackwardShared<Tile>& shared,
                                                       int user)
      : args_(args), shared_(shared), user_(user) {}

  // 64 rows of the consumer's k or v times a step's of q or dout.
  __device__ __forceinline__ void multiply_scores(Scores& score, uint32_t kv_tile,
                                                  uint32_t step_tile) const {
    const uint64_t a = wgmma::k_contiguous(kv_tile + user_ * kUserColumns * kLineBytes);
    const uint64_t b = wgmma::k_contiguous(step_tile);
#pragma unroll
    for (int i = 0; i < Tile::kDim / 16; ++i) {
      const int panel = i / 4, step = i % 4 * wgmma::kContiguousStep;
      wgmma::multiply<T, kStepRows, false>(score,
                                           a + panel * Tile::kColumns * kLineBytes / 16 + step,
                                           b + panel * kStepRows * kLineBytes / 16 + step, i > 0);
    }
  }

  // What the consumer has of p or ds times a step's rows of dout or q.
  __device__ __forceinline__ void multiply_rows(Sums& sum, const Words& word,
                                                uint32_t step_tile) const {
    const uint64_t b = wgmma::n_contiguous(step_tile, kStepRows);
#pragma unroll
    for (int i = 0; i < kStepRows / 16; ++i) {
      wgmma::multiply_registers<T, Tile::kDim>(sum, word[4 * i], word[4 * i + 1], word[4 * i + 2],
                                               word[4 * i + 3], b + i * wgmma::kLineStep);
    }
  }

  // Part i of the consumer's: which rows of the step, in units of kDqRows, and which panel of k.
  __device__ __forceinline__ int dq_rows(int i) const {
    return (user_ * Tile::kDqParts + i) / Tile::kPanels;
  }
  __device__ __forceinline__ int dq_panel(int i) const {
    return (user_ * Tile::kDqParts + i) % Tile::kPanels;
  }

  __device__ __forceinline__ void multiply_dq(Dq& dq, uint32_t ds_tile, uint32_t kv_stage,
                                              int part) const {
    constexpr int kPanelBytes = Tile::kColumns * kLineBytes;
    const uint64_t a = wgmma::m_contiguous(ds_tile + dq_rows(part) * kPanelBytes);
    const uint64_t b = wgmma::m_contiguous(shared_.k(kv_stage) + dq_panel(part) * kPanelBytes);
#pragma unroll
    for (int i = 0; i < Tile::kColumns / 16; ++i) {
      wgmma::multiply<T, kLineHalves, true, true>(dq, a + i * wgmma::kLineStep,
                                                  b + i * wgmma::kLineStep, i > 0);
    }
  }

  // Of 16 of a step's rows, the four values that a thread needs: see place_of_row().
  using RowValues = std::array<float, 4>;
  __device__ __forceinline__ RowValues row_values(uint32_t values, int i) const {
    return load_shared<RowValues>(values + (16 * i + threadIdx.x % 4 * 4) * 4);
  }

  __device__ __forceinline__ void exponentials(Scores& score, uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kStepRows / 16; ++i) {
      const RowValues lse = row_values(shared_.lse(stage), i);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& one = score[8 * i + j];
        one = power_of_two(fmaf(one, args_.scale_log2, -lse[j / 4 * 2 + j % 2]));
      }
    }
  }

  // dp becomes ds. p comes as it was rounded for dv, which takes half as many registers.
  __device__ __forceinline__ void differences(Scores& dp, const Words& p, uint32_t stage) const {
#pragma unroll
    for (int i = 0; i < kStepRows / 16; ++i) {
      const RowValues delta = row_values(shared_.delta(stage), i);
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        float& one = dp[8 * i + j];
        one = unpack<T>(p[4 * i + j / 2], j % 2 != 0) * (one - delta[j / 4 * 2 + j % 2]);
      }
    }
  }

  // Exponentials that a row does not see become zeros, as do those of columns past the end, whose
  // keys are zeros and whose exponentials might be infinite. Rows past the end have zeros.
  __device__ __forceinline__ void hide(Scores& p, uint32_t stage, int own_column) const {
    const int column = own_column / kUserColumns * kUserColumns;  // the consumer's first
    // The block of the item's 64 columns that the thread's are in: of 16, 32 or more columns each.
    const unsigned own_block = threadIdx.x / 32 % 4 >> args_.mask.block_m / 32;
#pragma unroll
    for (int piece = 0; piece < Tile::kPieces; ++piece) {
      const ColumnPiece rows = piece_at(stage, piece);
      const bool ragged = column + kUserColumns > args_.columns;
      const bool diagonal = args_.is_causal && rows.column < column + kUserColumns - 1;
      if (!Tile::kMerges && !ragged && !diagonal) continue;
      const bool stored = !Tile::kMerges || (rows.block_rows >> own_block & 1) != 0;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int own = own_column + 8 * half;
        // Of the piece's rows, the first that sees the column.
        int first = args_.is_causal ? own - rows.column : 0;
        if (own >= args_.columns || !stored) first = Tile::kPiece;
        first -= static_cast<int>(threadIdx.x % 4) * 2;
#pragma unroll
        for (int i = 0; i < Tile::kPiece / 8; ++i) {
          float* two = p + 4 * (piece * Tile::kPiece / 8 + i) + 2 * half;
          if (8 * i < first) two[0] = 0;
          if (8 * i + 1 < first) two[1] = 0;
        }
      }
    }
  }
  __device__ __forceinline__ ColumnPiece piece_at(uint32_t stage, int i) const {
    return load_shared<ColumnPiece>(shared_.pieces(stage) + i * 8);
  }

  // The consumer's lines of ds, swizzled as TMA would leave them.
  __device__ __forceinline__ void write(const Words& ds, uint32_t tile) const {
    const int lane = threadIdx.x % 32;
    const int line = user_ * kUserColumns + threadIdx.x / 32 % 4 * 16 + lane % 16;
    const uint32_t to = tile + line * kLineBytes;
#pragma unroll
    for (int i = 0; i < kStepRows / 16; ++i) {
      const int panel = i / 4, chunk = i % 4 * 2 + lane / 16;
      stmatrix(to + panel * Tile::kColumns * kLineBytes + ((chunk ^ line % 8) << 4), ds + 4 * i,
               false);
    }
    tma_store_fence();
  }

  const AttentionBackwardArgumentsSm90& args_;
  const AttentionBackwardShared<Tile> shared_;
  const int user_;
};

}  // namespace sparse_autotune
