// Variants with planted behaviour, and what a test of the core needs around them.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "checks.h"
#include "operators/product/product.h"

namespace sparse_autotune::test {

// A small fp32 product with three block rows, one of them empty, on the CPU.
struct Example {
  std::vector<int64_t> crow{0, 2, 2, 3}, col{0, 2, 1};
  Problem problem{};
  Launch launch{};
  Device device{};

  Example() {
    problem.m = 12;
    problem.k = 9;
    problem.n = 70;
    problem.block_m = 4;
    problem.block_k = 3;
    problem.nnzb = 3;
    problem.longest_row = 2;
    problem.ldb = 75;  // gaps between rows
    problem.ldc = 73;
    problem.batch = 1;
    problem.dtype = DType::kFloat32;
    problem.index_type = IndexType::kInt64;
    problem.values_alignment = 4;
    problem.b_alignment = 4;
    problem.c_alignment = 4;
    launch.crow_indices = crow.data();
    launch.col_indices = col.data();
    launch.device = &device;
    device.name = "test CPU";
    device.fp32_tflops = 0.1;
    device.memory_gbps = 10;
  }
};

// What a fake does to C once it has computed the product.
using Fault = std::function<Status(const Problem&, const Launch&)>;

// One that nobody is told of.
template <typename Spoil>
Fault silent(Spoil spoil) {
  return [spoil](const Problem& p, const Launch& l) {
    spoil(p, l);
    return Status::ok();
  };
}

class Fake final : public Variant {
 public:
  Fake(const char* name, double estimate, double busy_us, Fault fault = nullptr)
      : Variant(DeviceType::kCpu, name), estimate_(estimate), busy_us_(busy_us), fault_(fault) {}

  Support supports(const Problem&, const Device&) const override {
    ++asked;
    return Support::yes();
  }
  double estimate_us(const Problem&, const Device&) const override { return estimate_; }
  int64_t workspace_bytes(const Problem&, const Device&) const override { return scratch; }

  Status launch(const Problem& p, const Launch& l) const override {
    ++launches;
    const auto* crow = static_cast<const int64_t*>(l.crow_indices);
    const auto* col = static_cast<const int64_t*>(l.col_indices);
    const auto* a = static_cast<const float*>(l.values);
    const auto* b = static_cast<const float*>(l.b);
    auto* c = static_cast<float*>(l.c);
    for (int64_t i = 0; i < p.m; ++i) {
      for (int64_t j = 0; j < p.n; ++j) {
        float sum = 0;
        for (int64_t s = crow[i / p.block_m]; s < crow[i / p.block_m + 1]; ++s) {
          for (int64_t k = 0; k < p.block_k; ++k) {
            sum += a[(s * p.block_m + i % p.block_m) * p.block_k + k] *
                   b[(col[s] * p.block_k + k) * p.ldb + j];
          }
        }
        c[i * p.ldc + j] = sum;
      }
    }
    spin(busy_us_);
    return fault_ ? fault_(p, l) : Status::ok();
  }

  mutable int launches = 0, asked = 0;
  int64_t scratch = 0;

 private:
  double estimate_, busy_us_;
  Fault fault_;
};

}  // namespace sparse_autotune::test
