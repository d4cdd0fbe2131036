// fp32 without tensor cores, in all of its precision: register tiles and plain FMA.
//
// A group of warps owns a tile of C: kM rows of one block row (a strip; a taller block has several)
// by kN columns; a thread keeps 8 x 8 of its sums or fewer. Steps along k walk the block row's
// stored blocks as if they stood side by side. A thread block is several groups: of neighbouring
// block rows, or, where there are few tiles, of one tile, whose steps they share out and whose sums
// they add up at the end in the groups' order.
// Data path: cp.async keeps two steps of A and B on their way to a ring in shared memory, where
// what has k contiguous arrives transposed -> registers -> C.
// Requires: fp32; block sides that are multiples of 4. Any n, any layout; rows of 16-byte alignment
// are fastest.
// Wins: fp32 where TF32 is not allowed, from some 16 columns up.
#include <cuda_runtime.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "kernels/cuda/arguments_of.h"
#include "kernels/cuda/device/fma_copies.cuh"
#include "kernels/cuda/device/fma_sums.cuh"
#include "kernels/cuda/device/fma_tile.cuh"
#include "kernels/cuda/device/fma_units.cuh"
#include "kernels/cuda/device/load_index.cuh"
#include "kernels/cuda/device/panel_walk.cuh"
#include "kernels/cuda/kernel_code.h"
#include "kernels/cuda/requirements.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

struct FmaArguments {
  const void* crow_indices;
  const void* col_indices;
  const void* positions;  // Launch::positions
  const void* values;
  const void* b;
  const void* bias;
  void* c;
  Panels panels;  // of thread blocks
  int64_t n, ldb, ldc, b_batch_stride, c_batch_stride;
  uint32_t a_row, a_col;    // bytes from one row to the next and from one k, within a block
  uint32_t b_line;          // and from one row of B to the next, or one column
  unsigned tile_rows;       // strips of all block rows
  unsigned strips, shares;  // shares: groups that have one tile, a divisor of all
  // Of a block: its units of k, its elements in quads; of a unit: quads from one to the next.
  unsigned block_units, block_quads, unit_quads;
  int block_m;
  Activation activation;
  bool wide_indices, c_rows;
  bool b_aligned, c_aligned;  // to 16 bytes
};

template <typename Tile>
__device__ __forceinline__ void wait_for_group(int group) {
  if constexpr (Tile::kThreads == 32) {
    __syncwarp();
  } else if constexpr (Tile::kGroups == 1) {
    __syncthreads();
  } else {
    asm volatile("bar.sync %0, %1;\n" ::"r"(group + 1), "n"(Tile::kThreads) : "memory");
  }
}

template <typename Tile>
using CopiesOfDense =
    std::conditional_t<Tile::kRowsB,
                       RowCopies<Tile::kN, Tile::kPitchB, Tile::kStep, Tile::kThreads>,
                       ColumnCopies<Tile::kN, Tile::kPitchB, Tile::kStep, Tile::kThreads>>;

template <typename Tile>
__global__ void __launch_bounds__(Tile::kThreads* Tile::kGroups, Tile::kResident)
    fma_tiled_kernel(const __grid_constant__ FmaArguments args) {
  extern __shared__ __align__(16) float shared[];
  using CopiesOfA = TurnedCopies<Tile::kM, Tile::kPitchA, Tile::kStep, Tile::kThreads>;
  using CopiesOfB = CopiesOfDense<Tile>;
  constexpr int kStepUnits = Tile::kStep / kUnitLines, kStepsOfTurn = 32 / kStepUnits;
  const int group = Tile::kGroups == 1 ? 0 : static_cast<int>(threadIdx.x) / Tile::kThreads;
  const int thread = static_cast<int>(threadIdx.x) - group * Tile::kThreads;
  float* const ring = shared + group * Tile::kGroupWords;

  const TilePlace at = locate(args.panels, blockIdx.x);
  const auto shares = static_cast<int>(args.shares);
  const int share = group % shares;
  unsigned tile_row =
      at.row * (Tile::kGroups / args.shares) + static_cast<unsigned>(group / shares);
  const bool exists = tile_row < args.tile_rows;
  if (!exists) {
    if (shares == 1) return;  // else others wait for this group
    tile_row = 0;
  }
  int block_row = static_cast<int>(tile_row / args.strips), begin, length;
  const int m0 = static_cast<int>(tile_row % args.strips) * Tile::kM;
  if (args.panels.order != nullptr) {
    const OrderedRow row = load_entry(args.panels.order, block_row);
    block_row = row.row;
    begin = row.begin;
    length = row.end - row.begin;
  } else {
    begin = load_narrow_index(args.crow_indices, block_row, args.wide_indices);
    length = load_narrow_index(args.crow_indices, block_row + 1, args.wide_indices) - begin;
  }
  if (!exists) length = 0;
  const int64_t n0 = int64_t{at.column} * Tile::kN;
  const int rows = exists ? min(args.block_m - m0, Tile::kM) : 0;
  const auto columns = static_cast<int>(min(args.n - n0, int64_t{Tile::kN}));

  const int row_steps = static_cast<int>(
      (static_cast<unsigned>(length) * args.block_units + kStepUnits - 1) / kStepUnits);
  const int steps = (row_steps - share + shares - 1) / shares;
  FmaUnits<kStepUnits, FmaArguments> units(args, begin, length, share);

  // This thread's first elements, and where they go.
  const char* a = static_cast<const char*>(args.values) +
                  int64_t{m0 + CopiesOfA::row(thread)} * args.a_row +
                  CopiesOfA::k(thread) * args.a_col;
  const char* b = static_cast<const char*>(args.b) + at.batch * args.b_batch_stride * 4;
  if constexpr (Tile::kRowsB) {
    b += (n0 + CopiesOfB::element(thread)) * 4 + int64_t{CopiesOfB::k(thread)} * args.b_line;
  } else {
    b += (n0 + CopiesOfB::column(thread)) * args.b_line;
  }
  const auto ring_address = static_cast<uint32_t>(__cvta_generic_to_shared(ring));
  const uint32_t to_a = ring_address + CopiesOfA::offset(thread);
  const uint32_t to_b = ring_address + Tile::kStageA * 4 + CopiesOfB::offset(thread);

  FmaSums<Tile> sums;
  const int row = FmaSums<Tile>::row(thread), column = FmaSums<Tile>::column(thread);
  const float* left = ring + row;
  const float* right = ring + Tile::kStageA + (Tile::kRowsB ? column : column * Tile::kPitchB);
  int filled = 0, stage = 0;  // words from the ring's beginning
#pragma unroll 1
  for (int step = 1 - Tile::kStages; step < steps; ++step) {
    // Copies go to the stage of the step before, which everyone has left.
    const int copied = step + Tile::kStages - 1;
    if (copied < steps) {
      const int turn = copied % kStepsOfTurn;
      if (turn == 0) units.turn(args);
      const auto source_of_a = [&](int unit) {
        const uint32_t quad = units.quad(turn * kStepUnits + unit);
        const int line = units.line(turn * kStepUnits + unit);
        return std::pair{bytes_ahead(a, 16, quad), line >= 0};
      };
      const auto source_of_b = [&](int unit) {
        const int line = units.line(turn * kStepUnits + unit);
        return std::pair{bytes_ahead(b, Tile::kRowsB ? args.b_line : 4, max(line, 0)), line >= 0};
      };
      CopiesOfA::start(to_a + filled * 4, thread, source_of_a, args.a_row, rows);
      CopiesOfB::start(to_b + filled * 4, thread, source_of_b, args.b_line, columns,
                       args.b_aligned);
      filled = filled + Tile::kStageWords == Tile::kRingWords ? 0 : filled + Tile::kStageWords;
    }
    cp_async_commit();
    // This thread's copies for the next step have landed; then everyone's.
    const auto wait = [&] {
      cp_async_wait<Tile::kStages - 2>();
      wait_for_group<Tile>(group);
    };
    if (step < 0) {
      if (step == -1) {
        wait();
        sums.begin(left, right);
      }
      continue;
    }
    sums.multiply(left, right, [&] {
      wait();
      const int by = stage + Tile::kStageWords == Tile::kRingWords
                         ? Tile::kStageWords - Tile::kRingWords
                         : Tile::kStageWords;
      stage += by;
      left += by;
      right += by;
    });
  }
  cp_async_wait<0>();

  wait_for_group<Tile>(group);
  sums.leave(
      ring + (args.c_rows ? row * Tile::kPitchRows + column : column * Tile::kPitchColumns + row),
      args.c_rows);
  if (shares == 1) {
    wait_for_group<Tile>(group);
  } else {
    __syncthreads();
  }
  finish_tiles<Tile>(args, ring - share * Tile::kGroupWords, shares,
                     int64_t{block_row} * args.block_m + m0, n0, rows, columns, at.batch,
                     share * Tile::kThreads + thread, shares * Tile::kThreads);
}

template <typename Tile>
constinit KernelCode<FmaArguments> fma_code{&fma_tiled_kernel<Tile>};

// A tile as the host sees it.
struct Shape {
  int m, n, groups, threads, resident;
  int64_t shared_bytes;
  KernelCode<FmaArguments>* codes[2];  // by Layout of B
};

template <int... kNumbers>
constexpr Shape shape_of() {
  using Rows = FmaTile<kNumbers..., true>;
  using Columns = FmaTile<kNumbers..., false>;
  return {Rows::kM,
          Rows::kN,
          Rows::kGroups,
          Rows::kThreads * Rows::kGroups,
          Rows::kResident,
          std::max(Rows::kSharedBytes, Columns::kSharedBytes),
          {&fma_code<Rows>, &fma_code<Columns>}};
}

class FmaTiled final : public Variant {
 public:
  // `efficiency`: the share of the device's FMA rate that full multiprocessors reach.
  FmaTiled(std::string_view name, const Shape& shape, double efficiency)
      : Variant(DeviceType::kCuda, name), shape_(shape), efficiency_(efficiency) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (p.dtype != DType::kFloat32) return Support::no("multiplies fp32 only");
    if (Support s = from_ampere_on(d); !s) return s;
    if (Support s = sides_are_multiples_of(4, p); !s) return s;
    if (std::min({p.values_alignment, p.b_alignment, p.c_alignment}) < 4) {
      return Support::no("needs operands that are aligned to 4 bytes");
    }
    if (Support s = blocks_fill_rows(p, shape_.m); !s) return s;
    if (Support s = n_fills_columns(p, shape_.n); shape_.n >= 128 && !s) return s;
    if (std::max({p.block_m * p.block_k, p.k, p.nnzb, p.longest_row * p.block_k}) > INT32_MAX ||
        p.nnzb * p.block_m * p.block_k / 4 > UINT32_MAX || p.ldb * 4 > UINT32_MAX) {
      return Support::no("a size is beyond its 32-bit indices");
    }
    if (thread_blocks(p, 1) > INT32_MAX || tile_rows(p) > INT32_MAX) {
      return Support::no("more than 2^31 - 1 thread blocks in a grid");
    }
    return code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const double multiprocessors = std::max(d.multiprocessors, 1);
    const double row_k =
        static_cast<double>(p.nnzb) * p.block_k / std::max<int64_t>(block_rows(p), 1);
    const double shares = static_cast<double>(shares_of(p, d));
    // Of one thread block: idle rows and columns are multiplied, too. A column-major B comes in
    // shorter lines; rows that are not aligned, in single elements.
    const double flops = 2.0 * shape_.m * shape_.n * row_k * shape_.groups / shares;
    const double access = p.b_alignment < 16                ? 1 / (1 + 10.0 / shape_.m)
                          : p.b_layout == Layout::kRowMajor ? 1
                          : shape_.m < 16                   ? 0.82
                                                            : 0.93;
    const double rate = fma_tflops(p, d) * 1e6 * efficiency_ * access / multiprocessors;
    const double rounds = static_cast<double>(thread_blocks(p, shares_of(p, d))) / multiprocessors;
    const double work_us = (rounds > 1 ? rounds + 0.5 : 1) * flops / rate;
    // A group that has a multiprocessor's lanes for itself takes as long for its steps, whatever
    // its tile, and twice that among others: the longest row's are the end.
    const double longest = std::max(row_k, static_cast<double>(p.longest_row) * p.block_k);
    const double alone_us = longest / shares * kUsOfK * (rounds > shape_.resident ? 2 : 1);
    return std::max({work_us, alone_us, compulsory_bytes(p) / (d.memory_gbps * 850)}) + kStartUs;
  }

  int row_order(const Problem&, const Device&) const override { return kWholeRows; }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<FmaArguments>(l);
    const Device& d = *l.device;
    a.shares = static_cast<unsigned>(shares_of(p, d));
    a.tile_rows = static_cast<unsigned>(tile_rows(p));
    a.panels = panels_of(ceil_div(tile_rows(p), shape_.groups / a.shares), ceil_div(p.n, shape_.n),
                         p.batch, panel_width(p, shape_.n, d.l2_bytes / 2, d.l2_bytes / 2),
                         l.row_orders[kWholeRows]);
    a.n = p.n;
    a.ldb = p.ldb;
    a.ldc = p.ldc;
    a.b_batch_stride = p.b_batch_stride;
    a.c_batch_stride = p.c_batch_stride;
    a.a_row = static_cast<uint32_t>(row_stride_in_block(p) * 4);
    a.a_col = static_cast<uint32_t>(k_stride_in_block(p) * 4);
    a.b_line = static_cast<uint32_t>(p.ldb * 4);
    a.strips = static_cast<unsigned>(strips(p));
    a.block_units = static_cast<unsigned>(p.block_k / kUnitLines);
    a.block_quads = static_cast<unsigned>(p.block_m * p.block_k / 4);
    a.unit_quads = static_cast<unsigned>(p.transpose ? p.block_m : 1);
    a.block_m = static_cast<int>(p.block_m);
    a.activation = p.activation;
    a.wide_indices = p.index_type == IndexType::kInt64;
    a.c_rows = p.c_layout == Layout::kRowMajor;
    a.b_aligned = p.b_alignment >= 16;
    a.c_aligned = p.c_alignment >= 16;
    return code_of(p)->launch(a, a.panels.tiles, shape_.threads, shape_.shared_bytes, l.stream,
                              name());
  }

 private:
  // Fitted to times on an H200: of one k, and of a launch.
  static constexpr double kUsOfK = 0.06, kStartUs = 5;

  int64_t strips(const Problem& p) const { return ceil_div(p.block_m, shape_.m); }
  int64_t tile_rows(const Problem& p) const { return block_rows(p) * strips(p); }
  int64_t thread_blocks(const Problem& p, int64_t shares) const {
    return ceil_div(tile_rows(p), shape_.groups / shares) * ceil_div(p.n, shape_.n) * p.batch;
  }
  // As many groups share a tile as leave no thread block waiting for its turn.
  int64_t shares_of(const Problem& p, const Device& d) const {
    int64_t shares = shape_.groups;
    while (shares > 1 && thread_blocks(p, shares) > int64_t{d.multiprocessors} * shape_.resident) {
      shares /= 2;
    }
    return shares;
  }
  KernelCode<FmaArguments>* code_of(const Problem& p) const {
    return shape_.codes[static_cast<int>(p.b_layout)];
  }

  Shape shape_;
  double efficiency_;
  Registration registration_{*this};
};

// Numbers of FmaTile.
const FmaTiled kM64N128{"fma_tiled/m64_n128", shape_of<64, 128, 8, 8, 4, 16, 3, 1, 3>(), 0.62};
const FmaTiled kM32N128{"fma_tiled/m32_n128", shape_of<32, 128, 8, 8, 4, 16, 3, 1, 6>(), 0.57};
const FmaTiled kM16N256{"fma_tiled/m16_n256", shape_of<16, 256, 8, 8, 2, 16, 2, 1, 6>(), 0.51};
const FmaTiled kM16N128{"fma_tiled/m16_n128", shape_of<16, 128, 8, 8, 2, 16, 2, 4, 2>(), 0.46};
const FmaTiled kM16N32{"fma_tiled/m16_n32", shape_of<16, 32, 4, 4, 4, 16, 2, 8, 2>(), 0.35};
const FmaTiled kM8N64{"fma_tiled/m8_n64", shape_of<8, 64, 4, 4, 2, 16, 2, 4, 5>(), 0.32};

}  // namespace
}  // namespace sparse_autotune
