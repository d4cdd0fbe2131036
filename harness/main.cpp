// Makes a block-sparse matrix, verifies every variant that can multiply it against an fp64
// reference of the harness's own, races them, and prints what came of it. A user of the C
// interface like any other: it includes nothing else of the library.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <new>
#include <vector>

#include "harness/arguments.h"
#include "harness/cublas.h"
#include "harness/device.h"
#include "harness/pattern.h"
#include "harness/problem.h"
#include "harness/report.h"

namespace harness {
namespace {

struct RecordDeleter {
  void operator()(sparse_autotune_record* r) const { sparse_autotune_record_destroy(r); }
};
using Record = std::unique_ptr<sparse_autotune_record, RecordDeleter>;

sparse_autotune_record_info info_of(const Record& record) {
  auto info = SPARSE_AUTOTUNE_INIT(sparse_autotune_record_info);
  must(sparse_autotune_record_describe(record.get(), &info), "the record");
  return info;
}

std::vector<sparse_autotune_entrant> entrants_of(const Record& record) {
  std::vector<sparse_autotune_entrant> entrants;
  for (int64_t i = 0; i < info_of(record).entrants; ++i) {
    auto e = SPARSE_AUTOTUNE_INIT(sparse_autotune_entrant);
    must(sparse_autotune_record_entrant(record.get(), i, &e), "an entrant");
    entrants.push_back(e);
  }
  return entrants;
}

Record race(const Problem& problem, sparse_autotune_race_options options) {
  const sparse_autotune_product product = problem.product();
  sparse_autotune_record* made = nullptr;
  must(sparse_autotune_race_matmul(problem.handle(), &product, &options, &made), "the race");
  return Record(made);
}

Record find_record(const Problem& problem) {
  const sparse_autotune_product product = problem.product();
  sparse_autotune_record* found = nullptr;
  must(sparse_autotune_find_record(problem.handle(), &product, &found), "the record");
  return Record(found);
}

bool is_asked_for(const std::string& name, const std::string& variants) {
  if (variants.empty()) return true;
  const std::string listed = "," + variants + ",";
  const std::string family = name.substr(0, name.find('/'));
  return listed.find("," + name + ",") != std::string::npos ||
         listed.find("," + family + ",") != std::string::npos;
}

// Who is legal and who is not; the legal ones run once, on a poisoned result.
std::vector<Row> verify(Problem& problem, const std::string& variants) {
  auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
  options.dry_run = 1;
  const Record legality = race(problem, options);
  std::vector<Row> rows;
  for (const auto& e : entrants_of(legality)) {
    if (!is_asked_for(e.name, variants)) continue;
    Row& row = rows.emplace_back();
    row.name = e.name;
    row.legal = e.outcome != SPARSE_AUTOTUNE_NOT_LEGAL;
    row.reason = e.reason;
    if (!row.legal) continue;
    problem.poison();
    sparse_autotune_product product = problem.product();
    product.variant = e.name;
    if (sparse_autotune_matmul(problem.handle(), &product) == SPARSE_AUTOTUNE_OK) {
      row.error = problem.error();
    } else {
      row.error = INFINITY;
      row.reason = sparse_autotune_error_message();
    }
  }
  if (rows.empty()) throw BadArgument("--variants names no variant of this build: " + variants);
  return rows;
}

// By the tuner, from the cache or by a race; among `variants` where some are asked for, which is
// not remembered.
Record choose(Problem& problem, const Arguments& a, bool* cached) {
  *cached = false;
  if (!a.variants.empty()) {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
    options.variants = a.variants.c_str();
    return race(problem, options);
  }
  const int64_t before = sparse_autotune_tuning_count();
  const sparse_autotune_product product = problem.product();
  must(sparse_autotune_matmul(problem.handle(), &product), "the product");
  *cached = sparse_autotune_tuning_count() == before;
  Record record = find_record(problem);
  if (record == nullptr) {  // one variant is legal, and needs no race
    return race(problem, SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options));
  }
  return record;
}

// Of one more product like it, microseconds: the least of some rounds. On a GPU they are so short
// that no launch waits for room among those that are enqueued.
double time_of_call(const Device& device, const Problem& problem) {
  constexpr int kRounds = 20, kCalls = 50;
  constexpr std::chrono::duration<double> kEnough(0.1);
  const sparse_autotune_product product = problem.product();
  const auto begin = std::chrono::steady_clock::now();
  double best = INFINITY;
  for (int round = 0; round < kRounds; ++round) {
    const auto start = std::chrono::steady_clock::now();
    if (start - begin > kEnough) break;
    for (int i = 0; i < kCalls; ++i) {
      must(sparse_autotune_matmul(problem.handle(), &product), "the product");
    }
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    best = std::min(best, taken.count() / kCalls);
    device.wait();
  }
  return best;
}

// The product with a dense A: by cuBLAS, and where there is none as one with all blocks stored, by
// our own kernels.
void add_dense(const Device& device, const Arguments& a, Report* report) {
  std::string why;
  if (device.is_cuda()) report->dense_us = cublas_us(device, report->point, &why);
  if (report->dense_us > 0) {
    report->dense_by = "cuBLAS, warm";
    return;
  }
  Point point = report->point;
  for (int64_t block = 256; block >= point.block; block /= 2) {
    if (point.m % block == 0 && point.k % block == 0) {
      point.block = block;
      break;
    }
  }
  Problem dense(device, point, full_pattern(point.m / point.block, point.k / point.block), a.seed);
  const sparse_autotune_product product = dense.product();
  must(sparse_autotune_matmul(dense.handle(), &product), "the dense product");
  Record record = find_record(dense);
  if (record == nullptr) record = race(dense, SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options));
  const auto info = info_of(record);
  for (const auto& e : entrants_of(record)) {
    if (std::string(e.name) == info.winner) report->dense_us = e.median_us;
  }
  report->dense_by =
      std::string(info.winner) + ", all blocks stored" + (why.empty() ? "" : " (" + why + ")");
}

Report measure(const Device& device, const Arguments& a, const Point& point) {
  std::mt19937_64 random(a.seed);
  const int64_t block_rows = point.m / point.block, block_cols = point.k / point.block;
  const auto blocks = static_cast<double>(block_rows * block_cols);
  const auto count = static_cast<int64_t>(std::llround((1 - point.sparsity) * blocks));
  Problem problem(device, point, make_pattern(a.pattern, block_rows, block_cols, count, random),
                  a.seed + 1);
  if (problem.pattern().nnzb() == 0) throw BadArgument("--sparsity leaves no block stored");
  Report report;
  report.point = point;
  report.pattern = a.pattern;
  report.device = device.info().name;
  report.nnzb = problem.pattern().nnzb();
  report.density = static_cast<double>(report.nnzb) / blocks;
  report.rows = verify(problem, a.variants);
  const Record record = choose(problem, a, &report.cached);
  const auto info = info_of(record);
  report.nnz_flops = info.nnz_flops;
  report.dense_flops = info.dense_flops;
  report.limit_us = info.limit_us;
  // Where a variant of PyTorch's won in Python, the fastest of the others serves here.
  const bool is_here = std::any_of(report.rows.begin(), report.rows.end(),
                                   [&](const Row& row) { return row.name == info.winner; });
  report.winner = is_here ? info.winner : "";
  for (const auto& e : entrants_of(record)) {  // fastest first
    for (Row& row : report.rows) {
      if (row.name != e.name) continue;
      row.median_us = e.median_us;
      if (row.error <= 1) row.reason = e.reason;
      if (e.outcome == SPARSE_AUTOTUNE_WRONG) row.error = std::max(row.error, e.error);
      if (report.winner.empty() && e.median_us > 0) report.winner = e.name;
    }
  }
  report.is_cuda = device.is_cuda();
  // On a CPU, of what is so short that calling it counts.
  constexpr double kShort = 100;
  if (a.variants.empty() && (device.is_cuda() || report.winner_us() < kShort)) {
    report.call_us = time_of_call(device, problem);
  }
  if (a.dense) add_dense(device, a, &report);
  return report;
}

int run(const Arguments& a) {
  auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
  settings.budget_s = a.budget_s;
  const std::string directory = a.cache_directory == "\n" ? "" : a.cache_directory;
  if (!a.cache_directory.empty()) settings.cache_directory = directory.c_str();
  if (!a.torch_version.empty()) settings.torch_version = a.torch_version.c_str();
  must(sparse_autotune_set_settings(&settings), "settings");
  const Device device(a.cuda, a.ordinal, a.threads);
  bool right = true;
  if (a.grid && !a.json) print_heading();
  for (const Point& point : a.points) {
    const Report report = measure(device, a, point);
    right = right && report.is_right();
    (a.json ? print_json : a.grid ? print_line : print_table)(report);
    std::fflush(stdout);
  }
  return right ? 0 : 1;
}

}  // namespace
}  // namespace harness

int main(int count, char** words) {
  try {
    const harness::Arguments arguments = harness::parse(count, words);
    if (arguments.help) {
      std::fputs(harness::kUsage, stdout);
      return 0;
    }
    return harness::run(arguments);
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "sparse_autotune: there is no memory for operands of these sizes\n");
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "sparse_autotune: %s\n", error.what());
    return 2;
  }
}
