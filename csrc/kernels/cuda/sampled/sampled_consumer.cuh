// What a warpgroup of a sampled product's kernel does: it multiplies its pieces of a task, and
// stores them or, where the task's sums have parts, sees to it that they are added up
// (sampled_parts.cuh).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sampled/sampled_parts.cuh"
#include "kernels/cuda/sampled/sampled_pipeline.cuh"
#include "kernels/cuda/sampled/sampled_tasks.cuh"

namespace sparse_autotune {

// Where a consumer stands in both rings.
template <typename Tile>
struct SampledPlace {
  RingPlace<Tile::kStagesC> c;
  RingPlace<Tile::kStagesB> turn;
};

// How the pieces of a consumer fall into groups of one strip each, one instruction a group.
template <int... kSizes>
struct Groups {
  static constexpr int kCount = sizeof...(kSizes), kPieces = (kSizes + ... + 0);
};

// Calls f(group, its first piece, its pieces) with each group, as types.
template <int kGroup = 0, int kFirst = 0, typename F>
__device__ __forceinline__ void for_groups(Groups<>, F&&) {}
template <int kGroup = 0, int kFirst = 0, int kSize, int... kOthers, typename F>
__device__ __forceinline__ void for_groups(Groups<kSize, kOthers...>, F&& f) {
  f(std::integral_constant<int, kGroup>{}, std::integral_constant<int, kFirst>{},
    std::integral_constant<int, kSize>{});
  for_groups<kGroup + 1, kFirst + kSize>(Groups<kOthers...>{}, f);
}

// All steps of a task by a warpgroup.
template <typename T, typename Tile, bool kTermsC, bool kTermsB, typename Group>
__device__ __forceinline__ void multiply_task(const SampledShared<Tile>& shared,
                                              const ConsumerTask<Tile>& task,
                                              SampledPlace<Tile>& at,
                                              float (&sum)[Group::kPieces * 32]) {
  const int lane = threadIdx.x % 32;
  const uint32_t own = Tile::kTall ? task.consumer * kPieceBytes : 0;
  const uint32_t part = Tile::kTall ? 0 : task.consumer;
  const auto stage_of = [&](uint32_t turn) {
    const uint32_t i = turn * Tile::kPartsB + part;
    return i < Tile::kStagesB ? i : i - Tile::kStagesB;
  };
  const auto release = [&](const SampledPlace<Tile>& done) {
    if (lane < task.strips) {
      // Of a strip that only the other consumer uses: nobody may be two phases ahead.
      const auto strip = further(done.c, lane);
      mbarrier_wait(shared.c_full(strip.stage), strip.parity);
      mbarrier_arrive(shared.c_empty(strip.stage));
    }
    if (lane == 0) mbarrier_arrive(shared.b_empty(stage_of(done.turn.stage)));
  };
  // Stages are given back a step later, while the next is multiplied, if there are any for the
  // next.
  const bool later = 2 * task.strips <= Tile::kStagesC;
  SampledPlace<Tile> last = at;
  for (int step = 0; step < task.steps; ++step) {
    uint32_t c[Group::kCount];
    for_groups(Group{}, [&](auto group, auto first, auto) {
      const auto strip = further(at.c, task.strip[first]);
      mbarrier_wait(shared.c_full(strip.stage), strip.parity);
      c[group] = shared.c_strip(strip.stage) + own;
    });
    mbarrier_wait(shared.b_full(part, at.turn.stage), at.turn.parity);
    const uint32_t b = shared.b_stage(stage_of(at.turn.stage));
    wgmma::fence();
    for_groups(Group{}, [&](auto group, auto first, auto size) {
      constexpr int kFirst = decltype(first)::value, kWidth = decltype(size)::value * 64;
      auto& sums = reinterpret_cast<float(&)[kWidth / 2]>(sum[kFirst * 32]);
      wgmma::multiply_lines<T, kWidth, !kTermsB, !kTermsC>(sums, c[group],
                                                           b + kFirst * kPieceBytes);
    });
    wgmma::commit();
    if (later) {
      wgmma::wait<1>();
      if (step > 0) release(last);
    } else {
      wgmma::wait<0>();
      release(at);
    }
    last = at;
    at.c = further(at.c, task.strips);
    at.turn.advance();
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  if (later) release(last);
}

// True where parts of the task's sums are left to be added up.
template <typename T, typename Tile, bool kTermsC, bool kTermsB, typename Group>
__device__ __forceinline__ bool do_task(const SampledArguments& args,
                                        const SampledShared<Tile>& shared,
                                        const ConsumerTask<Tile>& task, SampledPlace<Tile>& at) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each of its branches.
  float sum[Group::kPieces * 32] = {};
  multiply_task<T, Tile, kTermsC, kTermsB, Group>(shared, task, at, sum);
  if (task.part >= 0) return leave_part(args, task, sum);
  T* values = values_of<T>(args, task);
#pragma unroll
  for (int i = 0; i < Group::kPieces; ++i) {
    if (i < task.present) store_piece(values + task.place[i], sum + 32 * i, args.block_k);
  }
  return false;
}

// A warpgroup.
template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void consume_tasks(const SampledArguments& args,
                                              const SampledShared<Tile>& shared, int consumer) {
  constexpr int kUnits = Tile::kUnits;
  static_assert(kUnits == 4, "the cases below are of four");
  auto queue = shared.task_queue();
  SampledPlace<Tile> at;
  for (;; queue.at.advance()) {
    mbarrier_wait(queue.full(), queue.at.parity);
    const SampledTask& found = queue.tasks[queue.at.stage];
    if (found.valid == 0) return;
    const int each = found.each, first = Tile::kTall ? 0 : consumer * each;
    ConsumerTask<Tile> task{consumer,   found.steps, found.strips, min(found.pieces - first, each),
                            found.part, found.rest};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) task.strip[i] = found.strip[first + i];
    task.place = found.place + first;
    task.line = Tile::kTall ? consumer * 64 : 0;

    const int* strip = task.strip;
    bool adds = false;
    const auto run = [&]<int... kSizes>(Groups<kSizes...>) {
      return do_task<T, Tile, kTermsC, kTermsB, Groups<kSizes...>>(args, shared, task, at);
    };
    if (each < kUnits) {
      adds = strip[0] == strip[1] ? run(Groups<2>{}) : run(Groups<1, 1>{});
    } else if (strip[0] == strip[3]) {
      adds = run(Groups<4>{});
    } else if (strip[0] == strip[1] && strip[2] == strip[3]) {
      adds = run(Groups<2, 2>{});
    } else if (!Tile::kTall && strip[0] == strip[2]) {
      if constexpr (!Tile::kTall) adds = run(Groups<3, 1>{});
    } else if (!Tile::kTall && strip[1] == strip[3]) {
      if constexpr (!Tile::kTall) adds = run(Groups<1, 3>{});
    } else {
      adds = run(Groups<1, 1, 1, 1>{});
    }
    if (adds) {
      T* values = values_of<T>(args, task);
#pragma unroll 1
      for (int i = 0; i < task.present; ++i) {
        float total[32];
        add_parts(args, task, i, total);
        store_piece(values + task.place[i], total, args.block_k);
      }
    }
    mbarrier_arrive(queue.empty());
  }
}

}  // namespace sparse_autotune
