// The operators that list the blocks of an attention mask. Exported programs store their schemas:
// they are final.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <cstdint>
#include <limits>
#include <tuple>
#include <vector>

#include "calls/call.h"
#include "ops/arguments.h"
#include "ops/torch_runtime.h"
#include "plan/mask_lists.h"

namespace sparse_autotune {
namespace {

using Lists = std::tuple<Tensor, Tensor>;

Tensor contiguous_of(const Tensor& t) {
  return t.is_contiguous() ? t : torch::stable::contiguous(t);
}

// New lists of a grid's patterns, whose leading dimensions are the first of `like`.
Lists new_lists(const Tensor& like, int64_t leading, const MaskGrid& shape) {
  if (shape.blocks() > std::numeric_limits<int32_t>::max()) {
    refuse("a mask must have fewer than 2^31 blocks");
  }
  std::vector<int64_t> sizes;
  for (int64_t d = 0; d < leading; ++d) sizes.push_back(like.size(d));
  sizes.push_back(shape.rows + 1);
  return {new_contiguous(like, sizes, ElementType::kInt32),
          new_contiguous(like, {shape.blocks()}, ElementType::kInt32)};
}

MaskLists lists_at(const Tensor& begins, const Tensor& entries) {
  return {static_cast<int32_t*>(begins.data_ptr()), static_cast<int32_t*>(entries.data_ptr())};
}

int64_t patterns_of(const TensorView& view, int64_t own) {
  int64_t patterns = 1;
  for (int64_t d = 0; d + own < view.dims; ++d) patterns *= view.sizes[d];
  return patterns;
}

void check(const Status& status) {
  if (!status) refuse(status.message(), Fault::kLaunch);
}

Lists mask_rows(Tensor given) {
  if (given.dim() < 2 || given.element_size() != 1) refuse("a grid must be bools, row by row");
  const Tensor grid = contiguous_of(given);
  const TensorView view = view_of(grid);
  const MaskGrid shape{patterns_of(view, 2), view.sizes[view.dims - 2], view.sizes[view.dims - 1]};
  const DeviceScope scope(grid);
  const auto [begins, entries] = new_lists(grid, view.dims - 2, shape);
  const MaskLists out = lists_at(begins, entries);
  const auto* const stored = static_cast<const uint8_t*>(view.data);
  if (view.device == kCpuDevice) {
    list_blocks(shape, stored, out);
    return {begins, entries};
  }
  const Tensor counts = new_bytes(grid, shape.lines() * 4);
  const MaskScratch scratch{static_cast<int32_t*>(counts.data_ptr()), nullptr};
  check(list_blocks_cuda(shape, stored, out, scratch, current_stream(view.device)));
  return {begins, entries};
}

Lists mask_columns(Tensor given_begins, Tensor given_entries, int64_t columns) {
  const Tensor begins = contiguous_of(given_begins), entries = contiguous_of(given_entries);
  const TensorView from = view_of(begins), blocks = view_of(entries);
  if (from.dims < 1 || blocks.dims != 1 || from.type != ElementType::kInt32 ||
      blocks.type != ElementType::kInt32 || from.device != blocks.device) {
    refuse("a mask must have int32 begins and a vector of int32 blocks, on one device");
  }
  if (from.sizes[from.dims - 1] < 1 || columns < 0) refuse("a mask must have a begin");
  const MaskGrid shape{patterns_of(from, 1), from.sizes[from.dims - 1] - 1, columns};
  const DeviceScope scope(begins);
  const MaskGrid turned{shape.patterns, columns, shape.rows};
  const auto [turned_begins, turned_entries] = new_lists(begins, from.dims - 1, turned);
  const MaskLists lists = lists_at(begins, entries), out = lists_at(turned_begins, turned_entries);
  if (from.device == kCpuDevice) {
    if (!turn_lists(shape, lists, blocks.sizes[0], out)) refuse("a mask's block is out of range");
    return {turned_begins, turned_entries};
  }
  const int64_t count_bytes = turned.lines() * 4;
  const Tensor memory = new_bytes(begins, count_bytes + shape.blocks());
  auto* const at = static_cast<uint8_t*>(memory.data_ptr());
  const MaskScratch scratch{reinterpret_cast<int32_t*>(at), at + count_bytes};
  check(turn_lists_cuda(shape, lists, blocks.sizes[0], out, scratch, current_stream(from.device)));
  return {turned_begins, turned_entries};
}

STABLE_TORCH_LIBRARY_FRAGMENT(sparse_autotune, library) {
  library.def("mask_rows(Tensor grid) -> (Tensor, Tensor)");
  library.def(
      "mask_columns(Tensor crow_indices, Tensor col_indices, SymInt columns) -> "
      "(Tensor, Tensor)");
}

void register_all(torch::stable::detail::StableLibrary& library) {
  library.impl("mask_rows", TORCH_BOX(&mask_rows));
  library.impl("mask_columns", TORCH_BOX(&mask_columns));
}

STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CPU, library) { register_all(library); }
STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CUDA, library) { register_all(library); }

}  // namespace
}  // namespace sparse_autotune
