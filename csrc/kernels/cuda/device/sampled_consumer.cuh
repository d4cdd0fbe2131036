// What a warpgroup of a sampled product's kernel does: it multiplies its pieces of a task, and
// stores them or, where the task's sums have parts, leaves its part and adds them up if it is the
// last.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/deferred_store.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/sampled_pipeline.cuh"
#include "kernels/cuda/device/sampled_tasks.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

// Where a consumer stands in both rings.
template <typename Tile>
struct SampledPlace {
  RingPlace<Tile::kStagesC> c;
  RingPlace<Tile::kStagesB> turn;
};

// A task as one consumer sees it.
template <typename Tile>
struct ConsumerTask {
  int consumer, steps, strips, present;  // present: of its pieces
  int part, rest;
  int strip[Tile::kUnits];
  const int64_t* place;  // in shared memory
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
    uint64_t c[Group::kCount];
    for_groups(Group{}, [&](auto group, auto first, auto) {
      const auto strip = further(at.c, task.strip[first]);
      mbarrier_wait(shared.c_full(strip.stage), strip.parity);
      const uint32_t tile = shared.c_strip(strip.stage) + own;
      c[group] = kTermsC ? wgmma::k_contiguous(tile) : wgmma::m_contiguous(tile);
    });
    mbarrier_wait(shared.b_full(part, at.turn.stage), at.turn.parity);
    const uint32_t tile = shared.b_stage(stage_of(at.turn.stage));
    const uint64_t b = kTermsB ? wgmma::k_contiguous(tile) : wgmma::n_contiguous<kPieceBytes>(tile);
    wgmma::fence();
    for_groups(Group{}, [&](auto group, auto first, auto size) {
      constexpr uint64_t kStepC = kTermsC ? wgmma::kContiguousStep : wgmma::kMContiguousStep;
      constexpr uint64_t kStepB = kTermsB ? wgmma::kContiguousStep : wgmma::kNContiguousStep;
      constexpr int kFirst = decltype(first)::value, kWidth = decltype(size)::value * 64;
      auto& sums = reinterpret_cast<float(&)[kWidth / 2]>(sum[kFirst * 32]);
#pragma unroll
      for (int q = 0; q < kStepK / 16; ++q) {
        wgmma::multiply<T, kWidth, !kTermsB, !kTermsC>(
            sums, c[group] + q * kStepC, b + kFirst * (kPieceBytes / 16) + q * kStepB, 1);
      }
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

template <typename Tile>
__device__ __forceinline__ float* part_of(const SampledArguments& args,
                                          const ConsumerTask<Tile>& task, int part) {
  const int64_t tile = static_cast<int64_t>(part) * args.rest + task.rest;
  return args.partials + tile * Tile::kTileFloats + task.consumer * Tile::kConsumerFloats;
}

// Leaves a part's sums in the workspace. True for whoever is the last of a task.
template <typename Tile, int kCount>
__device__ __forceinline__ bool leave_part(const SampledArguments& args,
                                           const ConsumerTask<Tile>& task,
                                           const float (&sum)[kCount]) {
  const int barrier = 1 + task.consumer;
  float* mine = part_of(args, task, task.part);
#pragma unroll
  for (int i = 0; i < kCount / 32; ++i) store_unit(mine + i * kUnitFloats, sum, i);
  __threadfence();
  warpgroup_sync(barrier);
  bool is_last = false;
  if (threadIdx.x % kWarpgroup == 0) {
    unsigned* counter = args.counters + 2 * task.rest + task.consumer;
    is_last = atomicInc(counter, args.parts - 1) == args.parts - 1;  // which is 0 again then
  }
  is_last = warpgroup_any(is_last, barrier);
  __threadfence();
  return is_last;
}

// A piece's sums over all parts, in their order.
template <typename Tile>
__device__ __forceinline__ void add_parts(const SampledArguments& args,
                                          const ConsumerTask<Tile>& task, int piece,
                                          float (&sum)[32]) {
  constexpr int kAtOnce = 2;  // parts on their way
  const int parts = static_cast<int>(args.parts);
#pragma unroll
  for (float& x : sum) x = 0;
  for (int first = 0; first < parts; first += kAtOnce) {
    float4 found[kAtOnce][8];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int part = min(first + i, parts - 1);
      load_unit(part_of(args, task, part) + piece * kUnitFloats, found[i]);
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i >= parts) break;
      add_unit(sum, found[i]);
    }
  }
}

template <typename T, typename Tile>
__device__ __forceinline__ T* values_of(const SampledArguments& args,
                                        const ConsumerTask<Tile>& task) {
  return static_cast<T*>(args.values) + (Tile::kTall ? task.consumer * 64 * args.block_k : 0);
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
__device__ __forceinline__ void consume(const SampledArguments& args,
                                        const SampledShared<Tile>& shared, int consumer) {
  constexpr int kUnits = Tile::kUnits;
  static_assert(kUnits == 4);
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
