// A consumer warp of attention_warps_sm90 that owns 32 rows of q: half as much of k and v comes
// from shared memory for each product as with 16, but q comes from there, too.
#pragma once

#include "kernels/cuda/attention/attention_warps_steps_sm90.cuh"
#include "kernels/cuda/attention/hide_columns.cuh"
#include "kernels/cuda/attention/store_rows.cuh"
#include "kernels/cuda/attention/warp_fragments.cuh"
#include "kernels/cuda/attention/warp_softmax.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/shared_memory.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class Warp32RowsConsumer {
 public:
  __device__ __forceinline__ Warp32RowsConsumer(const WarpRowsArguments& args,
                                                const WarpRowsShared<Tile>& shared, int warp)
      : args_(args),
        queue_(shared.queue()),
        warp_(warp),
        q_(shared.q(warp)),
        steps_(shared, warp) {}

  __device__ __forceinline__ void run() {
    for (;;) {
      item_ = queue_.pop();
      if (item_.tiles < 0) break;
      load_q();
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
#pragma unroll
        for (float& x : sum_[set]) x = 0;
        softmax_[set].begin();
      }
      steps_.for_each([&](const WarpStep& step) { multiply(step); });
      if (item_.part >= 0 &&
          !add_up_parts<kSets>(args_.parts, item_.part, warp_, Tile::kWarps, sum_, softmax_)) {
        continue;
      }
      store();
    }
  }

 private:
  static constexpr int kSets = 2;  // of 16 rows
  static constexpr int kSlices = Tile::kDim / 16, kColumnSets = Tile::kPiece / 16;
  static constexpr int kQPanelBytes = Tile::kWarpRows * kLineBytes;
  using Score = float[kSets][8 * kColumnSets];
  using Words = uint32_t[kSets][4 * kColumnSets];

  __device__ __forceinline__ int first_row() const { return item_.row + warp_ * Tile::kWarpRows; }
  // The first of the thread's two rows of a set.
  __device__ __forceinline__ int own_row(int set) const {
    return first_row() + 16 * set + static_cast<int>(threadIdx.x) % 32 / 4;
  }

  // To shared memory, swizzled; this warp alone uses it.
  __device__ __forceinline__ void load_q() {
    const T* from = static_cast<const T*>(args_.q.data) + item_.batch * args_.q.batch_stride +
                    item_.head * args_.q.head_stride;
    const unsigned flip = args_.is_negative ? kSigns : 0;
    constexpr int kChunks = Tile::kDim / 8;  // of 16 bytes, of a row
    __syncwarp();
#pragma unroll 4
    for (int i = 0; i < kChunks; ++i) {
      const int chunk = i * 32 + threadIdx.x % 32, line = chunk / kChunks, part = chunk % kChunks;
      const int row = first_row() + line;
      uint4 word = {0, 0, 0, 0};
      if (row < args_.rows) {
        word = *reinterpret_cast<const uint4*>(from + row * args_.q.row_stride + part * 8);
      }
      const uint32_t to =
          q_ + part / 8 * kQPanelBytes + line * kLineBytes + ((part % 8 ^ line % 8) << 4);
      store_shared(to, make_uint4(word.x ^ flip, word.y ^ flip, word.z ^ flip, word.w ^ flip));
    }
    __syncwarp();
  }

  __device__ __forceinline__ void multiply(const WarpStep& step) {
    Score score = {};
#pragma unroll
    for (int i = 0; i < kSlices; ++i) {
      uint32_t a[kSets][4], b[kColumnSets][4];
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        ldmatrix(a[set],
                 slice_address<kQPanelBytes>(q_ + set * 16 * kLineBytes + lines_as_rows(), i));
      }
#pragma unroll
      for (int u = 0; u < kColumnSets; ++u) {
        const uint32_t k = step.k + u * 16 * kLineBytes + lines_as_columns();
        ldmatrix(b[u], slice_address<Tile::kPanelBytes>(k, i));
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          mma<T>(score[set] + 8 * u, a[set], b[u]);
          mma<T>(score[set] + 8 * u + 4, a[set], b[u] + 2);
        }
      }
    }
    const int seen_by_all = args_.is_causal ? min(args_.columns, first_row() + 1) : args_.columns;
    if (step.column + Tile::kPiece > seen_by_all) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        hide_columns(score[set], step.column, own_row(set), args_.columns, args_.is_causal);
      }
    }
    Words word;
    exponentials(score, word);
#pragma unroll
    for (int u = 0; u < kColumnSets; ++u) {
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        uint32_t b[4];
        const uint32_t v = step.k + Tile::kTileBytes + u * 16 * kLineBytes + lines_as_rows();
        ldmatrix_transposed(b, slice_address<Tile::kPanelBytes>(v, i));
#pragma unroll
        for (int set = 0; set < kSets; ++set) {
          const auto& part = reinterpret_cast<const uint32_t(&)[4]>(word[set][4 * u]);
          mma<T>(sum_[set] + 8 * i, part, b);
          mma<T>(sum_[set] + 8 * i + 4, part, b + 2);
        }
      }
    }
  }

  __device__ __forceinline__ void exponentials(const Score& score, Words& word) {
    float sum[kSets][2];
    bool small = true;
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      softmax_[set].template exponentials<T>(score[set], args_.scale_log2, word[set], sum[set]);
      small &= softmax_[set].are_small(sum[set]);
    }
    if (!__all_sync(~0u, small)) {
#pragma unroll
      for (int set = 0; set < kSets; ++set) {
        softmax_[set].raise_bases(score[set], args_.scale_log2, sum_[set]);
        softmax_[set].template exponentials<T>(score[set], args_.scale_log2, word[set], sum[set]);
      }
    }
#pragma unroll
    for (int set = 0; set < kSets; ++set) softmax_[set].add(sum[set]);
  }

  __device__ __forceinline__ void store() const {
#pragma unroll
    for (int set = 0; set < kSets; ++set) {
      float inverse[2], lse[2];
      softmax_[set].finish(inverse, lse);
      store_attention<T>(args_.out, args_.lse, item_.batch, item_.head, own_row(set), args_.rows,
                         sum_[set], inverse, lse);
    }
  }

  const WarpRowsArguments& args_;
  typename Tile::Queue queue_;
  const int warp_;
  const uint32_t q_;
  AttentionItem item_;
  StepReader<Tile> steps_;
  WarpSoftmax softmax_[kSets];
  float sum_[kSets][Tile::kDim / 2];
};

}  // namespace sparse_autotune
