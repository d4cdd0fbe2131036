// How a block row is cut into parts.
#include <algorithm>

#include "fakes.h"
#include "row_orders.h"

using namespace sparse_autotune;

namespace {

void parts_cover_a_row() {
  for (int order = 1; order < kRowOrders; ++order) {
    const auto limit = static_cast<int32_t>(part_limit(order));
    CHECK(limit == 2 * (order == 1 ? 1 : part_limit(order - 1)));
    for (int32_t blocks = limit + 1; blocks < 5 * limit + 3; ++blocks) {
      const int32_t parts = parts_of(blocks, limit);
      CHECK(parts >= 2 && (parts - 1) * limit < blocks && blocks <= parts * limit);
      CHECK(part_begin(blocks, parts, 0) == 0 && part_begin(blocks, parts, parts) == blocks);
      int32_t before = limit;
      for (int32_t part = 0; part < parts; ++part) {
        const int32_t length =
            part_begin(blocks, parts, part + 1) - part_begin(blocks, parts, part);
        CHECK(length >= blocks / parts && length <= blocks / parts + 1);
        CHECK(length <= before);  // the longer ones first
        before = length;
      }
    }
  }
}

void parts_of_the_longest_row_there_can_be() {
  const int32_t longest = 2147483647;
  for (int order = 1; order < kRowOrders; ++order) {
    const auto limit = static_cast<int32_t>(part_limit(order));
    const int32_t parts = parts_of(longest, limit);
    CHECK(parts == longest / limit + 1);
    CHECK(part_begin(longest, parts, parts) == longest);
    CHECK(longest - part_begin(longest, parts, parts - 1) <= limit);
  }
}

}  // namespace

int main() {
  parts_cover_a_row();
  parts_of_the_longest_row_there_can_be();
  std::printf("all passed\n");
}
