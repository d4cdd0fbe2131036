#include "kernels/cpu/shared/apply_epilogue.h"

#include <algorithm>

#include "half.h"
#include "kernels/cpu/shared/activate_all.h"

namespace sparse_autotune {
namespace {

constexpr int64_t kPart = 256;  // elements, widened at a time

template <typename T>
void apply(const Problem& p, const Launch& l) {
  const bool rows = p.c_layout == Layout::kRowMajor;
  // Runs along memory: a line is a row of a row-major C, a column of a column-major one.
  const int64_t lines = rows ? p.m : p.n, length = rows ? p.n : p.m;
  parallel_for(
      l.parallel, 0, lines * p.batch, ceil_div(16384, length), [&](int64_t begin, int64_t end) {
        for (int64_t line = begin; line < end; ++line) {
          T* c = static_cast<T*>(l.c) + (line / lines) * p.c_batch_stride + (line % lines) * p.ldc;
          const T* bias = static_cast<const T*>(l.bias);
          decltype(widened(T{})) part[kPart];
          for (int64_t first = 0; first < length; first += kPart) {
            const int64_t count = std::min(kPart, length - first);
            for (int64_t j = 0; j < count; ++j) part[j] = widened(c[first + j]);
            for (int64_t j = 0; p.has_bias && j < count; ++j) {
              part[j] += widened(bias[rows ? line % lines : first + j]);
            }
            activate_all(part, count, p.activation);
            for (int64_t j = 0; j < count; ++j) c[first + j] = narrowed<T>(part[j]);
          }
        }
      });
}

}  // namespace

void apply_epilogue_cpu(const Problem& p, const Launch& l) {
  if (!p.has_bias && p.activation == Activation::kNone) return;
  with_type(p.dtype, [&]<typename T>(T*) { apply<T>(p, l); });
}

}  // namespace sparse_autotune
