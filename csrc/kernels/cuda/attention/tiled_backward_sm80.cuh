// attention_backward_tiled_sm80: the portable gradients for half types, without atomics.
//
// Two launches of one kernel. In the first a thread block owns 64 rows of q and dout and walks
// along the columns that they see: steps of rows of k and v; it adds up dq. In the second it
// owns 64 rows of k and v and walks along the rows of q and dout that see them, of all heads that
// share them; it adds up dk and dv. With x the rows that it owns and y those of a step, both
// multiply
//   s = x1 y1^T, dp = x2 y2^T, sum1 += ds y1  and the second  sum2 += p y2.
// A warp has 16 of the rows; p and ds go from one mma.sync to the next in registers. Scores are
// computed twice, once in each launch: that is what it costs to need no sums in global memory.
#pragma once

#include "kernels/cuda/attention/row_tile_sm80.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

struct BackwardArgumentsSm80 {
  AttentionTensor x1, x2, y1, y2, sum1, sum2;
  AttentionMask mask;  // its rows are x's
  TileLists lists;
  const float *lse, *delta;  // of rows of q: see attention_backward_rows.cuh
  int64_t padded_rows;       // of these, in one head
  int own_rows, step_rows, heads, group;
  float scale_log2, scale;
  bool is_causal;
};

template <typename T, int kDim, bool kOfColumns>
class TiledBackward {
 public:
  static constexpr int kRows = 64, kThreads = 128;
  // Rows of a step: two sums of 128 columns leave registers for no more than 32.
  static constexpr int kStep = kOfColumns && kDim == 128 ? 32 : 64;
  using OwnRows = RowTileSm80<T, kDim, kRows, kThreads>;
  using Rows = RowTileSm80<T, kDim, kStep, kThreads>;
  static constexpr int kValueBytes = kStep * 4;
  static constexpr int kSharedBytes = 2 * OwnRows::kBytes + 2 * Rows::kBytes + 2 * kValueBytes;

  __device__ __forceinline__ TiledBackward(const BackwardArgumentsSm80& args, uint32_t memory)
      : args_(args),
        memory_(memory),
        row_(blockIdx.x * kRows),
        own_row_(row_ + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4),
        head_(blockIdx.y),
        batch_(blockIdx.z) {}

  __device__ __forceinline__ void run() {
    float sum1[kDim / 2] = {}, sum2[kOfColumns ? kDim / 2 : 1] = {};
    OwnRows::copy_all(rows_of(args_.x1, head_), args_.x1.row_stride, row_, args_.own_rows, x1());
    OwnRows::copy_all(rows_of(args_.x2, head_), args_.x2.row_stride, row_, args_.own_rows, x2());
    if constexpr (!kOfColumns) {
      const int64_t at = values_of(head_) + own_row_;
      for (int half = 0; half < 2; ++half) {
        lse_[half] = args_.lse[at + 8 * half];
        delta_[half] = args_.delta[at + 8 * half];
      }
      walk(head_, head_ / args_.group, sum1, sum2);
    } else {
      for (int i = 0; i < args_.group; ++i) {
        walk(head_ * args_.group + i, head_ * args_.group + i, sum1, sum2);
      }
    }
    cp_async_wait<0>();  // of x, where there was no step
    const float scale[2] = {args_.scale, args_.scale}, one[2] = {1, 1};
    store_rows<T>(args_.sum1, batch_, head_, own_row_, args_.own_rows, sum1, scale);
    if constexpr (kOfColumns) {
      store_rows<T>(args_.sum2, batch_, head_, own_row_, args_.own_rows, sum2, one);
    }
  }

 private:
  static constexpr int kPieces = Rows::kPieces;
  using Pieces = typename Rows::Pieces;
  using Scores = float[kStep / 2];

  __device__ __forceinline__ uint32_t x1() const { return memory_; }
  __device__ __forceinline__ uint32_t x2() const { return memory_ + OwnRows::kBytes; }
  __device__ __forceinline__ uint32_t y1() const { return x2() + OwnRows::kBytes; }
  __device__ __forceinline__ uint32_t y2() const { return y1() + Rows::kBytes; }
  __device__ __forceinline__ uint32_t values() const { return y2() + Rows::kBytes; }

  __device__ __forceinline__ const T* rows_of(const AttentionTensor& t, int head) const {
    return static_cast<const T*>(t.data) + batch_ * t.batch_stride + head * t.head_stride;
  }
  __device__ __forceinline__ int64_t values_of(int head) const {
    return (static_cast<int64_t>(batch_) * args_.heads + head) * args_.padded_rows;
  }

  // `head` is q's, whose pattern it is; `step_head` that of y.
  template <typename Sum2>
  __device__ __forceinline__ void walk(int head, int step_head, float (&sum1)[kDim / 2],
                                       Sum2& sum2) {
    const bool dense = args_.mask.crow_indices == nullptr;
    const TileColumns<Rows::kPiece> list(args_.mask, args_.lists, batch_, head, args_.own_rows,
                                         args_.step_rows, args_.is_causal && !kOfColumns, row_,
                                         kRows);
    // Without a mask the rows before a column do not see it.
    const int first = kOfColumns && dense && args_.is_causal ? row_ / kStep : 0;
    const int steps = (list.pieces + kPieces - 1) / kPieces;
    for (int step = first; step < steps; ++step) {
      const Pieces pieces = Rows::pieces_of(list, step, args_.step_rows);
      __syncthreads();  // the step before has been read
      Rows::copy(rows_of(args_.y1, step_head), args_.y1.row_stride, pieces, args_.step_rows, y1());
      Rows::copy(rows_of(args_.y2, step_head), args_.y2.row_stride, pieces, args_.step_rows, y2());
      if constexpr (kOfColumns) copy_values(pieces, head);
      cp_async_commit();
      cp_async_wait<0>();
      __syncthreads();
      const unsigned present = Rows::present(pieces, list.merged, args_.mask.block_m);
      Scores p = {}, ds = {};
      multiply_scores(p, x1(), y1(), present);
      multiply_scores(ds, x2(), y2(), present);
      differences(p, ds, pieces);
      uint32_t word[kStep / 4];
      if constexpr (kOfColumns) {
        pack_all<T>(p, word);
        Rows::multiply(sum2, word, y2(), present);
      }
      pack_all<T>(ds, word);
      Rows::multiply(sum1, word, y1(), present);
    }
  }

  // lse and delta of a step's rows: 4 of 16 bytes a piece, of each.
  __device__ __forceinline__ void copy_values(const Pieces& pieces, int head) const {
    const int i = threadIdx.x;
    if (i >= 2 * kStep / 4) return;
    const int chunk = i % (kStep / 4), piece = chunk / 4;
    int row = pieces.piece[0].column;
#pragma unroll
    for (int j = 1; j < kPieces; ++j) {
      if (piece == j) row = pieces.piece[j].column;
    }
    const bool there = row < args_.step_rows;  // else it is no multiple of 16
    row += chunk % 4 * 4;
    const float* from = (i < kStep / 4 ? args_.lse : args_.delta) + values_of(head);
    cp_async_16(values() + i * 16, from + (there ? row : 0), there ? 16 : 0);
  }

  __device__ __forceinline__ void multiply_scores(Scores& score, uint32_t x, uint32_t y,
                                                  unsigned present) const {
    const uint32_t from = x + OwnRows::a_offset(threadIdx.x / 32 * 16);
#pragma unroll
    for (int slice = 0; slice < kDim / 16; ++slice) {
      uint32_t word[4];
      ldmatrix(word, from ^ slice * 32);
      Rows::multiply_slice(score, word, y, slice, present);
    }
  }

  // Scores become p, dp becomes ds; both are zeros where a row does not see a column.
  __device__ __forceinline__ void differences(Scores& p, Scores& ds, const Pieces& pieces) const {
#pragma unroll
    for (int i = 0; i < kStep / 8; ++i) {
      const int step_row = pieces.piece[i / 2].column + i % 2 * 8 + threadIdx.x % 4 * 2;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int own = own_row_ + j / 2 * 8, other = step_row + j % 2, at = 4 * i + j;
        float lse, delta;
        if constexpr (kOfColumns) {
          const uint32_t value = values() + (8 * i + threadIdx.x % 4 * 2 + j % 2) * 4;
          lse = load_shared<float>(value);
          delta = load_shared<float>(value + kValueBytes);
        } else {
          lse = lse_[j / 2];
          delta = delta_[j / 2];
        }
        const bool seen = other < args_.step_rows &&
                          (!args_.is_causal || (kOfColumns ? own <= other : other <= own));
        p[at] = seen ? power_of_two(fmaf(p[at], args_.scale_log2, -lse)) : 0;
        ds[at] = seen ? p[at] * (ds[at] - delta) : 0;
      }
    }
  }

  const BackwardArgumentsSm80& args_;
  const uint32_t memory_;
  const int row_, own_row_, head_, batch_;
  float lse_[2] = {}, delta_[2] = {};
};

template <typename T, int kDim, bool kOfColumns>
__global__ void __launch_bounds__(128)
    attention_backward_kernel_sm80(const __grid_constant__ BackwardArgumentsSm80 args) {
  extern __shared__ __align__(1024) char memory[];
  TiledBackward<T, kDim, kOfColumns>(args, static_cast<uint32_t>(__cvta_generic_to_shared(memory)))
      .run();
}

}  // namespace sparse_autotune
