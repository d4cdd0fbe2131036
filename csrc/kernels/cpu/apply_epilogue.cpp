#include "kernels/cpu/apply_epilogue.h"

#include "half.h"
#include "kernels/activation.h"

namespace sparse_autotune {
namespace {

// The type to compute in, and the way there and back.
float load(const float* p) { return *p; }
double load(const double* p) { return *p; }
float load(const Half* p) { return to_float(*p); }
float load(const BFloat16* p) { return to_float(*p); }
void store(float* p, float x) { *p = x; }
void store(double* p, double x) { *p = x; }
void store(Half* p, float x) { *p = to_half(x); }
void store(BFloat16* p, float x) { *p = to_bfloat16(x); }

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
            auto x = load(c + j);
            if (p.has_bias) x += load(bias + (rows ? line % lines : j));
            store(c + j, activate(x, p.activation));
          }
        }
      });
}

}  // namespace

void apply_epilogue_cpu(const Problem& p, const Launch& l) {
  if (!p.has_bias && p.activation == Activation::kNone) return;
  switch (p.dtype) {
    case DType::kFloat16:
      return apply<Half>(p, l);
    case DType::kBFloat16:
      return apply<BFloat16>(p, l);
    case DType::kFloat32:
      return apply<float>(p, l);
    case DType::kFloat64:
      return apply<double>(p, l);
  }
}

}  // namespace sparse_autotune
