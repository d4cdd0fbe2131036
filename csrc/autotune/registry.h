// The list of everything that can race, and the one place that says what may.
#pragma once

#include <string_view>
#include <vector>

#include "variant.h"

namespace sparse_autotune {

// All variants that this build holds, sorted by name. Throws std::logic_error, naming both, when
// two share a name.
const std::vector<const Variant*>& all_variants();

// The variant of that full name, or null.
const Variant* find_variant(std::string_view name);

// Whether it comes with this library, not with one that was loaded beside it: with PyTorch's
// operators come variants that call PyTorch.
bool comes_with_core(const Variant& variant);

// The variants that `selector` means: a full name "family/config", or a family.
std::vector<const Variant*> select_variants(std::string_view selector, DeviceType device);

// Whether `selector` is meant for `op`: it selects variants that compute it, or none at all.
bool serves(std::string_view selector, Op op);

// Whether `variant` may run `problem` on `device`: its own supports() and what holds for all.
Support legal(const Variant& variant, const Problem& problem, const Device& device);

std::vector<const Variant*> legal_variants(const Problem& problem, const Device& device);

}  // namespace sparse_autotune
