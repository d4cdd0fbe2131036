// Sampled products in types and blocks that tensor cores do not take: stored blocks cut into pieces
// of up to 4 x 4 elements, one a thread.
//
// sampled_pieces.cuh has the kernel. A thread block owns the stored blocks of a region of
// some block rows by some block columns, which share the lines of C and B that are staged in shared
// memory; how large a region is, and whether several threads share a piece's terms, is worked out
// for each launch. Operands whose terms do not lie together are turned first, into scratch. Data
// path: global -> shared (cp.async) -> registers -> global; sums in fp32, of fp64 in fp64.
// Requires: compute capability 8.0; blocks whose sides add up to no more than 640. Wins: fp32
// without TF32 and fp64; half types in blocks that are no multiples of 16, where few are stored.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "kernels/cuda/convert/turn_dense.h"
#include "kernels/cuda/host/arguments_of.h"
#include "kernels/cuda/host/element_types.h"
#include "kernels/cuda/host/kernel_code.h"
#include "kernels/cuda/host/remembered.h"
#include "kernels/cuda/host/requirements.h"
#include "kernels/cuda/sampled/sampled_pieces.cuh"
#include "operators/product/product.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kMaxWorkspace = int64_t{2} << 30;
constexpr int64_t kMostLines = 640;  // that must find room, whatever the region

template <typename T, int kRows, int kColumns>
constinit KernelCode<PieceArguments> piece_code{&sampled_pieces_kernel<T, kRows, kColumns>};

// The sides of a piece, and its kernel.
struct Piece {
  int64_t rows, columns;
  KernelCode<PieceArguments>* code;
};

// As few pieces along a side as cut it evenly.
int64_t piece_side(int64_t side) { return ceil_div(side, ceil_div(side, 4)); }

Piece piece_of(const Problem& p) {
  Piece found{piece_side(p.block_m), piece_side(p.block_k), nullptr};
  // Long pieces of one line are compiled, others are squares.
  const bool line =
      std::min(found.rows, found.columns) == 1 && std::max(found.rows, found.columns) > 2;
  if (line) {
    (found.rows == 1 ? found.columns : found.rows) = 4;
  } else {
    found.rows = found.columns = std::max(found.rows, found.columns);
  }
  with_type(p.dtype, [&]<typename T>(T*) {
    found.code = found.rows < found.columns   ? &piece_code<T, 1, 4>
                 : found.rows > found.columns ? &piece_code<T, 4, 1>
                 : found.rows == 1            ? &piece_code<T, 1, 1>
                 : found.rows == 2            ? &piece_code<T, 2, 2>
                 : found.rows == 3            ? &piece_code<T, 3, 3>
                                              : &piece_code<T, 4, 4>;
  });
  return found;
}

// How a launch is laid out.
struct Shape {
  int64_t rows = 0, columns = 0, teams = 0, stages = 0, lines = 0, shares = 1;
  double us = INFINITY;
};

// What C and B take as lines of terms, where they do not lie so.
struct Scratch {
  int64_t pitch = 0, c = 0, b = 0;  // elements; bytes
  bool moves_c = false, moves_b = false;
};

int64_t steps(const Problem& p) {
  return ceil_div(p.n * size_of(p.dtype), kPieceStepBytes) * p.batch;
}

// Considers regions of so many block rows with pieces for that share of the places.
void consider(const Problem& p, const Device& d, const Piece& piece, int64_t rows, int64_t teams,
              int64_t stages, double fill, Shape* best) {
  const double density = std::max(1.0, static_cast<double>(p.nnzb)) /
                         static_cast<double>(block_rows(p) * block_cols(p));
  const double block_pieces =
      static_cast<double>(ceil_div(p.block_m, piece.rows) * ceil_div(p.block_k, piece.columns));
  const double places = static_cast<double>(kPieceThreads / teams);
  const double row_pieces = static_cast<double>(rows) * density * block_pieces;
  auto columns = static_cast<int64_t>(fill * places / row_pieces);
  columns = std::min<int64_t>({columns, block_cols(p), kPieceMostColumns});
  if (columns < 1 && rows > 1) return;
  columns = std::max<int64_t>(columns, 1);
  // Lines of an average region's pieces, of blocks anywhere.
  const auto used = [&](int64_t among, int64_t across) {
    const double none = std::pow(1 - density, static_cast<double>(across));
    return std::max(1.0, static_cast<double>(among) * (1 - none));
  };
  const double lines = used(rows, columns) * static_cast<double>(p.block_m) +
                       used(columns, rows) * static_cast<double>(p.block_k);
  Shape s{rows, columns, teams, stages, 0, 1, 0};
  const int64_t most = d.shared_memory_per_block;
  s.lines = std::max(static_cast<int64_t>(1.15 * lines) + p.block_m + p.block_k + 8, 400 / stages);
  if (piece_shared_bytes(stages, s.lines) > most) {
    s.lines = (most - piece_shared_bytes(0, 0) - 64) / (stages * kPiecePitch + 4);
    if (s.lines < std::max<double>(static_cast<double>(p.block_m + p.block_k), 0.9 * lines)) return;
  }
  const double resident = std::min<double>(
      2048 / kPieceThreads / 2,
      static_cast<double>((most + 1024) / (piece_shared_bytes(stages, s.lines) + 1024)));
  const double multiprocessors = std::max(d.multiprocessors, 1);
  const double regions = static_cast<double>(ceil_div(block_rows(p), rows)) *
                         static_cast<double>(ceil_div(block_cols(p), columns));
  const double passes = std::max(1.0, row_pieces * static_cast<double>(columns) / places);
  // Clocks of a multiprocessor for a step: multiplying, reading shared memory, filling it.
  constexpr double kClockMhz = 1600, kWarps = kPieceThreads / 32.0;
  const double chunks = kWarps * kPieceStepBytes / 16 / static_cast<double>(teams);
  const double area = static_cast<double>(piece.rows * piece.columns);
  const double terms = 16.0 / static_cast<double>(size_of(p.dtype));
  const double multiply = chunks * area * terms * (p.dtype == DType::kFloat64 ? 0.5 : 0.25) *
                          (is_half(p.dtype) ? 1.6 : 1);
  const double read =
      chunks * (6.0 * static_cast<double>(piece.columns) + 4.0 * static_cast<double>(piece.rows));
  const double copy = kWarps * (lines * 4 / kPieceThreads * 12 + 30) / 4;
  const double fetch = lines * kPieceStepBytes / 38;
  const double step = passes * std::max({multiply + copy, read + lines / 2, fetch});
  const double alone = passes * (multiply + 0.7 * read + copy + (stages == 2 ? 900 : 500));
  const double waves = regions / multiprocessors, count = static_cast<double>(steps(p));
  s.us = std::max(std::max(waves, 1.0) * (count * step + 3000),
                  std::ceil(waves / resident) * (count * alone + 12000)) /
         kClockMhz;
  if (s.us < best->us) *best = s;
}

Shape best_shape(const Problem& p, const Device& d) {
  Shape best;
  const Piece piece = piece_of(p);
  for (int64_t teams : {1, 2, 4}) {
    for (int64_t rows = 1; rows <= std::min<int64_t>(block_rows(p), kPieceMostRows); rows *= 2) {
      for (int64_t stages : {2, 3}) {
        for (double fill : {0.4, 0.85}) consider(p, d, piece, rows, teams, stages, fill, &best);
      }
    }
  }
  // Where some rows have many more blocks than others, thread blocks share their regions.
  const double mean = static_cast<double>(p.nnzb) / static_cast<double>(block_rows(p));
  const double longest = static_cast<double>(p.longest_row < 0 ? block_cols(p) : p.longest_row);
  if (longest > 4 * mean) {
    const double blocks = std::min(longest, static_cast<double>(best.columns));
    const double pieces = blocks * static_cast<double>(ceil_div(p.block_m, piece.rows) *
                                                       ceil_div(p.block_k, piece.columns));
    best.shares = static_cast<int64_t>(
        std::min(8.0, 1 + pieces * static_cast<double>(best.teams) / kPieceThreads));
  }
  return best;
}

Scratch scratch(const Problem& p) {
  const int64_t item = size_of(p.dtype);
  Scratch s;
  s.pitch = ceil_div(p.n * item, 16) * 16 / item;
  s.moves_c = p.c_layout != Layout::kRowMajor || p.c_alignment < 16;
  s.moves_b = p.b_layout != Layout::kRowMajor || p.b_alignment < 16;
  const auto bytes = [&](int64_t lines, int64_t batch_stride) {
    const int64_t matrices = batch_stride == 0 ? 1 : p.batch;
    return ceil_div(matrices * lines * s.pitch * item, 256) * 256;
  };
  if (s.moves_c) s.c = bytes(p.m, p.c_batch_stride);
  if (s.moves_b) s.b = bytes(p.k, p.b_batch_stride);
  return s;
}

// Lines of terms: as they lie, or made in `scratch`.
Status as_lines(const Problem& p, const Launch& l, bool moves, DenseLines from, int64_t count,
                Layout layout, int64_t pitch, void* scratch, DenseLines* lines) {
  *lines = from;
  if (!moves) return Status::ok();
  const int64_t matrices = from.batch_stride == 0 ? 1 : p.batch;
  *lines = {scratch, pitch, matrices == 1 ? 0 : count * pitch};
  return lay_rows_cuda(layout, count, p.n, matrices, size_of(p.dtype), from, *lines, l.stream);
}

class SampledPieces final : public Variant {
 public:
  using Variant::Variant;

  Support supports(const Problem& p, const Device& d) const override {
    if (Support s = from_ampere_on(d); !s) return s;
    if (p.block_m + p.block_k > kMostLines) {
      return Support::no("needs block sides that add up to no more than " +
                         std::to_string(kMostLines) + ", got " + block_text(p.block_m, p.block_k));
    }
    if (std::max({p.m, p.k, block_rows(p) * block_cols(p)}) > INT32_MAX) {
      return Support::no("rows, columns and places for blocks are counted in 31 bits");
    }
    if (steps(p) > INT32_MAX) return Support::no("the steps of a sum are counted in 31 bits");
    if (workspace_bytes(p, d) > kMaxWorkspace) {
      return Support::no("operands turned would take more than " + std::to_string(kMaxWorkspace) +
                         " bytes");
    }
    const Shape s = remembered<best_shape>(p, d);
    if (s.rows == 0) return Support::no("no region's lines fit into shared memory");
    return piece_of(p).code->runs_on(
        d, piece_shared_bytes(static_cast<int>(s.stages), static_cast<int>(s.lines)));
  }

  double estimate_us(const Problem& p, const Device& d) const override {
    const Scratch s = scratch(p);
    const double moved = 2 * static_cast<double>(s.c + s.b) / (d.memory_gbps * 700);
    const int launches = 1 + (s.moves_c ? 1 : 0) + (s.moves_b ? 1 : 0);
    // What the model of a region leaves out: finding its blocks, banks that meet.
    constexpr double kLeftOut = 1.7;
    return kLeftOut * remembered<best_shape>(p, d).us + moved + 2.0 * launches;
  }

  int64_t workspace_bytes(const Problem& p, const Device&) const override {
    const Scratch s = scratch(p);
    return s.c + s.b;
  }

  Status launch(const Problem& p, const Launch& l) const override {
    const Shape s = remembered<best_shape>(p, *l.device);
    const Scratch moved = scratch(p);
    const Piece piece = piece_of(p);
    auto* const memory = static_cast<char*>(l.workspace);
    DenseLines c{}, b{};
    Status status = as_lines(p, l, moved.moves_c, {l.c, p.ldc, p.c_batch_stride}, p.m, p.c_layout,
                             moved.pitch, memory, &c);
    if (status) {
      status = as_lines(p, l, moved.moves_b, {const_cast<void*>(l.b), p.ldb, p.b_batch_stride}, p.k,
                        p.b_layout, moved.pitch, memory + moved.c, &b);
    }
    if (!status) return status;
    const int64_t item = size_of(p.dtype);
    auto a = arguments_of<PieceArguments>(p, l);
    a.c = static_cast<const char*>(c.memory);
    a.b = static_cast<const char*>(b.memory);
    a.c_pitch = c.pitch * item;
    a.b_pitch = b.pitch * item;
    a.c_batch = c.batch_stride * item;
    a.b_batch = b.batch_stride * item;
    a.rows = static_cast<int>(s.rows);
    a.columns = static_cast<int>(s.columns);
    a.across = static_cast<int>(ceil_div(block_cols(p), s.columns));
    a.pieces_m = static_cast<int>(ceil_div(p.block_m, piece.rows));
    a.pieces_k = static_cast<int>(ceil_div(p.block_k, piece.columns));
    a.teams = static_cast<int>(s.teams);
    a.stages = static_cast<int>(s.stages);
    a.lines = static_cast<int>(s.lines);
    const dim3 regions(static_cast<unsigned>(ceil_div(block_rows(p), s.rows) * a.across),
                       static_cast<unsigned>(s.shares));
    return piece.code->launch(a, regions, kPieceThreads, piece_shared_bytes(a.stages, a.lines),
                              l.stream, name());
  }
};

const SampledPieces kSampledPieces{DeviceType::kCuda, "sampled_pieces/step64", Op::kSampled};
const Registration kRegisterSampledPieces{kSampledPieces};

}  // namespace
}  // namespace sparse_autotune
