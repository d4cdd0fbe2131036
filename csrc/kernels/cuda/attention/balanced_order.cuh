// An order of a tile's columns in which each block row comes upon its blocks at an even pace.
//
// Warps that own a block row each share a ring of stages. A stage is free again once all of them
// have passed it, so whoever finds many of its blocks among the next few columns holds up all
// others. Columns are ordered in units of as many neighbours as a stage holds. Every lane of a warp
// has two series of units, and knows the first of both: of these 64 units the one is taken that
// leaves the block rows nearest to their paces, in the sense of least squares, again and again.
#pragma once

#include <cstdint>

#include "kernels/cuda/attention/tile_lists.h"

namespace sparse_autotune {

// What a unit adds to the leads of block rows: blocks less its part of the pace, times a scale.
// Bytes are relative to 128, so that words can be added and multiplied as a whole. Leads that no
// order can keep small wrap around; the order is then as good as any.
struct alignas(16) ColumnUnit {
  unsigned change[kWideEntryRows / 4];
  int weight;  // what least squares depend on besides the leads; great where there is no unit
};

constexpr unsigned kNoChange = 0x80808080;
constexpr unsigned kUnitSeries = 64, kMaxUnits = 4096;

class BalancedOrder {
 public:
  // Bytes of shared memory, aligned to 16.
  static int64_t bytes(int64_t units) {
    return (units + kUnitSeries) * sizeof(ColumnUnit) + units * sizeof(uint16_t);
  }

  __device__ __forceinline__ BalancedOrder(void* memory, int units)
      : units_(units),
        unit_(static_cast<ColumnUnit*>(memory)),
        order_(reinterpret_cast<uint16_t*>(unit_ + units + kUnitSeries)) {}

  // By a whole thread block. `mark` has a bit for each block row of each column; a unit is the next
  // `size` columns with any, from its start on. crow: the rows' beginnings.
  __device__ __forceinline__ void find(const uint16_t* mark, const int* start, int size,
                                       const int32_t* crow, int rows) {
    __shared__ unsigned pace[kWideEntryRows];  // of a unit, with 16 bits behind the point
    const unsigned scale = 64 / max(size, 4);
    if (threadIdx.x < kWideEntryRows) {
      const int row = threadIdx.x;
      const unsigned blocks = row < rows ? crow[row + 1] - crow[row] : 0;
      pace[row] = (blocks * scale << 12) / max(units_, 1) << 4;
    }
    __syncthreads();
    for (int i = threadIdx.x; i < units_ + kUnitSeries; i += blockDim.x) {
      ColumnUnit unit = {{0, 0, 0}, (1 << 20) - 2};
      if (i < units_) unit = describe(mark + start[i], size, i, scale, pace);
      unit_[i] = unit;
    }
    __syncthreads();
    if (threadIdx.x < 32) take_units();
    __syncthreads();
  }

  // The unit at place i.
  __device__ __forceinline__ int operator[](int i) const { return order_[i]; }

 private:
  static __device__ __forceinline__ ColumnUnit describe(const uint16_t* mark, int size, int i,
                                                        unsigned scale, const unsigned* pace) {
    ColumnUnit unit = {{0, 0, 0}, 0};
    for (int found = 0; found < size; ++mark) {
      const unsigned bits = *mark;
      found += bits != 0;
#pragma unroll
      for (int w = 0; w < kWideEntryRows / 4; ++w) {  // four bits become four bytes
        unit.change[w] += (bits >> 4 * w & 15) * 0x204081 & 0x01010101;
      }
    }
#pragma unroll
    for (int w = 0; w < kWideEntryRows / 4; ++w) {
      unsigned due = 0;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const unsigned each = pace[4 * w + j];
        due |= ((each * (i + 1) >> 16) - (each * i >> 16) & 255) << 8 * j;
      }
      unit.change[w] = unit.change[w] * scale + kNoChange - due;
      const int own = static_cast<int>(unit.change[w] ^ kNoChange);  // signed bytes
      unit.weight += __dp4a(own, own, 0) / 2 - 128 * __dp4a(own, 0x01010101, 0);
    }
    unit.weight += 1 << 17;  // no sum is negative
    return unit;
  }

  __device__ __forceinline__ void take_units() {
    constexpr int kSeries = kUnitSeries / 32;  // of a lane
    unsigned lead[kWideEntryRows / 4] = {kNoChange, kNoChange, kNoChange};
    unsigned next[kSeries];
    ColumnUnit own[kSeries];
#pragma unroll
    for (int j = 0; j < kSeries; ++j) {
      next[j] = 32 * j + threadIdx.x;
      own[j] = unit_[next[j]];
    }
    for (int i = 0; i < units_; ++i) {
      unsigned least = ~0u;
#pragma unroll
      for (int j = 0; j < kSeries; ++j) {
        unsigned squares = own[j].weight;
#pragma unroll
        for (int w = 0; w < kWideEntryRows / 4; ++w) {
          squares = __dp4a(lead[w], own[j].change[w], squares);
        }
        least = min(least, squares * kMaxUnits + next[j]);
      }
      const unsigned taken = __reduce_min_sync(~0u, least) % kMaxUnits;
      const ColumnUnit unit = unit_[taken], after = unit_[taken + kUnitSeries];
      order_[i] = static_cast<uint16_t>(taken);
#pragma unroll
      for (int w = 0; w < kWideEntryRows / 4; ++w) lead[w] += unit.change[w] - kNoChange;
#pragma unroll
      for (int j = 0; j < kSeries; ++j) {
        if (next[j] != taken) continue;
        next[j] += kUnitSeries;
        own[j] = after;
      }
    }
  }

  const int units_;
  ColumnUnit* const unit_;
  uint16_t* const order_;
};

}  // namespace sparse_autotune
