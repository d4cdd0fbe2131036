// cpu_tiled's micro-kernel for AMX where a block row has no blocks: `out` is what the sum begins
// with. No tile register is touched for that: any processor with AVX512 runs it.
#include <algorithm>
#include <cstdint>
#include <vector>

#include "fakes.h"
#include "kernels/cpu/microkernels/tiled.h"

using namespace sparse_autotune;
using namespace sparse_autotune::cpu_tiled;

namespace sparse_autotune::cpu_tiled {

const Microkernels* avx512_bf16_kernels(DType) {
  static const Microkernels sums_of_floats{.lanes = 16, .pair = 2};
  return &sums_of_floats;
}

}  // namespace sparse_autotune::cpu_tiled

namespace {

constexpr float kPoison = -777;

// A matrix of floats with gaps between its rows.
struct Rows {
  Rows(int64_t rows, int64_t columns, int64_t gap)
      : stride(columns + gap), data(static_cast<size_t>(rows * stride), kPoison) {}
  float& at(int64_t r, int64_t c) { return data[static_cast<size_t>(r * stride + c)]; }
  int64_t stride;
  std::vector<float> data;
};

void no_blocks(const Microkernels& kernels, int rows, int vectors, bool from_init) {
  const int64_t columns = vectors * kernels.lanes;
  Rows init(rows, columns, 16), out(rows, columns, 32), bias(rows, 1, 0);
  for (int64_t r = 0; r < rows; ++r) {
    bias.at(r, 0) = static_cast<float>(3 * r + 1);
    for (int64_t c = 0; c < columns; ++c) init.at(r, c) = static_cast<float>(100 * r + c);
  }
  alignas(64) char state[kStateBytes] = {};
  MultiplyTask task{};
  task.init = from_init ? init.data.data() : nullptr;
  task.init_stride = init.stride;
  task.bias = bias.data.data();
  task.out = out.data.data();
  task.out_stride = out.stride;
  task.rows = rows;
  task.vectors = vectors;
  task.state = state;
  kernels.multiply(task);
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < out.stride; ++c) {
      const float sum = from_init ? init.at(r, std::min(c, columns)) : bias.at(r, 0);
      CHECK(out.at(r, c) == (c < columns ? sum : kPoison));
    }
  }
}

bool runs_here() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512f");
#else
  return false;
#endif
}

}  // namespace

int main() {
  const Microkernels* kernels = amx_kernels(DType::kBFloat16);
  if (!runs_here() || kernels == nullptr) {
    std::printf("no AVX512\n");
    return 0;
  }
  for (int rows = 1; rows <= kernels->rows; ++rows) {
    for (int vectors = 1; vectors <= kernels->vectors; ++vectors) {
      no_blocks(*kernels, rows, vectors, false);
      no_blocks(*kernels, rows, vectors, true);
    }
  }
  std::printf("all passed\n");
}
