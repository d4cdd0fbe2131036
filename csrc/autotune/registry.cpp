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
#include "autotune/signature.h"
#include "exported.h"

namespace sparse_autotune {

// The operator library registers variants, too.
SPARSE_AUTOTUNE_API const Registration*& Registration::head() noexcept {
  static const Registration* first = nullptr;
  return first;
}

namespace {

using Variants = std::vector<const Variant*>;

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
    variants.push_back(&r->variant());
  }
  changed->newest = newest;
  std::sort(variants.begin(), variants.end(),
            [](const Variant* a, const Variant* b) { return a->name() < b->name(); });
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

const std::vector<const Variant*>& all_variants() {
  const List* const known = current().load(std::memory_order_acquire);
  if (known != nullptr && known->newest == Registration::first()) return known->variants;
  const std::lock_guard<std::mutex> lock(list_mutex());
  return up_to_date().variants;
}

void add_variant(const Variant& variant) {
  const std::lock_guard<std::mutex> lock(list_mutex());
  auto changed = std::make_unique<List>(up_to_date());
  Variants& variants = changed->variants;
  for (const Variant* v : variants) {
    if (v->name() == variant.name()) {
      throw std::invalid_argument("a variant is named '" + std::string(v->name()) + "' already");
    }
    if (v->family() == variant.family() &&
        (v->device() != variant.device() || v->op() != variant.op())) {
      throw std::invalid_argument("the family '" + std::string(v->family()) +
                                  "' is for another device or operation");
    }
  }
  variants.insert(
      std::upper_bound(variants.begin(), variants.end(), &variant,
                       [](const Variant* a, const Variant* b) { return a->name() < b->name(); }),
      &variant);
  current().store(changed.release(), std::memory_order_release);
  outdate_decisions();
}

void remove_variant(std::string_view name) {
  const std::lock_guard<std::mutex> lock(list_mutex());
  auto changed = std::make_unique<List>(up_to_date());
  std::erase_if(changed->variants, [&](const Variant* v) { return v->name() == name; });
  current().store(changed.release(), std::memory_order_release);
  outdate_decisions();
}

void registry_after_fork() { new (&list_mutex()) std::mutex; }

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
