#include "autotune/operands.h"

namespace sparse_autotune {
namespace {

int64_t aligned_up(int64_t offset) {
  return ceil_div(offset, kOperandAlignment) * kOperandAlignment;
}

// An offset at or above `at` whose address is a multiple of `alignment` bytes and of nothing more
// (16 and above count as alike).
int64_t place(int64_t at, int64_t alignment) {
  return aligned_up(at) + (alignment < 16 ? alignment : 0);
}

}  // namespace

OperandLayout lay_out(const std::vector<Operand>& operands) {
  OperandLayout l{std::vector<int64_t>(operands.size()), {}, 0};
  int64_t end = 0;
  const auto put = [&](size_t i) {
    l.offsets[i] = place(end, operands[i].alignment);
    end = l.offsets[i] + operands[i].bytes;
  };
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].use != Operand::Use::kOutput) put(i);
  }
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].use != Operand::Use::kOutput) continue;
    const int64_t begin = aligned_up(end);
    end = begin + kGuardBytes;
    put(i);
    end = aligned_up(end + kGuardBytes);
    l.outputs.push_back({i, begin, end - begin});
  }
  l.bytes = aligned_up(end);
  return l;
}

std::vector<char*> addresses_at(const OperandLayout& layout, char* base) {
  std::vector<char*> addresses;
  for (const int64_t offset : layout.offsets) addresses.push_back(base + offset);
  return addresses;
}

}  // namespace sparse_autotune
