// What the warps of a sampled product's kernel do: one finds tasks (sampled_tasks.cuh), two keep
// TMA copies under way, two warpgroups multiply and store (sampled_consumer.cuh).
//
// One ring takes C's strips by 64 terms, of which a step of a task needs one or more. The other
// takes B's pieces by 64 terms, kUnits at a time, next to each other so that one instruction
// multiplies all that share a strip.
// A consumer has 64 rows of kUnits pieces: of the same pieces as the other where strips are 128
// rows high, of the first or second half of the pieces where they are 64.
#pragma once

#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sampled/sampled_tasks.cuh"

namespace sparse_autotune {

constexpr int kPieceBytes = 64 * kLineBytes;  // 64 lines by 64 terms

// Rows of a strip, pieces of a consumer, stages of C's ring and of B's.
template <int kStripRows, int kPiecesEach, int kDepthC, int kDepthB>
struct SampledTile {
  static constexpr int kRows = kStripRows, kUnits = kPiecesEach;
  static constexpr int kStagesC = kDepthC, kStagesB = kDepthB;
  static constexpr bool kTall = kRows == 128;
  static constexpr int kPartsB = kTall ? 1 : kConsumers;  // stages of B's ring in a step
  static constexpr int kPieces = kUnits * kPartsB;
  static constexpr int kBytesC = kRows * kLineBytes, kBytesB = kUnits * kPieceBytes;
  static constexpr int kReadersC = 4 * kConsumers;  // warps
  static constexpr int kReadersB = 4 * kConsumers / kPartsB;
  // Threads: compute-sanitizer follows no __syncwarp to the arrival of another lane.
  static constexpr int kTaskReaders = 2 + kConsumers * kWarpgroup;
  static constexpr int kRingBytes = kStagesC * kBytesC + kStagesB * kBytesB;
  static constexpr int kBarriers = 2 * kStagesC + (1 + kPartsB) * kStagesB;
  static constexpr int kSharedBytes =
      kSwizzleAlignment + kRingBytes + SampledQueue<kTaskReaders>::kBytes + kBarriers * 8;
  // A consumer's sums, and the tile of both.
  static constexpr int kConsumerFloats = kUnits * kUnitFloats;
  static constexpr int kTileFloats = kConsumers * kConsumerFloats;
  static_assert(kRows == 64 || kRows == 128, "one or both consumers have a strip");
  static_assert(kPieces <= kMaxPieces && kPieces <= kStagesC * (kTall ? 2 : 1),
                "a task's strips fit C's ring");
};

template <typename Tile>
struct SampledShared {
  uint32_t c, b, queue, barriers;
  char* queue_memory;

  __device__ __forceinline__ explicit SampledShared(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    c = align_swizzled(begin);
    b = c + Tile::kStagesC * Tile::kBytesC;
    queue = b + Tile::kStagesB * Tile::kBytesB;
    barriers = queue + SampledQueue<Tile::kTaskReaders>::kBytes;
    queue_memory = memory + (queue - begin);
  }
  __device__ __forceinline__ uint32_t c_strip(uint32_t i) const { return c + i * Tile::kBytesC; }
  __device__ __forceinline__ uint32_t b_stage(uint32_t i) const { return b + i * Tile::kBytesB; }
  __device__ __forceinline__ uint32_t c_full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t c_empty(uint32_t i) const {
    return c_full(Tile::kStagesC + i);
  }
  __device__ __forceinline__ uint32_t b_empty(uint32_t i) const {
    return c_full(2 * Tile::kStagesC + i);
  }
  // Each part has its own: see Shared in wgmma_tile.cuh.
  __device__ __forceinline__ uint32_t b_full(uint32_t part, uint32_t turn) const {
    return b_empty(Tile::kStagesB + part * Tile::kStagesB + turn);
  }
  __device__ __forceinline__ SampledQueue<Tile::kTaskReaders> task_queue() const {
    return {queue_memory, queue};
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tile::kStagesC; ++i) {
      mbarrier_init(c_full(i), 1);
      mbarrier_init(c_empty(i), Tile::kReadersC);
    }
    for (int i = 0; i < Tile::kStagesB; ++i) {
      for (int part = 0; part < Tile::kPartsB; ++part) mbarrier_init(b_full(part, i), 1);
      mbarrier_init(b_empty(i), Tile::kReadersB);
    }
    task_queue().init_barriers();
    mbarrier_init_fence();
  }
};

// A place in a ring some stages further on.
template <int kStages>
__device__ __forceinline__ RingPlace<kStages> further(RingPlace<kStages> at, int stages) {
  at.stage += stages;
  if (at.stage >= kStages) {
    at.stage -= kStages;
    at.parity ^= 1;
  }
  return at;
}

// 64 terms of 64 or 128 lines, as many as the map's box has. `kTerms`: terms are contiguous.
// `kBriefly`: L2 may give them up first.
template <bool kTerms, bool kBriefly = false>
__device__ __forceinline__ void load_lines(uint32_t to, const CUtensorMap& map, uint32_t barrier,
                                           int line, int term, int matrix) {
  if constexpr (kBriefly && kTerms) {
    tma_load_hinted(to, map, barrier, evict_first(), term, line, matrix);
  } else if constexpr (kBriefly) {
    tma_load_hinted(to, map, barrier, evict_first(), 0, term, line / 64, matrix);
  } else if constexpr (kTerms) {
    tma_load(to, map, barrier, term, line, matrix);
  } else {
    tma_load(to, map, barrier, 0, term, line / 64, matrix);
  }
}

// The same of the first matrix, to L2.
template <bool kTerms>
__device__ __forceinline__ void fetch_lines(const CUtensorMap& map, int line, int term) {
  if constexpr (kTerms) {
    tma_fetch(map, term, line, 0);
  } else {
    tma_fetch(map, 0, term, line / 64, 0);
  }
}

// Calls f(term, matrix) for each step of a task.
template <typename Arguments, typename F>
__device__ __forceinline__ void for_steps(const Arguments& args, int first, int steps, F&& f) {
  int matrix = first / args.matrix_steps, step = first - matrix * args.matrix_steps;
#pragma unroll 1
  for (int left = steps; left > 0; --left) {
    f(step * kStepK, matrix);
    if (++step == args.matrix_steps) {
      step = 0;
      ++matrix;
    }
  }
}

// One thread: keeps C's ring full.
template <typename Tile, bool kTermsC>
__device__ __forceinline__ void produce_c(const SampledArguments& args,
                                          const SampledShared<Tile>& shared) {
  auto queue = shared.task_queue();
  RingPlace<Tile::kStagesC> at;
  for (;; queue.at.advance()) {
    mbarrier_wait(queue.full(), queue.at.parity);
    const SampledTask& task = queue.tasks[queue.at.stage];
    if (task.valid == 0) return;
    int row[Tile::kPieces];
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) row[i] = task.row[i];
    const int strips = task.strips, first = task.first, steps = task.steps;
    mbarrier_arrive(queue.empty());
    for_steps(args, first, steps, [&](int term, int matrix) {
#pragma unroll
      for (int i = 0; i < Tile::kPieces; ++i) {
        if (i >= strips) break;
        const uint32_t full = shared.c_full(at.stage);
        mbarrier_wait(shared.c_empty(at.stage), at.parity ^ 1);
        mbarrier_arrive_expect(full, Tile::kBytesC);
        load_lines<kTermsC>(shared.c_strip(at.stage), args.c, full, row[i], term,
                            args.c_batched ? matrix : 0);
        at.advance();
      }
    });
  }
}

// One thread: keeps B's ring full.
template <typename Tile, bool kTermsB>
__device__ __forceinline__ void produce_b(const SampledArguments& args,
                                          const SampledShared<Tile>& shared) {
  auto queue = shared.task_queue();
  RingPlace<Tile::kStagesB> at, turn;
  const bool wide = args.wide_boxes;
  for (;; queue.at.advance()) {
    mbarrier_wait(queue.full(), queue.at.parity);
    const SampledTask& task = queue.tasks[queue.at.stage];
    if (task.valid == 0) return;
    const int each = task.each, pieces = task.pieces, first = task.first, steps = task.steps;
    int column[Tile::kPieces];
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      column[i] = task.column[i / Tile::kUnits * each + i % Tile::kUnits];
    }
    mbarrier_arrive(queue.empty());
    for_steps(args, first, steps, [&](int term, int matrix) {
#pragma unroll
      for (int part = 0; part < Tile::kPartsB; ++part) {
        const uint32_t full = shared.b_full(part, turn.stage);
        const int present = min(max(pieces - part * each, 0), each);
        mbarrier_wait(shared.b_empty(at.stage), at.parity ^ 1);
        mbarrier_arrive_expect(full, present * kPieceBytes);
#pragma unroll
        for (int i = 0; i < Tile::kUnits; ++i) {
          if (i >= present) break;
          if (i % 2 != 0 && wide) continue;
          load_lines<kTermsB>(shared.b_stage(at.stage) + i * kPieceBytes, args.b, full,
                              column[part * Tile::kUnits + i], term, args.b_batched ? matrix : 0);
        }
        at.advance();
      }
      turn.advance();
    });
  }
}

}  // namespace sparse_autotune
