#include "autotune/registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>

#include "autotune/signature.h"
#include "exported.h"

namespace sparse_autotune {

// The operator library registers variants, too.
SPARSE_AUTOTUNE_API const Registration*& Registration::head() noexcept {
  static const Registration* first = nullptr;
  return first;
}

namespace {

std::vector<const Variant*> sorted_from(const Registration* first) {
  std::vector<const Variant*> found;
  for (const auto* r = first; r != nullptr; r = r->next()) found.push_back(&r->variant());
  std::sort(found.begin(), found.end(),
            [](const Variant* a, const Variant* b) { return a->name() < b->name(); });
  for (size_t i = 1; i < found.size(); ++i) {
    if (found[i]->name() == found[i - 1]->name()) {
      throw std::logic_error("two variants are registered as " + std::string(found[i]->name()));
    }
  }
  return found;
}

}  // namespace

const std::vector<const Variant*>& all_variants() {
  struct Sorted {
    const Registration* first;
    std::vector<const Variant*> variants;
  };
  // Sorted anew where a library that was loaded since has brought more. Old lists stay in use.
  static std::atomic<const Sorted*> sorted{nullptr};
  const Registration* const first = Registration::first();
  const Sorted* known = sorted;
  if (known == nullptr || known->first != first) {
    known = new Sorted{first, sorted_from(first)};
    sorted = known;
  }
  return known->variants;
}

const Variant* find_variant(std::string_view name) {
  for (const Variant* v : all_variants()) {
    if (v->name() == name) return v;
  }
  return nullptr;
}

bool comes_with_core(const Variant& variant) {
  static const char in_this_library = 0;
  Dl_info ours{}, its{};
  return dladdr(&in_this_library, &ours) == 0 || dladdr(&variant, &its) == 0 ||
         ours.dli_fbase == its.dli_fbase;
}

std::vector<const Variant*> select_variants(std::string_view selector, DeviceType device) {
  std::vector<const Variant*> found;
  for (const Variant* v : all_variants()) {
    if (v->device() == device && (v->name() == selector || v->family() == selector)) {
      found.push_back(v);
    }
  }
  return found;
}

bool serves(std::string_view selector, Op op) {
  bool known = false;
  for (const Variant* v : all_variants()) {
    if (v->name() != selector && v->family() != selector) continue;
    if (v->op() == op) return true;
    known = true;
  }
  return !known;
}

Support legal(const Variant& variant, const Problem& problem, const Device& device) {
  if (variant.device() != problem.device) {
    return Support::no(problem.device == DeviceType::kCpu ? "runs on CUDA devices only"
                                                          : "runs on the CPU only");
  }
  if (variant.op() != problem.op) {
    return Support::no(std::string("computes ") + name_of(variant.op()) + ", not " +
                       name_of(problem.op));
  }
  if (!device.unavailable.empty()) return Support::no(device.unavailable);
  if (problem.deterministic && !variant.deterministic()) {
    return Support::no("not deterministic, and torch.use_deterministic_algorithms(True) is on");
  }
  if (problem.exact_nonfinite && variant.multiplies_padding()) {
    return Support::no("multiplies absent blocks, and settings.exact_nonfinite is on");
  }
  // A product without elements is never launched, and variants divide by sizes.
  Problem asked = problem;
  asked.m = std::max(asked.m, asked.block_m);
  asked.n = std::max<int64_t>(asked.n, 1);
  asked.k = std::max(asked.k, asked.block_k);
  asked.batch = std::max<int64_t>(asked.batch, 1);
  return variant.supports(asked, device);
}

std::vector<const Variant*> legal_variants(const Problem& problem, const Device& device) {
  std::vector<const Variant*> found;
  for (const Variant* v : all_variants()) {
    if (v->device() == problem.device && legal(*v, problem, device)) found.push_back(v);
  }
  return found;
}

}  // namespace sparse_autotune
