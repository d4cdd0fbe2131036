// The micro-kernels of attention_tiled: what each instruction-set level implements and
// attention_tiled.cpp calls. All numbers are fp32.
//
// A tile is `vectors` (1 or 2) vectors wide; its lanes are queries (or keys, where gradients of
// keys are summed), and its lines are whatever is multiplied with them. A line is one row of memory
// of vectors * lanes numbers.
#pragma once

#include <cstdint>

namespace sparse_autotune::cpu_attention {

// result[m][:] (+)= sum over k < depth of a[m * a_line + k * a_step] * b[k][:]. `a` is read where
// it lies, number by number.
struct Products {
  const float* a;
  int64_t a_line, a_step;
  int64_t lines, depth;
  const float* b;
  float* result;
  bool add;
};

// One chunk of the softmax of a tile. `scores` are base-2 exponents and become probabilities,
// relative to `largest`; `totals` are their sums. Both are a line each, and updated; `factor` is
// what sums so far have to be multiplied with.
struct SoftmaxChunk {
  float* scores;
  int64_t lines;
  float* largest;
  float* totals;
  float* factor;
};

// probabilities = 2^(scores - lse), gradients = probabilities * (gradients - delta); of each line
// and lane, or with `by_line` lse and delta are of lines rather than of lanes. Both are in place.
struct Gradients {
  float* scores;     // become probabilities
  float* gradients;  // of probabilities, become those of scores
  int64_t lines;
  const float* lse;
  const float* delta;
  bool by_line;
};

struct Steps {
  int64_t lanes;
  void (*multiply[2])(const Products&);  // for tiles of one and of two vectors
  void (*softmax[2])(const SoftmaxChunk&);
  void (*rescale[2])(float* sums, int64_t lines, const float* factor);
  void (*gradients[2])(const Gradients&);
};

// What a score is never below when exponentials are taken relative to it: of lanes that have seen
// nothing yet the largest score is minus infinity, and minus infinity from itself is NaN.
inline constexpr float kLeastScore = -1e30f;

// Null where the processor is not an x86-64.
#if defined(__x86_64__)
const Steps* avx2_steps();
const Steps* avx512_steps();
#else
inline const Steps* avx2_steps() { return nullptr; }
inline const Steps* avx512_steps() { return nullptr; }
#endif

}  // namespace sparse_autotune::cpu_attention
