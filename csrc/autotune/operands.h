// Where the tuner's own operands lie in one piece of memory, and what they hold.
#pragma once

#include <cstdint>
#include <vector>

#include "host_device.h"
#include "operator.h"

namespace sparse_autotune {

// Offsets in bytes within one set of operands. The addresses have the alignment of the user's, not
// a better one.
struct OperandLayout {
  // An output with all that lies between its rows, and a guard on both sides.
  struct Output {
    size_t operand;
    int64_t begin, bytes;
  };
  std::vector<int64_t> offsets;  // of each operand
  std::vector<Output> outputs;   // in the order of the operands, one behind the other
  int64_t bytes;                 // of the set, a multiple of kOperandAlignment

  int64_t output_begin() const { return outputs.empty() ? bytes : outputs.front().begin; }
  int64_t output_bytes() const { return bytes - output_begin(); }
};
constexpr int64_t kOperandAlignment = 256;
constexpr int64_t kGuardBytes = 256;

OperandLayout lay_out(const std::vector<Operand>& operands);

// Where the operands of the set at `base` lie.
std::vector<char*> addresses_at(const OperandLayout& layout, char* base);

// The operand element with that running number: uniform in [-1, 1), the same on host and device.
SPARSE_AUTOTUNE_HOST_DEVICE inline float operand_value(uint64_t number) {
  uint64_t x = (number + 1) * 0x9e3779b97f4a7c15u;  // splitmix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return static_cast<float>(static_cast<int32_t>((x ^ (x >> 31)) >> 40) - (1 << 23)) * 0x1p-23f;
}
// The running number of an operand's first element.
constexpr uint64_t first_number(size_t operand) { return static_cast<uint64_t>(operand) << 56; }

}  // namespace sparse_autotune
