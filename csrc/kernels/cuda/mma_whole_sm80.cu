// mma_sm80 for whole steps: blocks that steps and tiles divide, all of it aligned to 16 bytes.
//
// Where the next copies come from is then the same for all of a thread block, and a step takes 285
// instead of 337 instructions. A step's copies are spread evenly over its slices, as ldmatrix waits
// behind a crowd of them. Blocks of 128 gain 1 to 8% (H200).
#include "kernels/cuda/mma_launch.cuh"
#include "variant.h"

namespace sparse_autotune {
namespace {

// This thread's copies of A and B, a step at a time.
template <typename T, typename Tile, bool kRowMajorB>
class WholeCopies {
 public:
  // Only of a part that has blocks.
  __device__ __forceinline__ WholeCopies(const MmaArguments& args, const MmaPart& part)
      : a_(static_cast<const T*>(args.values)),
        b_(static_cast<const T*>(args.b) + part.batch * args.b_batch_stride),
        columns_(part.columns),
        block_(part.begin),
        last_(part.begin + part.length - 1) {
    a_ += int64_t{part.begin} * args.block_m * args.block_k +
          int64_t{part.m0 + LoaderA::line()} * args.block_k + k_of_line<LoaderA>();
    if constexpr (kRowMajorB) {
      b_ += (LoaderB::slice() * kSlice<T> + LoaderB::row()) * args.ldb + part.template n0<Tile>() +
            LoaderB::element();
      columns_ -= LoaderB::element();
    } else {
      b_ += (part.template n0<Tile>() + LoaderB::line()) * args.ldb + k_of_line<LoaderB>();
    }
    // Keeps them in registers: the compiler would compute them again in every step.
    asm volatile("" : "+r"(to_a_), "+r"(to_b_));
    block_k_ = first_k(args, block_);
    next_k_ = first_k(args, block_ + 1);
  }

  // Part `part` of `parts` of the step's copies; of none unless `wanted`.
  __device__ __forceinline__ void start(uint32_t stage, const MmaArguments& args, bool wanted,
                                        int part, int parts) const {
    constexpr int kA = LoaderA::kCopies, kAll = kA + LoaderB::kCopies;
    const int first = part * kAll / parts, end = (part + 1) * kAll / parts;
    LoaderA::start(stage + to_a_, a_, args.line_a, wanted ? Tile::kM : 0, min(first, kA),
                   min(end, kA));
    const int first_b = max(first, kA) - kA, end_b = max(end, kA) - kA;
    if constexpr (kRowMajorB) {
      LoaderB::start(stage + to_b_, ahead(b_, args.line_b, block_k_ + k_), args.line_b,
                     wanted && columns_ > 0, first_b, end_b);
    } else {
      LoaderB::start(stage + to_b_, b_ + (block_k_ + k_), args.line_b, wanted ? columns_ : 0,
                     first_b, end_b);
    }
  }
  __device__ __forceinline__ void advance(const MmaArguments& args) {
    k_ += Tile::kStepBytes / sizeof(T);
    a_ += Tile::kStepBytes / sizeof(T);
    if (k_ == args.block_k) {
      k_ = 0;
      a_ += args.wrap_a;
      block_k_ = next_k_;
      next_k_ = first_k(args, ++block_ + 1);
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
  __device__ __forceinline__ uint32_t first_k(const MmaArguments& args, int block) const {
    return load_narrow_index(args.col_indices, min(block, last_), args.wide_indices) * args.block_k;
  }

  uint32_t to_a_ = LoaderA::offset(), to_b_ = LoaderB::offset() + Tile::kM * Tile::kStepBytes;
  const T *a_, *b_;            // the thread's first chunks: of A's step, of B's k = 0
  int columns_;                // of B; in a row-major one those from this thread's chunk on
  int block_, last_, k_ = 0;   // `k_`: of the step within its block
  uint32_t block_k_, next_k_;  // the first k of this block and, fetched a block ahead, of the next
};

template <typename T, typename Tile, bool kRowMajorB>
__global__ void __launch_bounds__(Tile::kThreads, Tile::kResident)
    mma_whole_kernel(const __grid_constant__ MmaArguments args) {
  extern __shared__ __align__(256) char shared[];
  const auto ring = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  const MmaPart part = find_part<Tile>(args);
  const int steps = part.length * (args.slices / Tile::kSlices);

  using Registers = Fragments<T, Tile, false, kRowMajorB>;
  uint32_t a_offset = Registers::a_offset();
  uint32_t b_offset = Registers::b_offset() + Tile::kM * Tile::kStepBytes;
  asm volatile("" : "+r"(a_offset), "+r"(b_offset));
  const auto behind = [&](uint32_t stage) {
    stage += Tile::kStageBytes;
    return stage == ring + Tile::kStages * Tile::kStageBytes ? ring : stage;
  };
  float sum[Tile::kWarpM * Tile::kWarpN / 32] = {};

  if (steps > 0) {
    WholeCopies<T, Tile, kRowMajorB> copies(args, part);
    int copied = 0;
    uint32_t stage = ring, filled = ring;
#pragma unroll 1
    for (; copied < Tile::kStages - 1; ++copied) {
      copies.start(filled, args, copied < steps, 0, 1);
      copies.advance(args);
      cp_async_commit();
      filled += Tile::kStageBytes;
    }
    // As in mma_sm80_kernel, but for the copies.
    Registers registers[2];
    cp_async_wait<Tile::kStages - 2>();
    __syncthreads();
    registers[0].load(stage + a_offset, stage + b_offset, 0);
#pragma unroll 1
    for (int step = 0; step < steps; ++step, ++copied) {
#pragma unroll
      for (int slice = 0; slice < Tile::kSlices; ++slice) {
        if (slice + 1 < Tile::kSlices) {
          registers[(slice + 1) % 2].load(stage + a_offset, stage + b_offset, slice + 1);
          copies.start(filled, args, copied < steps, slice, Tile::kSlices - 1);
          if (slice + 2 == Tile::kSlices) copies.advance(args);
        } else {
          cp_async_commit();
          cp_async_wait<Tile::kStages - 2>();
          __syncthreads();
          stage = behind(stage);
          filled = behind(filled);
          registers[0].load(stage + a_offset, stage + b_offset, 0);
        }
        registers[slice % 2].multiply(sum);
      }
    }
    cp_async_wait<0>();
    __syncthreads();
  }
  finish_part<T, Tile>(sum, shared, args, part);
}

template <typename T, typename Tile, bool kRowMajorB>
constinit KernelCode<MmaArguments> whole_code{&mma_whole_kernel<T, Tile, kRowMajorB>};

}  // namespace

template <>
MmaCodes whole_mma_codes<MmaM128N128>() {
  using Tile = MmaM128N128;
  return {{{&whole_code<__half, Tile, true>, &whole_code<__half, Tile, false>},
           {&whole_code<__nv_bfloat16, Tile, true>, &whole_code<__nv_bfloat16, Tile, false>},
           {}}};
}

}  // namespace sparse_autotune
