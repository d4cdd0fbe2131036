#include "ops/sampled_matmul.h"

#include "ops/matmul.h"

namespace sparse_autotune {

Tensor sampled_matmul(const SampledArguments& a) {
  const DeviceScope scope(a.x);
  const Tensor result = make_sampled_result(a);
  if (std::optional<Bound> bound = bind_sampled(a, result)) serve(*bound, a.variant);
  return result;
}

}  // namespace sparse_autotune
