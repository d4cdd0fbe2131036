// The list of everything that can race, and the one place that says what may.
#pragma once

#include <string_view>
#include <vector>

#include "exported.h"
#include "variant.h"

namespace sparse_autotune {

// All variants that this build holds, and those added since, sorted by name. What was returned
// stays as it is when one is added or removed. Throws std::logic_error, naming both, when
// two share a name.
const std::vector<const Variant*>& all_variants();

// Makes a variant known, which must live as long as the process, until it is removed: then its name
// is free again. Decisions made before are asked for anew. Throws std::invalid_argument if its name
// is taken, or its family by variants for another device or operation.
SPARSE_AUTOTUNE_API void add_variant(const Variant& variant);
SPARSE_AUTOTUNE_API void remove_variant(std::string_view name);

// The variant of that full name, or null.
const Variant* find_variant(std::string_view name);

// Whether it comes with this library, not with one that was loaded beside it: with PyTorch's
// operators come variants that call PyTorch. Those added while the process runs count as its own.
bool comes_with_core(const Variant& variant);

// The variants that `selector` means: a full name "family/config", or a family.
std::vector<const Variant*> select_variants(std::string_view selector, DeviceType device);

// Whether `selector` is meant for `op`: it selects variants that compute it, or none at all.
bool serves(std::string_view selector, Op op);

// Whether `variant` may run `problem` on `device`: its own supports() and what holds for all.
Support legal(const Variant& variant, const Problem& problem, const Device& device);

std::vector<const Variant*> legal_variants(const Problem& problem, const Device& device);

// Makes the lock usable in a forked child.
void registry_after_fork();

}  // namespace sparse_autotune
