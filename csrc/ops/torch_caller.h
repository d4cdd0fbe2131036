// A call of PyTorch's: its stream and threads, memory of its allocator, its tensors.
#pragma once

#include <utility>
#include <vector>

#include "calls/caller.h"
#include "ops/torch_runtime.h"

namespace sparse_autotune {

class TorchCaller : public Caller {
 public:
  // Scratch lies beside `operand`: the values, or x of a sampled product.
  TorchCaller(Tensor crow_indices, Tensor col_indices, Tensor operand)
      : crow_indices_(std::move(crow_indices)),
        col_indices_(std::move(col_indices)),
        operand_(std::move(operand)) {}

  void* stream(int ordinal) override { return current_stream(ordinal); }
  Parallel parallel() override { return torch_parallel(); }
  void* allocate(int64_t bytes) override;
  // Looking takes half as long where those that are `likely` are versions.
  std::array<int64_t, 2> versions(const std::array<int64_t, 2>& likely) override;
  std::shared_ptr<const void> own_indices() override;
  std::shared_ptr<const void> own_values() override;

 private:
  Tensor crow_indices_, col_indices_, operand_;
  std::vector<Tensor> allocated_;
};

}  // namespace sparse_autotune
