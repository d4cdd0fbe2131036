// fp64 on Hopper's tensor cores, with operands by TMA.
//
// Two persistent thread blocks a multiprocessor work through tiles of C: 64 rows by 128 columns, of
// one block row or of a group of 2 to 8 (blocks of 32, 16, 8), which share what is fetched of B. A
// warp copies, ahead into the next tile, each of 4 others computes all rows of 32 columns.
// Data path: TMA -> 16 k a step in a ring of 4 steps in shared memory -> registers -> mma.sync
// (16x8x16, or 16x8x8) -> C.
// Requires: fp64, block sides that are multiples of 8, values and B aligned to 16 bytes, n a
// multiple of 16 where B is row-major.
// Wins: fp64 from some 32 columns up. Bound by the tensor cores for blocks from 32 up, by what lies
// between one block and the next for smaller ones.
#include <cuda.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "kernels/cuda/alignment.h"
#include "kernels/cuda/device/dmma.cuh"
#include "kernels/cuda/device/dmma_store.cuh"
#include "kernels/cuda/device/mbarrier.cuh"
#include "kernels/cuda/device/tma.cuh"
#include "kernels/cuda/device/warpgroup_registers.cuh"
#include "kernels/cuda/dmma_product.h"
#include "kernels/cuda/kernel_code.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_counters.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

struct TmaArguments {
  CUtensorMap values, b;
  DmmaArguments rest;
};

// A step is 16 k. Columns of C, rows that are present or absent together; slices of a block that
// are multiplied together: two, or each by itself.
template <int kSide, int kTogether, bool kRowMajor>
struct DmmaTmaTile {
  static constexpr int kM = 64, kWarpN = 32, kWarps = 4, kThreads = 32 * kWarps;
  static constexpr int kN = kWarpN * kWarps, kGranule = kSide, kGranules = kM / kGranule;
  static constexpr bool kTransposedA = false, kRowMajorB = kRowMajor;
  static constexpr int kSlices = kTogether, kUnits = 2 / kSlices, kUnitK = 8 * kSlices;
  static constexpr int kStages = 4, kResident = 2;
  static constexpr int kLaunched = kThreads + 128;  // registers are given up by warpgroups
  static constexpr int kGranuleBytes = kGranule * kUnitK * 8;
  static constexpr int kBytesA = kM * kUnitK * 8, kBytesB = kN * kUnitK * 8;
  static constexpr int kUnitBytes = kBytesA + kBytesB, kStageBytes = kUnits * kUnitBytes;
  static constexpr int kSharedBytes = kSwizzleAlignment + kStages * (kStageBytes + 16 + 16);
  static constexpr int kTilesN = kM / 8, kTilesM = kWarpN / 16, kSums = kTilesN * kTilesM * 4;
  static_assert(kSharedBytes <= 227 * 1024 / kResident - 1024);
};

// The ring, behind it what comes with each step, behind that the barriers.
template <typename Tile>
struct DmmaRing {
  char* memory;
  uint32_t address;

  __device__ __forceinline__ explicit DmmaRing(char* shared) {
    const auto start = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
    address = align_swizzled(start);
    memory = shared + (address - start);
  }
  __device__ __forceinline__ uint32_t note(uint32_t stage) const {
    return address + Tile::kStages * Tile::kStageBytes + stage * 16;
  }
  __device__ __forceinline__ uint32_t full(uint32_t stage) const {
    return note(Tile::kStages) + stage * 8;
  }
  __device__ __forceinline__ uint32_t empty(uint32_t stage) const {
    return full(Tile::kStages + stage);
  }
};

// What comes with a step: which granules its slices have, and of which tile they are.
struct StepNote {
  uint32_t masks[2];
  uint32_t tile;  // kNoTile: there is no further step
  uint32_t row;   // of tiles, as the row order's entry has it; its top bit: the tile's last step
};
constexpr uint32_t kNoTile = ~0u, kLastStep = 1u << 31;

__device__ __forceinline__ void store_note(uint32_t to, const StepNote& note) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};\n" ::"r"(to), "r"(note.masks[0]),
               "r"(note.masks[1]), "r"(note.tile), "r"(note.row)
               : "memory");
}
__device__ __forceinline__ StepNote load_note(uint32_t from) {
  StepNote note;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(note.masks[0]), "=r"(note.masks[1]), "=r"(note.tile), "=r"(note.row)
               : "r"(from)
               : "memory");
  return note;
}

// The slices of a tile's block columns, in order. 32 columns are fetched at a time, and 32 ahead.
template <typename Tile>
class SliceWalk {
 public:
  // Slices that are multiplied together: which granules have them, of which k; `ends`: they are the
  // last of their column.
  struct Unit {
    uint32_t mask;
    int k, slice;
    bool ends;
  };

  __device__ __forceinline__ SliceWalk(const DmmaArguments& args, const DmmaPart& part)
      : at_(part.begin), end_(part.begin + part.length) {
    all_ = (1 << (part.rows / Tile::kGranule)) - 1;
    columns_ = fetch(args, at_);
    following_ = fetch(args, at_ + 32);
  }

  __device__ __forceinline__ bool done() const { return at_ >= end_; }

  __device__ __forceinline__ Unit next(const DmmaArguments& args) {
    if (done()) return {};
    const int column = __shfl_sync(~0u, columns_.x, in_32_);
    const auto mask = static_cast<uint32_t>(__shfl_sync(~0u, columns_.y, in_32_));
    const Unit unit{mask, column * args.block_k + slice_ * 8, slice_,
                    slice_ + Tile::kSlices >= args.slices};
    slice_ += Tile::kSlices;
    if (unit.ends) {
      slice_ = 0;
      ++at_;
      if (++in_32_ == 32) {
        in_32_ = 0;
        columns_ = following_;
        following_ = fetch(args, at_ + 32);
      }
    }
    return unit;
  }

 private:
  // The lane's column of those from `first` on, and the granules that have a block in it.
  __device__ __forceinline__ int2 fetch(const DmmaArguments& args, int first) const {
    const int i = first + static_cast<int>(threadIdx.x) % 32;
    if (args.columns != nullptr) return load_group_column(args.columns, i, end_);
    return i < end_ ? make_int2(load_narrow_index(args.col_indices, i, args.wide_indices), all_)
                    : int2{};
  }

  int at_, end_, all_, in_32_ = 0, slice_ = 0;
  int2 columns_, following_;
};

// The warp that copies. Lane 8 * i + j issues the copy of granule j of a step's unit i, lane 16 + i
// that of B's lines.
template <typename Tile>
__device__ __forceinline__ void produce(const TmaArguments& args, const DmmaRing<Tile>& ring) {
  const DmmaArguments& rest = args.rest;
  const int lane = threadIdx.x % 32, granule = lane % 8;
  const bool second = lane < 16 ? lane >= 8 : lane == 17;  // of a step's units
  const bool copies_a = lane < 8 * Tile::kUnits;
  const bool copies_b = lane >= 16 && lane < 16 + Tile::kUnits;
  const bool grouped = rest.columns != nullptr;
  RingPlace<Tile::kStages> place;
#pragma unroll 1
  for (unsigned turn = 0;; ++turn) {
    const unsigned tile = __shfl_sync(~0u, lane == 0 ? next_tile(rest.panels, turn) : 0, 0);
    if (tile >= rest.panels.tiles) break;
    const DmmaPart part = find_dmma_part<Tile>(rest, tile);
    // The granule's next block, of which rows.
    const int row = grouped ? 0 : part.m0 + granule * Tile::kGranule;
    int cursor = part.begin;
    if (grouped) {
      cursor = load_narrow_index(rest.crow_indices, min(part.block_row + granule, rest.block_rows),
                                 rest.wide_indices);
    }
    SliceWalk<Tile> walk(rest, part);
    const uint32_t own = static_cast<uint32_t>(part.block_row) / rest.group;
    const auto n = static_cast<int>(part.n0);
    const int batch = rest.b_batch_stride != 0 ? static_cast<int>(part.batch) : 0;
#pragma unroll 1
    do {
      using Unit = typename SliceWalk<Tile>::Unit;
      const Unit one = walk.next(rest);
      const Unit two = Tile::kUnits == 2 ? walk.next(rest) : Unit{};
      const Unit mine = second ? two : one;
      const auto bytes_of = [](const Unit& unit) {
        return unit.mask == 0 ? 0 : Tile::kBytesB + __popc(unit.mask) * Tile::kGranuleBytes;
      };
      const int past_one = one.ends ? static_cast<int>(one.mask >> granule & 1) : 0;
      const int past_two = two.ends ? static_cast<int>(two.mask >> granule & 1) : 0;
      const uint32_t barrier = ring.full(place.stage);
      const uint32_t to =
          ring.address + place.stage * Tile::kStageBytes + (second ? Tile::kUnitBytes : 0);
      mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
      if (lane == 0) {
        store_note(ring.note(place.stage),
                   {{one.mask, two.mask}, tile, own | (walk.done() ? kLastStep : 0)});
        mbarrier_arrive_expect(barrier, bytes_of(one) + bytes_of(two));
      }
      __syncwarp();
      if (copies_a && (mine.mask >> granule & 1) != 0) {
        const int before = __popc(mine.mask & ((1u << granule) - 1));
        tma_load(to + before * Tile::kGranuleBytes, args.values, barrier, mine.slice * 8,
                 (cursor + (second ? past_one : 0)) * rest.block_m + row);
      }
      if (copies_b && mine.mask != 0) {
        if constexpr (Tile::kRowMajorB) {
          tma_load(to + Tile::kBytesA, args.b, barrier, 0, mine.k, n / 16, batch);
        } else {
          tma_load(to + Tile::kBytesA, args.b, barrier, mine.k, n, batch);
        }
      }
      cursor += past_one + past_two;
      place.advance();
    } while (!walk.done());
  }
  mbarrier_wait(ring.empty(place.stage), place.parity ^ 1);
  if (lane == 0) {
    store_note(ring.note(place.stage), {{}, kNoTile, 0});
    mbarrier_arrive(ring.full(place.stage));
  }
}

template <typename Tile>
__device__ __forceinline__ void consume(const DmmaArguments& args, const DmmaRing<Tile>& ring) {
  const int lane = threadIdx.x % 32, group = lane / 4, warp = threadIdx.x / 32;
  const int swizzled = line_of(group) * 128 + ((lane % 4 ^ line_of(group)) << 4);
  // Where this lane reads the first granule and its warp's first 16 columns, and how much further
  // its k of the second slice, or row-major those of its second k, lie.
  const int a_at = Tile::kSlices == 2 ? swizzled : lane * 16;
  const int a_other = (swizzled ^ 64) - swizzled;
  const int turned = lane % 4 * 256 + ((group ^ lane % 4 * 2) << 4);
  const int b_at =
      Tile::kBytesA + warp * Tile::kWarpN * Tile::kUnitK * 8 + (Tile::kRowMajorB ? turned : a_at);
  const int b_other = Tile::kRowMajorB ? (turned ^ 16) - turned + 128 : Tile::kUnitK * 64;
  const int b_slice = Tile::kRowMajorB ? 1024 : a_other;
  using ColumnsOfB = double[Tile::kTilesM][4 * Tile::kSlices];
  const auto load_b = [&](ColumnsOfB& b, uint32_t stage, int unit) {
#pragma unroll
    for (int i = 0; i < Tile::kTilesM; ++i) {
#pragma unroll
      for (int j = 0; j < Tile::kSlices; ++j) {
        const char* from = ring.memory + stage * Tile::kStageBytes + unit * Tile::kUnitBytes +
                           b_at + i * 128 * Tile::kUnitK + j * b_slice;
        load_pairs<Tile::kRowMajorB>(from, from + b_other, b[i] + 4 * j);
      }
    }
  };
  double sum[Tile::kTilesN][Tile::kTilesM][4] = {};
  const auto multiply = [&](const ColumnsOfB& b, uint32_t stage, int unit, uint32_t mask) {
    const char* slot = ring.memory + stage * Tile::kStageBytes + unit * Tile::kUnitBytes + a_at;
    multiply_granules<Tile>(sum, b, slot, a_other, mask);
  };
  // Where a step has two units, the columns of B of each are loaded while the one before is being
  // multiplied.
  constexpr bool kAhead = Tile::kUnits == 2;
  ColumnsOfB b, other;
  RingPlace<Tile::kStages> place;
  mbarrier_wait(ring.full(0), 0);
  StepNote note = load_note(ring.note(0));
  if constexpr (kAhead) load_b(b, 0, 0);
#pragma unroll 1
  while (note.tile != kNoTile) {
    const uint32_t stage = place.stage;
    load_b(kAhead ? other : b, stage, kAhead ? 1 : 0);
    multiply(b, stage, 0, note.masks[0]);
    place.advance();
    mbarrier_wait(ring.full(place.stage), place.parity);
    const StepNote next = load_note(ring.note(place.stage));
    if constexpr (kAhead) {
      load_b(b, place.stage, 0);
      multiply(other, stage, 1, note.masks[1]);
    }
    const bool last = (note.row & kLastStep) != 0;
    const bool scratch = last && args.activation > Activation::kRelu;
    __syncwarp();
    if (!scratch && lane == 0) mbarrier_arrive(ring.empty(stage));
    if (last) {
      // The step's memory serves a costly activation, once all are done with it.
      if (scratch) {
        asm volatile("bar.sync 1, %0;\n" ::"n"(Tile::kThreads) : "memory");
      }
      DmmaPart part;
      place_dmma_part<Tile>(args, locate(args.panels, note.tile), note.row & ~kLastStep, part);
      write_fp64_tile<Tile>(sum, ring.memory + stage * Tile::kStageBytes, args, part);
      if (scratch) {
        tma_store_fence();
        __syncwarp();
        if (lane == 0) mbarrier_arrive(ring.empty(stage));
      }
#pragma unroll
      for (int i = 0; i < Tile::kSums; ++i) (&sum[0][0][0])[i] = 0;
    }
    note = next;
  }
}

template <typename Tile>
__global__ void __launch_bounds__(Tile::kLaunched, Tile::kResident)
    dmma_tma_kernel(const __grid_constant__ TmaArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const DmmaRing<Tile> ring(memory);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.values);
    tma_prefetch_map(args.b);
    for (int i = 0; i < Tile::kStages; ++i) {
      mbarrier_init(ring.full(i), 1);
      mbarrier_init(ring.empty(i), Tile::kWarps);
    }
    mbarrier_init_fence();
  }
  __syncthreads();
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  // 40 + 216 registers for a thread of each warpgroup: the 2 * 128 that were launched.
  if (warp >= Tile::kWarps) {
    give_up_registers<40>();
    if (warp == Tile::kWarps) produce<Tile>(args, ring);
  } else {
    take_registers<216>();
    consume<Tile>(args.rest, ring);
  }
#else
  __trap();
#endif
}

template <typename Tile>
constinit KernelCode<TmaArguments> tma_code{&dmma_tma_kernel<Tile>};

struct Code {
  KernelCode<TmaArguments>* code;
  int shared_bytes, slices;
};

template <int kSide, int kSlices>
constexpr Code tma_code_of(bool row_major) {
  using Rows = DmmaTmaTile<kSide, kSlices, true>;
  using Columns = DmmaTmaTile<kSide, kSlices, false>;
  if (row_major) return {&tma_code<Rows>, Rows::kSharedBytes, kSlices};
  return {&tma_code<Columns>, Columns::kSharedBytes, kSlices};
}

class DmmaSm90 final : public DmmaProduct {
 public:
  using DmmaProduct::DmmaProduct;

  Support supports(const Problem& p, const Device& d) const override {
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (Support s = takes_product(p); !s) return s;
    if (p.transpose) return Support::no("computes A @ B, not A^T @ B");
    if (p.nnzb == 0) return Support::no("there is no stored block");
    if (grouped() && side_of(p) != p.block_m) {
      return Support::no("has no granules of " + std::to_string(p.block_m) +
                         " rows for a block_k of " + std::to_string(p.block_k));
    }
    if (p.b_layout == Layout::kRowMajor && p.n % 16 != 0) {
      return Support::no("copies a row-major B by 16 columns, there are " + std::to_string(p.n));
    }
    const Support aligned =
        aligned_to_16("values and B", std::min(p.values_alignment, p.b_alignment));
    if (!aligned) return aligned;
    if (p.nnzb * p.block_m > INT32_MAX - kN) {
      return Support::no("values have more rows than TMA's 32-bit coordinates");
    }
    return code_of(p).code->runs_on(d, code_of(p).shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override { return 1; }

  Status launch(const Problem& p, const Launch& l) const override {
    const Code code = code_of(p);
    TmaArguments a{{}, {}, arguments(p, l)};
    const unsigned blocks =
        std::min(a.rest.panels.tiles, 2 * static_cast<unsigned>(l.device->multiprocessors));
    // Two rounds are dealt out before there is anything to share.
    if (a.rest.panels.tiles > 2 * blocks) {
      a.rest.panels.counter = tile_counter(l.device->ordinal, static_cast<cudaStream_t>(l.stream));
    }
    // Lines of one slice are copied as they are, those of two swizzled, and so is a row-major B.
    const auto unit = static_cast<uint32_t>(8 * code.slices),
               rows = static_cast<uint32_t>(side_of(p));
    const bool plain = code.slices == 1;
    Status status = make_tensor_map(
        {l.values, p.dtype, 2, {p.block_k, p.nnzb * p.block_m}, {p.block_k}, {unit, rows}, plain},
        &a.values);
    if (!status) return status;
    const int64_t batch = p.b_batch_stride != 0 ? p.batch : 1;
    if (p.b_layout == Layout::kRowMajor) {
      status = make_tensor_map({l.b,
                                p.dtype,
                                4,
                                {16, p.k, p.n / 16, batch},
                                {p.ldb, 16, p.b_batch_stride},
                                {16, unit, kN / 16, 1}},
                               &a.b);
    } else {
      BoxedTensor b = tensor_of_b(p, l.b, unit, kN);
      b.plain = plain;
      status = make_tensor_map(b, &a.b);
    }
    if (!status) return status;
    return code.code->launch(a, blocks, kThreads, code.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kThreads = 256;

  // Two slices are multiplied together where block_k has pairs of them; those that are not are of
  // granules of 8 rows.
  static int side_of(const Problem& p) { return p.block_k % 16 == 0 ? side(p) : 8; }
  static Code code_of(const Problem& p) {
    const bool row_major = p.b_layout == Layout::kRowMajor;
    switch (side_of(p)) {
      case 64:
        return tma_code_of<64, 2>(row_major);
      case 32:
        return tma_code_of<32, 2>(row_major);
      case 16:
        return tma_code_of<16, 2>(row_major);
    }
    return tma_code_of<8, 1>(row_major);
  }

  Registration registration_{*this};
};

const DmmaSm90 kRows{"dmma_sm90/m64_n128", false};
const DmmaSm90 kGroups{"dmma_sm90/m64_n128_groups", true};

}  // namespace
}  // namespace sparse_autotune
