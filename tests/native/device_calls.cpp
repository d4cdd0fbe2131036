// Every entry point of the C interface on a GPU, each result checked. Run it under
// compute-sanitizer's tools (`make sanitize-native`), which look at what the interface adds to the
// kernels: copies of indices, workspaces, captures, streams, the ends of handles.
//
//     device_calls SECONDS [chosen] [captured] [threads]
//
// It ends with the dtype in which the time is over. Variants are named in turn. `chosen`: the
// library chooses, too; then a vendor's kernel may run, of which initcheck sees no writes.
// `captured`: CUDA graphs, too. `threads`: four of them, too.
#include <cuda_runtime_api.h>
#include <sparse_autotune.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

#include "device_memory.h"
#include "device_products.h"
#include "reference.h"

namespace fuzz {
namespace {

// Two of three blocks, one block row empty.
Pattern make_pattern(int64_t block_rows, int64_t block_cols) {
  Pattern a{5 * block_rows, 4 * block_cols, block_rows, block_cols, {0}, {}};
  for (int64_t row = 0; row < 5; ++row) {
    for (int64_t col = 0; col < 4 && row != 2; ++col) {
      if ((row + col) % 3 != 0) a.col.push_back(col);
    }
    a.crow.push_back(static_cast<int64_t>(a.col.size()));
  }
  return a;
}

// `on_device`: the indices are int32 there, else int64 here.
sparse_autotune_pattern* make_handle(sparse_autotune_context* context, const Pattern& a,
                                     bool on_device) {
  auto d = SPARSE_AUTOTUNE_INIT(sparse_autotune_pattern_description);
  d.rows = a.rows;
  d.cols = a.cols;
  d.block_rows = a.block_rows;
  d.block_cols = a.block_cols;
  d.nnzb = static_cast<int64_t>(a.col.size());
  d.crow_indices = a.crow.data();
  d.col_indices = a.col.data();
  d.index_type = SPARSE_AUTOTUNE_INT64;
  sparse_autotune_pattern* made = nullptr;
  if (!on_device) {
    must(sparse_autotune_pattern_create(context, &d, &made));
    return made;
  }
  const auto sent = [](const std::vector<int64_t>& from) {
    auto to = std::make_unique<Device>(static_cast<int64_t>(from.size() * sizeof(int32_t)));
    const std::vector<int32_t> narrow(from.begin(), from.end());
    std::memcpy(to->host.data(), narrow.data(), to->host.size);
    to->send();
    return to;
  };
  const auto crow = sent(a.crow), col = sent(a.col);  // gone before the first product
  d.crow_indices = crow->data();
  d.col_indices = col->data();
  d.index_type = SPARSE_AUTOTUNE_INT32;
  must(sparse_autotune_pattern_create(context, &d, &made));
  return made;
}

constexpr int32_t kTypes[] = {SPARSE_AUTOTUNE_BFLOAT16, SPARSE_AUTOTUNE_FLOAT32,
                              SPARSE_AUTOTUNE_FLOAT16, SPARSE_AUTOTUNE_FLOAT64};

// Each with a stream and a dtype of its own, on one pattern; how many results they checked.
int64_t from_several_threads(sparse_autotune_pattern* handle, const Pattern& a, bool chosen) {
  std::vector<std::thread> threads;
  std::array<int64_t, std::size(kTypes)> counts{};
  std::array<std::exception_ptr, std::size(kTypes)> failures{};
  for (size_t at = 0; at < counts.size(); ++at) {
    threads.emplace_back([&, at] {
      try {
        counts[at] = DeviceProducts(handle, a, kTypes[at], chosen, at).all(false);
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& failure : failures) {
    if (failure) std::rethrow_exception(failure);
  }
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

// A race that is remembered, and a pattern that ends before its product has run.
void race_and_end(sparse_autotune_context* context, const Pattern& a) {
  sparse_autotune_pattern* const handle = make_handle(context, a, false);
  const Stream stream;
  Device values(static_cast<int64_t>(a.col.size()) * a.block_rows * a.block_cols * 4),
      from(a.cols * 4), to(a.rows * 4, -1);
  values.fill_with_numbers(SPARSE_AUTOTUNE_FLOAT32, 1);
  from.fill_with_numbers(SPARSE_AUTOTUNE_FLOAT32, 2);
  auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
  p.dtype = SPARSE_AUTOTUNE_FLOAT32;
  p.values = values.data();
  p.stream = stream;
  p.dense = {.data = from.data(), .rows = a.cols, .cols = 1};
  p.result = {.data = to.data(), .rows = a.rows, .cols = 1};
  auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
  options.variants = "simt,warp_rows";
  options.rounds = options.save = 1;
  sparse_autotune_record *raced = nullptr, *found = nullptr;
  must(sparse_autotune_race_matmul(handle, &p, &options, &raced));
  must(sparse_autotune_find_record(handle, &p, &found));
  expect(found != nullptr, "a race is not remembered");
  auto info = SPARSE_AUTOTUNE_INIT(sparse_autotune_record_info);
  must(sparse_autotune_record_describe(found, &info));
  expect(*info.winner != '\0', "a race has no winner");
  sparse_autotune_record_destroy(raced);
  sparse_autotune_record_destroy(found);
  must(sparse_autotune_matmul(handle, &p));
  sparse_autotune_pattern_destroy(handle);
  stream.wait();
  for (Device* operand : {&values, &from, &to}) operand->fetch();
  p.values = values.host.data();
  p.dense.data = from.host.data();
  p.result.data = to.host.data();
  expect(is_right(a, p, to.host.size), "wrong: the last product of a pattern");
}

struct Ways {
  bool chosen, captured, threads;
};

void run(double seconds, const Ways& ways) {
  const auto start = std::chrono::steady_clock::now();
  const auto is_over = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count() >=
           seconds;
  };
  auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
  settings.mode = SPARSE_AUTOTUNE_OFF;
  settings.cache_directory = "";
  must(sparse_autotune_set_settings(&settings));
  int devices = 0;
  must(cudaGetDeviceCount(&devices));
  std::vector<sparse_autotune_context*> contexts(static_cast<size_t>(devices));
  auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
  options.device_type = SPARSE_AUTOTUNE_CUDA;
  for (; options.ordinal < devices; ++options.ordinal) {
    const auto at = static_cast<size_t>(options.ordinal);
    must(sparse_autotune_context_create(&options, &contexts[at]));
    must(cudaSetDevice(options.ordinal));
    race_and_end(contexts[at], make_pattern(16, 16));
  }
  constexpr int64_t kBlocks[][2] = {{16, 16}, {64, 64}, {3, 5}, {32, 16}, {8, 8}, {128, 128}};
  int64_t count = 0, rounds = 0;
  for (; count == 0 || !is_over(); ++rounds) {
    const auto& block = kBlocks[static_cast<size_t>(rounds) % std::size(kBlocks)];
    const Pattern a = make_pattern(block[0], block[1]);
    const auto at = static_cast<size_t>(rounds % devices);
    must(cudaSetDevice(static_cast<int>(at)));
    sparse_autotune_pattern* const handle = make_handle(contexts[at], a, rounds % 2 == 1);
    for (const int32_t dtype : kTypes) {
      if (count > 0 && is_over()) break;
      DeviceProducts products(handle, a, dtype, ways.chosen, static_cast<size_t>(rounds));
      count += products.all(ways.captured);
    }
    if (rounds == 0 && ways.threads) count += from_several_threads(handle, a, ways.chosen);
    sparse_autotune_pattern_destroy(handle);
  }
  for (sparse_autotune_context* context : contexts) sparse_autotune_context_destroy(context);
  std::printf("%lld rounds on %d device(s), %lld results checked: all right\n",
              static_cast<long long>(rounds), devices, static_cast<long long>(count));
}

}  // namespace
}  // namespace fuzz

int main(int count, char** words) {
  if (count < 2) {
    std::fprintf(stderr, "usage: device_calls SECONDS [chosen] [captured] [threads]\n");
    return 2;
  }
  const auto has = [&](const char* word) {
    return std::any_of(words + 2, words + count, [&](const char* w) { return !strcmp(w, word); });
  };
  try {
    fuzz::run(std::atof(words[1]), {has("chosen"), has("captured"), has("threads")});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_calls: %s\n", error.what());
    return 1;
  }
  return 0;
}
