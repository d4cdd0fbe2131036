// Where a warpgroup's finished 64 x 64 elements go from shared memory: to C by TMA, or by every
// thread's own stores. See store_tile.cuh.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/cuda/device/shared_memory.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"

namespace sparse_autotune {

// To C through TMA, by one thread: C's tensor map must be one that TMA takes.
class TmaSink {
 public:
  __device__ __forceinline__ explicit TmaSink(const CUtensorMap& c) : c_(c) {}

  // Before a buffer is written again: the last store but one has left it.
  __device__ __forceinline__ void reuse() const {
    if (threadIdx.x % kWarpgroup == 0) tma_store_wait<1>();
  }
  // Between writing a buffer and the barrier before send().
  __device__ __forceinline__ void publish() const { tma_store_fence(); }
  __device__ __forceinline__ void send(uint32_t buffer, int row, int column, int batch,
                                       bool row_major) const {
    if (threadIdx.x % kWarpgroup != 0) return;
    // C is not read again here: what gives way in L2 is C rather than B.
    tma_store_hinted(c_, buffer, evict_first(), row_major ? column : row, row_major ? row : column,
                     batch);
  }
  // All that was sent has left the buffers.
  __device__ __forceinline__ void drain() const {
    if (threadIdx.x % kWarpgroup == 0) tma_store_wait<0>();
  }

 private:
  const CUtensorMap& c_;
};

// A row-major C of any alignment.
struct DirectOutput {
  void* c;
  int64_t ldc, batch_stride;  // elements
  int n, alignment;           // columns; what divides the address of every row, bytes
};

// To C by every thread's own stores. Reading a buffer is over when its reader comes to the next
// barrier, so there is nothing to wait for.
class DirectSink {
 public:
  __device__ __forceinline__ explicit DirectSink(const DirectOutput& out) : out_(out) {}

  __device__ __forceinline__ void reuse() const {}
  __device__ __forceinline__ void publish() const {}
  __device__ __forceinline__ void drain() const {}
  __device__ __forceinline__ void send(uint32_t buffer, int row, int column, int batch,
                                       bool) const {
    if (out_.alignment >= 8) {
      copy<uint2>(buffer, row, column, batch);
    } else if (out_.alignment == 4) {
      copy<uint32_t>(buffer, row, column, batch);
    } else {
      copy<uint16_t>(buffer, row, column, batch);
    }
  }

 private:
  // Neighbouring threads write neighbouring chunks of a row.
  template <typename Chunk>
  __device__ __forceinline__ void copy(uint32_t buffer, int row, int column, int batch) const {
    constexpr int kBytes = sizeof(Chunk), kHalves = kBytes / 2, kAcross = kLineBytes / kBytes;
    const int me = threadIdx.x % kWarpgroup;
    const int x = me % kAcross, left = out_.n - column - x * kHalves;
    auto* to = static_cast<uint16_t*>(out_.c) + batch * out_.batch_stride + column + x * kHalves;
#pragma unroll 4
    for (int line = me / kAcross; line < 64; line += kWarpgroup / kAcross) {
      const uint32_t at =
          buffer + line * kLineBytes + ((((x * kBytes) >> 4) ^ (line % 8)) << 4) + x * kBytes % 16;
      const auto chunk = load_shared<Chunk>(at);
      uint16_t* c = to + (row + line) * out_.ldc;
      if (left >= kHalves) {
        *reinterpret_cast<Chunk*>(c) = chunk;
      } else if constexpr (kHalves > 1) {
#pragma unroll 1
        for (int i = 0; i < left; ++i) c[i] = load_shared<uint16_t>(at + i * 2);
      }
    }
  }

  const DirectOutput& out_;
};

}  // namespace sparse_autotune
