// What the warps of a sampled product's kernel do: one finds tasks (sampled_tasks.cuh), one keeps
// TMA copies under way, two warpgroups multiply and store.
//
// All copies are boxes of 64 rows of C or of B^T by 64 terms, 8 KB. One ring takes C's, box by box:
// a step of a task needs kStripBoxes for each of its strips. The other takes B's, kUnits at a time,
// next to each other so that one instruction multiplies them all where they share a strip.
// A consumer has 64 rows of kUnits pieces: of the same pieces as the other where strips are 128
// rows high, of the first or second half of the pieces where they are 64.
#pragma once

#include "kernels/cuda/device/deferred_store.cuh"
#include "kernels/cuda/device/partial_sums.cuh"
#include "kernels/cuda/device/sampled_tasks.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace sparse_autotune {

constexpr int kBoxBytes = 64 * kLineBytes;

// Rows of a strip, pieces of a consumer, boxes in C's ring, stages of B's.
template <int kStripRows, int kPiecesEach, int kDepthC, int kDepthB>
struct SampledTile {
  static constexpr int kRows = kStripRows, kUnits = kPiecesEach;
  static constexpr int kBoxesC = kDepthC, kStagesB = kDepthB;
  static constexpr bool kTall = kRows == 128;
  static constexpr int kStripBoxes = kRows / 64;
  static constexpr int kPartsB = kTall ? 1 : kConsumers;  // stages of B's ring in a step
  static constexpr int kPieces = kUnits * kPartsB;
  static constexpr int kBytesB = kUnits * kBoxBytes;
  static constexpr int kReadersC = kTall ? 4 : 4 * kConsumers;  // warps
  static constexpr int kReadersB = 4 * kConsumers / kPartsB;
  static constexpr int kTaskReaders = 1 + 4 * kConsumers;
  static constexpr int kRingBytes = kBoxesC * kBoxBytes + kStagesB * kBytesB;
  static constexpr int kBarriers = 2 * kBoxesC + (1 + kPartsB) * kStagesB;
  static constexpr int kSharedBytes =
      kTileAlignment + kRingBytes + SampledQueue<kTaskReaders>::kBytes + kBarriers * 8;
  // A consumer's sums, and the tile of both.
  static constexpr int kConsumerFloats = kUnits * kUnitFloats;
  static constexpr int kTileFloats = kConsumers * kConsumerFloats;
  static_assert(kRows == 64 || kRows == 128);
  static_assert(kPieces <= kMaxPieces && kPieces * kStripBoxes <= kBoxesC);
};

template <typename Tile>
struct SampledShared {
  uint32_t c, b, queue, barriers;
  char* queue_memory;

  __device__ __forceinline__ explicit SampledShared(char* memory) {
    const auto begin = static_cast<uint32_t>(__cvta_generic_to_shared(memory));
    c = (begin + kTileAlignment - 1) & ~static_cast<uint32_t>(kTileAlignment - 1);
    b = c + Tile::kBoxesC * kBoxBytes;
    queue = b + Tile::kStagesB * Tile::kBytesB;
    barriers = queue + SampledQueue<Tile::kTaskReaders>::kBytes;
    queue_memory = memory + (queue - begin);
  }
  __device__ __forceinline__ uint32_t c_box(uint32_t i) const { return c + i * kBoxBytes; }
  __device__ __forceinline__ uint32_t b_stage(uint32_t i) const { return b + i * Tile::kBytesB; }
  __device__ __forceinline__ uint32_t c_full(uint32_t i) const { return barriers + i * 8; }
  __device__ __forceinline__ uint32_t c_empty(uint32_t i) const {
    return c_full(Tile::kBoxesC + i);
  }
  __device__ __forceinline__ uint32_t b_empty(uint32_t i) const {
    return c_full(2 * Tile::kBoxesC + i);
  }
  // Each part has its own: see Shared in wgmma_pipeline.cuh.
  __device__ __forceinline__ uint32_t b_full(uint32_t part, uint32_t turn) const {
    return b_empty(Tile::kStagesB + part * Tile::kStagesB + turn);
  }
  __device__ __forceinline__ SampledQueue<Tile::kTaskReaders> task_queue() const {
    return {queue_memory, queue};
  }
  __device__ __forceinline__ void init_barriers() const {
    for (int i = 0; i < Tile::kBoxesC; ++i) {
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

// A place in C's ring some boxes further on.
template <int kBoxes>
__device__ __forceinline__ RingPlace<kBoxes> further(RingPlace<kBoxes> at, int boxes) {
  at.stage += boxes;
  if (at.stage >= kBoxes) {
    at.stage -= kBoxes;
    at.parity ^= 1;
  }
  return at;
}

// One thread: keeps the rings full. `kTermsC`, `kTermsB`: whether terms are contiguous.
template <typename Tile, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void produce(const SampledArguments& args,
                                        const SampledShared<Tile>& shared) {
  auto queue = shared.task_queue();
  RingPlace<Tile::kBoxesC> at_c;
  RingPlace<Tile::kStagesB> at_b, turn_b;
  for (;; queue.at.advance()) {
    mbarrier_wait(queue.full(), queue.at.parity);
    const SampledTask& task = queue.tasks[queue.at.stage];
    if (task.valid == 0) return;
    int row[Tile::kPieces], column[Tile::kPieces];
#pragma unroll
    for (int i = 0; i < Tile::kPieces; ++i) {
      row[i] = task.row[i];
      column[i] = task.column[i];
    }
    const int strips = task.strips, pieces = task.pieces;
    int left = task.steps, matrix = task.first / args.matrix_steps;
    int step = task.first - matrix * args.matrix_steps;
    mbarrier_arrive(queue.empty());
    for (; left > 0; --left) {
      const int term = step * kStepK;
      const int c_matrix = args.c_batched ? matrix : 0, b_matrix = args.b_batched ? matrix : 0;
#pragma unroll
      for (int i = 0; i < Tile::kPieces; ++i) {
        if (i >= strips) break;
#pragma unroll
        for (int half = 0; half < Tile::kStripBoxes; ++half) {
          const int line = row[i] + half * 64;
          const uint32_t full = shared.c_full(at_c.stage);
          mbarrier_wait(shared.c_empty(at_c.stage), at_c.parity ^ 1);
          mbarrier_arrive_expect(full, kBoxBytes);
          tma_load(shared.c_box(at_c.stage), args.c, full, kTermsC ? term : line,
                   kTermsC ? line : term, c_matrix);
          at_c.advance();
        }
      }
#pragma unroll
      for (int part = 0; part < Tile::kPartsB; ++part) {
        const uint32_t full = shared.b_full(part, turn_b.stage);
        const int present = min(max(pieces - part * Tile::kUnits, 0), Tile::kUnits);
        mbarrier_wait(shared.b_empty(at_b.stage), at_b.parity ^ 1);
        mbarrier_arrive_expect(full, present * kBoxBytes);
#pragma unroll
        for (int i = 0; i < Tile::kUnits; ++i) {
          if (i >= present) break;
          const int line = column[part * Tile::kUnits + i];
          tma_load(shared.b_stage(at_b.stage) + i * kBoxBytes, args.b, full, kTermsB ? term : line,
                   kTermsB ? line : term, b_matrix);
        }
        at_b.advance();
      }
      turn_b.advance();
      if (++step == args.matrix_steps) {
        step = 0;
        ++matrix;
      }
    }
  }
}

// Where a consumer stands in both rings.
template <typename Tile>
struct SampledPlace {
  RingPlace<Tile::kBoxesC> c;
  RingPlace<Tile::kStagesB> turn;
};

// A task as one consumer sees it.
template <typename Tile>
struct ConsumerTask {
  int consumer, steps, strips, present;  // present: of its pieces
  int part, parts, cutter;
  int strip[Tile::kUnits];
  int64_t place[Tile::kUnits];
};

// All steps of a task by a warpgroup whose pieces are of up to kGroups strips: equally many in each
// group that one instruction multiplies.
template <typename T, typename Tile, bool kTermsC, bool kTermsB, int kGroups>
__device__ __forceinline__ void multiply_task(const SampledShared<Tile>& shared,
                                              const ConsumerTask<Tile>& task,
                                              SampledPlace<Tile>& at,
                                              float (&sum)[Tile::kUnits * 32]) {
  constexpr int kEach = Tile::kUnits / kGroups, kWidth = kEach * 64;
  constexpr uint64_t kStepC = kTermsC ? wgmma::kContiguousStep : wgmma::kMContiguousStep;
  constexpr uint64_t kStepB = kTermsB ? wgmma::kContiguousStep : wgmma::kNContiguousStep;
  const int lane = threadIdx.x % 32, own = Tile::kTall ? task.consumer : 0;
  const int part = Tile::kTall ? 0 : task.consumer;
  const auto stage_of = [&](uint32_t turn) {
    const uint32_t i = turn * Tile::kPartsB + part;
    return i < Tile::kStagesB ? i : i - Tile::kStagesB;
  };
  const auto release = [&](const SampledPlace<Tile>& done) {
    if (lane < task.strips) {
      mbarrier_arrive(shared.c_empty(further(done.c, lane * Tile::kStripBoxes + own).stage));
    }
    if (lane == 0) mbarrier_arrive(shared.b_empty(stage_of(done.turn.stage)));
  };
  SampledPlace<Tile> last = at;
  for (int step = 0; step < task.steps; ++step) {
    uint64_t c[kGroups];
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      const auto box = further(at.c, task.strip[i * kEach] * Tile::kStripBoxes + own);
      mbarrier_wait(shared.c_full(box.stage), box.parity);
      const uint32_t tile = shared.c_box(box.stage);
      c[i] = kTermsC ? wgmma::k_contiguous(tile) : wgmma::m_contiguous(tile);
    }
    mbarrier_wait(shared.b_full(part, at.turn.stage), at.turn.parity);
    const uint32_t tile = shared.b_stage(stage_of(at.turn.stage));
    const uint64_t b = kTermsB ? wgmma::k_contiguous(tile) : wgmma::n_contiguous<kBoxBytes>(tile);
    wgmma::fence();
#pragma unroll
    for (int i = 0; i < kGroups; ++i) {
      auto& group = reinterpret_cast<float(&)[kWidth / 2]>(sum[i * kWidth / 2]);
#pragma unroll
      for (int q = 0; q < kStepK / 16; ++q) {
        wgmma::multiply<T, kWidth, !kTermsB, !kTermsC>(
            group, c[i] + q * kStepC, b + i * (kEach * kBoxBytes / 16) + q * kStepB, 1);
      }
    }
    wgmma::commit();
    wgmma::wait<1>();
    if (step > 0) release(last);
    last = at;
    at.c = further(at.c, task.strips * Tile::kStripBoxes);
    at.turn.advance();
  }
  wgmma::wait<0>();
  wgmma::pin(sum);
  release(last);
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
  const int64_t tile = 2 * (task.cutter + part) + (part == 0 ? 1 : 0);
  return args.partials + tile * Tile::kTileFloats + task.consumer * Tile::kConsumerFloats;
}

// Leaves a part's sums in the workspace. True for whoever is the last of a task.
template <typename Tile>
__device__ __forceinline__ bool leave_part(const SampledArguments& args,
                                           const ConsumerTask<Tile>& task,
                                           const float (&sum)[Tile::kUnits * 32]) {
  const int barrier = 1 + task.consumer;
  float* mine = part_of(args, task, task.part);
#pragma unroll
  for (int i = 0; i < Tile::kUnits; ++i) store_unit(mine + i * kUnitFloats, sum, i);
  __threadfence();
  warpgroup_sync(barrier);
  bool is_last = false;
  if (threadIdx.x % kWarpgroup == 0) {
    unsigned* counter = args.counters + 2 * task.cutter + task.consumer;
    const auto others = static_cast<unsigned>(task.parts - 1);
    is_last = atomicInc(counter, others) == others;  // which is 0 again then
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
#pragma unroll
  for (float& x : sum) x = 0;
  for (int part = 0; part < task.parts; ++part) {
    float4 found[8];
    load_unit(part_of(args, task, part) + piece * kUnitFloats, found);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      sum[4 * j] += found[j].x;
      sum[4 * j + 1] += found[j].y;
      sum[4 * j + 2] += found[j].z;
      sum[4 * j + 3] += found[j].w;
    }
  }
}

template <typename T, typename Tile>
__device__ __forceinline__ T* values_of(const SampledArguments& args,
                                        const ConsumerTask<Tile>& task) {
  return static_cast<T*>(args.values) + (Tile::kTall ? task.consumer * 64 * args.block_k : 0);
}

// True where parts of the task's sums are left to be added up.
template <typename T, typename Tile, bool kTermsC, bool kTermsB, int kGroups>
__device__ __forceinline__ bool do_task(const SampledArguments& args,
                                        const SampledShared<Tile>& shared,
                                        const ConsumerTask<Tile>& task, SampledPlace<Tile>& at) {
  // Without a value to begin with they would hold registers from the kernel's start, and so for
  // each of its branches.
  float sum[Tile::kUnits * 32] = {};
  multiply_task<T, Tile, kTermsC, kTermsB, kGroups>(shared, task, at, sum);
  if (task.parts == 1) {
    T* values = values_of<T>(args, task);
#pragma unroll
    for (int i = 0; i < Tile::kUnits; ++i) {
      if (i < task.present) store_piece(values + task.place[i], sum + 32 * i, args.block_k);
    }
    return false;
  }
  return leave_part(args, task, sum);
}

// A warpgroup.
template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__device__ __forceinline__ void consume(const SampledArguments& args,
                                        const SampledShared<Tile>& shared, int consumer) {
  constexpr int kUnits = Tile::kUnits;
  const int first = Tile::kTall ? 0 : consumer * kUnits;
  auto queue = shared.task_queue();
  SampledPlace<Tile> at;
  for (;; queue.at.advance()) {
    mbarrier_wait(queue.full(), queue.at.parity);
    const SampledTask& found = queue.tasks[queue.at.stage];
    if (found.valid == 0) return;
    ConsumerTask<Tile> task{consumer,   found.steps, found.strips, found.pieces - first,
                            found.part, found.parts, found.cutter};
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      task.strip[i] = found.strip[first + i];
      task.place[i] = found.place[first + i];
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(queue.empty());

    const int* strip = task.strip;
    bool adds = false;
    if (strip[0] == strip[kUnits - 1]) {
      adds = do_task<T, Tile, kTermsC, kTermsB, 1>(args, shared, task, at);
    } else if (kUnits == 2 || (strip[0] == strip[1] && strip[kUnits - 2] == strip[kUnits - 1])) {
      adds = do_task<T, Tile, kTermsC, kTermsB, 2>(args, shared, task, at);
    } else if constexpr (kUnits > 2) {
      adds = do_task<T, Tile, kTermsC, kTermsB, kUnits>(args, shared, task, at);
    }
    if (!adds) continue;
    T* values = values_of<T>(args, task);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      float total[32];
      add_parts(args, task, i, total);
      if (i < task.present) store_piece(values + task.place[i], total, args.block_k);
    }
  }
}

}  // namespace sparse_autotune
