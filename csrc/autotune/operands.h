// Where the tuner's own operands of a product lie in one piece of memory, and what they hold.
#pragma once

#include <cstdint>
#include <vector>

#include "host_device.h"
#include "variant.h"

namespace sparse_autotune {

// A strided matrix of the batch: element (i, j) of matrix t is at
// t * batch_stride + i * row_stride + j * col_stride.
struct Strides {
  int64_t rows, cols, row_stride, col_stride, batch, batch_stride;

  // Elements from the first to the last, both included.
  int64_t span() const {
    return (batch - 1) * batch_stride + (rows - 1) * row_stride + (cols - 1) * col_stride + 1;
  }
};

// The values as a batch of nnzb blocks.
Strides strides_of_values(const Problem& problem);
Strides strides_of_b(const Problem& problem);
Strides strides_of_c(const Problem& problem);
// Of what the problem's operation writes: C or the values.
Strides strides_of_output(const Problem& problem);

// Offsets in bytes within one set of operands. The addresses have the alignment of the user's, not
// a better one.
struct OperandLayout {
  int64_t crow_indices, col_indices, positions, values, b, bias, c;
  int64_t output;  // the first element of what is written: `c` or `values`
  // That with all that lies between its rows, and a guard on both sides.
  int64_t output_begin, output_bytes;
  int64_t bytes;  // of the set, a multiple of kOperandAlignment
};
constexpr int64_t kOperandAlignment = 256;
constexpr int64_t kGuardBytes = 256;

OperandLayout lay_out_operands(const Problem& problem);

// The user's launch with the operands of the set at `base` in place of the user's.
Launch launch_on(const OperandLayout& layout, const Problem& problem, const Launch& user,
                 char* base);

// The operand element with that running number: uniform in [-1, 1), the same on host and device.
SPARSE_AUTOTUNE_HOST_DEVICE inline float operand_value(uint64_t number) {
  uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int32_t>((x ^ (x >> 31)) >> 40) - (1 << 23)) * 0x1p-23f;
}

// An operand that is read: where it lies, and the running number of its first element.
struct Input {
  int64_t offset;
  Strides strides;
  uint64_t number;
};
std::vector<Input> inputs_of(const OperandLayout& layout, const Problem& problem);

}  // namespace sparse_autotune
