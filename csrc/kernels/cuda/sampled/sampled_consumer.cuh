// What a warpgroup of a sampled product's kernel does: it multiplies its share of a task, and
// stores it or, where the task's sums have parts, sees to it that they are added up
// (sampled_parts.cuh).
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sampled/sampled_parts.cuh"
#include "kernels/cuda/sampled/sampled_ring.cuh"

namespace sparse_autotune {

// A TaskShare in registers.
struct ConsumerShare {
  int4 head, places;

  __device__ __forceinline__ ConsumerShare(const SampledTask* task, int consumer)
      : head(load_task_words(task->share + consumer)),
        places(load_task_words(task->share + consumer, 1)) {}
  __device__ __forceinline__ int form() const { return head.x; }
  __device__ __forceinline__ int pieces() const { return head.y; }
  // Where a group's lines of C, and its columns of B, begin in a stage.
  __device__ __forceinline__ uint32_t row(int group) const { return unit(head.z, group); }
  __device__ __forceinline__ uint32_t column(int group) const { return unit(head.w, group); }
  // A piece's first element.
  __device__ __forceinline__ int64_t element(int piece) const {
    const int found = piece == 0   ? places.x
                      : piece == 1 ? places.y
                      : piece == 2 ? places.z
                                   : places.w;
    return int64_t{found} * kLinesOfUnit;
  }

 private:
  static __device__ __forceinline__ uint32_t unit(int units, int group) {
    return (static_cast<uint32_t>(units) >> 8 * group & 0xff) * kUnitBytes;
  }
};

// How the pieces of a share fall into groups, one instruction a group.
template <int... kSizes>
struct Groups {
  static constexpr int kPieces = (kSizes + ... + 0);
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

// By so many steps the first consumer is through with its task before the second: a warpgroup alone
// keeps the tensor cores as busy as two do, so nothing is lost, and the first stores its sums while
// the second multiplies.
constexpr int kApart = 3, kApartBarrier = 3;

// All steps of a task by a warpgroup. Without pieces it only gives stages back.
template <typename T, bool kTermsC, bool kTermsB, typename Group, int kSums>
__device__ __forceinline__ void multiply_share(const SampledRing& shared,
                                               const SampledStages& stages,
                                               const ConsumerShare& share, int consumer, int steps,
                                               SampledPlace& at, float (&sum)[kSums]) {
  // The first needs no stage that the second has still to give back, and cannot be a task ahead.
  const int apart = min(kApart, static_cast<int>(stages.count) - 1);
  const bool goes_apart = apart > 0 && steps >= 2 * static_cast<int>(stages.count);
  const int pause = goes_apart && consumer == 1 ? steps - apart : -1;
  uint32_t last = 0;
  // Left to itself the compiler copies the step several times over: no faster, and compiled for
  // twice as long.
#pragma unroll 1
  for (int step = 0; step < steps; ++step) {
    if (step == pause) {
      asm volatile("bar.sync %0, %1;\n" ::"n"(kApartBarrier), "n"(kConsumers * kWarpgroup)
                   : "memory");
    }
    mbarrier_wait(shared.full(at.stage), at.parity);
    if constexpr (Group::kPieces > 0) {
      const uint32_t stage = stages[at.stage];
      wgmma::fence();
      for_groups(Group{}, [&](auto group, auto first, auto size) {
        constexpr int kGroup = decltype(group)::value, kFirst = decltype(first)::value;
        constexpr int kWidth = decltype(size)::value * kLinesOfUnit;
        wgmma::multiply_lines<T, kWidth, !kTermsB, !kTermsC>(
            reinterpret_cast<float(&)[kWidth / 2]>(sum[kFirst * 32]), stage + share.row(kGroup),
            stage + share.column(kGroup));
      });
      wgmma::commit();
      // Stages are given back a step later, while the next is multiplied.
      wgmma::wait<1>();
    }
    if (step > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty(last));
    last = at.stage;
    at.advance(stages.count);
  }
  if (goes_apart && consumer == 0) {
    asm volatile("bar.arrive %0, %1;\n" ::"n"(kApartBarrier), "n"(kConsumers * kWarpgroup)
                 : "memory");
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty(last));
}

// One share of a task by a warpgroup, from the first step to what is stored.
template <typename T, bool kTermsC, bool kTermsB, typename Group>
__device__ __forceinline__ void do_share(const SampledArguments& args, const SampledRing& shared,
                                         const SampledStages& stages, const ConsumerShare& share,
                                         const TaskPart& part, int steps, SampledPlace& at) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each of its branches.
  float sum[Group::kPieces == 0 ? 1 : Group::kPieces * 32] = {};
  multiply_share<T, kTermsC, kTermsB, Group>(shared, stages, share, part.consumer, steps, at, sum);
  if constexpr (Group::kPieces > 0) {
    T* const values = static_cast<T*>(args.values);
    if (args.parts > 1) {
      if (!leave_part(args, part, sum)) return;
#pragma unroll 1
      for (int i = 0; i < share.pieces(); ++i) {
        float total[32];
        add_parts(args, part, i, total);
        store_piece(values + share.element(i), total, args.block_k);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < Group::kPieces; ++i) {
      if (i >= share.pieces()) break;
      store_piece(values + share.element(i), sum + 32 * i, args.block_k);
    }
  }
}

// A warpgroup. `share`: its own of the first task.
template <typename T, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void consume_sampled(const SampledArguments& args,
                                                const SampledRing& shared, int consumer,
                                                ConsumerShare share) {
  const SampledStages stages(shared);
  SampledPlace at;
  for (SampledWalk walk(args, shared); !walk.ended();) {
    const TaskPart part{walk.number, walk.part, consumer};
    walk.advance();
    ConsumerShare next = share;
    if (!walk.ended()) next = ConsumerShare(args.table->tasks() + walk.number, consumer);
    const auto run = [&]<int... kSizes>(Groups<kSizes...>) {
      do_share<T, kTermsC, kTermsB, Groups<kSizes...>>(args, shared, stages, share, part,
                                                       walk.steps, at);
    };
    switch (share.form()) {
      case kNoPieces:
        run(Groups<>{});
        break;
      case kOne:
        run(Groups<1>{});
        break;
      case kTwo:
        run(Groups<2>{});
        break;
      case kThree:
        run(Groups<3>{});
        break;
      case kFour:
        run(Groups<4>{});
        break;
      case kTwoAndTwo:
        run(Groups<2, 2>{});
        break;
      case kOneAndThree:
        run(Groups<1, 3>{});
        break;
      case kThreeAndOne:
        run(Groups<3, 1>{});
        break;
      default:
        run(Groups<1, 1, 1, 1>{});
    }
    share = next;
  }
}

}  // namespace sparse_autotune
