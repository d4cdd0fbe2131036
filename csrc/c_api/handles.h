// What the opaque handles of C programs are.
#pragma once

#include <array>
#include <memory>
#include <string>
#include <vector>

#include "autotune/record.h"
#include "c_api/pattern_plan.h"
#include "calls/call.h"
#include "calls/caller.h"
#include "plan/kept_memory.h"
#include "sparse_autotune.h"
#include "variant.h"

struct sparse_autotune_context {
  const sparse_autotune::Device* device;  // lives as long as the process
  int threads;                            // of the CPU
  std::string device_class;
  // -1: the CPU.
  int ordinal() const {
    return device->type == sparse_autotune::DeviceType::kCpu ? -1 : device->ordinal;
  }
};

struct sparse_autotune_pattern {
  sparse_autotune_context context;  // a copy: the handle may be gone first
  // A copy of the indices, crow_indices first.
  std::shared_ptr<sparse_autotune::KeptMemory> memory;
  int64_t rows, cols, block_m, block_k;
  int64_t crow_size, nnzb;
  sparse_autotune::PatternCall call;  // views of the above
  sparse_autotune::PatternPlan plan;
};

struct sparse_autotune_record {
  sparse_autotune::Record record;
};

namespace sparse_autotune {

// A call of a C program's: its stream, and memory of ours for as long as the call lasts.
class CCaller final : public Caller {
 public:
  CCaller(const sparse_autotune_context& context, Parallel parallel, void* stream)
      : context_(context), parallel_(parallel), stream_(stream) {}
  ~CCaller() override;
  CCaller(const CCaller&) = delete;
  CCaller& operator=(const CCaller&) = delete;

  void* stream(int) override { return stream_; }
  Parallel parallel() override { return parallel_; }
  void* allocate(int64_t bytes) override;
  // Indices are copies that nobody writes, owned by the pattern's handle; of frozen values the C
  // program promises the same.
  std::array<int64_t, 2> versions(const std::array<int64_t, 2>&) override { return {0, 0}; }
  std::shared_ptr<const void> own_indices() override { return nullptr; }
  std::shared_ptr<const void> own_values() override { return nullptr; }

 private:
  const sparse_autotune_context& context_;
  const Parallel parallel_;
  void* const stream_;
  std::vector<void*> allocated_;
};

// Enqueues a copy of host or device memory; waited for by the caller.
Status copy_to_device(void* to, const void* from, int64_t bytes, void* stream);

}  // namespace sparse_autotune
