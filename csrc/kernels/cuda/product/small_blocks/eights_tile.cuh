// What the thread blocks of mma_eights_sm80 keep in shared memory, and how it
// gets there: a ring of stages, each some rows of B by the tile's columns, and values of A, which
// each warp fetches for itself.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/cp_async.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/device/product_arguments.cuh"
#include "kernels/cuda/device/swizzle.cuh"
#include "kernels/cuda/device/tile_loader.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {

constexpr int kEightsWarps = 16, kEightsOwn = 4, kEightsThreads = kEightsWarps * 32;
constexpr int kEightsStrips = kEightsWarps * kEightsOwn;

// Each warp multiplies 4 strips of 8 rows. Rows of B in a stage, stages.
template <int kStageRows, int kDepth, bool kRowMajor>
struct EightsTile {
  static constexpr bool kRowMajorB = kRowMajor;
  static constexpr int kWarps = kEightsWarps, kThreads = kEightsThreads, kN = 64;
  static constexpr int kStageK = kStageRows, kStages = kDepth;

  // A row of B for each k, or a column of k for each n.
  static constexpr int kLineBytes = (kRowMajorB ? kN : kStageK) * 2;
  static constexpr int kStageBytes = kStageK * kN * 2;
};

struct EightsArguments : ProductArguments {
  Panels panels;
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  uint32_t line_b;                    // bytes from one line of B to the next
  uint32_t line_a;                    // and from one line of a block, as it is stored
  uint32_t block_bytes, strip_bytes;  // strip_bytes: from a block's strip of 8 rows to the next
  int m, k, strips, block_rows, c_alignment;
  int tall, wide_log;  // strips of a block, a power of two; 1 << wide_log: its pieces side by side
  int last_piece;      // of all
  bool c_rows;
};

// What a thread block keeps in shared memory.
template <typename Tile, typename Strips>
struct EightsLayout {
  std::byte stages[Tile::kStages][Tile::kStageBytes];  // of B
  std::byte places[Tile::kWarps][Strips::kBytes];      // for the values of each warp
  RingBarriers<Tile::kStages> barriers;
  Barrier landed[Tile::kWarps][2];
};

// The same by address.
template <typename Tile, typename Strips>
struct EightsShared : RingBarriersAt<Tile::kStages> {
  using Layout = EightsLayout<Tile, Strips>;
  uint32_t begin;

  __device__ __forceinline__ explicit EightsShared(uint32_t memory) : begin(memory) {
    this->barriers = begin + offsetof(Layout, barriers);
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const {
    return begin + i * Tile::kStageBytes;
  }
  __device__ __forceinline__ uint32_t place(int warp) const {
    return begin + offsetof(Layout, places) + warp * Strips::kBytes;
  }
  // The first of two for a warp's values.
  __device__ __forceinline__ uint32_t landed(int warp) const {
    return begin + offsetof(Layout, landed) + warp * sizeof(Barrier[2]);
  }
  __device__ __forceinline__ void init_barriers() const {
    this->init(Tile::kThreads, Tile::kThreads);
    for (int warp = 0; warp < Tile::kWarps; ++warp) {
      for (int i = 0; i < 2; ++i) mbarrier_init(landed(warp) + i * sizeof(Barrier), 32);
    }
  }
};

// A warp's copies of values, in turns. Loads into registers would not do: what waits for one of
// them waits for all that were asked for since.
class CopyTurns {
 public:
  __device__ __forceinline__ explicit CopyTurns(uint32_t barriers) : barriers_(barriers) {}

  // Behind a turn's copies.
  __device__ __forceinline__ void end() {
    mbarrier_arrive_copied(barriers_ + turns_ % 2 * 8);
    ++turns_;
  }
  // Until those of a turn have landed: 1: of the last, 2: of the one before. A turn may begin when
  // those of the last but one have.
  __device__ __forceinline__ void wait(uint32_t back) const {
    const uint32_t turn = turns_ - back;
    mbarrier_wait(barriers_ + turn % 2 * 8, turn / 2 % 2);
  }

 private:
  uint32_t barriers_, turns_ = 0;
};

// A warp's share of the copies of each stage, tile after tile.
template <typename T, typename Tile, typename Shared>
class CopiesOfStages {
 public:
  __device__ __forceinline__ explicit CopiesOfStages(const EightsArguments& args) {
    const int lane = threadIdx.x % 32;
    line_ = static_cast<int>(threadIdx.x) / 32 * kLines + lane / kAcross;
    chunk_ = lane % kAcross;
    to_ = chunk_offset<Tile::kLineBytes>(line_, chunk_);
    tile_ = blockIdx.x;
    k_ = 0;
    begin_tile(args);
  }

  // The next stage's, if there is one.
  __device__ __forceinline__ void start(const EightsArguments& args, const Shared& shared) {
    if (tile_ >= args.panels.tiles) return;
    mbarrier_wait(shared.empty(at_.stage), at_.parity ^ 1);
    const uint32_t stage = shared.stage(at_.stage) + to_;
    if (columns_ == Tile::kN && k_ + Tile::kStageK <= args.k) {
#pragma unroll
      for (int i = 0; i < kLines; i += kApart) {
        const T* const line = ahead(from_, args.line_b, i);
#pragma unroll
        for (int j = 0; j < kChunks; j += kAcross) {
          cp_async_16(address_of(stage, i) + j * kChunkBytes, line + j * kChunk<T>);
        }
      }
    } else {
      start_part(args, stage);
    }
    mbarrier_arrive_copied(shared.full(at_.stage));
    at_.advance();
    from_ = Tile::kRowMajorB ? ahead(from_, args.line_b, Tile::kStageK) : from_ + Tile::kStageK;
    k_ += Tile::kStageK;
    if (k_ >= args.k) {
      k_ = 0;
      tile_ += gridDim.x;
      begin_tile(args);
    }
  }

 private:
  // A warp's lines of a stage; what one of its copies has of a line, and how many lines.
  static constexpr int kLines = (Tile::kRowMajorB ? Tile::kStageK : Tile::kN) / Tile::kWarps;
  static constexpr int kChunks = Tile::kLineBytes / kChunkBytes;
  static constexpr int kAcross = kChunks < 32 ? kChunks : 32, kApart = 32 / kAcross;
  static_assert(kChunks % kAcross == 0 && kLines % kApart == 0, "threads share out whole lines");

  static __device__ __forceinline__ uint32_t address_of(uint32_t stage, int line) {
    return (stage ^ swizzle<Tile::kLineBytes>(line) << 4) + line * Tile::kLineBytes;
  }

  // Of a stage that lies only partly within B.
  __device__ __forceinline__ void start_part(const EightsArguments& args, uint32_t stage) const {
    const int lines = (Tile::kRowMajorB ? args.k - k_ : columns_) - line_;
    const int inside = (Tile::kRowMajorB ? columns_ : args.k - k_) - chunk_ * kChunk<T>;
#pragma unroll
    for (int j = 0; j < kChunks; j += kAcross) {
      const int bytes = min(inside - j * kChunk<T>, kChunk<T>) * 2;
#pragma unroll 1
      for (int i = 0; i < min(lines, kLines); i += kApart) {
        if (bytes <= 0) break;
        cp_async_16(address_of(stage, i) + j * kChunkBytes,
                    ahead(from_, args.line_b, i) + j * kChunk<T>, bytes);
      }
    }
  }

  __device__ __forceinline__ void begin_tile(const EightsArguments& args) {
    if (tile_ >= args.panels.tiles) return;
    const TilePlace place = locate(args.panels, tile_);
    const int64_t n0 = int64_t{place.column} * Tile::kN;
    columns_ = static_cast<int>(min(args.n - n0, int64_t{Tile::kN}));
    from_ = static_cast<const T*>(args.b) + place.batch * args.b_batch_stride +
            (Tile::kRowMajorB ? n0 : n0 * args.ldb) + chunk_ * kChunk<T>;
    from_ = ahead(from_, args.line_b, line_);
  }

  const T* from_;
  unsigned tile_;
  uint32_t to_;
  int line_, chunk_, k_, columns_;
  RingPlace<Tile::kStages> at_;
};

}  // namespace sparse_autotune
