// C's way out of warps that own strips of 16 or 32 of its rows: bias, activation, rounding,
// stmatrix, TMA. Nobody waits for the stores before the next tile's.
//
// A row-major C takes each warp's own box of 64 columns. Of a column-major C, strips that make 64
// rows share a box, as their own pieces of its columns would be of 32 or 64 bytes.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/activate_sums.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/tma.cuh"

namespace sparse_autotune {

template <typename T, typename Tile>
class StripStore {
 public:
  static constexpr int kParts = Tile::kWarpN / kLineHalves, kBoxBytes = 64 * kLineBytes;
  static constexpr int kStrips = 64 / Tile::kWarpM;  // that share a box
  static constexpr int kStripBytes = Tile::kWarpM * kLineBytes, kTall = Tile::kWarpM / 16;

  // `buffers`: Tile::kStoreBytes of shared memory, aligned to kSwizzleAlignment.
  __device__ __forceinline__ StripStore(uint32_t buffers, int warp) {
    const int row = warp / Tile::kWarpsN;
    part_ = warp % Tile::kWarpsN * Tile::kWarpN;
    box_ = row / kStrips;
    strip_ = row % kStrips;
    team_ = box_ * Tile::kWarpsN + warp % Tile::kWarpsN;
    boxes_ = buffers + team_ * Tile::kStoreParts * kBoxBytes;
  }

  // Of a tile of C that begins at the row and column.
  template <typename Arguments>
  __device__ __forceinline__ void write(const Arguments& args,
                                        float (&sum)[kTall][Tile::kWarpN / 8][4], int row,
                                        int column, int batch) {
    const int lane = threadIdx.x % 32;
    const int box_row = row + box_ * 64, own_row = box_row + strip_ * Tile::kWarpM;
    column += part_;
    if (args.bias != nullptr) add_bias(sum, static_cast<const T*>(args.bias), own_row, args.m);
    if (args.activation == Activation::kRelu) {
#pragma unroll
      for (int i = 0; i < kTall * Tile::kWarpN / 2; ++i) {
        float& x = (&sum[0][0][0])[i];
        x = activate(x, Activation::kRelu);
      }
    } else if (args.activation != Activation::kNone) {
      reuse(args.c_rows);
      activate_sums<kTall * Tile::kWarpN / 2, kStripBytes / 128, 128>(
          &sum[0][0][0], boxes_ + strip_ * kStripBytes + lane * 4, args.activation);
      team_sync(args.c_rows);
    }
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      if (p % Tile::kStoreParts == 0) reuse(args.c_rows);
      const uint32_t box = boxes_ + p % Tile::kStoreParts * kBoxBytes;
      if (args.c_rows) {
        // Matrices 0 and 1 are the upper and lower half of 8 columns, 2 and 3 of the next 8.
        const uint32_t to = box + strip_ * kStripBytes + lane % 16 * kLineBytes;
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          const uint32_t chunk = (2 * j + lane / 16) ^ (lane % 8);
#pragma unroll
          for (int i = 0; i < kTall; ++i) {
            store(to + chunk * 16 + i * 16 * kLineBytes, &sum[i][p * 8 + 2 * j][0], false);
          }
        }
      } else {
        const uint32_t to = box + (lane / 16 * 8 + lane % 8) * kLineBytes;
#pragma unroll
        for (int i = 0; i < kTall; ++i) {
          const uint32_t chunk = (strip_ * kTall * 2 + i * 2 + lane / 8 % 2) ^ (lane % 8);
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            store(to + chunk * 16 + j * 16 * kLineBytes, &sum[i][p * 8 + 2 * j][0], true);
          }
        }
      }
      tma_store_fence();
      team_sync(args.c_rows);
      const int at = column + p * kLineHalves;
      if (at >= args.n || !leads(args.c_rows)) continue;
      if (args.c_rows) {
        if (own_row < args.m) tma_store(args.c, box + strip_ * kStripBytes, at, own_row, batch);
      } else if (box_row < args.m) {
        tma_store(args.c, box, box_row, at, batch);
      }
    }
  }

  // Before the thread block ends.
  __device__ __forceinline__ void close() const { tma_store_wait<0>(); }

 private:
  // The thread that sends this warp's boxes.
  __device__ __forceinline__ bool leads(bool alone) const {
    return threadIdx.x % 32 == 0 && (alone || strip_ == 0);
  }
  __device__ __forceinline__ void team_sync(bool alone) const {
    if (alone) {
      __syncwarp();
    } else {
      asm volatile("bar.sync %0, %1;\n" ::"r"(1 + team_), "n"(kStrips * 32) : "memory");
    }
  }
  // All that was sent has left the buffers.
  __device__ __forceinline__ void reuse(bool alone) const {
    if (leads(alone)) tma_store_wait<0>();
    team_sync(alone);
  }

  static __device__ __forceinline__ void add_bias(float (&sum)[kTall][Tile::kWarpN / 8][4],
                                                  const T* bias, int row, int m) {
    if (row >= m) return;
    bias += row + threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < kTall; ++i) {
      const float low = static_cast<float>(bias[i * 16]);
      const float high = static_cast<float>(bias[i * 16 + 8]);
#pragma unroll
      for (int j = 0; j < Tile::kWarpN / 8; ++j) {
        sum[i][j][0] += low;
        sum[i][j][1] += low;
        sum[i][j][2] += high;
        sum[i][j][3] += high;
      }
    }
  }

  // Two neighbouring 8 columns of 16 rows.
  static __device__ __forceinline__ void store(uint32_t to, const float* sum, bool transposed) {
    uint32_t word[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) word[i] = pack<T>(sum[2 * i], sum[2 * i + 1]);
    stmatrix(to, word, transposed);
  }

  uint32_t boxes_;
  int part_, box_, strip_, team_;
};

}  // namespace sparse_autotune
