// Products on a GPU in every way that the C interface has, each result checked on the host.
#pragma once

#include <cuda_runtime_api.h>
#include <sparse_autotune.h>

#include <algorithm>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "device_memory.h"
#include "operations.h"
#include "reference.h"

namespace fuzz {

// Of one dtype with one pattern, on a stream of its own.
class DeviceProducts {
 public:
  // Named variants take turns, beginning with this one; with `chosen` the library chooses, too.
  DeviceProducts(sparse_autotune_pattern* handle, const Pattern& a, int32_t dtype, bool chosen,
                 size_t first_turn)
      : handle_(handle), a_(a), dtype_(dtype), chosen_(chosen), turn_(first_turn) {}

  // A capture is left to the only thread: meanwhile CUDA refuses others' waits for the device.
  // Returns how many results were checked.
  int64_t all(bool captures) {
    captures_ = captures;
    for (const int64_t batch : {1, 3}) {
      for (const int32_t right : {0, 1}) {
        for (const int32_t transpose : {0, 1}) product(right, transpose, batch);
      }
      sampled(batch);
    }
    return count_;
  }

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
    for (Device* d : {&values, &from, &bias}) d->fill_with_numbers(dtype_, ++seed_);
    p.values = values.data();
    p.dense.data = from.data();
    p.result.data = to.data();
    if (batch == 3) p.bias = bias.data();
    p.activation = batch == 3 ? SPARSE_AUTOTUNE_RELU : SPARSE_AUTOTUNE_NONE;

    in_each_way<Matmul>(p, to, from, [&] {
      for (Device* d : {&values, &from, &bias, &to}) d->fetch();
      auto h = p;
      h.values = values.host.data();
      h.dense.data = from.host.data();
      h.result.data = to.host.data();
      if (h.bias != nullptr) h.bias = bias.host.data();
      return is_right(a_, h, to.host.size);
    });
    must(sparse_autotune_pattern_thaw(handle_, nullptr));
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
    for (Device* d : {&x, &y}) d->fill_with_numbers(dtype_, ++seed_);
    p.x.data = x.data();
    p.y.data = y.data();
    p.values = values.data();
    in_each_way<Sampled>(p, values, x, [&] {
      for (Device* d : {&x, &y, &values}) d->fetch();
      auto h = p;
      h.x.data = x.host.data();
      h.y.data = y.host.data();
      h.values = values.host.data();
      return is_right(a_, h);
    });
  }

  // Plainly, in a workspace of ours, with frozen values, and replayed while `changed` changes.
  template <typename Operation, typename IsRight>
  void in_each_way(typename Operation::Product& p, Device& result, Device& changed,
                   IsRight is_right) {
    for (const std::string& name : variants<Operation>(p)) {
      p.variant = name.empty() ? nullptr : name.c_str();
      const auto check = [&](const char* way) {
        stream_.wait();
        expect(is_right(), std::string("wrong, ") + way + ": " + (name.empty() ? "chosen" : name));
        result.clear();
        must(cudaDeviceSynchronize());
        ++count_;
      };
      const auto launch = [&] { must(Operation::launch(handle_, &p)); };
      launch();
      check("plainly");
      in_workspace<Operation>(&p);
      check("in a workspace");
      if constexpr (std::is_same_v<Operation, Matmul>) {
        p.frozen = 1;
        for (int i = 0; i < 2; ++i) launch();
        check("frozen");
        must(sparse_autotune_pattern_thaw(handle_, p.values));
        p.frozen = 0;
      }
      if (captures_) {
        replayed(launch, [&] {
          changed.fill_with_numbers(dtype_, ++seed_);
          must(cudaGraphLaunch(graph_, stream_));
          check("replayed");
        });
      }
    }
  }

  int64_t values_count() const {
    return static_cast<int64_t>(a_.col.size()) * a_.block_rows * a_.block_cols;
  }

  // One of those that are legal, another one each time, and with CHOSEN the library's choice.
  template <typename Operation>
  std::vector<std::string> variants(const typename Operation::Product& p) {
    auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_race_options);
    options.dry_run = 1;
    sparse_autotune_record* record = nullptr;
    must(Operation::race(handle_, &p, &options, &record));
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

  template <typename Operation>
  void in_workspace(typename Operation::Product* p) {
    int64_t bytes = -1;
    must(Operation::workspace(handle_, p, &bytes));
    expect(bytes >= 0, "a workspace has a negative size");
    void* made = nullptr;  // unwritten
    must(cudaMalloc(&made, static_cast<size_t>(std::max<int64_t>(bytes, 1))));
    p->workspace = made;
    p->workspace_bytes = bytes - 1;
    if (bytes > 0) {
      expect(Operation::launch(handle_, p) == SPARSE_AUTOTUNE_WORKSPACE_TOO_SMALL,
             "too little is taken");
    }
    p->workspace_bytes = bytes;
    must(Operation::launch(handle_, p));
    stream_.wait();
    must(cudaFree(made));
    p->workspace = nullptr;
    p->workspace_bytes = 0;
  }

  template <typename Launch, typename Replay>
  void replayed(Launch launch, Replay replay) {
    cudaGraph_t captured = nullptr;
    must(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal));
    launch();
    must(cudaStreamEndCapture(stream_, &captured));
    must(cudaGraphInstantiate(&graph_, captured, 0));
    for (int i = 0; i < 2; ++i) replay();
    must(cudaGraphExecDestroy(graph_));
    must(cudaGraphDestroy(captured));
  }

  sparse_autotune_pattern* const handle_;
  const Pattern& a_;
  const int32_t dtype_;
  const bool chosen_;
  size_t turn_;
  bool captures_ = false;
  const Stream stream_;
  cudaGraphExec_t graph_ = nullptr;
  uint64_t seed_ = 1;
  int64_t count_ = 0;
};

}  // namespace fuzz
