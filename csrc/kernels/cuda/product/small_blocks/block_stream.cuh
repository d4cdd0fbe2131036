// Block rows' stored blocks on their way from global memory through rings in shared memory, some
// blocks ahead, to the fragments of the one warp that multiplies by them.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/swizzle.cuh"

namespace sparse_autotune {

// A^T: a block lies in values as kBlockK lines of kBlockM, at its Launch::positions; otherwise a
// row's blocks follow each other, as kBlockM lines of kBlockK. `row` is one of the kRows, a
// constant wherever a call is inlined.
template <typename Tile, bool kTransposedA, int kRows = 1>
class BlockStream {
 public:
  static constexpr int kRingBytes = Tile::kBlockSlots * Tile::kBlockBytes;
  static constexpr int kBytes = kRows * kRingBytes;

  // `rings`: kBytes of shared memory, aligned to 128.
  __device__ __forceinline__ explicit BlockStream(uint32_t rings) : rings_(rings) {
    const int lane = threadIdx.x % 32;
    to_ = chunk_offset<kLine>(lane / (kLine / 16), lane % (kLine / 16));
    from_ = kTransposedA ? chunk_offset<kLine>(lane / 16 * 8 + lane % 8, lane / 8 % 2)
                         : chunk_offset<kLine>(lane % 16, lane / 16);
  }

  // Blocks `begin` to `end` of op(A), once all that were started before have been taken.
  template <typename Arguments>
  __device__ __forceinline__ void start(const Arguments& args, int begin, int end, int row = 0) {
    const int lane = threadIdx.x % 32;
    next_[row] = begin;
    end_[row] = end;
    int places = 0;
    if constexpr (kTransposedA) {
      if (begin + lane < end) {
        places = static_cast<int>(load_index(args.positions, begin + lane, args.wide_indices));
      }
    }
#pragma unroll
    for (int i = 0; i < Tile::kBlockSlots - 1; ++i) {
      if constexpr (kTransposedA) position_[row] = __shfl_sync(~0u, places, i);
      fetch(args, at_[row] + i * Tile::kBlockBytes, row);
    }
    if constexpr (kTransposedA) position_[row] = __shfl_sync(~0u, places, Tile::kBlockSlots - 1);
  }

  // The row's next block's fragments, by k and by row, each of 16.
  __device__ __forceinline__ void take(uint32_t (&a)[Tile::kBlockK / 16][Tile::kBlockM / 16][4],
                                       int row = 0) {
    wait(row);
    __syncwarp();
    const uint32_t block = rings_ + row * kRingBytes + at_[row] + from_;
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
    at_[row] = (at_[row] + Tile::kBlockBytes) % kRingBytes;
  }

  // After each take(), when there is time: copies another block into the slot of the block before
  // the one taken, which all lanes have read.
  template <typename Arguments>
  __device__ __forceinline__ void refill(const Arguments& args, int row = 0) {
    fetch(args, at_[row] + kRingBytes - 2 * Tile::kBlockBytes, row);
    // Not by load_narrow_index, which takes a register that union_sm80 does not have here.
    if constexpr (kTransposedA) {
      if (next_[row] < end_[row]) {
        position_[row] =
            static_cast<int>(load_index(args.positions, next_[row], args.wide_indices));
      }
    }
  }

 private:
  static constexpr int kLine = (kTransposedA ? Tile::kBlockM : Tile::kBlockK) * 2;  // bytes
  static_assert((kRingBytes & (kRingBytes - 1)) == 0, "places in the ring wrap by a mask");

  // For the row's next block, one of kBlockSlots - 1 on their way, of which kLater come after it. A
  // thread's copies are waited for in the order in which it began them, for whichever row: so it is
  // known how many groups are younger than that block's.
  __device__ __forceinline__ void wait(int row) {
    constexpr int kLater = Tile::kBlockSlots - 2;
    if constexpr (kRows == 1) {
      cp_async_wait<kLater>();
    } else {
      static_assert(kLater <= 3, "group_ has a byte for each");
      const uint32_t younger = (groups_ - (group_[row] >> 8 * kLater)) & 255;
      if (younger > 2 * kLater) {
        cp_async_wait<2 * kLater + 1>();
      } else {
        cp_async_wait<kLater>();
      }
    }
  }

  // A group of copies, though of nothing behind the last block: take() counts groups.
  template <typename Arguments>
  __device__ __forceinline__ void fetch(const Arguments& args, uint32_t slot, int row) {
    if (next_[row] < end_[row]) {
      const int64_t block = kTransposedA ? position_[row] : next_[row];
      const char* from =
          static_cast<const char*>(args.values) + block * Tile::kBlockBytes + threadIdx.x % 32 * 16;
      const uint32_t to = rings_ + row * kRingBytes + slot % kRingBytes + to_;
#pragma unroll
      for (int i = 0; i < Tile::kBlockBytes; i += 512) cp_async_16(to + i, from + i, 16);
      ++next_[row];
    }
    cp_async_commit();
    if constexpr (kRows > 1) group_[row] = group_[row] << 8 | (++groups_ & 255);
  }

  uint32_t rings_, to_, from_, at_[kRows] = {};
  int next_[kRows] = {}, end_[kRows] = {}, position_[kRows] = {};
  // Groups of copies so far, modulo 256; the numbers of each row's last four, the last one lowest.
  uint32_t groups_ = 0, group_[kRows] = {};
};

}  // namespace sparse_autotune
