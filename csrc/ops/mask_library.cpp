// The operators that list the blocks of an attention mask. Exported programs store their schemas:
// they are final.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
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

// New lists of a grid's patterns, whose leading dimensions are those before the `own` ones of
// `view`.
Lists new_lists(const Tensor& like, const TensorView& view, int64_t own, const MaskGrid& shape) {
  if (shape.blocks() > std::numeric_limits<int32_t>::max()) {
    refuse("a mask must have fewer than 2^31 blocks");
  }
  std::vector<int64_t> sizes(view.sizes, view.sizes + view.dims - own);
  sizes.push_back(shape.rows + 1);
  return {new_contiguous(like, sizes, ElementType::kInt32),
          new_contiguous(like, {shape.blocks()}, ElementType::kInt32)};
}

int64_t patterns_of(const TensorView& view, int64_t own) {
  int64_t patterns = 1;
  for (int64_t d = 0; d + own < view.dims; ++d) patterns *= view.sizes[d];
  return patterns;
}

MaskLists lists_at(const Tensor& begins, const Tensor& entries) {
  return {static_cast<int32_t*>(begins.data_ptr()), static_cast<int32_t*>(entries.data_ptr())};
}

// The lists of `shape` that `on_host(out)` or `on_device(out, scratch, stream)` writes.
template <typename OnHost, typename OnDevice>
Lists listed(const Tensor& like, const TensorView& view, int64_t own, const MaskGrid& shape,
             int64_t scratch_bytes, const OnHost& on_host, const OnDevice& on_device) {
  const DeviceScope scope(like);
  Lists made = new_lists(like, view, own, shape);
  const MaskLists out = lists_at(std::get<0>(made), std::get<1>(made));
  if (like.is_cpu()) {
    if (!on_host(out)) refuse("a mask's block is out of range");
    return made;
  }
  std::optional<Tensor> scratch;
  if (scratch_bytes > 0) scratch = new_bytes(like, scratch_bytes);
  const Status status = on_device(out, scratch.has_value() ? scratch->data_ptr() : nullptr,
                                  current_stream(like.get_device_index()));
  if (!status) refuse(status.message(), Fault::kLaunch);
  return made;
}

Lists mask_rows(Tensor given) {
  if (given.dim() < 2 || given.element_size() != 1) refuse("a grid must be bools, row by row");
  const Tensor grid = contiguous_of(given);
  const TensorView view = view_of(grid);
  const MaskGrid shape{patterns_of(view, 2), view.sizes[view.dims - 2], view.sizes[view.dims - 1]};
  const auto* const stored = static_cast<const uint8_t*>(view.data);
  return listed(
      grid, view, 2, shape, counted_bytes(shape),
      [&](const MaskLists& out) { return list_blocks(shape, stored, out), true; },
      [&](const MaskLists& out, void* scratch, void* stream) {
        return list_blocks_cuda(shape, stored, out, scratch, stream);
      });
}

Lists mask_columns(Tensor given_begins, Tensor given_entries, int64_t columns) {
  const Tensor begins = contiguous_of(given_begins), entries = contiguous_of(given_entries);
  const TensorView from = view_of(begins), blocks = view_of(entries);
  if (from.dims < 1 || blocks.dims != 1 || !index_type(from.type) || blocks.type != from.type ||
      blocks.device != from.device) {
    refuse("a mask must have begins and a vector of blocks, both int32 or int64, on one device");
  }
  if (from.sizes[from.dims - 1] < 1 || columns < 0) refuse("a mask must have a begin");
  const MaskGrid shape{patterns_of(from, 1), from.sizes[from.dims - 1] - 1, columns};
  const MaskGrid turned{shape.patterns, columns, shape.rows};
  const GivenLists lists{from.data, blocks.data, blocks.sizes[0], from.type == ElementType::kInt64};
  return listed(
      begins, from, 1, turned, marked_bytes(turned),
      [&](const MaskLists& out) { return turn_lists(shape, lists, out); },
      [&](const MaskLists& out, void* scratch, void* stream) {
        return turn_lists_cuda(shape, lists, out, scratch, stream);
      });
}

Lists mask_of_lists(Tensor given, std::optional<Tensor> counts, int64_t columns) {
  const Tensor lists = contiguous_of(given);
  const TensorView view = view_of(lists);
  if (view.dims < 2 || columns < 0 || !index_type(view.type)) {
    refuse("a mask's lists must be int32 or int64, a row for each block row");
  }
  RowLists rows{view.data, nullptr, view.sizes[view.dims - 1], view.type == ElementType::kInt64};
  if (counts.has_value()) {
    counts = contiguous_of(*counts);
    const TensorView of_rows = view_of(*counts);
    if (of_rows.type != view.type || of_rows.device != view.device ||
        !std::equal(of_rows.sizes, of_rows.sizes + of_rows.dims, view.sizes,
                    view.sizes + view.dims - 1)) {
      refuse("a mask's counts must be of its lists' type, on their device, one for each");
    }
    rows.counts = of_rows.data;
  }
  const MaskGrid shape{patterns_of(view, 2), view.sizes[view.dims - 2], columns};
  return listed(
      lists, view, 2, shape, marked_bytes(shape),
      [&](const MaskLists& out) { return list_rows(shape, rows, out); },
      [&](const MaskLists& out, void* scratch, void* stream) {
        return list_rows_cuda(shape, rows, out, scratch, stream);
      });
}

// `like` is where the lists shall be, `ends` there, too, or on the host.
Lists mask_of_rule(Tensor like, std::optional<Tensor> ends, int64_t queries, int64_t keys,
                   int64_t block_m, int64_t block_n, int64_t window, int64_t sinks, int64_t stride,
                   int64_t local, bool is_causal) {
  std::optional<MaskRule> rule = sound(
      {queries, keys, block_m, block_n, window, sinks, stride, local, is_causal, -1, nullptr});
  if (!rule) refuse("a mask's rule must be of lengths and of blocks of at least one token");
  TensorView view;
  if (ends.has_value()) {
    ends = contiguous_of(*ends);
    view = view_of(*ends);
    if (view.dims < 1 || view.type != ElementType::kInt64 ||
        (view.device != view_of(like).device && view.device != kCpuDevice)) {
      refuse("documents' ends must be int64, on the mask's device or on the host");
    }
    rule->documents = view.sizes[view.dims - 1];
    rule->ends = static_cast<const int64_t*>(view.data);
  }
  const int64_t own = ends.has_value() ? 1 : 0;
  const MaskGrid shape{patterns_of(view, own), rule->rows(), rule->columns()};
  const int64_t known = view.device == kCpuDevice ? elements_of(view) : 0;
  if (known > kMostKnownEnds && !like.is_cpu()) {
    refuse("more than " + std::to_string(kMostKnownEnds) + " ends must be on the mask's device");
  }
  return listed(
      like, view, own, shape, 0,
      [&](const MaskLists& out) { return list_rule(shape, *rule, out), true; },
      [&](const MaskLists& out, void*, void* stream) {
        return list_rule_cuda(shape, *rule, known, out, stream);
      });
}

STABLE_TORCH_LIBRARY_FRAGMENT(sparse_autotune, library) {
  library.def("mask_rows(Tensor grid) -> (Tensor, Tensor)");
  library.def(
      "mask_columns(Tensor crow_indices, Tensor col_indices, SymInt columns) -> "
      "(Tensor, Tensor)");
  library.def("mask_of_lists(Tensor lists, Tensor? counts, SymInt columns) -> (Tensor, Tensor)");
  library.def(
      "mask_of_rule(Tensor like, Tensor? ends, SymInt queries, SymInt keys, SymInt block_m, "
      "SymInt block_n, SymInt window, SymInt sinks, SymInt stride, SymInt local, bool is_causal) "
      "-> "
      "(Tensor, Tensor)");
}

void register_all(torch::stable::detail::StableLibrary& library) {
  library.impl("mask_rows", TORCH_BOX(&mask_rows));
  library.impl("mask_columns", TORCH_BOX(&mask_columns));
  library.impl("mask_of_lists", TORCH_BOX(&mask_of_lists));
  library.impl("mask_of_rule", TORCH_BOX(&mask_of_rule));
}

STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CPU, library) { register_all(library); }
STABLE_TORCH_LIBRARY_IMPL(sparse_autotune, CUDA, library) { register_all(library); }

}  // namespace
}  // namespace sparse_autotune
