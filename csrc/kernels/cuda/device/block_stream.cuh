// A block row's stored blocks on their way from global memory through a ring in shared memory, some
// blocks ahead, to the fragments of the one warp that multiplies by them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/swizzle.cuh"

namespace sparse_autotune {

// A^T: a block lies in values as kBlockK lines of kBlockM, at its Launch::positions; otherwise a
// row's blocks follow each other, as kBlockM lines of kBlockK.
template <typename Tile, bool kTransposedA>
class BlockStream {
 public:
  static constexpr int kBytes = Tile::kBlockSlots * Tile::kBlockBytes;

  // `ring`: kBytes of shared memory, aligned to 128.
  __device__ __forceinline__ explicit BlockStream(uint32_t ring) : ring_(ring) {
    const int lane = threadIdx.x % 32;
    to_ = chunk_offset<kLine>(lane / (kLine / 16), lane % (kLine / 16));
    from_ = kTransposedA ? chunk_offset<kLine>(lane / 16 * 8 + lane % 8, lane / 8 % 2)
                         : chunk_offset<kLine>(lane % 16, lane / 16);
  }

  // Blocks `begin` to `end` of op(A), once all that were started before have been taken.
  template <typename Arguments>
  __device__ __forceinline__ void start(const Arguments& args, int begin, int end) {
    const int lane = threadIdx.x % 32;
    next_ = begin;
    end_ = end;
    int places = 0;
    if constexpr (kTransposedA) {
      if (begin + lane < end) {
        places = static_cast<int>(load_index(args.positions, begin + lane, args.wide_indices));
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kBlockSlots - 1; ++i) {
      if constexpr (kTransposedA) position_ = __shfl_sync(~0u, places, i);
      fetch(args, at_ + i * Tile::kBlockBytes);
    }
    if constexpr (kTransposedA) position_ = __shfl_sync(~0u, places, Tile::kBlockSlots - 1);
  }

  // The next block's fragments, by k and by row, each of 16.
  __device__ __forceinline__ void take(uint32_t (&a)[Tile::kBlockK / 16][Tile::kBlockM / 16][4]) {
    cp_async_wait<Tile::kBlockSlots - 2>();
    __syncwarp();
    const uint32_t block = ring_ + at_ + from_;
#pragma unroll
    for (int step = 0; step < Tile::kBlockK / 16; ++step) {
#pragma unroll
      for (int i = 0; i < Tile::kBlockM / 16; ++i) {
        if constexpr (kTransposedA) {
          ldmatrix_transposed(a[step][i], (block ^ i * 32) + step * 16 * kLine);
        } else {
          ldmatrix(a[step][i], (block ^ step * 32) + i * 16 * kLine);
        }
      }
    }
    at_ = (at_ + Tile::kBlockBytes) % kBytes;
  }

  // After each take(), when there is time: copies another block into the slot of the block before
  // the one taken, which all lanes have read.
  template <typename Arguments>
  __device__ __forceinline__ void refill(const Arguments& args) {
    fetch(args, at_ + kBytes - 2 * Tile::kBlockBytes);
    // Not by load_narrow_index, which takes a register that union_sm80 does not have here.
    if constexpr (kTransposedA) {
      if (next_ < end_)
        position_ = static_cast<int>(load_index(args.positions, next_, args.wide_indices));
    }
  }

 private:
  static constexpr int kLine = (kTransposedA ? Tile::kBlockM : Tile::kBlockK) * 2;  // bytes
  static_assert((kBytes & (kBytes - 1)) == 0);

  // A group of copies, though of nothing behind the last block: take() counts groups.
  template <typename Arguments>
  __device__ __forceinline__ void fetch(const Arguments& args, uint32_t slot) {
    if (next_ < end_) {
      const int64_t block = kTransposedA ? position_ : next_;
      const char* from =
          static_cast<const char*>(args.values) + block * Tile::kBlockBytes + threadIdx.x % 32 * 16;
      const uint32_t to = ring_ + slot % kBytes + to_;
#pragma unroll
      for (int i = 0; i < Tile::kBlockBytes; i += 512) cp_async_16(to + i, from + i, 16);
      ++next_;
    }
    cp_async_commit();
  }

  uint32_t ring_, to_, from_, at_ = 0;
  int next_ = 0, end_ = 0, position_ = 0;
};

}  // namespace sparse_autotune
