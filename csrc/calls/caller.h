// What a product needs of whoever calls it: PyTorch's operators, or a C program.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "variant.h"

namespace sparse_autotune {

class Caller {
 public:
  virtual ~Caller() = default;

  // Of a product on a CUDA device: the cudaStream_t that it runs on.
  virtual void* stream(int ordinal) = 0;
  // Of one on the CPU: the threads that it may use.
  virtual Parallel parallel() = 0;

  // Memory on the product's device, aligned to 16 bytes, until everything is over that the call
  // enqueues on its stream. Throws where there is none.
  virtual void* allocate(int64_t bytes) = 0;

  // How often the memory of crow_indices and of col_indices has been written; see Plan. Those that
  // are `likely` may save a look.
  virtual std::array<int64_t, 2> versions(const std::array<int64_t, 2>& likely) = 0;
  // Keeps that memory from being freed, so that no other pattern can appear there.
  virtual std::shared_ptr<const void> own_indices() = 0;
  // The same for the values.
  virtual std::shared_ptr<const void> own_values() = 0;
};

}  // namespace sparse_autotune
