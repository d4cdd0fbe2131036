// Every entry point of the C interface on a GPU, each result checked. Run it under
// compute-sanitizer's tools (`make sanitize-native`), which look at what the interface adds to the
// kernels: copies of indices, workspaces, captures, streams, the ends of handles.
//
//     device_calls SECONDS [CHOSEN]
//
// It ends with the round in which the time is over. Variants are named in turn, and with CHOSEN = 1
// the library chooses, too: then a vendor's kernel may run, of which initcheck sees no writes.
#include <cuda_runtime_api.h>
#include <sparse_autotune.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <exception>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "hostile.h"
#include "reference.h"

namespace fuzz {
namespace {

void must(sparse_autotune_status status) {
  if (status != SPARSE_AUTOTUNE_OK) throw std::runtime_error(sparse_autotune_error_message());
}
void must(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// Of exactly so many bytes, with the host's copy of them.
class Device {
 public:
  explicit Device(int64_t bytes, int fill = 0) : host(bytes, fill) {
    must(cudaMalloc(&data_, host.size));
    must(cudaMemset(data_, fill, host.size));
    must(cudaDeviceSynchronize());
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  void* data() const { return data_; }
  void send() { must(cudaMemcpy(data_, host.data(), host.size, cudaMemcpyHostToDevice)); }
  void fetch() { must(cudaMemcpy(host.data(), data_, host.size, cudaMemcpyDeviceToHost)); }
  void fill_with_numbers(int32_t dtype, uint64_t seed) {
    fuzz::fill_with_numbers(host.data(), host.size, dtype, seed);
    send();
  }
  void clear() { must(cudaMemset(data_, 0xFF, host.size)); }

  Memory host;

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { must(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

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

// Products of one dtype with one pattern.
class Calls {
 public:
  Calls(sparse_autotune_pattern* handle, const Pattern& a, int32_t dtype, bool chosen,
        size_t first_turn)
      : handle_(handle), a_(a), dtype_(dtype), chosen_(chosen), turn_(first_turn) {}

  // A capture is left to the only thread: meanwhile CUDA refuses others' waits for the device.
  void all(bool captures) {
    captures_ = captures;
    for (const int32_t right : {0, 1}) {
      for (const int32_t transpose : {0, 1}) {
        for (const int64_t batch : {1, 3}) product(right, transpose, batch);
      }
    }
    sampled(1);
    sampled(3);
  }

  int64_t count = 0;

 private:
  void product(int32_t right, int32_t transpose, int64_t batch) {
    const int64_t outer = transpose ? a_.cols : a_.rows, inner = transpose ? a_.rows : a_.cols;
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_product);
    p.dtype = dtype_;
    p.sparse_right = right;
    p.transpose = transpose;
    p.stream = stream_;
    constexpr int64_t kColumns = 40;
    p.dense = {.rows = right ? kColumns : inner, .cols = right ? outer : kColumns};
    p.result = {.rows = right ? kColumns : outer, .cols = right ? inner : kColumns};
    for (sparse_autotune_dense* d : {&p.dense, &p.result}) {  // room behind each line
      const bool by_columns = d == &p.dense && batch == 3;
      d->row_stride = by_columns ? 1 : d->cols + 8;
      d->col_stride = by_columns ? d->rows + 8 : 1;
      d->batch = batch;
      d->batch_stride = (d->cols + 8) * (d->rows + 8);
    }
    const int64_t item = kItem[dtype_];
    Device values(values_count() * item), from(span(p.dense) * item), to(span(p.result) * item, -1),
        bias((right ? inner : outer) * item);
    for (Device* operand : {&values, &from, &bias}) operand->fill_with_numbers(dtype_, ++seed_);
    p.values = values.data();
    p.dense.data = from.data();
    p.result.data = to.data();
    if (batch == 3) p.bias = bias.data();
    p.activation = batch == 3 ? SPARSE_AUTOTUNE_RELU : SPARSE_AUTOTUNE_NONE;

    const auto check = [&](const char* what) {
      stream_.wait();
      for (Device* operand : {&values, &from, &bias, &to}) operand->fetch();
      auto h = p;
      h.values = values.host.data();
      h.dense.data = from.host.data();
      h.result.data = to.host.data();
      if (h.bias != nullptr) h.bias = bias.host.data();
      expect(is_right(a_, h, to.host.size), std::string("wrong: ") + what + " " + name_);
      to.clear();
      must(cudaDeviceSynchronize());
      ++count;
    };
    for (const std::string& name : variants(p, sparse_autotune_race_matmul)) {
      name_ = name;
      p.variant = name.empty() ? nullptr : name.c_str();
      must(sparse_autotune_matmul(handle_, &p));
      check("matmul");
      with_workspace(&p, sparse_autotune_matmul, sparse_autotune_matmul_workspace);
      check("matmul in a workspace");
      p.frozen = 1;
      for (int i = 0; i < 2; ++i) must(sparse_autotune_matmul(handle_, &p));
      check("matmul of frozen values");
      must(sparse_autotune_pattern_thaw(handle_, p.values));
      p.frozen = 0;
      values.fill_with_numbers(dtype_, ++seed_);
      replayed([&] { must(sparse_autotune_matmul(handle_, &p)); },
               [&] { from.fill_with_numbers(dtype_, ++seed_); }, check);
    }
  }

  void sampled(int64_t batch) {
    auto p = SPARSE_AUTOTUNE_INIT(sparse_autotune_sampled_product);
    p.dtype = dtype_;
    p.stream = stream_;
    constexpr int64_t kInner = 24;
    p.x = {.rows = a_.rows, .cols = kInner, .batch = batch, .batch_stride = a_.rows * kInner};
    p.y = {.rows = kInner, .cols = a_.cols, .batch = batch, .batch_stride = kInner * a_.cols};
    const int64_t item = kItem[dtype_];
    Device x(span(p.x) * item), y(span(p.y) * item), values(values_count() * item, -1);
    for (Device* operand : {&x, &y}) operand->fill_with_numbers(dtype_, ++seed_);
    p.x.data = x.data();
    p.y.data = y.data();
    p.values = values.data();
    const auto check = [&](const char* what) {
      stream_.wait();
      for (Device* operand : {&x, &y, &values}) operand->fetch();
      auto h = p;
      h.x.data = x.host.data();
      h.y.data = y.host.data();
      h.values = values.host.data();
      expect(is_right(a_, h), std::string("wrong: ") + what + " " + name_);
      values.clear();
      must(cudaDeviceSynchronize());
      ++count;
    };
    for (const std::string& name : variants(p, sparse_autotune_race_sampled_matmul)) {
      name_ = name;
      p.variant = name.empty() ? nullptr : name.c_str();
      must(sparse_autotune_sampled_matmul(handle_, &p));
      check("sampled_matmul");
      with_workspace(&p, sparse_autotune_sampled_matmul, sparse_autotune_sampled_matmul_workspace);
      check("sampled_matmul in a workspace");
      replayed([&] { must(sparse_autotune_sampled_matmul(handle_, &p)); },
               [&] { x.fill_with_numbers(dtype_, ++seed_); }, check);
    }
  }

  int64_t values_count() const {
    return static_cast<int64_t>(a_.col.size()) * a_.block_rows * a_.block_cols;
  }

  // One of those that are legal, another one each time, and with CHOSEN the library's choice.
  template <typename Product, typename Race>
  std::vector<std::string> variants(const Product& p, Race race) {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
    options.dry_run = 1;
    sparse_autotune_record* record = nullptr;
    must(race(handle_, &p, &options, &record));
    auto info = SPARSE_AUTOTUNE_INIT(sparse_autotune_record_info);
    must(sparse_autotune_record_describe(record, &info));
    std::vector<std::string> legal;
    for (int64_t i = 0; i < info.entrants; ++i) {
      auto entrant = SPARSE_AUTOTUNE_INIT(sparse_autotune_entrant);
      must(sparse_autotune_record_entrant(record, i, &entrant));
      const std::string name = entrant.name;
      const bool vendor = name.find("cublas") != name.npos || name.find("cusparse") != name.npos;
      if (*entrant.reason == '\0' && !vendor) legal.push_back(name);
    }
    sparse_autotune_record_destroy(record);
    expect(!legal.empty(), "no variant is legal");
    std::vector<std::string> found{legal[turn_++ % legal.size()]};
    if (chosen_) found.emplace_back();
    return found;
  }

  template <typename Product, typename Launch, typename Ask>
  void with_workspace(Product* p, Launch launch, Ask ask) {
    int64_t bytes = -1;
    must(ask(handle_, p, &bytes));
    expect(bytes >= 0, "a workspace has a negative size");
    void* made = nullptr;  // unwritten
    must(cudaMalloc(&made, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
    p->workspace = made;
    p->workspace_bytes = bytes - 1;
    if (bytes > 0) {
      expect(launch(handle_, p) == SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL, "too little is taken");
    }
    p->workspace_bytes = bytes;
    must(launch(handle_, p));
    stream_.wait();
    must(cudaFree(made));
    p->workspace = nullptr;
    p->workspace_bytes = 0;
  }

  // In a graph, each replay with other operands.
  template <typename Launch, typename Change, typename Check>
  void replayed(Launch launch, Change change, Check check) {
    if (!captures_) return;
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t ready = nullptr;
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    launch();
    must(cudaStreamEndCapture(stream_, &graph));
    must(cudaGraphInstantiate(&ready, graph, 0));
    for (int i = 0; i < 2; ++i) {
      change();
      must(cudaGraphLaunch(ready, stream_));
      check("replayed");
    }
    must(cudaGraphExecDestroy(ready));
    must(cudaGraphDestroy(graph));
  }

  sparse_autotune_pattern* const handle_;
  const Pattern& a_;
  const int32_t dtype_;
  const bool chosen_;
  size_t turn_;
  bool captures_ = false;
  const Stream stream_;
  std::string name_;
  uint64_t seed_ = 1;
};

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
        Calls calls(handle, a, kTypes[at], chosen, at);
        calls.all(false);
        counts[at] = calls.count;
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

void run(double seconds, bool chosen) {
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
  for (; rounds == 0 || !is_over(); ++rounds) {
    const auto& block = kBlocks[static_cast<size_t>(rounds) % std::size(kBlocks)];
    const Pattern a = make_pattern(block[0], block[1]);
    const auto at = static_cast<size_t>(rounds % devices);
    must(cudaSetDevice(static_cast<int>(at)));
    sparse_autotune_pattern* const handle = make_handle(contexts[at], a, rounds % 2 == 1);
    for (const int32_t dtype : kTypes) {
      if (rounds > 0 && is_over()) break;
      Calls calls(handle, a, dtype, chosen, static_cast<size_t>(rounds));
      calls.all(true);
      count += calls.count;
    }
    if (rounds == 0) count += from_several_threads(handle, a, chosen);
    sparse_autotune_pattern_destroy(handle);
  }
  for (sparse_autotune_context* context : contexts) sparse_autotune_context_destroy(context);
  std::printf("%lld rounds on %d device(s), %lld results checked: all right\n",
              static_cast<long long>(rounds), devices, static_cast<long long>(count));
}

}  // namespace
}  // namespace fuzz

int main(int count, char** words) {
  if (count != 2 && count != 3) {
    std::fprintf(stderr, "usage: device_calls SECONDS [CHOSEN]\n");
    return 2;
  }
  try {
    fuzz::run(std::atof(words[1]), count == 3 && std::atoi(words[2]) == 1);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "device_calls: %s\n", error.what());
    return 1;
  }
  return 0;
}
