#include "autotune/registry.h"

#include <dlfcn.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "autotune/settings.h"
#include "exported.h"

namespace sparse_autotune {

// The operator library registers variants, too.
template <>
SPARSE_AUTOTUNE_API const Registration*& Registration::head() noexcept {
  static const Registration* first = nullptr;
  return first;
}

template <>
const OperatorRegistration*& OperatorRegistration::head() noexcept {
  static const OperatorRegistration* first = nullptr;
  return first;
}

namespace {

using Variants = std::vector<const AnyVariant*>;

struct List {
  const Registration* newest = nullptr;  // of those that are in it
  Variants variants;                     // sorted by name
};

// Never freed: who reads a list may still do so when it has been replaced.
std::atomic<const List*>& current() {
  static std::atomic<const List*> list{nullptr};
  return list;
}

// Of those who replace the list.
std::mutex& list_mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

// With what libraries brought that were loaded since it was last asked for; the mutex is held.
const List& up_to_date() {
  const List* const known = current().load(std::memory_order_acquire);
  const Registration* const newest = Registration::first();
  if (known != nullptr && known->newest == newest) return *known;
  auto changed = std::make_unique<List>(known != nullptr ? *known : List{});
  Variants& variants = changed->variants;
  for (const auto* r = newest; r != changed->newest; r = r->next()) {
    variants.push_back(&r->get());
  }
  changed->newest = newest;
  std::sort(variants.begin(), variants.end(),
            [](const AnyVariant* a, const AnyVariant* b) { return a->name() < b->name(); });
  for (size_t i = 1; i < variants.size(); ++i) {
    if (variants[i]->name() == variants[i - 1]->name()) {
      throw std::logic_error("two variants are registered as " + std::string(variants[i]->name()));
    }
  }
  const List* const list = changed.release();
  current().store(list, std::memory_order_release);
  if (known != nullptr) outdate_decisions();
  return *list;
}

}  // namespace

const std::vector<const AnyVariant*>& all_variants() {
  const List* const known = current().load(std::memory_order_acquire);
  if (known != nullptr && known->newest == Registration::first()) return known->variants;
  const std::lock_guard<std::mutex> lock(list_mutex());
  return up_to_date().variants;
}

void add_variant(const AnyVariant& variant) {
  const std::lock_guard<std::mutex> lock(list_mutex());
  auto changed = std::make_unique<List>(up_to_date());
  Variants& variants = changed->variants;
  for (const AnyVariant* v : variants) {
    if (v->name() == variant.name()) {
      throw std::invalid_argument("a variant is named '" + std::string(v->name()) + "' already");
    }
    if (v->family() == variant.family() &&
        (v->device() != variant.device() || &v->op() != &variant.op())) {
      throw std::invalid_argument("the family '" + std::string(v->family()) +
                                  "' is for another device or operation");
    }
  }
  variants.insert(std::upper_bound(variants.begin(), variants.end(), &variant,
                                   [](const AnyVariant* a, const AnyVariant* b) {
                                     return a->name() < b->name();
                                   }),
                  &variant);
  current().store(changed.release(), std::memory_order_release);
  outdate_decisions();
}

void remove_variant(std::string_view name) {
  const std::lock_guard<std::mutex> lock(list_mutex());
  auto changed = std::make_unique<List>(up_to_date());
  std::erase_if(changed->variants, [&](const AnyVariant* v) { return v->name() == name; });
  current().store(changed.release(), std::memory_order_release);
  outdate_decisions();
}

void registry_after_fork() { new (&list_mutex()) std::mutex; }

const Operator* find_operator(std::string_view name) {
  const Operator* found = nullptr;
  for (const auto* r = OperatorRegistration::first(); r != nullptr; r = r->next()) {
    if (r->get().name() != name) continue;
    if (found != nullptr) {
      throw std::logic_error("two operators are registered as " + std::string(name));
    }
    found = &r->get();
  }
  return found;
}

const AnyVariant* find_variant(std::string_view name) {
  for (const AnyVariant* v : all_variants()) {
    if (v->name() == name) return v;
  }
  return nullptr;
}

bool comes_with_core(const AnyVariant& variant) {
  static const char in_this_library = 0;
  Dl_info ours{}, its{};
  return dladdr(&in_this_library, &ours) == 0 || dladdr(&variant, &its) == 0 ||
         ours.dli_fbase == its.dli_fbase;
}

std::vector<const AnyVariant*> select_variants(std::string_view selector, DeviceType device) {
  std::vector<const AnyVariant*> found;
  for (const AnyVariant* v : all_variants()) {
    if (v->device() == device && (v->name() == selector || v->family() == selector)) {
      found.push_back(v);
    }
  }
  return found;
}

bool serves(std::string_view selector, const Operator& op) {
  bool known = false;
  for (const AnyVariant* v : all_variants()) {
    if (v->name() != selector && v->family() != selector) continue;
    if (&v->op() == &op) return true;
    known = true;
  }
  return !known;
}

Support legal(const AnyVariant& variant, AnyProblem problem, const Device& device) {
  const Operator& op = problem.op();
  const Asked asked = op.asked(problem);
  if (variant.device() != asked.device) {
    return Support::no(asked.device == DeviceType::kCpu ? "runs on CUDA devices only"
                                                        : "runs on the CPU only");
  }
  if (&variant.op() != &op) {
    return Support::no("computes " + std::string(variant.op().name()) + ", not " +
                       std::string(op.name()));
  }
  if (!device.unavailable.empty()) return Support::no(device.unavailable);
  if (asked.deterministic && !variant.deterministic()) {
    return Support::no("not deterministic, and torch.use_deterministic_algorithms(True) is on");
  }
  if (asked.exact_nonfinite && variant.multiplies_padding()) {
    return Support::no("multiplies absent blocks, and settings.exact_nonfinite is on");
  }
  return op.supported_by(variant, problem, device);
}

std::vector<const AnyVariant*> legal_variants(AnyProblem problem, const Device& device) {
  const DeviceType on = problem.op().asked(problem).device;
  std::vector<const AnyVariant*> found;
  for (const AnyVariant* v : all_variants()) {
    if (v->device() == on && legal(*v, problem, device)) found.push_back(v);
  }
  return found;
}

}  // namespace sparse_autotune
