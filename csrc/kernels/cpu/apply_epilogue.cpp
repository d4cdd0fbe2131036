#include "kernels/cpu/apply_epilogue.h"

#include "half.h"
#include "kernels/activation.h"

namespace sparse_autotune {
namespace {

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
          for (int64_t j = 0; j < length; ++j) {
            auto x = widened(c[j]);
            if (p.has_bias) x += widened(bias[rows ? line % lines : j]);
            c[j] = narrowed<T>(activate(x, p.activation));
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
