#include "autotune/registry.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <utility>

#include "autotune/settings.h"
#include "autotune/signature.h"

namespace sparse_autotune {

const Registration*& Registration::head() noexcept {
  static const Registration* first = nullptr;
  return first;
}

namespace {

using Variants = std::vector<const Variant*>;

// Never freed: who reads a list may still do so when it has been replaced.
std::atomic<const Variants*>& current() {
  static std::atomic<const Variants*> list = [] {
    Variants found;
    for (const auto* r = Registration::first(); r != nullptr; r = r->next()) {
      found.push_back(&r->variant());
    }
    std::sort(found.begin(), found.end(),
              [](const Variant* a, const Variant* b) { return a->name() < b->name(); });
    for (size_t i = 1; i < found.size(); ++i) {
      if (found[i]->name() == found[i - 1]->name()) {
        throw std::logic_error("two variants are registered as " + std::string(found[i]->name()));
      }
    }
    return new Variants(std::move(found));
  }();
  return list;
}

// Of those who replace the list.
std::mutex& list_mutex() {
  static std::mutex* const mutex = new std::mutex;
  return *mutex;
}

}  // namespace

const std::vector<const Variant*>& all_variants() {
  return *current().load(std::memory_order_acquire);
}

void add_variant(const Variant& variant) {
  const std::lock_guard<std::mutex> lock(list_mutex());
  auto changed = std::make_unique<Variants>(all_variants());
  for (const Variant* v : *changed) {
    if (v->name() == variant.name()) {
      throw std::invalid_argument("a variant is named '" + std::string(v->name()) + "' already");
    }
    if (v->family() == variant.family() &&
        (v->device() != variant.device() || v->op() != variant.op())) {
      throw std::invalid_argument("the family '" + std::string(v->family()) +
                                  "' is for another device or operation");
    }
  }
  changed->insert(
      std::upper_bound(changed->begin(), changed->end(), &variant,
                       [](const Variant* a, const Variant* b) { return a->name() < b->name(); }),
      &variant);
  current().store(changed.release(), std::memory_order_release);
  outdate_decisions();
}

void remove_variant(std::string_view name) {
  const std::lock_guard<std::mutex> lock(list_mutex());
  auto changed = std::make_unique<Variants>(all_variants());
  std::erase_if(*changed, [&](const Variant* v) { return v->name() == name; });
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
