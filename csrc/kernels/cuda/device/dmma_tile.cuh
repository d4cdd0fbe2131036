// The kernel of dmma_sm80: a tile of C by fp64 tensor cores.
//
// C^T is computed: mma's 16 rows are columns of C, its 8 columns are rows of a block, so that blocks
// of 8 rows use all of it. k comes in slices of 8 (64 bytes). Which of a slice's k an mma's thread
// takes is free as long as A and B agree: it takes neighbours, so that operands with k contiguous
// are read 16 bytes at a time.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "variant.h"

namespace sparse_autotune {

struct DmmaArguments {
  const void* crow_indices;
  const void* col_indices;
  const void* positions;  // Launch::positions
  const void* values;
  const void* b;
  const void* bias;
  void* c;
  const GroupColumn* columns;  // null: a tile belongs to one block row
  Panels panels;               // its order: of groups, or of block rows
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  int m, block_m, block_k, block_rows, blocks;
  int group, strips;  // block rows of a tile, or tiles of a block row
  int slices;         // of a block's row
  Activation activation;
  uint32_t line_a, line_b, block_bytes;  // bytes between lines of a block or of B, and of a block
  bool wide_indices, c_rows;
  bool chunks, pairs;  // values and B, or C, are aligned to 16 bytes
};

// Rows; columns of a warp; warps; rows that are present or absent together, which divide block_m;
// steps in shared memory; thread blocks that a multiprocessor should hold.
template <int kRows, int kWidth, int kCount, int kSide, int kDepth, int kBlocks, bool kTransposed,
          bool kRowMajor>
struct DmmaTile {
  static constexpr int kM = kRows, kWarpN = kWidth, kWarps = kCount, kGranule = kSide;
  static constexpr int kStages = kDepth, kResident = kBlocks;
  static constexpr bool kTransposedA = kTransposed, kRowMajorB = kRowMajor;
  static constexpr int kN = kWarpN * kWarps, kThreads = kWarps * 32, kGranules = kM / kGranule;
  static constexpr int kUnits = 2;  // slices of a step
  // An operand's slice has a line of 8 k for each row of A or column of B; or, of a transposed A
  // and a row-major B, 8 rows with 16 bytes between them. Neither has bank conflicts.
  static constexpr int kPitchA = kGranule * 8 + 16, kPitchB = kN * 8 + 16;
  static constexpr int kGranuleBytes = kTransposedA ? 8 * kPitchA : kGranule * 64;
  static constexpr int kBytesA = kGranules * kGranuleBytes;
  static constexpr int kBytesB = kRowMajorB ? 8 * kPitchB : kN * 64;
  static constexpr int kUnitBytes = kBytesA + kBytesB, kStageBytes = kUnits * kUnitBytes;
  static constexpr int kSharedBytes = kStages * (kStageBytes + kUnits * 4);
  static constexpr int kTilesN = kM / 8, kTilesM = kWarpN / 16, kSums = kTilesN * kTilesM * 4;
  static_assert(kStages >= 3 && kSums * kThreads * 8 <= kStages * kStageBytes);
};

// c += a * b for 16 x 8 x 8: the thread's a are of rows lane / 4 and 8 more, of its first k and of
// its second; b of column lane / 4.
__device__ __forceinline__ void multiply_fp64(double (&c)[4], const double (&a)[4],
                                              const double (&b)[2]) {
#if __CUDA_ARCH__ >= 900
  asm("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
      "{%0,%1,%2,%3};\n"
      : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
      : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0,%1}, {%2}, {%3}, {%0,%1};\n"
          : "+d"(c[2 * half]), "+d"(c[2 * half + 1])
          : "d"(a[2 * k + half]), "d"(b[k]));
    }
  }
#endif
}

// The first `bytes` of 16, from where only 8 are aligned.
__device__ __forceinline__ void copy_halves(uint32_t to, const char* from, int bytes) {
  cp_async_narrow<8>(to, from, min(bytes, 8));
  cp_async_narrow<8>(to + 8, bytes > 8 ? from + 8 : from, max(bytes - 8, 0));
}

// A thread's b of two k and of two columns: of either column both k lie side by side, or, row-major,
// of either k both columns.
template <bool kRowMajor>
__device__ __forceinline__ void load_pairs(const char* first, const char* second, double (&b)[4]) {
  const auto x = *reinterpret_cast<const double2*>(first);
  const auto y = *reinterpret_cast<const double2*>(second);
  b[0] = x.x;
  b[1] = kRowMajor ? x.y : y.x;
  b[2] = kRowMajor ? y.x : x.y;
  b[3] = y.y;
}

// What a thread block computes.
struct DmmaPart {
  int row0, rows;     // of C
  int block_row, m0;  // its first block row, and where in it
  int begin, length;  // stored blocks of the block row, or columns of the group
  unsigned batch;
  int columns;
  int64_t n0;
};

template <typename Tile>
__device__ __forceinline__ DmmaPart find_dmma_part(const DmmaArguments& args) {
  const TilePlace at = locate(args.panels, blockIdx.x);
  const auto strips = static_cast<unsigned>(args.strips);
  DmmaPart part;
  part.m0 = static_cast<int>(at.row % strips) * Tile::kM;
  int row = static_cast<int>(at.row / strips);
  if (args.panels.order != nullptr) {
    const int4 ordered = __ldg(reinterpret_cast<const int4*>(args.panels.order) + row);
    row = ordered.x;
    part.begin = ordered.y;
    part.length = ordered.z - ordered.y;
  } else {
    part.begin = load_narrow_index(args.crow_indices, row, args.wide_indices);
    part.length = load_narrow_index(args.crow_indices, row + 1, args.wide_indices) - part.begin;
  }
  part.block_row = row * args.group;
  part.row0 = part.block_row * args.block_m + part.m0;
  part.rows = args.columns == nullptr ? min(args.block_m - part.m0, Tile::kM)
                                      : min(args.m - part.row0, args.group * args.block_m);
  part.batch = at.batch;
  part.n0 = int64_t{at.column} * Tile::kN;
  part.columns = static_cast<int>(min(args.n - part.n0, static_cast<int64_t>(Tile::kN)));
  return part;
}

// This thread's share of the copies, a slice at a time: of every slice the same chunks of B, and
// the same chunks of some granules of A.
template <typename Tile>
class DmmaCopies {
 public:
  __device__ __forceinline__ DmmaCopies(const DmmaArguments& args, const DmmaPart& part)
      : at_(part.begin), end_(part.begin + part.length) {
    const int thread = threadIdx.x;
    const double* b = static_cast<const double*>(args.b) + part.batch * args.b_batch_stride;
    if constexpr (Tile::kRowMajorB) {
      const int row = thread / (Tile::kN / 2), chunk = thread % (Tile::kN / 2);
      b += row * args.ldb + part.n0 + 2 * chunk;
      b_to_ = Tile::kBytesA + row * Tile::kPitchB + chunk * 16;
      b_left_ = min(max(part.columns - 2 * chunk, 0), 2) * 8;
    } else {
      b += (part.n0 + thread / 4) * args.ldb + thread % 4 * 2;
      b_to_ = Tile::kBytesA + thread * 16;
      b_left_ = part.columns - thread / 4;
    }
    b_ = reinterpret_cast<const char*>(b);
    const int chunk = thread / 32 % kShare * (kChunks * 32) + thread % 32;
    granule_ = thread / 32 / kShare * kMine;
    const bool grouped = args.columns != nullptr;
    a_ = static_cast<const char*>(args.values);
    if constexpr (Tile::kTransposedA) {
      const int row = chunk / (Tile::kGranule / 2), pair = chunk % (Tile::kGranule / 2);
      a_ += int64_t{row} * args.line_a + (part.m0 + pair * 2) * 8;
      a_to_ = row * Tile::kPitchA + pair * 16;
      granule_stride_ = grouped ? 0 : Tile::kGranule * 8;
    } else {
      a_ += int64_t{part.m0 + chunk / 4} * args.line_a + chunk % 4 * 16;
      a_to_ = chunk * 16;
      granule_stride_ = grouped ? 0 : Tile::kGranule * args.line_a;
    }
    all_ = (1u << (part.rows / Tile::kGranule)) - 1;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      cursor_[i] = part.begin;
      if (grouped) {
        const int row = min(part.block_row + granule_ + i, args.block_rows);
        cursor_[i] = load_narrow_index(args.crow_indices, row, args.wide_indices);
      }
      if constexpr (Tile::kTransposedA) {
        place_[i] = position(args, cursor_[i]);
        next_place_[i] = position(args, cursor_[i] + 1);
      }
    }
    item_ = fetch(args, at_);
    next_ = fetch(args, at_ + 1);
  }

  // Starts the copies of a step, and says which of its granules are there.
  __device__ __forceinline__ void start(uint32_t stage, uint32_t* masks,
                                        const DmmaArguments& args) {
#pragma unroll
    for (int unit = 0; unit < Tile::kUnits; ++unit, stage += Tile::kUnitBytes) {
      const bool any = at_ < end_;
      if (threadIdx.x == 0) masks[unit] = any ? item_.mask : 0;
      if (!any) continue;
      if (args.chunks) {
        start_unit<true>(stage, args);
      } else {
        start_unit<false>(stage, args);
      }
      advance(args);
    }
  }

 private:
  // A warp's granules, or the warps that share one; chunks of each granule for a thread.
  static constexpr int kMine = Tile::kGranules >= Tile::kWarps ? Tile::kGranules / Tile::kWarps : 1;
  static constexpr int kShare = Tile::kGranules >= Tile::kWarps ? 1 : Tile::kWarps / Tile::kGranules;
  static constexpr int kChunks = Tile::kGranule * 4 / kShare / 32;
  static constexpr int kChunksB = Tile::kN * 4 / Tile::kThreads;
  static_assert(kChunks >= 1 && Tile::kThreads % (Tile::kN / 2) == 0);

  struct Item {
    int column;
    uint32_t mask;
  };

  __device__ __forceinline__ Item fetch(const DmmaArguments& args, int i) const {
    if (i >= end_) return {};
    if (args.columns != nullptr) {
      const int2 column = __ldg(reinterpret_cast<const int2*>(args.columns) + i);
      return {column.x, static_cast<uint32_t>(column.y)};
    }
    return {load_narrow_index(args.col_indices, i, args.wide_indices), all_};
  }
  // Of a block that may be behind the last one.
  __device__ __forceinline__ int position(const DmmaArguments& args, int block) const {
    return block < args.blocks ? load_narrow_index(args.positions, block, args.wide_indices) : 0;
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_unit(uint32_t stage, const DmmaArguments& args) const {
    start_b<kWhole>(stage + b_to_, args);
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      const uint32_t bit = 1u << (granule_ + i);
      if ((item_.mask & bit) == 0) continue;
      start_a<kWhole>(stage + a_to_ + __popc(item_.mask & (bit - 1)) * Tile::kGranuleBytes, i,
                      args);
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_b(uint32_t to, const DmmaArguments& args) const {
    const uint32_t k = item_.column * args.block_k + slice_ * 8;
    const char* from = Tile::kRowMajorB ? b_ + uint64_t{k} * args.line_b : b_ + uint64_t{k} * 8;
    constexpr int kApart = Tile::kThreads / (Tile::kRowMajorB ? Tile::kN / 2 : 4);
    constexpr int kPitch = Tile::kRowMajorB ? Tile::kPitchB : 64;
#pragma unroll(kWhole ? kChunksB : 1)
    for (int i = 0; i < kChunksB; ++i) {
      const char* line = from + uint64_t{args.line_b} * (i * kApart);
      const uint32_t at = to + i * kApart * kPitch;
      const int bytes = Tile::kRowMajorB ? b_left_ : i * kApart < b_left_ ? 16 : 0;
      if constexpr (!kWhole) {
        if (bytes > 0) copy_halves(at, line, bytes);
      } else if constexpr (Tile::kRowMajorB) {
        cp_async_16(at, line, bytes);
      } else {
        cp_async_16_if(bytes > 0, at, line);
      }
    }
  }

  template <bool kWhole>
  __device__ __forceinline__ void start_a(uint32_t to, int i, const DmmaArguments& args) const {
    const uint32_t block = Tile::kTransposedA ? place_[i] : cursor_[i];
    const char* from = a_ + uint64_t{block} * args.block_bytes +
                       ((granule_ + i) * granule_stride_ +
                        static_cast<uint32_t>(slice_) * (Tile::kTransposedA ? 8 * args.line_a : 64));
    constexpr int kRows = Tile::kTransposedA ? 64 / Tile::kGranule : 8;  // of 32 chunks
    constexpr int kPitch = Tile::kTransposedA ? Tile::kPitchA : 64;
#pragma unroll(kWhole ? kChunks : 1)
    for (int j = 0; j < kChunks; ++j) {
      const char* line = from + uint64_t{args.line_a} * (j * kRows);
      if constexpr (kWhole) {
        cp_async_16(to + j * kRows * kPitch, line);
      } else {
        copy_halves(to + j * kRows * kPitch, line, 16);
      }
    }
  }

  __device__ __forceinline__ void advance(const DmmaArguments& args) {
    if (++slice_ < args.slices) return;
    slice_ = 0;
#pragma unroll
    for (int i = 0; i < kMine; ++i) {
      if ((item_.mask >> (granule_ + i) & 1) == 0) continue;
      ++cursor_[i];
      if constexpr (Tile::kTransposedA) {
        place_[i] = next_place_[i];
        next_place_[i] = position(args, cursor_[i] + 1);
      }
    }
    ++at_;
    item_ = next_;
    next_ = fetch(args, at_ + 1);
  }

  const char *a_, *b_;
  uint32_t a_to_, b_to_;
  int b_left_;  // bytes of each chunk of a row-major B, or columns from the thread's first one on
  int at_, end_, slice_ = 0;
  int granule_;
  uint32_t granule_stride_;  // bytes
  int cursor_[kMine], place_[kMine], next_place_[kMine];  // the granule's block
  uint32_t all_;
  Item item_, next_;  // a step ahead of its use
};

// Multiplies a slice. `b`: the warp's columns as multiply_fp64 takes them. `slot`: this lane's place
// in the first granule that is there; granules lie one behind the other, so that the next one's
// first fragment is loaded before it is known which it is.
template <typename Tile>
__device__ __forceinline__ void multiply_granules(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                                  const double (&b)[Tile::kTilesM][4],
                                                  const char* slot, uint32_t mask) {
  const auto load_a = [](const char* from, double (&a)[2]) {
    if constexpr (Tile::kTransposedA) {
      a[0] = *reinterpret_cast<const double*>(from);
      a[1] = *reinterpret_cast<const double*>(from + Tile::kPitchA);
    } else {
      const auto x = *reinterpret_cast<const double2*>(from);
      a[0] = x.x;
      a[1] = x.y;
    }
  };
  constexpr int kTiles = Tile::kGranule / 8;
  double a[2];
  load_a(slot, a);
#pragma unroll
  for (int granule = 0; granule < Tile::kGranules; ++granule) {
    if ((mask >> granule & 1) == 0) continue;
#pragma unroll
    for (int tile = 0; tile < kTiles; ++tile) {
      const double now[2] = {a[0], a[1]};
      load_a(tile + 1 < kTiles ? slot + (tile + 1) * (Tile::kTransposedA ? 64 : 512)
                               : slot + Tile::kGranuleBytes,
             a);
#pragma unroll
      for (int i = 0; i < Tile::kTilesM; ++i) {
        multiply_fp64(sum[granule * kTiles + tile][i], b[i], now);
      }
    }
    slot += Tile::kGranuleBytes;
  }
}

// Multiplies a step. `masks` and `stage` are its own.
template <typename Tile>
__device__ __forceinline__ void multiply_step(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                              const char* stage, const uint32_t* masks) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const char* a_at = stage + (Tile::kTransposedA ? lane % 4 * 2 * Tile::kPitchA + lane / 4 * 8
                                                 : lane * 16);
  const char* b_at = stage + Tile::kBytesA +
                     (Tile::kRowMajorB
                          ? lane % 4 * 2 * Tile::kPitchB + warp * Tile::kWarpN * 8 + lane / 4 * 16
                          : warp * Tile::kWarpN * 64 + lane * 16);
#pragma unroll
  for (int unit = 0; unit < Tile::kUnits; ++unit) {
    double b[Tile::kTilesM][4];
#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
      const char* from = b_at + unit * Tile::kUnitBytes + i * (Tile::kRowMajorB ? 128 : 1024);
      load_pairs<Tile::kRowMajorB>(from, from + (Tile::kRowMajorB ? Tile::kPitchB : 512), b[i]);
    }
    multiply_granules<Tile>(sum, b, a_at + unit * Tile::kUnitBytes, masks[unit]);
  }
}

// Adds bias, applies the activation and writes the tile. All threads are done with `shared`.
template <typename Tile>
__device__ __forceinline__ void write_fp64_tile(double (&sum)[Tile::kTilesN][Tile::kTilesM][4],
                                                char* shared, const DmmaArguments& args,
                                                const DmmaPart& part) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % Tile::kWarps;
  const int row = lane % 4 * 2;  // and the next, in each 8 rows
  if (args.bias != nullptr) {
    const double* bias = static_cast<const double*>(args.bias) + part.row0 + row;
#pragma unroll
    for (int i = 0; i < Tile::kTilesN; ++i) {
      if (i * 8 >= part.rows) break;
      const double x = bias[i * 8], y = bias[i * 8 + 1];
#pragma unroll
      for (int j = 0; j < Tile::kTilesM; ++j) {
        sum[i][j][0] += x;
        sum[i][j][1] += y;
        sum[i][j][2] += x;
        sum[i][j][3] += y;
      }
    }
  }
  double* const all = &sum[0][0][0];
  if (args.activation == Activation::kRelu) {
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) all[i] = activate(all[i], Activation::kRelu);
  } else if (args.activation != Activation::kNone) {
    // A rolled loop, as unrolled it would be hundreds of copies of erf; it cannot index registers.
    double* own = reinterpret_cast<double*>(shared) + threadIdx.x % Tile::kThreads;
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) own[i * Tile::kThreads] = all[i];
#pragma unroll 1
    for (int i = 0; i < Tile::kSums * Tile::kThreads; i += Tile::kThreads) {
      own[i] = activate(own[i], args.activation);
    }
#pragma unroll
    for (int i = 0; i < Tile::kSums; ++i) all[i] = own[i * Tile::kThreads];
  }

  // The thread's columns: neighbours, or 8 apart, as multiply_step read them.
  const int column = warp * Tile::kWarpN + lane / 4 * (Tile::kRowMajorB ? 2 : 1);
  constexpr int kOther = Tile::kRowMajorB ? 1 : 8;
  const int64_t to_row = args.c_rows ? args.ldc : 1, to_column = args.c_rows ? 1 : args.ldc;
  double* c = static_cast<double*>(args.c) + part.batch * args.c_batch_stride +
              (part.row0 + row) * to_row + (part.n0 + column) * to_column;
  const auto store = [&](double* to, double x, double y, int64_t apart, bool both) {
    if (apart == 1 && both && args.pairs) {
      *reinterpret_cast<double2*>(to) = make_double2(x, y);
    } else {
      to[0] = x;
      if (both) to[apart] = y;
    }
  };
#pragma unroll
  for (int i = 0; i < Tile::kTilesN; ++i) {
    if (i * 8 >= part.rows) break;
#pragma unroll
    for (int j = 0; j < Tile::kTilesM; ++j) {
      const int at = column + j * 16;
      if (at >= part.columns) continue;
      double* to = c + i * 8 * to_row + j * 16 * to_column;
      const double(&x)[4] = sum[i][j];
      const bool both = at + kOther < part.columns;
      if (Tile::kRowMajorB && args.c_rows) {
        store(to, x[0], x[2], 1, both);
        store(to + to_row, x[1], x[3], 1, both);
      } else {
        store(to, x[0], x[1], to_row, true);
        if (both) store(to + kOther * to_column, x[2], x[3], to_row, true);
      }
    }
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    dmma_kernel(const __grid_constant__ DmmaArguments args) {
  extern __shared__ __align__(128) char shared[];
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  auto* const masks = reinterpret_cast<uint32_t*>(shared + Tile::kStages * Tile::kStageBytes);
  const DmmaPart part = find_dmma_part<Tile>(args);
  const int steps = (part.length * args.slices + Tile::kUnits - 1) / Tile::kUnits;
  DmmaCopies<Tile> copies(args, part);
  double sum[Tile::kTilesN][Tile::kTilesM][4] = {};

#pragma unroll 1
  for (int i = 0; i < Tile::kStages - 1; ++i) {
    copies.start(ring + i * Tile::kStageBytes, masks + i * Tile::kUnits, args);
    cp_async_commit();
  }
  int stage = 0, filled = Tile::kStages - 1;
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();
    copies.start(ring + filled * Tile::kStageBytes, masks + filled * Tile::kUnits, args);
    cp_async_commit();
    multiply_step<Tile>(sum, shared + stage * Tile::kStageBytes, masks + stage * Tile::kUnits);
    filled = stage;
    stage = stage + 1 == Tile::kStages ? 0 : stage + 1;
  }
  cp_async_wait<0>();
  __syncthreads();
  write_fp64_tile<Tile>(sum, shared, args, part);
}

}  // namespace sparse_autotune
