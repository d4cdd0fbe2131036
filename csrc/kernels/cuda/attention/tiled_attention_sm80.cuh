// attention_tiled_sm80: the portable kernel for half types.
//
// A thread block owns 16 rows of q a warp, of one head; their fragments stay in registers. It walks
// along the columns that any of its rows sees, 64 at a time: a tile of k and one of v, put together
// from pieces of 16 rows. Data path: global memory -> cp.async -> shared memory -> ldmatrix ->
// mma.sync. While scores are computed the tile of v is on its way, while v is multiplied the next
// tile of k. A warp leaves out what its own block row does not store.
#pragma once

#include "kernels/cuda/attention/hide_columns.cuh"
#include "kernels/cuda/attention/row_tile_sm80.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"

namespace sparse_autotune {

template <int kHeadDim, int kWarpCount>
struct AttentionTileSm80 {
  static constexpr int kDim = kHeadDim, kWarps = kWarpCount, kThreads = 32 * kWarps;
  static constexpr int kRows = 16 * kWarps, kN = 64;
  static constexpr int kTileBytes = kN * kDim * 2, kQBytes = kRows * kDim * 2;
  // q lies where k and v come later.
  static constexpr int kSharedBytes = kQBytes > 2 * kTileBytes ? kQBytes : 2 * kTileBytes;
  static_assert(kDim % 32 == 0, "whole swizzled rows");
};

struct AttentionArgumentsSm80 {
  AttentionTensor q, k, v, out;
  AttentionRowValues lse;
  AttentionMask mask;
  TileLists lists;
  int rows, columns, heads, group;
  float scale_log2;  // greater than 0
  bool is_negative;  // the caller's scale
  bool is_causal;
};

template <typename T, typename Tile>
class TiledAttention {
 public:
  __device__ __forceinline__ TiledAttention(const AttentionArgumentsSm80& args, uint32_t memory)
      : args_(args),
        k_(memory),
        v_(memory + Tile::kTileBytes),
        row_((gridDim.x - 1 - blockIdx.x) * Tile::kRows),
        own_row_(row_ + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        head_(blockIdx.y),
        batch_(blockIdx.z) {}

  __device__ __forceinline__ void run() {
    const TileColumns<Rows::kPiece> list(args_.mask, args_.lists, batch_, head_, args_.rows,
                                         args_.columns, args_.is_causal, row_, Tile::kRows);
    const int tiles = (list.pieces + Rows::kPieces - 1) / Rows::kPieces;
    WarpSoftmax softmax;
    softmax.begin();
    float out[Tile::kDim / 2] = {};
    if (tiles > 0) {
      load_q();
      Pieces now = Rows::pieces_of(list, 0, args_.columns);
      copy(args_.k, now, k_);
      for (int tile = 0; tile < tiles; ++tile) {
        cp_async_wait<0>();
        __syncthreads();  // k is there, v's tile is free
        copy(args_.v, now, v_);
        const Pieces next = Rows::pieces_of(list, tile + 1, args_.columns);
        const unsigned present = Rows::present(now, list.merged, args_.mask.block_m);
        float score[Tile::kN / 2] = {};
#pragma unroll
        for (int slice = 0; slice < Tile::kDim / 16; ++slice) {
          Rows::multiply_slice(score, q_[slice], k_, slice, present);
        }
        hide(score, now, present);
        uint32_t word[Tile::kN / 4];
        float sum[2];
        softmax.template exponentials<T>(score, args_.scale_log2, word, sum);
        if (!__all_sync(~0u, softmax.are_small(sum))) {
          softmax.raise_bases(score, args_.scale_log2, out);
          softmax.template exponentials<T>(score, args_.scale_log2, word, sum);
        }
        softmax.add(sum);
        cp_async_wait<0>();
        __syncthreads();  // v is there, k's tile is free
        if (tile + 1 < tiles) copy(args_.k, next, k_);
        Rows::multiply(out, word, v_, present);
        now = next;
      }
    }
    float inverse[2], lse[2];
    softmax.finish(inverse, lse);
    store_attention<T>(args_.out, args_.lse, batch_, head_, own_row_, args_.rows, out, inverse,
                       lse);
  }

 private:
  using Rows = RowTileSm80<T, Tile::kDim, Tile::kN, Tile::kThreads>;
  using RowsOfQ = RowTileSm80<T, Tile::kDim, Tile::kRows, Tile::kThreads>;
  using Pieces = typename Rows::Pieces;

  __device__ __forceinline__ const T* rows_of(const AttentionTensor& t, int head) const {
    return static_cast<const T*>(t.data) + batch_ * t.batch_stride + head * t.head_stride;
  }

  __device__ __forceinline__ void copy(const AttentionTensor& t, const Pieces& pieces,
                                       uint32_t tile) const {
    Rows::copy(rows_of(t, head_ / args_.group), t.row_stride, pieces, args_.columns, tile);
    cp_async_commit();
  }

  __device__ __forceinline__ void load_q() {
    RowsOfQ::copy_all(rows_of(args_.q, head_), args_.q.row_stride, row_, args_.rows, k_);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    const uint32_t from = k_ + RowsOfQ::a_offset(threadIdx.x / 32 * 16);
#pragma unroll
    for (int i = 0; i < Tile::kDim / 16; ++i) ldmatrix(q_[i], from ^ i * 32);
    // The softmax takes the highest score for the greatest exponent.
    if (args_.is_negative) {
#pragma unroll
      for (auto& words : q_) {
        for (uint32_t& word : words) word ^= kSigns;
      }
    }
    __syncthreads();
  }

  // Columns that a row may not see get -inf.
  __device__ __forceinline__ void hide(float (&score)[Tile::kN / 2], const Pieces& pieces,
                                       unsigned present) const {
    const int seen_by_all = args_.is_causal ? min(args_.columns, row_ + 1) : args_.columns;
#pragma unroll
    for (int i = 0; i < Rows::kPieces; ++i) {
      auto& part = reinterpret_cast<float(&)[Rows::kPiece / 2]>(score[i * (Rows::kPiece / 2)]);
      if ((present >> i & 1) == 0) hide_all(part);
      const int column = pieces.piece[i].column;
      if (column + Rows::kPiece <= seen_by_all) continue;
      hide_columns(part, column, own_row_, args_.columns, args_.is_causal);
    }
  }

  const AttentionArgumentsSm80& args_;
  const uint32_t k_, v_;
  const int row_, own_row_, head_, batch_;
  uint32_t q_[Tile::kDim / 16][4];
};

template <typename T, typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, 1)
    attention_kernel_sm80(const __grid_constant__ AttentionArgumentsSm80 args) {
  extern __shared__ __align__(1024) char memory[];
  const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
  TiledAttention<T, Tile>(args, address).run();
}

}  // namespace sparse_autotune
