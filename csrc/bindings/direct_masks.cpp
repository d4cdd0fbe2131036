#include <algorithm>
#include <optional>
#include <utility>

#include "bindings/direct.h"
#include "plan/current_device.h"
#include "plan/mask_lists.h"

namespace py = pybind11;

namespace sparse_autotune {

// The results are the operator's, and the number of blocks with whether it is exact.
py::object Direct::mask_of_rule(int32_t ordinal, const std::array<int64_t, 9>& r,
                                const std::optional<std::vector<int64_t>>& ends) const {
  const auto known = static_cast<int64_t>(ends ? ends->size() : 0);
  if (known > kMostKnownEnds || !is_for_us({}, {})) return py::none();
  const auto rule = sound({r[0], r[1], r[2], r[3], r[4], r[5], r[6], r[7], r[8] != 0,
                           ends ? known : -1, ends ? ends->data() : nullptr});
  if (!rule || (ordinal >= 0 && !is_current_device(ordinal))) return py::none();
  const MaskGrid shape{1, rule->rows(), rule->columns()};
  if (shape.blocks() <= 0 || shape.blocks() > INT32_MAX) return py::none();
  const TensorView like{.type = ElementType::kInt32, .device = std::max(ordinal, 0)};
  py::object begins, entries;
  try {
    begins = tensors_.new_empty(like, {shape.rows + 1});
    entries = tensors_.new_empty(like, {shape.blocks()});
  } catch (py::error_already_set&) {
    return py::none();  // the operator says why
  }
  TensorView first, second;
  if (!tensors_.view(begins, &first) || !tensors_.view(entries, &second)) return py::none();
  const MaskLists out{static_cast<int32_t*>(first.writable()),
                      static_cast<int32_t*>(second.writable())};
  if (!direct::mask_of_rule(shape, *rule, known, out, first.device)) return py::none();
  const BlockCount count = count_blocks(*rule, 1);
  return py::make_tuple(std::move(begins), std::move(entries), count.blocks, count.is_exact);
}

}  // namespace sparse_autotune
