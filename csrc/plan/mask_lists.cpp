#include "plan/mask_lists.h"

#include <algorithm>
#include <vector>

namespace sparse_autotune {

void list_blocks(const MaskGrid& shape, const uint8_t* grid, const MaskLists& out) {
  for (int64_t p = 0; p < shape.patterns; ++p) {
    int32_t* const begins = out.begins + p * (shape.rows + 1);
    auto at = static_cast<int32_t>(p * shape.room());
    for (int64_t r = 0; r < shape.rows; ++r) {
      begins[r] = at;
      for (int64_t c = 0; c < shape.columns; ++c, ++grid) {
        if (*grid != 0) out.entries[at++] = static_cast<int32_t>(c);
      }
    }
    begins[shape.rows] = at;
    std::fill(out.entries + at, out.entries + (p + 1) * shape.room(), 0);
  }
}

bool turn_lists(const MaskGrid& shape, const MaskLists& lists, int64_t capacity,
                const MaskLists& out) {
  std::vector<uint8_t> grid(static_cast<size_t>(shape.blocks()));
  for (int64_t p = 0; p < shape.patterns; ++p) {
    const int32_t* const begins = lists.begins + p * (shape.rows + 1);
    uint8_t* const turned = grid.data() + p * shape.room();
    for (int64_t r = 0; r < shape.rows; ++r) {
      if (begins[r] < 0 || begins[r + 1] > capacity) return false;
      for (int64_t i = begins[r]; i < begins[r + 1]; ++i) {
        const int64_t c = lists.entries[i];
        if (c < 0 || c >= shape.columns) return false;
        turned[c * shape.rows + r] = 1;
      }
    }
  }
  list_blocks({shape.patterns, shape.columns, shape.rows}, grid.data(), out);
  return true;
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status list_blocks_cuda(const MaskGrid&, const uint8_t*, const MaskLists&, const MaskScratch&,
                        void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
Status turn_lists_cuda(const MaskGrid&, const MaskLists&, int64_t, const MaskLists&,
                       const MaskScratch&, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace sparse_autotune
