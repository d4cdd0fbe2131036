#include "operators/product/product_estimates.h"

#include <algorithm>
#include <list>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <utility>

#include "autotune/registry.h"
#include "operators/product/product_operator.h"

namespace sparse_autotune {

std::vector<double> product_estimates(const std::string& problem, const RowCuts& cuts,
                                      const GroupCounts& groups, const GpuFacts& gpu,
                                      const std::vector<std::string>& variants) {
  std::string why;
  std::optional<Problem> p = parse_product(problem, &why);
  if (!p) throw std::invalid_argument("not a problem: " + why);
  p->row_cuts = cuts;
  p->group_counts = groups;
  // Of one place each: variants remember what they searched by the device's address.
  static std::mutex mutex;
  static auto* const known = new std::list<std::pair<GpuFacts, Device>>;
  const std::lock_guard<std::mutex> lock(mutex);
  auto at = std::find_if(known->begin(), known->end(), [&](auto& k) { return k.first == gpu; });
  if (at == known->end()) at = known->insert(at, {gpu, describe_gpu(gpu)});
  std::vector<double> found;
  for (const std::string& name : variants) {
    const AnyVariant* v = find_variant(name);
    if (v == nullptr) throw std::invalid_argument("there is no variant " + name);
    if (&v->op() != &operator_of(*p))
      throw std::invalid_argument(name + " computes another operator");
    found.push_back(v->estimate_us(*p, at->second));
  }
  return found;
}

}  // namespace sparse_autotune
