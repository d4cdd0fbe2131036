// The list of everything that can race, and the one place that says what may.
#pragma once

#include <string_view>
#include <vector>

#include "exported.h"
#include "operator.h"
#include "variant.h"

namespace sparse_autotune {

// All variants that this build holds, and those added since, sorted by name. What was returned
// stays as it is when one is added or removed. Throws std::logic_error, naming both, when
// two share a name.
const std::vector<const AnyVariant*>& all_variants();

// Makes a variant known, which must live as long as the process, until it is removed: then its name
// is free again. Decisions made before are asked for anew. Throws std::invalid_argument if its name
// is taken, or its family by variants for another device or operator.
SPARSE_AUTOTUNE_API void add_variant(const AnyVariant& variant);
SPARSE_AUTOTUNE_API void remove_variant(std::string_view name);

// The variant of that full name, or null.
const AnyVariant* find_variant(std::string_view name);

// Whether it comes with this library, not with one that was loaded beside it: with PyTorch's
// operators come variants that call PyTorch. Those added while the process runs count as its own.
bool comes_with_core(const AnyVariant& variant);

// The variants that `selector` means: a full name "family/config", or a family.
std::vector<const AnyVariant*> select_variants(std::string_view selector, DeviceType device);

// Whether `selector` is meant for `op`: it selects variants that compute it, or none at all.
bool serves(std::string_view selector, const Operator& op);

// Whether `variant` may run `problem` on `device`: its own supports(), what its operator says, and
// what holds for all.
Support legal(const AnyVariant& variant, AnyProblem problem, const Device& device);

std::vector<const AnyVariant*> legal_variants(AnyProblem problem, const Device& device);

// The operator of that name, or null. Throws std::logic_error where two share it.
const Operator* find_operator(std::string_view name);

// Makes the lock usable in a forked child.
void registry_after_fork();

}  // namespace sparse_autotune
