// Products with 17 to 128 columns on Hopper, blocks of 16 and 32. See small_n_rings.cuh.
//
// A tile of a column-major B (linear layers), as wide as a block, lies in lines of 32 or 64 bytes.
// Those of 64 are copied as they are. Of those of 32 the number would be what bounds the kernel, so
// a first kernel writes B anew, in the order in which fragments need it, while the second one's
// thread blocks look up their rows and fetch A. A row-major B comes in boxes of 64 columns; where
// its rows are no multiple of a line of 128 bytes, but without gaps, a tile is one run of memory.
// Requires: fp16 or bf16; blocks of 16x16 or 32x32; values and B aligned to 16 bytes; more than 32
// columns of a column-major B. Any C.
// Wins: rows of similar length. Bound by the way from L2 into a multiprocessor, or by latencies.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <string>

#include "kernels/cuda/device/launch_overlap.cuh"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/host/tensor_map.h"
#include "kernels/cuda/product/few_columns/small_n_launch.cuh"
#include "kernels/cuda/product/few_columns/small_n_rings.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int kArrangeThreads = 256;

struct ArrangeArguments {
  AheadLines ahead;
  const void* b;
  uint4* arranged;
  int64_t b_column, b_batch, arranged_batch;  // elements; the last in units of 16 bytes
  int n, octets, pairs;                       // octets: of k
};

// Writes the copy of B that small_n_rings.cuh describes, with zeros behind the last column. A
// thread has eight k of columns g and 8 + g of a pair.
__global__ void __launch_bounds__(kArrangeThreads)
    arrange_kernel(const __grid_constant__ ArrangeArguments args) {
  const int unit = static_cast<int>(blockIdx.x * kArrangeThreads + threadIdx.x);
  const int octet = unit % args.octets, column_unit = unit / args.octets;
  const int g = column_unit % 8, pair = column_unit / 8;
  const int column = pair * kPairColumns + g;
  ask_ahead(args.ahead);
  follow_launch_before();
  if (pair >= args.pairs) return;
  const auto* from = static_cast<const uint16_t*>(args.b) + blockIdx.y * args.b_batch +
                     column * args.b_column + octet * 8;
  uint4 low{}, high{};
  if (column < args.n) low = __ldg(reinterpret_cast<const uint4*>(from));
  if (column + 8 < args.n) high = __ldg(reinterpret_cast<const uint4*>(from + 8 * args.b_column));
  uint4* to = args.arranged + blockIdx.y * args.arranged_batch +
              (static_cast<int64_t>(octet / 2) * args.pairs + pair) * 32 + g * 4 + octet % 2 * 2;
  to[0] = make_uint4(low.x, low.y, high.x, high.y);
  to[1] = make_uint4(low.z, low.w, high.z, high.w);
}

constinit KernelCode<ArrangeArguments> arrange_code{&arrange_kernel, true};

template <typename T, typename Tile>
constinit KernelCode<RingArguments> code{&small_n_rings_kernel<T, Tile>, true};

// A tile as the host sees it.
struct Shape {
  int block, n, resident, together, block_bytes, ring_bytes, threads, shared_bytes;
  RingCopies copies;
  KernelCode<RingArguments>* codes[2];  // by DType
};

template <typename Tile>
constexpr Shape shape_of() {
  return {Tile::kRows,
          Tile::kWidth,
          Tile::kResident,
          Tile::kTogether,
          Tile::kBytesA + Tile::kBytesB,
          Tile::kGroups * Tile::kStages * Tile::kStageBytes,
          Tile::kThreads,
          Tile::kSharedBytes,
          Tile::kCopies,
          {&code<__half, Tile>, &code<__nv_bfloat16, Tile>}};
}

class SmallNRingsSm90 final : public Variant {
 public:
  SmallNRingsSm90(std::string_view name, const Shape& shape)
      : Variant(DeviceType::kCuda, name),
        shape_(shape),
        arranged_(shape.copies == RingCopies::kArranged),
        splits_(shape.copies == RingCopies::kBoxes || shape.copies == RingCopies::kLines),
        layout_(is_row_major(shape.copies) ? Layout::kRowMajor : Layout::kColMajor) {}

  Support supports(const Problem& p, const Device& d) const override {
    const int most = splits_ ? kMaxColumns : shape_.n;
    const SmallNSquares takes{shape_.block, shape_.n / 2 + 1, most, layout_};
    if (Support s = small_n_square_supports(takes, p, d); !s) return s;
    if (shape_.copies == RingCopies::kGapless && p.ldb != p.n) {
      return Support::no("needs a B without gaps between its rows");
    }
    if (Support s = tma_reaches(p, p.k * shape_.n); !s) return s;
    const Support runs = arrange_code.runs_on(d, 0);
    return runs ? code_of(p).runs_on(d, shape_.shared_bytes) : runs;
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    // Fitted to times on an H200: setting up and the first latencies, a megabyte of B to arrange;
    // thread blocks that follow one that is done; blocks and their tiles from L2, bytes a
    // nanosecond, to one multiprocessor of all and alone.
    const double start_us =
        arranged_ ? 3.4 + 1e-6 * static_cast<double>(workspace_bytes(p, d)) : 3.3;
    constexpr double kFollowUs = 2.6;
    // What is left of the rate with narrow tiles, block by block, where more than half of the
    // thread blocks that fit are there at once; whatever B's lines are.
    constexpr double kCrowded = 34;
    const Rates rate = rates(p);
    const bool narrow =
        is_row_major(shape_.copies) && shape_.block == 16 && shape_.n < 128 && shape_.together == 1;
    const double rows = static_cast<double>(std::max<int64_t>(block_rows(p), 1));
    const double tiles = rows * static_cast<double>(p.batch * ceil_div(p.n, shape_.n));
    const double each = tiles / std::max(d.multiprocessors, 1);
    const double row_bytes = static_cast<double>(p.nnzb) * shape_.block_bytes / rows;
    const double longest_us =
        static_cast<double>(p.longest_row) * shape_.block_bytes / (rate.alone * 1e3);
    const bool crowded = narrow && 2 * each > shape_.resident;
    const double follow_us = crowded ? 0 : (std::max(each / shape_.resident, 1.0) - 1) * kFollowUs;
    const double even_us =
        std::max(each, 1.0) * row_bytes / ((crowded ? kCrowded : rate.together) * 1e3) + follow_us;
    const double memory = compulsory_bytes(p) - static_cast<double>(d.l2_bytes);
    return start_us + std::max({even_us, longest_us, memory / (d.memory_gbps * 850)});
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    return arranged_ ? arranged_bytes(p) * p.batch : 0;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    auto a = arguments_of<RingArguments>(p, l);
    const Status status = arranged_ ? arrange(p, l) : map_b(p, l, &a);
    if (!status) return status;
    if (layout_ == Layout::kRowMajor) a.ahead = lines_ahead(p, l);
    a.arranged = l.workspace;
    a.arranged_batch = arranged_bytes(p);
    a.stores_quads = p.c_layout == Layout::kColMajor && p.c_alignment >= 8;
    const dim3 grid(static_cast<unsigned>(block_rows(p)), static_cast<unsigned>(p.batch),
                    static_cast<unsigned>(ceil_div(p.n, shape_.n)));
    return code_of(p).launch(a, grid, shape_.threads, shape_.shared_bytes, l.stream, name());
  }

 private:
  static constexpr int kMaxColumns = 128;

  struct Rates {
    double together, alone;
  };

  Rates rates(const Problem& p) const {
    if (arranged_) return {104, 75};
    if (layout_ == Layout::kColMajor) return {56, 85};
    // A copy under way takes so many nanoseconds.
    constexpr double kLatency = 550;
    const double alone = shape_.ring_bytes / kLatency;
    const double together = shape_.block == 16 ? 105 : 80;
    if (shape_.copies == RingCopies::kGapless) return {together * 0.85, alone};
    // Boxes whose lines are not those of memory.
    const int64_t pitch = p.ldb * size_of(p.dtype);
    return {together * (pitch % 128 == 0 ? 1 : pitch % 64 == 0 ? 0.75 : 0.5), alone};
  }

  KernelCode<RingArguments>& code_of(const Problem& p) const {
    return *shape_.codes[p.dtype == DType::kFloat16 ? 0 : 1];
  }
  // Of one matrix of the batch.
  int64_t arranged_bytes(const Problem& p) const { return p.k * shape_.n * size_of(p.dtype); }

  Status arrange(const Problem& p, const Launch& l) const {
    ArrangeArguments a{};
    a.ahead = lines_ahead(p, l);
    a.b = l.b;
    a.arranged = static_cast<uint4*>(l.workspace);
    a.b_column = p.ldb;
    a.b_batch = p.b_batch_stride;
    a.arranged_batch = arranged_bytes(p) / 16;
    a.n = static_cast<int>(p.n);
    a.octets = static_cast<int>(p.k / 8);
    a.pairs = shape_.n / kPairColumns;
    const int64_t units = int64_t{a.octets} * a.pairs * 8;
    const dim3 grid(static_cast<unsigned>(ceil_div(units, kArrangeThreads)),
                    static_cast<unsigned>(p.batch));
    return arrange_code.launch(a, grid, kArrangeThreads, 0, l.stream, name());
  }

  Status map_b(const Problem& p, const Launch& l, RingArguments* a) const {
    const auto block = static_cast<uint32_t>(shape_.block), n = static_cast<uint32_t>(shape_.n);
    if (shape_.copies == RingCopies::kBoxes) {
      return make_tensor_map(tensor_of_b(p, l.b, kBoxColumns, block), &a->b_map);
    }
    if (shape_.copies == RingCopies::kLines) {
      BoxedTensor b = tensor_of_b(p, l.b, block, n);
      b.plain = true;
      return make_tensor_map(b, &a->b_map);
    }
    const auto lines = static_cast<uint32_t>(block * p.n / kBoxColumns);
    a->gapless_swizzled = p.n % 32 == 0;
    return make_tensor_map({l.b,
                            p.dtype,
                            3,
                            {kBoxColumns, p.k * p.n / kBoxColumns, a->b_batched ? p.batch : 1},
                            {kBoxColumns, p.b_batch_stride},
                            {uint32_t{kBoxColumns}, lines, 1},
                            !a->gapless_swizzled},
                           &a->b_map);
  }

  Shape shape_;
  bool arranged_;
  bool splits_;    // more columns than a tile's are several tiles
  Layout layout_;  // of B
  Registration registration_{*this};
};

constexpr RingCopies kLines = RingCopies::kLines, kArranged = RingCopies::kArranged,
                     kBoxes = RingCopies::kBoxes, kGapless = RingCopies::kGapless;
const SmallNRingsSm90 kVariants[] = {
    {"small_n_rings_sm90/b16_d5", shape_of<RingTile<16, 128, 4, 1, 5, 2, kArranged>>()},
    {"small_n_rings_sm90/b16_x2_d4", shape_of<RingTile<16, 128, 4, 2, 4, 2, kArranged>>()},
    {"small_n_rings_sm90/b16_n64_d5", shape_of<RingTile<16, 64, 4, 1, 5, 4, kArranged>>()},
    {"small_n_rings_sm90/b32_d2", shape_of<RingTile<32, 128, 4, 2, 2, 2, kLines>>()},
    {"small_n_rings_sm90/b32_n64_d4", shape_of<RingTile<32, 64, 4, 2, 4, 2, kLines>>()},
    {"small_n_rings_sm90/b16_rows_g3_x2", shape_of<RingTile<16, 128, 3, 2, 3, 2, kBoxes, 2>>()},
    {"small_n_rings_sm90/b16_rows_g4", shape_of<RingTile<16, 128, 4, 1, 2, 4, kBoxes>>()},
    {"small_n_rings_sm90/b16_n64_rows_g8", shape_of<RingTile<16, 64, 8, 1, 2, 4, kBoxes>>()},
    {"small_n_rings_sm90/b16_n64_rows_g2_x2", shape_of<RingTile<16, 64, 2, 2, 2, 4, kBoxes, 4>>()},
    {"small_n_rings_sm90/b32_rows_g8_x2", shape_of<RingTile<32, 128, 8, 2, 2, 1, kBoxes>>()},
    {"small_n_rings_sm90/b32_rows_g4_x2", shape_of<RingTile<32, 128, 4, 2, 2, 2, kBoxes>>()},
    {"small_n_rings_sm90/b32_n64_rows_g8", shape_of<RingTile<32, 64, 8, 1, 2, 2, kBoxes>>()},
    {"small_n_rings_sm90/b32_n64_rows_g4", shape_of<RingTile<32, 64, 4, 1, 2, 4, kBoxes>>()},
    {"small_n_rings_sm90/b32_n64_rows_g4_x2", shape_of<RingTile<32, 64, 4, 2, 4, 2, kBoxes>>()},
    {"small_n_rings_sm90/b16_pieces_g3_x2", shape_of<RingTile<16, 128, 3, 2, 3, 2, kGapless, 2>>()},
    {"small_n_rings_sm90/b16_pieces_g4", shape_of<RingTile<16, 128, 4, 1, 2, 4, kGapless>>()},
    {"small_n_rings_sm90/b16_n64_pieces", shape_of<RingTile<16, 64, 4, 1, 2, 4, kGapless, 2>>()},
    {"small_n_rings_sm90/b16_n32_pieces_g4", shape_of<RingTile<16, 32, 4, 1, 2, 4, kGapless, 4>>()},
    {"small_n_rings_sm90/b16_n32_pieces_g2", shape_of<RingTile<16, 32, 2, 1, 2, 8, kGapless, 4>>()},
    {"small_n_rings_sm90/b32_pieces", shape_of<RingTile<32, 128, 4, 2, 2, 2, kGapless>>()},
    {"small_n_rings_sm90/b32_n64_pieces_g4_x2", shape_of<RingTile<32, 64, 4, 2, 4, 2, kGapless>>()},
    {"small_n_rings_sm90/b32_n64_pieces_g4", shape_of<RingTile<32, 64, 4, 1, 2, 4, kGapless>>()},
    {"small_n_rings_sm90/b32_n32_pieces", shape_of<RingTile<32, 32, 8, 1, 2, 3, kGapless>>()},
};

}  // namespace
}  // namespace sparse_autotune
