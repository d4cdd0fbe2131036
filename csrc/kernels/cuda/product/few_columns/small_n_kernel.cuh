// The kernel of small_n_sm80 and small_n_sm90.
//
// For products with few columns, as a model decodes: bound by reading the values once.
// A thread block owns kM rows of one block row by kN columns of C. Its kWarpsK warps share out the
// stored blocks of the block row as if they stood side by side: chunks of 32 k, in turn.
// Data path: values and B straight from global memory to the registers of mma.sync, as
// few_columns.cuh has it -> fp32 sums, one for each warp, in shared memory -> added up in the
// order of the warps -> C. Column indices and the next turn's values are on their way while a turn
// is multiplied. Nothing is copied to shared memory: the few columns of B stay in L1 and L2.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/activation.h"
#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/transpose_word.cuh"
#include "kernels/cuda/product/few_columns/few_columns.cuh"
#include "kernels/cuda/product/few_columns/group_sums.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

// Of one warp: 16 * kRowTiles rows, 8 * kColumnTiles columns, kUnroll chunks in a turn. Of a thread
// block: kWarpsN such tiles side by side, each shared out among kWarpsK warps along k. How many
// thread blocks a multiprocessor should hold bounds the registers. `kAhead`: a turn's values are
// fetched while the one before waits for B, else when it is over, which leaves registers for more
// thread blocks.
template <int kTilesM, int kTilesN, int kWarpsAlongN, int kWarpsAlongK, int kChunks, int kBlocks,
          bool kFetchedAhead>
struct SmallNTile {
  static constexpr int kRowTiles = kTilesM, kColumnTiles = kTilesN;
  static constexpr int kWarpsN = kWarpsAlongN, kWarpsK = kWarpsAlongK;
  static constexpr int kUnroll = kChunks, kResident = kBlocks;
  static constexpr bool kAhead = kFetchedAhead;
  static constexpr int kWarpN = 8 * kColumnTiles;
  static constexpr int kM = 16 * kRowTiles, kN = kWarpsN * kWarpN;
  static constexpr int kThreads = 32 * kWarpsN * kWarpsK;
  // Sums are gathered column by column. Four floats between them: no bank conflicts.
  static constexpr int kPitch = kM + 4;
  static constexpr int kSharedBytes = kWarpsK * kN * kPitch * 4;
};

struct SmallNArguments : FewColumnsArguments {
  // Elements from one k, column or matrix to the next.
  int b_k, b_column;
  int64_t b_batch_stride;
  int columns;                 // tiles along n
  unsigned strips;             // tiles along a block's rows
  int vectors;                 // of a block's row
  unsigned blocks_of_vectors;  // 2^20 / vectors, rounded up
  int step_blocks, step_k;     // from one chunk of a warp to its next
  // Asked into L2 in advance: of the values, for a thread block so many bytes, so many bytes apart.
  AheadLines ahead;
  unsigned value_bytes;
  int64_t value_step;
};

// Where a lane's vector of a chunk lies.
struct VectorPlace {
  int block, k;          // the block row's block, k within it
  int column, position;  // of the block, fetched ahead
  bool present;
};

__device__ __forceinline__ void ask_small_n_ahead(const SmallNArguments& args) {
  ask_ahead(args.ahead);
  if (threadIdx.x == 0 && blockIdx.y == 0 && args.value_bytes > 0) {
    ask_bulk(static_cast<const char*>(args.values) + blockIdx.x * args.value_step,
             args.value_bytes);
  }
}

// What a warp loads: its lanes' vectors of chunks, of A and of B.
template <typename T, typename Tile, bool kTransposedA, BAccess kAccess>
struct SmallNLoads {
  static constexpr int kColumnTiles = Tile::kColumnTiles, kRowWords = 2 * Tile::kRowTiles;
  // Where one warp reads a row of A.
  static constexpr LoadOf kValues = Tile::kWarpsN == 1 ? LoadOf::kHalfLines : LoadOf::kB;
  static constexpr int kRowLoad = kRowWords < 4 ? kRowWords : 4;
  static constexpr int kColumnLoad = kColumnTiles < 4 ? kColumnTiles : 4;

  const SmallNArguments& args;
  const T* const values;
  const T* const b_matrix;
  const int begin, length, block_size, g, t;
  int block, k_in_block;      // this lane's vector of the chunk to be looked up next
  int rows[kRowWords];        // offsets within a block, or the rows of each load
  int columns[kColumnTiles];  // offsets within b_matrix

  // Where in the warp's tile lane position c has its row of A's word, or column of B's.
  static __device__ __forceinline__ int row_of(int word, int c) {
    return kTransposedA ? spread<kRowWords>(word, c) : word * 8 + c;
  }
  static __device__ __forceinline__ int column_of(int word, int c) {
    return kAccess == BAccess::kAlongColumns ? spread<kColumnTiles>(word, c) : word * 8 + c;
  }

  // Rows and columns beyond the last are read as the last, and their sums dropped.
  __device__ __forceinline__ void find(int m0, int first_column) {
#pragma unroll
    for (int i = 0; i < kRowWords; ++i) {
      if constexpr (kTransposedA) {
        rows[i] = min(m0 + row_of(i / kRowLoad * kRowLoad, 2 * t), args.block_m - 2 * kRowLoad);
      } else {
        rows[i] = min(m0 + row_of(i, g), args.block_m - 1) * args.block_k;
      }
    }
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      const int column = first_column + (kAccess == BAccess::kAlongColumns
                                             ? column_of(j / kColumnLoad * kColumnLoad, 2 * t)
                                             : column_of(j, g));
      const int last = args.n - (kAccess == BAccess::kAlongColumns ? 2 * kColumnLoad : 1);
      columns[j] = min(column, last) * args.b_column;
    }
  }

  __device__ __forceinline__ void look_up(VectorPlace& p) {
    p.present = block < length;
    p.block = block;
    p.k = k_in_block;
    p.column = p.position = 0;
    if (p.present) {
      p.column = load_narrow_index(args.col_indices, begin + block, args.wide_indices);
      if constexpr (kTransposedA) {
        p.position = load_narrow_index(args.positions, begin + block, args.wide_indices);
      }
    }
    block += args.step_blocks;
    k_in_block += args.step_k;
    if (k_in_block >= args.block_k) {
      k_in_block -= args.block_k;
      ++block;
    }
  }
  __device__ __forceinline__ void load_a(const VectorPlace& p, uint32_t (&a)[kRowWords][4]) const {
    if constexpr (kTransposedA) {
      const bool present = __shfl_sync(~0u, p.present, g / 2) != 0;
      const int position = __shfl_sync(~0u, p.position, g / 2);
      const int k = __shfl_sync(~0u, p.k, g / 2);
      const T* from = values + static_cast<int64_t>(position) * block_size;
#pragma unroll
      for (int word = 0; word < 4; ++word) {
#pragma unroll
        for (int i = 0; i < kRowWords; i += kRowLoad) {
          uint32_t found[kRowLoad] = {};
          load_if<false, kRowLoad == 4 ? kValues : LoadOf::kB, kRowLoad>(
              present, found, from + (k + lent_k(word)) * args.block_m + rows[i]);
#pragma unroll
          for (int w = 0; w < kRowLoad; ++w) a[i + w][word] = found[w];
        }
      }
    } else {
      const unsigned at = p.block * block_size + p.k;
#pragma unroll
      for (int i = 0; i < kRowWords; ++i) {
#pragma unroll
        for (int word = 0; word < 4; ++word) a[i][word] = 0;
        load_if<false, kValues, 4>(p.present, a[i], values + (at + rows[i]));
      }
    }
  }
  __device__ __forceinline__ void load_b(const VectorPlace& p,
                                         uint32_t (&b)[kColumnTiles][4]) const {
    int k = p.column * args.block_k + p.k;
    bool present = p.present;
    if constexpr (kAccess == BAccess::kAlongColumns) {
      k = __shfl_sync(~0u, k, g / 2);
      present = __shfl_sync(~0u, present, g / 2) != 0;
    }
#pragma unroll
    for (int j = 0; j < kColumnTiles; ++j) {
      if constexpr (kAccess == BAccess::kAlongColumns) {
        if (j % kColumnLoad != 0) continue;
#pragma unroll
        for (int word = 0; word < 4; ++word) {
          uint32_t found[kColumnLoad] = {};
          load_if<false, LoadOf::kB, kColumnLoad>(
              present, found, b_matrix + (columns[j] + (k + lent_k(word)) * args.b_k));
#pragma unroll
          for (int w = 0; w < kColumnLoad; ++w) b[j + w][word] = found[w];
        }
      } else {
#pragma unroll
        for (int word = 0; word < 4; ++word) b[j][word] = 0;
        if constexpr (kAccess == BAccess::kAlongK) {
          load_if<false, LoadOf::kB, 4>(present, b[j], b_matrix + (columns[j] + k));
        } else if (present) {
          load_elements(b[j],
                        reinterpret_cast<const uint16_t*>(b_matrix + (columns[j] + k * args.b_k)),
                        args.b_k);
        }
      }
    }
  }
};

// Adds up the warps' sums of a tile of C and stores it. m0: its first row within its block row.
template <typename T, typename Tile>
__device__ __forceinline__ void finish_small_n(const SmallNArguments& args, const float* sums,
                                               unsigned block_row, int m0, int n0, int64_t batch) {
  const bool by_rows = args.c_column == 1;
#pragma unroll 1
  for (int e = threadIdx.x; e < Tile::kM * Tile::kN; e += Tile::kThreads) {
    const int row = by_rows ? e / Tile::kN : e % Tile::kM;
    const int column = by_rows ? e % Tile::kN : e / Tile::kM;
    if (m0 + row >= args.block_m || n0 + column >= args.n) continue;
    float x = 0;
#pragma unroll
    for (int w = 0; w < Tile::kWarpsK; ++w) {
      x += sums[(w * Tile::kN + column) * Tile::kPitch + row];
    }
    const int64_t m = static_cast<int64_t>(block_row) * args.block_m + m0 + row;
    if (args.bias != nullptr) x += static_cast<float>(static_cast<const T*>(args.bias)[m]);
    static_cast<T*>(
        args.c)[batch * args.c_batch_stride + m * args.c_row + (n0 + column) * args.c_column] =
        static_cast<T>(activate(x, args.activation));
  }
}

// `kOverlaps`: it may start while the kernel before it ends (griddepcontrol, from sm_90 on).
template <typename T, typename Tile, bool kTransposedA, BAccess kAccess, bool kOverlaps>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    small_n_kernel(const __grid_constant__ SmallNArguments args) {
  using Loads = SmallNLoads<T, Tile, kTransposedA, kAccess>;
  constexpr int kRowTiles = Tile::kRowTiles, kColumnTiles = Tile::kColumnTiles;
  constexpr int kRowWords = Loads::kRowWords;
  constexpr bool kAhead = Tile::kAhead && !kTransposedA;  // places of blocks come first
  extern __shared__ float sums[];
  // Neighbours have strips of the same blocks, which lie beside each other in memory.
  const unsigned block_row = blockIdx.x / args.strips;
  const int m0 = static_cast<int>(blockIdx.x - block_row * args.strips) * Tile::kM;
  if constexpr (kOverlaps) {
    ask_small_n_ahead(args);
    follow_launch_before();
  }
  int n0 = blockIdx.y;
  int64_t batch = 0;
  if (args.columns != static_cast<int>(gridDim.y)) {
    batch = n0 / args.columns;
    n0 %= args.columns;
  }
  n0 *= Tile::kN;
  const int begin = load_narrow_index(args.crow_indices, block_row, args.wide_indices);
  const int length = load_narrow_index(args.crow_indices, block_row + 1, args.wide_indices) - begin;

  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int warp_k = warp % Tile::kWarpsK;
  const int warp_n = warp / Tile::kWarpsK * Tile::kWarpN;

  const int block_size = args.block_m * args.block_k;
  const T* values = static_cast<const T*>(args.values) +
                    (kTransposedA ? 0 : static_cast<int64_t>(begin) * block_size);
  const T* b_matrix = static_cast<const T*>(args.b) + batch * args.b_batch_stride;

  // This lane's vector of the chunk to be looked up next.
  const unsigned first = warp_k * kChunkVectors + t;
  const int first_block = first * args.blocks_of_vectors >> 20;
  const int first_k = (first - first_block * args.vectors) * kVector;
  Loads loads{args, values, b_matrix, begin, length, block_size, g, t, first_block, first_k};
  loads.find(m0, n0 + warp_n);
  float sum[kRowTiles][kColumnTiles][4] = {};
  const int chunks = (length * args.vectors + kChunkVectors - 1) / kChunkVectors;
  VectorPlace next[Tile::kUnroll];
  uint32_t a[Tile::kUnroll][kRowWords][4], a_next[Tile::kUnroll][kRowWords][4];
#pragma unroll
  for (int u = 0; u < Tile::kUnroll; ++u) loads.look_up(next[u]);
#pragma unroll
  for (int u = 0; u < Tile::kUnroll; ++u) loads.load_a(next[u], kAhead ? a_next[u] : a[u]);
  for (int chunk = warp_k; chunk < chunks; chunk += Tile::kWarpsK * Tile::kUnroll) {
    uint32_t b[Tile::kUnroll][kColumnTiles][4];
    if constexpr (kAhead) {
#pragma unroll
      for (int u = 0; u < Tile::kUnroll; ++u) {
#pragma unroll
        for (int i = 0; i < kRowWords * 4; ++i) a[u][i / 4][i % 4] = a_next[u][i / 4][i % 4];
      }
    }
#pragma unroll
    for (int u = 0; u < Tile::kUnroll; ++u) loads.load_b(next[u], b[u]);
#pragma unroll
    for (int u = 0; u < Tile::kUnroll; ++u) {
      loads.look_up(next[u]);
      if constexpr (kAhead) loads.load_a(next[u], a_next[u]);
    }
#pragma unroll
    for (int u = 0; u < Tile::kUnroll; ++u) {
      if constexpr (kTransposedA) {
#pragma unroll
        for (int i = 0; i < kRowWords * 4; ++i) {
          a[u][i / 4][i % 4] = transpose_word(a[u][i / 4][i % 4]);
        }
      }
      if constexpr (kAccess == BAccess::kAlongColumns) {
#pragma unroll
        for (int j = 0; j < kColumnTiles * 4; ++j) {
          b[u][j / 4][j % 4] = transpose_word(b[u][j / 4][j % 4]);
        }
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
#pragma unroll
        for (int j = 0; j < kColumnTiles; ++j) {
          multiply_chunk<T>(sum[i][j], a[u][2 * i], a[u][2 * i + 1], b[u][j]);
        }
      }
    }
    if constexpr (!kAhead) {
#pragma unroll
      for (int u = 0; u < Tile::kUnroll; ++u) loads.load_a(next[u], a[u]);
    }
  }

  leave_sums<Tile::kPitch>(
      sum, sums + warp_k * Tile::kN * Tile::kPitch,
      [&](int i, int high) { return Loads::row_of(2 * i + high, g); },
      [&](int j, int odd) { return warp_n + Loads::column_of(j, t * 2 + odd); });
  __syncthreads();
  finish_small_n<T, Tile>(args, sums, block_row, m0, n0, batch);
}

}  // namespace sparse_autotune
