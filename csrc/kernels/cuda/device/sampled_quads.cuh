// The kernel of sampled_quads_sm90: every thread block has one task, and all walk the terms of the
// sums together. One thread keeps TMA copies under way, two warpgroups multiply two blocks each.
//
// A stage of the ring holds 64 terms of each of a task's rows of blocks of C, then of each of its
// columns of blocks of B.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/sampled_early.cuh"
#include "kernels/cuda/device/sampled_parts.cuh"
#include "kernels/cuda/device/sampled_pipeline.cuh"
#include "kernels/cuda/device/sampled_quads_tasks.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

// The tasks by indices as they were before the launch ahead was over; whether that changed none,
// and the tasks if it did.
struct QuadNotes {
  QuadTasks tasks[2];
  bool confirmed;
  QuadScratch scratch;
};

constexpr int kQuadSide = 64, kQuadStages = 4;
constexpr int kQuadStageBytes = kQuadLines * kPieceBytes;
constexpr int kQuadSharedBytes = kTileAlignment + kQuadStages * kQuadStageBytes +
                                 (2 * kQuadStages + 2) * 8 + static_cast<int>(sizeof(QuadNotes));

struct QuadShared {
  uint32_t ring, barriers;
  QuadNotes* notes;

  __device__ __forceinline__ explicit QuadShared(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    ring = (begin + kTileAlignment - 1) & ~static_cast<uint32_t>(kTileAlignment - 1);
    barriers = ring + kQuadStages * kQuadStageBytes;
    notes = reinterpret_cast<QuadNotes*>(memory + (checked() + 8 - begin));
  }
  __device__ __forceinline__ uint32_t stage(uint32_t i) const { return ring + i * kQuadStageBytes; }
  __device__ __forceinline__ uint32_t full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t empty(uint32_t i) const { return full(kQuadStages + i); }
  __device__ __forceinline__ uint32_t checked() const { return full(2 * kQuadStages); }
  __device__ __forceinline__ bool confirmed() const {
    mbarrier_wait(checked(), 0);
    return notes->confirmed;
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < kQuadStages; ++i) {
      mbarrier_init(full(i), 1);
      mbarrier_init(empty(i), 4 * kConsumers);
    }
    mbarrier_init(checked(), 32);
    mbarrier_init_fence();
  }
};

// By one warp, once the launch ahead is over: whether the tasks are right, while they are under
// way.
__device__ __forceinline__ void check_quads(const WaveArguments& args, const QuadShared& shared) {
  const QuadIndices indices(args);
  const bool same = indices.are_those(shared.notes->scratch);
  if (!same) {
    indices.put(shared.notes->scratch);
    find_quads(args, shared.notes->scratch, shared.notes->tasks[1]);
  }
  if (threadIdx.x % 32 == 0) shared.notes->confirmed = same;
  mbarrier_arrive(shared.checked());
}

// One thread.
template <bool kTermsC, bool kTermsB>
__device__ __forceinline__ void produce_quads(const WaveArguments& args, const QuadShared& shared) {
  RingPlace<kQuadStages> at;
  const auto produce = [&](const QuadTask& task) {
    const int rows = task.rows, lines = rows + task.columns;
    int line[kQuadLines];
#pragma unroll
    for (int i = 0; i < kQuadLines; ++i) line[i] = i < lines ? task.line[i] * kQuadSide : 0;
    int step = 0, matrix = 0;
    for (int left = args.steps; left > 0; --left) {
      const uint32_t full = shared.full(at.stage), to = shared.stage(at.stage);
      const int term = step * kStepK;
      mbarrier_wait(shared.empty(at.stage), at.parity ^ 1);
      mbarrier_arrive_expect(full, lines * kPieceBytes);
#pragma unroll
      for (int i = 0; i < kQuadLines; ++i) {
        if (i < rows) {
          load_lines<kTermsC>(to + i * kPieceBytes, args.c, full, line[i], term,
                              args.c_batched ? matrix : 0);
        } else if (i < lines) {
          load_lines<kTermsB>(to + i * kPieceBytes, args.b, full, line[i], term,
                              args.b_batched ? matrix : 0);
        }
      }
      at.advance();
      if (++step == args.matrix_steps) {
        step = 0;
        ++matrix;
      }
    }
  };
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const QuadTasks& tasks = shared.notes->tasks[round];
#pragma unroll 1
    for (int i = 0; i < tasks.count; ++i) produce(tasks.task[i]);
    if (shared.confirmed()) return;
  }
}

// The two pieces of a warpgroup, multiplied by one instruction if they are `kJoined`: side by side
// in one row.
template <typename T, bool kTermsC, bool kTermsB, bool kJoined, typename Store>
__device__ __forceinline__ void do_quad(const QuadShared& shared, const int (&row)[2],
                                        const int (&column)[2], int steps, bool confirmed,
                                        RingPlace<kQuadStages>& at, Store&& store) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each kind of task.
  float sum[64] = {};
  const int lane = threadIdx.x % 32;
  uint32_t last = 0;
  for (int step = 0; step < steps; ++step) {
    mbarrier_wait(shared.full(at.stage), at.parity);
    const uint32_t tile = shared.stage(at.stage);
    constexpr uint64_t kStepC = kTermsC ? wgmma::kContiguousStep : wgmma::kMContiguousStep;
    constexpr uint64_t kStepB = kTermsB ? wgmma::kContiguousStep : wgmma::kNContiguousStep;
    constexpr int kPieces = kJoined ? 2 : 1, kWidth = kPieces * 64;
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < 2; i += kPieces) {
      const uint32_t strip = tile + row[i] * kPieceBytes, piece = tile + column[i] * kPieceBytes;
      const uint64_t c = kTermsC ? wgmma::k_contiguous(strip) : wgmma::m_contiguous(strip);
      const uint64_t b =
          kTermsB ? wgmma::k_contiguous(piece) : wgmma::n_contiguous<kPieceBytes>(piece);
      auto& sums = reinterpret_cast<float(&)[kWidth / 2]>(sum[i * 32]);
#pragma unroll
      for (int q = 0; q < kStepK / 16; ++q) {
        wgmma::multiply<T, kWidth, !kTermsB, !kTermsC>(sums, c + q * kStepC, b + q * kStepB, 1);
      }
    }
    wgmma::commit();
    // Stages are given back a step later, while the next is multiplied.
    wgmma::wait<1>();
    if (step > 0 && lane == 0) mbarrier_arrive(shared.empty(last));
    last = at.stage;
    at.advance();
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  if (lane == 0) mbarrier_arrive(shared.empty(last));
  if (!confirmed && !shared.confirmed()) return;
#pragma unroll
  for (int i = 0; i < 2; ++i) store(i, sum + 32 * i);
}

// A warpgroup.
template <typename T, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void consume_quads(const WaveArguments& args, const QuadShared& shared,
                                              int consumer) {
  RingPlace<kQuadStages> at;
  const auto consume = [&](const QuadTask& task, bool confirmed) {
    const int row[2] = {task.row[2 * consumer], task.row[2 * consumer + 1]};
    const int column[2] = {task.column[2 * consumer], task.column[2 * consumer + 1]};
    const auto store = [&](int i, const float* sum) {
      if (i >= task.pieces[consumer]) return;
      const auto place = static_cast<int64_t>(task.block[2 * consumer + i]);
      store_piece(static_cast<T*>(args.values) + place * (kQuadSide * kQuadSide), sum, kQuadSide);
    };
    if (row[0] == row[1] && column[0] + 1 == column[1]) {
      do_quad<T, kTermsC, kTermsB, true>(shared, row, column, args.steps, confirmed, at, store);
    } else {
      do_quad<T, kTermsC, kTermsB, false>(shared, row, column, args.steps, confirmed, at, store);
    }
  };
#pragma unroll 1
  for (int round = 0; round < 2; ++round) {
    const QuadTasks& tasks = shared.notes->tasks[round];
#pragma unroll 1
    for (int i = 0; i < tasks.count; ++i) consume(tasks.task[i], round > 0);
    if (shared.confirmed()) return;
  }
}

template <typename T, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_quads_kernel(const __grid_constant__ WaveArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const QuadShared shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    shared.init_barriers();
  }
  // The launch before this one may not be over yet. L2 may fetch what that has still to write, and
  // tasks are found by indices that it may still change: check_quads sees to that.
  if (warp == 3) fetch_first_steps<kQuadSide, kTermsC, kTermsB>(args, kQuadStages);
  if (warp == 0) {
    QuadIndices(args).put(shared.notes->scratch);
    find_quads(args, shared.notes->scratch, shared.notes->tasks[0]);
  }
  // The next one may get ready from here on.
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
  __syncthreads();
  // 72 + 2 * 216 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 72;\n");
    if (warp == 0 && elect_one()) produce_quads<kTermsC, kTermsB>(args, shared);
    if (warp == 1) check_quads(args, shared);
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 216;\n");
    consume_quads<T, kTermsC, kTermsB>(args, shared, warp / 4 - 1);
  }
#else
  __trap();
#endif
}

}  // namespace sparse_autotune
