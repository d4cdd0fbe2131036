// What a warpgroup of a sampled product's kernel does: it multiplies its share of a task, and
// stores it or, where the task's sums have parts, leaves them: the last to come adds them up.
#pragma once

#include <cstdint>
#include <utility>

#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/named_barrier.cuh"
#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/sampled/sampled_ring.cuh"

namespace sparse_autotune {

// A part of a task's sums, as one consumer has them.
struct TaskPart {
  int task, part, consumer;
};
constexpr int kConsumerFloats = kSharePieces * kUnitFloats;

// Four words of each of a quad's lanes change places: lane t gets the quad's words t, in order.
__device__ __forceinline__ uint4 transpose_in_quad(uint32_t w0, uint32_t w1, uint32_t w2,
                                                   uint32_t w3) {
  const bool odd = threadIdx.x % 2 != 0, high = threadIdx.x / 2 % 2 != 0;
  const uint32_t a = __shfl_xor_sync(~0u, odd ? w0 : w1, 1);
  const uint32_t b = __shfl_xor_sync(~0u, odd ? w2 : w3, 1);
  const uint32_t z0 = odd ? a : w0, z1 = odd ? w1 : a, z2 = odd ? b : w2, z3 = odd ? w3 : b;
  const uint32_t c = __shfl_xor_sync(~0u, high ? z0 : z2, 2);
  const uint32_t d = __shfl_xor_sync(~0u, high ? z1 : z3, 2);
  return high ? make_uint4(c, d, z2, z3) : make_uint4(z0, z1, c, d);
}

// Writes a piece's 64 rows and columns; `place`: the first's. In runs of 64 bytes.
template <typename T>
__device__ __forceinline__ void store_piece(T* place, const float* sum, int block_k) {
  const int lane = threadIdx.x % 32;
  T* to =
      place + (threadIdx.x / 32 % 4 * 16 + lane / 4) * static_cast<int64_t>(block_k) + lane % 4 * 8;
#pragma unroll
  for (int below = 0; below < 2; ++below) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float* s = sum + half * 16 + below * 2;
      const uint4 words = transpose_in_quad(pack<T>(s[0], s[1]), pack<T>(s[4], s[5]),
                                            pack<T>(s[8], s[9]), pack<T>(s[12], s[13]));
      *reinterpret_cast<uint4*>(to + below * 8 * static_cast<int64_t>(block_k) + half * 32) = words;
    }
  }
}

// By a warpgroup: whether any of its threads says yes.
__device__ __forceinline__ bool warpgroup_any(bool yes, int barrier) {
  uint32_t any;
  asm volatile(
      "{\n"
      ".reg .pred in, out;\n"
      "setp.ne.u32 in, %1, 0;\n"
      "bar.red.or.pred out, %2, %3, in;\n"
      "selp.u32 %0, 1, 0, out;\n"
      "}\n"
      : "=r"(any)
      : "r"(static_cast<uint32_t>(yes)), "r"(barrier), "n"(kWarpgroup)
      : "memory");
  return any != 0;
}

__device__ __forceinline__ float* sums_of(const SampledArguments& args, const TaskPart& of,
                                          int part) {
  const int64_t tile = static_cast<int64_t>(part) * args.tasks + of.task;
  return args.partials + (tile * kConsumers + of.consumer) * kConsumerFloats;
}

// Leaves a part's sums in the workspace. True for whoever is the last of a task.
template <int kCount>
__device__ __forceinline__ bool leave_part(const SampledArguments& args, const TaskPart& of,
                                           const float (&sum)[kCount]) {
  const int barrier = 1 + of.consumer;
  float* mine = sums_of(args, of, of.part);
#pragma unroll
  for (int i = 0; i < kCount / 32; ++i) store_unit(mine + i * kUnitFloats, sum, i);
  __threadfence();
  warpgroup_sync(barrier);
  bool is_last = false;
  if (threadIdx.x % kWarpgroup == 0) {
    unsigned* counter = args.counters + kConsumers * of.task + of.consumer;
    const unsigned last = args.parts - 1;
    is_last = atomicInc(counter, last) == last;  // which is 0 again then
  }
  is_last = warpgroup_any(is_last, barrier);
  __threadfence();
  return is_last;
}

// A piece's sums over all parts, in their order.
__device__ __forceinline__ void add_parts(const SampledArguments& args, const TaskPart& of,
                                          int piece, float (&sum)[32]) {
  constexpr int kAtOnce = 2;  // parts on their way
  const int parts = args.parts;
#pragma unroll
  for (float& x : sum) x = 0;
  for (int first = 0; first < parts; first += kAtOnce) {
    float4 found[kAtOnce][8];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = min(first + i, parts - 1);
      load_unit(sums_of(args, of, part) + piece * kUnitFloats, found[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= parts) break;
      add_unit(sum, found[i]);
    }
  }
}

// A TaskShare in registers.
struct ConsumerShare {
  int4 head, places;

  __device__ __forceinline__ ConsumerShare(const SampledTask* task, int consumer)
      : head(load_task_words(task->share + consumer)),
        places(load_task_words(task->share + consumer, 1)) {}
  __device__ __forceinline__ int form() const { return head.x; }
  // Where the lines of C, and the columns of B, of a row begin in a stage.
  __device__ __forceinline__ uint32_t row(int i) const { return unit(i); }
  __device__ __forceinline__ uint32_t column(int i) const { return unit(kTaskRows + i); }
  // A piece's first element.
  __device__ __forceinline__ int64_t element(int piece) const {
    const int found = piece == 0   ? places.x
                      : piece == 1 ? places.y
                      : piece == 2 ? places.z
                                   : places.w;
    return int64_t{found} * kLinesOfUnit;
  }

 private:
  __device__ __forceinline__ uint32_t unit(int i) const {
    return (static_cast<uint32_t>(head.y) >> 8 * i & 0xff) * kUnitBytes;
  }
};

// By so many steps the first consumer is through with its task before the second: a warpgroup alone
// keeps the tensor cores as busy as two do, so nothing is lost, and the first stores its sums while
// the second multiplies.
constexpr int kApart = 3, kApartBarrier = 3;

// All steps of a task by a warpgroup: kRows rows of kPieces pieces each. Without pieces it only
// gives stages back.
template <typename T, bool kTermsC, bool kTermsB, int kRows, int kPieces, int kSums>
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
      barrier_sync<kConsumers * kWarpgroup>(kApartBarrier);
    }
    mbarrier_wait(shared.full(at.stage), at.parity);
    if constexpr (kPieces > 0) {
      const uint32_t stage = stages[at.stage];
      wgmma::fence();
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        wgmma::multiply_lines<T, kPieces * kLinesOfUnit, !kTermsB, !kTermsC>(
            reinterpret_cast<float(&)[kPieces * 32]>(sum[i * kPieces * 32]), stage + share.row(i),
            stage + share.column(i));
      }
      wgmma::commit();
      // Stages are given back a step later, while the next is multiplied.
      wgmma::wait<1>();
    }
    if (step > 0 && threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty(last));
    last = at.stage;
    at.advance(stages.count);
  }
  if (goes_apart && consumer == 0) {
    barrier_arrive<kConsumers * kWarpgroup>(kApartBarrier);
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  if (threadIdx.x % 32 == 0) mbarrier_arrive(shared.empty(last));
}

// One share of a task by a warpgroup, from the first step to what is stored.
template <typename T, bool kTermsC, bool kTermsB, int kRows, int kPieces>
__device__ __forceinline__ void do_share(const SampledArguments& args, const SampledRing& shared,
                                         const SampledStages& stages, const ConsumerShare& share,
                                         const TaskPart& part, int steps, SampledPlace& at) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each of its branches.
  constexpr int kAll = kRows * kPieces;
  float sum[kAll == 0 ? 1 : kAll * 32] = {};
  multiply_share<T, kTermsC, kTermsB, kRows, kPieces>(shared, stages, share, part.consumer, steps,
                                                      at, sum);
  if constexpr (kAll > 0) {
    T* const values = static_cast<T*>(args.sampled);
    if (args.parts > 1) {
      if (!leave_part(args, part, sum)) return;
#pragma unroll 1
      for (int i = 0; i < kAll; ++i) {
        float total[32];
        add_parts(args, part, i, total);
        store_piece(values + share.element(i), total, args.block_k);
      }
      return;
    }
#pragma unroll
    for (int i = 0; i < kAll; ++i) {
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
    const auto run = [&]<int kRows, int kPieces>(std::integer_sequence<int, kRows, kPieces>) {
      do_share<T, kTermsC, kTermsB, kRows, kPieces>(args, shared, stages, share, part, walk.steps,
                                                    at);
    };
    switch (share.form()) {
      case 0:
        run(std::integer_sequence<int, 1, 0>{});
        break;
      case 1:
        run(std::integer_sequence<int, 1, 1>{});
        break;
      case 2:
        run(std::integer_sequence<int, 1, 2>{});
        break;
      case 3:
        run(std::integer_sequence<int, 1, 3>{});
        break;
      case 4:
        run(std::integer_sequence<int, 1, 4>{});
        break;
      default:
        run(std::integer_sequence<int, 2, 2>{});
    }
    share = next;
  }
}

}  // namespace sparse_autotune
