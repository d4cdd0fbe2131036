// What a consumer of attention_sm90 does with a tile: products, and which columns a row sees.
#pragma once

#include "kernels/cuda/attention/attention_tile_sm90.cuh"
#include "kernels/cuda/attention/hide_columns.cuh"
#include "kernels/cuda/attention/tile_columns.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class AttentionProducts {
 protected:
  using Scores = float[Tile::kN / 2];
  using Sums = float[Tile::kDim / 2];
  using Words = uint32_t[Tile::kN / 4];

  // `user` is the consumer's number in its pipeline.
  __device__ __forceinline__ AttentionProducts(const AttentionArgumentsSm90& args,
                                               const AttentionShared<Tile>& shared, int user)
      : args_(args),
        shared_(shared),
        user_(user),
        own_block_row_(Tile::kMerges
                           ? (user * kUserRows + static_cast<int>(threadIdx.x) / 32 % 4 * 16) /
                                 args.mask.block_m
                           : 0) {}

  __device__ __forceinline__ void multiply_scores(Scores& score, uint32_t q_stage,
                                                  uint32_t stage) const {
    const uint64_t q = wgmma::k_contiguous(shared_.q_of(q_stage, user_));
    const uint64_t k = wgmma::k_contiguous(shared_.tile(stage));
#pragma unroll
    for (int i = 0; i < Tile::kDim / 16; ++i) {
      const int panel = i / 4, step = i % 4 * wgmma::kContiguousStep;
      wgmma::multiply<T, Tile::kN, false>(score, q + panel * kUserRows * kLineBytes / 16 + step,
                                          k + panel * Tile::kN * kLineBytes / 16 + step, i > 0);
    }
  }

  __device__ __forceinline__ void multiply_values(Sums& sum, const Words& word,
                                                  uint32_t stage) const {
    const uint64_t v = wgmma::n_contiguous(shared_.tile(stage), Tile::kN);
#pragma unroll
    for (int i = 0; i < Tile::kN / 16; ++i) {
      wgmma::multiply_registers<T, Tile::kDim>(sum, word[4 * i], word[4 * i + 1], word[4 * i + 2],
                                               word[4 * i + 3], v + i * wgmma::kLineStep);
    }
  }

  // Waits for the consumer's rows of q. Under a negative scale they change their sign, as the
  // softmax takes the highest score for the greatest exponent.
  __device__ __forceinline__ void wait_for_q(const RingPlace<Tile::kStagesQ>& at) const {
    mbarrier_wait(shared_.q_full(at.stage), at.parity);
    if (!args_.is_negative) return;
    const uint32_t own = shared_.q_of(at.stage, user_) + threadIdx.x % kWarpgroup * 16;
#pragma unroll 1
    for (uint32_t i = 0; i < Tile::kUserBytes; i += kWarpgroup * 16) {
      const auto x = load_shared<uint4>(own + i);
      store_shared(own + i, make_uint4(x.x ^ kSigns, x.y ^ kSigns, x.z ^ kSigns, x.w ^ kSigns));
    }
    tma_store_fence();
    warpgroup_sync(3 + static_cast<int>(threadIdx.x) / kWarpgroup);
  }

  struct Pieces {
    ColumnPiece piece[Tile::kPieces];
  };
  __device__ __forceinline__ Pieces pieces_at(uint32_t stage) const {
    Pieces pieces;
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      pieces.piece[i] = load_shared<ColumnPiece>(shared_.pieces(stage) + i * 8);
    }
    return pieces;
  }

  // The first of the thread's two rows of an item.
  __device__ __forceinline__ int own_row(int row) const {
    return row + user_ * kUserRows + static_cast<int>(threadIdx.x) / 32 % 4 * 16 +
           static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // Columns that a row may not see get -inf. `row` is the item's first.
  __device__ __forceinline__ void hide(Scores& score, const Pieces& pieces, int row) const {
    const int seen_by_all =
        args_.is_causal ? min(args_.columns, row + user_ * kUserRows + 1) : args_.columns;
    constexpr int kScores = Tile::kPiece / 2;
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      const ColumnPiece piece = pieces.piece[i];
      auto& part = reinterpret_cast<float(&)[kScores]>(score[i * kScores]);
      if (Tile::kMerges && (piece.block_rows >> own_block_row_ & 1) == 0) hide_all(part);
      if (piece.column + Tile::kPiece <= seen_by_all) continue;
      hide_columns(part, piece.column, own_row(row), args_.columns, args_.is_causal);
    }
  }

  const AttentionArgumentsSm90& args_;
  const AttentionShared<Tile> shared_;
  const int user_;
  const int own_block_row_;  // of those of a merged tile, the warp's
};

}  // namespace sparse_autotune
