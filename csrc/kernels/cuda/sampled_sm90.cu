// Sampled products on Hopper's tensor cores: blocks whose sides are multiples of 64.
//
// A persistent thread block works on tasks: pieces of stored blocks in turn, wherever rows end, so
// that every task is equally long and no plan is needed. `strip128` has 128 rows of C against 256
// columns of values (two blocks of 128 that share their rows of C), `strip64` 64 against 512 (eight
// blocks of 64); where a row ends within a task it fetches C for both rows. A producer thread, a
// warp that looks rows up, two warpgroups that multiply. Tasks that would leave multiprocessors
// idle are cut along the sums; the last to come adds the parts up, in fp32 and in their order.
// Data path: global -> TMA -> shared (swizzled) -> wgmma -> registers -> global, either layout of
// both operands. Requires: compute capability 9.0, fp16 or bf16, 16-byte aligned C and B.
// Wins: wherever it is legal. Bound by L2 -> shared memory with blocks of 64 (57 FLOP/B), by the
// tensor cores with blocks of 128 (85 FLOP/B).
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "kernels/cuda/device/sampled_pipeline.cuh"
#include "kernels/cuda/kernel_code.h"
#include "kernels/cuda/tensor_map.h"
#include "kernels/cuda/tile_counters.h"
#include "variant.h"

namespace sparse_autotune {
namespace {

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
__global__ void __launch_bounds__(kThreads, 1)
    sampled_kernel(const __grid_constant__ SampledArguments args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  extern __shared__ char memory[];
  const SampledShared<Tile> shared(memory);
  const int warp = __shfl_sync(~0u, static_cast<int>(threadIdx.x) / 32, 0);
  if (threadIdx.x == 0) {
    tma_prefetch_map(args.c);
    tma_prefetch_map(args.b);
    shared.init_barriers();
  }
  // The launch before this one may not be over yet, and the next one may get ready from here on.
  asm volatile("griddepcontrol.wait;\ngriddepcontrol.launch_dependents;\n" ::: "memory");
  __syncthreads();
  // 56 + 2 * 224 registers for a thread of each warpgroup: the 3 * 168 that were launched.
  if (warp < 4) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 56;\n");
    if (warp == 0 && elect_one()) produce_c<Tile, kTermsC>(args, shared);
    if (warp == 2 && elect_one()) produce_b<Tile, kTermsB>(args, shared);
    if (warp == 1) schedule<Tile>(args, shared.task_queue());
  } else {
    asm volatile("setmaxnreg.inc.sync.aligned.u32 224;\n");
    consume<T, Tile, kTermsC, kTermsB>(args, shared, warp / 4 - 1);
  }
#else
  __trap();
#endif
}

template <typename T, typename Tile, bool kTermsC, bool kTermsB>
constinit KernelCode<SampledArguments> sampled_code{&sampled_kernel<T, Tile, kTermsC, kTermsB>,
                                                    true};

// Microseconds, fitted to times on an H200: of a step where all multiprocessors are at work, and
// where so few are that L2 is not what they wait for; of a task besides its steps. A task of half
// as many pieces has a step of its own.
struct SampledPace {
  double busy_us[2], alone_us[2], task_us;  // steps: of a whole task, of a half
};

// A tile as the host sees it, with its kernels by DType and Layouts of C and B.
struct SampledShape {
  int rows, pieces, shared_bytes;
  int64_t tile_bytes;  // of its sums
  SampledPace pace;
  KernelCode<SampledArguments>* codes[2][2][2];
};

template <typename Tile>
constexpr SampledShape sampled_shape(const SampledPace& pace) {
  static_assert(Tile::kSharedBytes <= 227 * 1024);  // a Hopper multiprocessor's
  using Half = __half;
  using Brain = __nv_bfloat16;
  return {Tile::kRows,
          Tile::kPieces,
          Tile::kSharedBytes,
          Tile::kTileFloats * static_cast<int64_t>(sizeof(float)),
          pace,
          {{{&sampled_code<Half, Tile, true, true>, &sampled_code<Half, Tile, true, false>},
            {&sampled_code<Half, Tile, false, true>, &sampled_code<Half, Tile, false, false>}},
           {{&sampled_code<Brain, Tile, true, true>, &sampled_code<Brain, Tile, true, false>},
            {&sampled_code<Brain, Tile, false, true>, &sampled_code<Brain, Tile, false, false>}}}};
}

// How tasks are shared out: so many whole, the rest in halves or not, and in so many parts.
struct Share {
  int64_t whole, rest;
  bool halved;
  int64_t parts;
  double us;
};

class SampledSm90 final : public Variant {
 public:
  SampledSm90(std::string_view name, const SampledShape& shape)
      : Variant(DeviceType::kCuda, name, Op::kSampled), shape_(shape) {}

  Support supports(const Problem& p, const Device& d) const override {
    if (!is_half(p.dtype)) return Support::no("multiplies fp16 and bf16 only");
    if (d.compute_capability != 90) return Support::no("needs compute capability 9.0");
    if (p.block_m % shape_.rows != 0 || p.block_k % 64 != 0) {
      return Support::no("needs block_m a multiple of " + std::to_string(shape_.rows) +
                         " and block_k of 64, got " + std::to_string(p.block_m) + "x" +
                         std::to_string(p.block_k));
    }
    if (p.nnzb == 0 || p.n == 0) return Support::no("there is nothing to sum up");
    const int alignment = std::min({p.values_alignment, p.b_alignment, p.c_alignment});
    if (alignment < 16) {
      return Support::no(
          "needs addresses, leading dimensions and batch strides of values, B and C that are "
          "multiples of 16 bytes, one is a multiple of " +
          std::to_string(alignment));
    }
    const int64_t longest =
        std::max({p.ldb, p.ldc, p.b_batch_stride, p.c_batch_stride}) * size_of(p.dtype);
    if (std::max({p.m, p.n, p.k, p.batch, pieces(p), steps(p)}) > INT32_MAX ||
        longest >= int64_t{1} << 40) {
      return Support::no("a size is beyond TMA's 32-bit coordinates or 40-bit strides");
    }
    return code_of(p)->runs_on(d, shape_.shared_bytes);
  }

  double estimate_us(const Problem& p, const Device& d) const override { return share(p, d).us; }

  int64_t workspace_bytes(const Problem& p, const Device& d) const override {
    return parts_bytes(share(p, d));
  }

  Status launch(const Problem& p, const Launch& l) const override {
    SampledArguments a{};
    const auto map = [&](const void* data, Layout layout, int64_t lines, int64_t ld, int64_t stride,
                         bool batched, int64_t box, CUtensorMap* to) {
      const int64_t matrices = batched ? p.batch : 1;
      // The stride of a dimension of one element is never used, but must be one that TMA takes.
      const int64_t apart = batched ? stride : ld;
      const auto high = static_cast<uint32_t>(box);
      if (layout == Layout::kRowMajor) {  // terms are contiguous
        return make_tensor_map(
            {data, p.dtype, 3, {p.n, lines, matrices}, {ld, apart}, {64, high, 1}}, to);
      }
      return make_tensor_map({data,
                              p.dtype,
                              4,
                              {64, p.n, lines / 64, matrices},
                              {ld, 64, apart},
                              {64, 64, high / 64, 1}},
                             to);
    };
    a.c_batched = p.c_batch_stride != 0;
    a.b_batched = p.b_batch_stride != 0;
    a.wide_boxes = p.block_k % 128 == 0;
    Status status =
        map(l.c, p.c_layout, p.m, p.ldc, p.c_batch_stride, a.c_batched, shape_.rows, &a.c);
    if (status) {
      status = map(l.b, p.b_layout, p.k, p.ldb, p.b_batch_stride, a.b_batched,
                   a.wide_boxes ? 128 : 64, &a.b);
    }
    if (!status) return status;
    const Device& d = *l.device;
    Share found = share(p, d);
    if (found.parts > 1) {
      a.counters = part_counters(d.ordinal, static_cast<cudaStream_t>(l.stream));
      a.partials = static_cast<float*>(l.workspace);
      if (a.counters == nullptr) found.parts = 1;  // as nobody could tell who comes last
    }
    a.whole = static_cast<unsigned>(found.whole);
    a.rest = static_cast<unsigned>(found.rest);
    a.parts = static_cast<unsigned>(found.parts);
    a.halved = found.halved;
    a.crow_indices = l.crow_indices;
    a.col_indices = l.col_indices;
    a.values = l.sampled;
    a.pieces = static_cast<unsigned>(pieces(p));
    a.steps = static_cast<int>(steps(p));
    a.matrix_steps = static_cast<int>(ceil_div(p.n, kStepK));
    a.block_rows = static_cast<int>(block_rows(p));
    a.block_m = static_cast<int>(p.block_m);
    a.block_k = static_cast<int>(p.block_k);
    a.strips = static_cast<int>(p.block_m / shape_.rows);
    a.wide_indices = p.index_type == IndexType::kInt64;
    const unsigned blocks =
        std::min(a.whole + a.rest * a.parts, static_cast<unsigned>(d.multiprocessors));
    return code_of(p)->launch(a, blocks, kThreads, shape_.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int64_t kMaxWorkspace = int64_t{64} << 20;
  static constexpr int64_t kFewestSteps = 4;  // of a part
  // Fitted: a launch; what leaving and adding up parts costs, of the two first and of any other.
  static constexpr double kStartUs = 3.0, kPartsUs = 6.0, kPartUs = 1.0;

  int64_t pieces(const Problem& p) const {
    return p.nnzb * (p.block_m / shape_.rows) * (p.block_k / 64);
  }
  int64_t tasks(const Problem& p) const { return ceil_div(pieces(p), shape_.pieces); }
  static int64_t steps(const Problem& p) { return ceil_div(p.n, kStepK) * p.batch; }

  KernelCode<SampledArguments>* code_of(const Problem& p) const {
    return shape_.codes[static_cast<int>(p.dtype)][static_cast<int>(p.c_layout)]
                       [static_cast<int>(p.b_layout)];
  }

  int64_t parts_bytes(const Share& share) const {
    return share.parts > 1 ? share.rest * share.parts * shape_.tile_bytes : 0;
  }

  double step_us(int64_t busy, bool halved, const Device& d) const {
    const double share = static_cast<double>(busy) / std::max(d.multiprocessors, 1);
    const SampledPace& pace = shape_.pace;
    return std::max(pace.alone_us[halved], pace.busy_us[halved] * std::min(share, 1.0));
  }

  // `whole` tasks whole, those behind them as said.
  Share share_of(const Problem& p, const Device& d, int64_t whole, bool halved,
                 int64_t parts) const {
    const int64_t places = std::max(d.multiprocessors, 1), length = steps(p);
    const int64_t left = pieces(p) - whole * shape_.pieces;
    Share s{whole, ceil_div(left, shape_.pieces / (halved ? 2 : 1)), halved, parts, kStartUs};
    const auto add = [&](int64_t units, int64_t steps, bool half) {
      const int64_t rounds = ceil_div(units, places), last = units - (rounds - 1) * places;
      const auto round_us = [&](int64_t busy) {
        return static_cast<double>(steps) * step_us(busy, half, d) + shape_.pace.task_us;
      };
      s.us += static_cast<double>(rounds - 1) * round_us(places) + round_us(last);
    };
    if (whole > 0) add(whole, length, false);
    if (s.rest > 0) add(s.rest * parts, ceil_div(length, parts), halved);
    if (parts > 1) s.us += kPartsUs + kPartUs * static_cast<double>(parts - 2);
    return s;
  }

  // The fastest by the cost model. As many rounds as there are have whole tasks, but for the last.
  Share share(const Problem& p, const Device& d) const {
    const int64_t all = tasks(p), places = std::max(d.multiprocessors, 1);
    Share best = share_of(p, d, all, false, 1);
    const int64_t full = all / places * places;
    for (bool halved : {false, true}) {
      for (int64_t parts : {1, 2, 3, 4, 6, 8, 12, 16}) {
        if ((parts == 1 && !halved) || parts * kFewestSteps > steps(p)) continue;
        const Share found = share_of(p, d, full, halved, parts);
        if (found.rest == 0 || parts_bytes(found) > kMaxWorkspace ||
            (parts > 1 && 2 * found.rest > kPartCounters)) {
          continue;
        }
        if (found.us < best.us) best = found;
      }
    }
    return best;
  }

  SampledShape shape_;
  Registration registration_{*this};
};

using Strip128 = SampledTile<128, 4, 6, 4>;
using Strip64 = SampledTile<64, 4, 8, 5>;

const SampledSm90 kStrip128{"sampled_sm90/strip128",
                            sampled_shape<Strip128>({{0.70, 0.43}, {0.52, 0.30}, 2})};
const SampledSm90 kStrip64{"sampled_sm90/strip64",
                           sampled_shape<Strip64>({{0.80, 0.50}, {0.55, 0.40}, 2})};

}  // namespace
}  // namespace sparse_autotune
