// Copies of whole steps of A and B to shared memory: blocks that steps divide, 16-byte alignment,
// tiles that lie within B. No copy asks whether it is wanted; those behind a row's last step fetch
// its last block again.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/tile_loader.cuh"

namespace sparse_autotune {

// Where a tile's operands are.
struct WholeTile {
  int begin, end;    // stored blocks, at least one
  uint32_t first_k;  // of the first block
  int m0;            // the tile's first row within its block row
  int64_t n0;        // the tile's first column
  unsigned batch;
};

// This thread's copies, a step at a time. `args` of each method are MmaArguments.
template <typename T, typename Tile, bool kRowMajorB>
class WholeCopies {
 public:
  // Keeps them in registers: the compiler would compute them again in every step.
  __device__ __forceinline__ WholeCopies() { asm volatile("" : "+r"(to_a_), "+r"(to_b_)); }

  template <typename Arguments>
  __device__ __forceinline__ void begin(const Arguments& args, const WholeTile& tile) {
    a_ = static_cast<const T*>(args.values) + int64_t{tile.begin} * args.block_m * args.block_k +
         int64_t{tile.m0 + LoaderA::line()} * args.block_k + k_of_line<LoaderA>();
    b_ = static_cast<const T*>(args.b) + tile.batch * args.b_batch_stride;
    if constexpr (kRowMajorB) {
      b_ +=
          (LoaderB::slice() * kSlice<T> + LoaderB::row()) * args.ldb + tile.n0 + LoaderB::element();
    } else {
      b_ += (tile.n0 + LoaderB::line()) * args.ldb + k_of_line<LoaderB>();
    }
    k_ = 0;
    block_ = tile.begin;
    last_ = tile.end - 1;
    block_k_ = tile.first_k;
    next_k_ = first_k(args, block_ + 1);
  }
  // Part `part` of `parts` of the step's copies.
  template <typename Arguments>
  __device__ __forceinline__ void start(uint32_t stage, const Arguments& args, int part,
                                        int parts) const {
    constexpr int kA = LoaderA::kCopies, kAll = kA + LoaderB::kCopies;
    const int first = part * kAll / parts, end = (part + 1) * kAll / parts;
    const int first_b = max(first, kA) - kA, end_b = max(end, kA) - kA;
    LoaderA::start_whole(stage + to_a_, a_, args.line_a, min(first, kA), min(end, kA));
    const uint32_t k = block_k_ + k_;
    LoaderB::start_whole(stage + to_b_, kRowMajorB ? ahead(b_, args.line_b, k) : b_ + k,
                         args.line_b, first_b, end_b);
  }
  template <typename Arguments>
  __device__ __forceinline__ void advance(const Arguments& args) {
    k_ += Tile::kStepBytes / sizeof(T);
    a_ += Tile::kStepBytes / sizeof(T);
    if (k_ == args.block_k) {
      k_ = 0;
      a_ += block_ == last_ ? -args.block_k : args.wrap_a;
      block_k_ = next_k_;
      block_ = min(block_ + 1, last_);
      next_k_ = first_k(args, block_ + 1);
    }
  }

 private:
  using LoaderA = LineLoader<T, Tile, Tile::kM>;
  using LoaderB =
      std::conditional_t<kRowMajorB, RowLoader<T, Tile, Tile::kN>, LineLoader<T, Tile, Tile::kN>>;

  // The thread's first k within a step.
  template <typename Loader>
  static __device__ __forceinline__ int k_of_line() {
    return Loader::slice() * kSlice<T> + Loader::element();
  }
  // The first k of a block, or of the last.
  template <typename Arguments>
  __device__ __forceinline__ uint32_t first_k(const Arguments& args, int block) const {
    return load_narrow_index(args.col_indices, min(block, last_), args.wide_indices) * args.block_k;
  }

  uint32_t to_a_ = LoaderA::offset(), to_b_ = LoaderB::offset() + Tile::kM * Tile::kStepBytes;
  const T *a_, *b_;            // the thread's first chunks: of A's step, of B's k = 0
  int block_, last_, k_;       // `k_`: of the step within its block
  uint32_t block_k_, next_k_;  // the first k of this block and, fetched a block ahead, of the next
};

}  // namespace sparse_autotune
