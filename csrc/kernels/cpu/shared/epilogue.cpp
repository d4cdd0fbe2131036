// Activations written so that the compiler makes vectors of them: no branches, no calls. Their
// errors are a few units in the last place, also where results are small.
#include "kernels/cpu/shared/epilogue.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "half.h"

#if defined(__x86_64__)
#define SPARSE_AUTOTUNE_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SPARSE_AUTOTUNE_CLONES
#endif
#define SPARSE_AUTOTUNE_INLINE inline __attribute__((always_inline))

namespace sparse_autotune {
namespace {

constexpr int64_t kTogether = 16;  // elements: what is left of a line is one step, too

// kErfc: of a polynomial in t = (z - kErfcMiddle) / (z + kErfcMiddle), highest power first, for
// (1 + 2 z) exp(z * z) erfc(z) where z >= 0; fitted at Chebyshev's points to 1.9e-8 and 4.5e-17.
template <typename T>
struct Constants;
template <>
struct Constants<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23, kBias = 127, kTerms = 8, kErfcTerms = 12;
  static constexpr float kRounds = 0x1.8p23F;  // added, it leaves no place for a fraction
  static constexpr float kLog2High = 0.693145751953125F, kLog2Low = 1.42860682030941723e-6F;
  static constexpr float kLowest = -83, kHighest = 89;
  static constexpr float kErfcMiddle = 2, kErfcEnd = 12;
  static constexpr float kErfc[kErfcTerms] = {
      6.80751475896e-5F, 0.000160840346335F, -0.000370928411414F, -0.00139580508835F,
      0.00123050321722F, 0.00868925269511F,  -0.00802473910256F,  -0.0542119952365F,
      0.164050497123F,   -0.166031090415F,   -0.0927638157447F,   1.27697839119F};
};
template <>
struct Constants<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52, kBias = 1023, kTerms = 14, kErfcTerms = 24;
  static constexpr double kRounds = 0x1.8p52;
  static constexpr double kLog2High = 0x1.62e42feep-1, kLog2Low = 1.9082149292705877e-10;
  static constexpr double kLowest = -703, kHighest = 710;
  static constexpr double kErfcMiddle = 4, kErfcEnd = 40;
  static constexpr double kErfc[kErfcTerms] = {
      9.6554082254828631e-10,  1.5712153638319064e-09,  -1.2544825403855518e-08,
      -1.6357383982124768e-08, 1.0683442926744586e-07,  7.1119124280104230e-08,
      -8.2180206548130444e-07, 2.9805960553227689e-07,  5.7072395736932571e-06,
      -1.1225140354449658e-05, -2.4398117942079950e-05, 1.5062311785162070e-04,
      -1.9925700412184815e-04, -7.5777371418388846e-04, 5.0319700325486948e-03,
      -1.6197733979924259e-02, 3.7167515531843200e-02,  -6.6330365820503667e-02,
      9.3732834998651718e-02,  -1.0103906603585294e-01, 6.8097054254686207e-02,
      1.5379652102610162e-02,  -1.3962111684056250e-01, 1.2329951186255526e+00};
};

template <typename T>
struct Factorials {
  T inverse[Constants<T>::kTerms];
  constexpr Factorials() : inverse{} {
    double factorial = 1;
    for (int i = 0; i < Constants<T>::kTerms; ++i) {
      inverse[i] = static_cast<T>(1 / factorial);
      factorial *= i + 1;
    }
  }
};

// 0 below kLowest, so that no number that it is a factor of is denormal: those take a processor a
// hundred times as long. Infinite from kHighest on. A NaN fails the comparisons and stays one.
template <typename T>
SPARSE_AUTOTUNE_INLINE T exp_of(T x) {
  using C = Constants<T>;
  using Bits = typename C::Bits;
  constexpr Factorials<T> kFactorials;
  const bool is_zero = x < C::kLowest;
  x = is_zero ? C::kLowest : x;
  x = x > C::kHighest ? C::kHighest : x;
  // x = power * log(2) + rest
  const T shifted = x * T(1.44269504088896340736) + C::kRounds, power = shifted - C::kRounds;
  const T rest = x - power * C::kLog2High - power * C::kLog2Low;
  T sum = kFactorials.inverse[C::kTerms - 1];
#pragma GCC unroll 16
  for (int i = C::kTerms - 2; i >= 0; --i) sum = sum * rest + kFactorials.inverse[i];
  // In two factors: one alone would overflow before the result does.
  const Bits exponents =
      std::bit_cast<Bits>(shifted) - std::bit_cast<Bits>(C::kRounds) + 2 * C::kBias;
  const Bits first = exponents >> 1, second = exponents - first;
  const T result =
      sum * std::bit_cast<T>(first << C::kMantissa) * std::bit_cast<T>(second << C::kMantissa);
  return is_zero ? T(0) : result;
}

// x times the normal distribution function, whose lower half is computed: it keeps its digits.
template <typename T>
SPARSE_AUTOTUNE_INLINE T gelu_of(T x) {
  using C = Constants<T>;
  const T distance = (x < T(0) ? -x : x) * T(0.70710678118654752440);
  const T z = distance > C::kErfcEnd ? C::kErfcEnd : distance;
  const T above = z + C::kErfcMiddle, slope = T(1) + T(2) * z, inverse = T(1) / (above * slope);
  const T t = (z - C::kErfcMiddle) * slope * inverse;
  T sum = C::kErfc[0];
#pragma GCC unroll 32
  for (int i = 1; i < C::kErfcTerms; ++i) sum = sum * t + C::kErfc[i];
  const T lower = T(0.5) * sum * above * inverse * exp_of<T>(T(-0.5) * x * x);
  return x * (x < T(0) ? lower : T(1) - lower);
}

template <Activation kActivation, typename T>
SPARSE_AUTOTUNE_INLINE T activated(T x) {
  if constexpr (kActivation == Activation::kRelu) return x < T(0) ? T(0) : x;
  if constexpr (kActivation == Activation::kGelu) return gelu_of(x);
  if constexpr (kActivation == Activation::kGeluTanh) {
    return x / (T(1) + exp_of<T>(T(-1.59576912160573071176) * (x + T(0.044715) * x * x * x)));
  }
  return x / (T(1) + exp_of<T>(-x));
}

template <Activation kActivation, typename T>
SPARSE_AUTOTUNE_INLINE void activate_line(T* x, int64_t count) {
  T rest[kTogether] = {};
  while (count > 0) {
    const bool is_rest = count < kTogether;
    const int64_t here = is_rest ? kTogether : count / kTogether * kTogether;
    if (is_rest) std::memcpy(rest, x, static_cast<size_t>(count) * sizeof(T));
    T* const line = is_rest ? rest : x;
    for (int64_t i = 0; i < here; ++i) line[i] = activated<kActivation>(line[i]);
    if (is_rest) std::memcpy(x, rest, static_cast<size_t>(count) * sizeof(T));
    x += here;
    count -= here;
  }
}

template <typename T>
SPARSE_AUTOTUNE_INLINE void activate_by(T* x, int64_t count, Activation activation) {
  switch (activation) {
    case Activation::kNone:
      return;
    case Activation::kRelu:
      return activate_line<Activation::kRelu>(x, count);
    case Activation::kGelu:
      return activate_line<Activation::kGelu>(x, count);
    case Activation::kGeluTanh:
      return activate_line<Activation::kGeluTanh>(x, count);
    case Activation::kSilu:
      return activate_line<Activation::kSilu>(x, count);
  }
}

// Apart from activate_all(): what picks a clone is visible outside of the library if its function
// is not of this file alone.
SPARSE_AUTOTUNE_CLONES void activate_floats(float* x, int64_t count, Activation activation) {
  activate_by(x, count, activation);
}
SPARSE_AUTOTUNE_CLONES void activate_doubles(double* x, int64_t count, Activation activation) {
  activate_by(x, count, activation);
}

}  // namespace

void activate_all(float* x, int64_t count, Activation activation) {
  activate_floats(x, count, activation);
}
void activate_all(double* x, int64_t count, Activation activation) {
  activate_doubles(x, count, activation);
}

namespace {

constexpr int64_t kPart = 256;  // elements, widened at a time

template <typename T>
void apply(const Problem& p, const Launch& l) {
  const bool rows = p.c_layout == Layout::kRowMajor;
  // Runs along memory: a line is a row of a row-major C, a column of a column-major one.
  const int64_t lines = rows ? p.m : p.n, length = rows ? p.n : p.m;
  parallel_each(l.parallel, lines * p.batch, ceil_div(16384, length), [&](int64_t line) {
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
  });
}

}  // namespace

void apply_epilogue_cpu(const Problem& p, const Launch& l) {
  if (!p.has_bias && p.activation == Activation::kNone) return;
  with_type(p.dtype, [&]<typename T>(T*) { apply<T>(p, l); });
}

}  // namespace sparse_autotune
