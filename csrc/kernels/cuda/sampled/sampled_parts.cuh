// What becomes of a task's sums: values, or parts of sums that the last to come adds up.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/pack.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/warpgroup.cuh"
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

}  // namespace sparse_autotune
