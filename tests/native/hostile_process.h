// Calls that are no products: settings, contexts, bundles.
#pragma once

#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "checks.h"
#include "hostile.h"
#include "hostile_calls.h"

namespace fuzz {

inline void set_settings(Random& random, bool races, const std::string& folder) {
  auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
  settings.mode = races ? SPARSE_AUTOTUNE_ON : static_cast<int32_t>(1 + random() % 3);
  settings.budget_s = 1e-4;
  settings.exact_nonfinite = one_in(random, 4);
  settings.frozen_bytes = pick(random, {0, 1, 5000});
  settings.plan_bytes = pick(random, {0, 1, 5000});
  const std::string cache = one_in(random, 2) ? "" : folder + "/cache";
  settings.cache_directory = cache.c_str();
  expect(sparse_autotune_set_settings(&settings) == SPARSE_AUTOTUNE_OK, "settings are refused");
}

// A bundle of what is known, and the same with some bytes changed.
inline void exchange_bundles(Random& random, Calls& calls, const std::string& folder) {
  const std::string path = folder + "/bundle" + std::to_string(random());
  int64_t entries = -1;
  if (!calls.is_ok(sparse_autotune_bundle_export(path.c_str(), &entries)))
    fail("no bundle is written");
  std::ifstream written(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(written), {}};
  if (text.empty()) text = "sparse_autotune_race 1\n";
  for (uint64_t i = random() % 6; i > 0; --i) {
    const size_t where = random() % text.size();
    switch (random() % 3) {
      case 0:
        text[where] = static_cast<char>(random());
        break;
      case 1:
        text.erase(where, random() % 40);
        break;
      default:
        text.insert(where, text.substr(random() % text.size(), random() % 200));
    }
    if (text.empty()) break;
  }
  std::ofstream(path, std::ios::binary) << text;
  calls.is_ok(sparse_autotune_bundle_load(path.c_str(), &entries));
  calls.is_ok(sparse_autotune_bundle_load(hostile_text(random), nullptr));
  std::filesystem::remove(path);
}

inline void make_other_calls(Random& random, Calls& calls, const std::string& folder,
                             sparse_autotune_context* context) {
  auto options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
  options.device_type = hostile_flag(random);
  options.ordinal = hostile_flag(random);
  options.threads = one_in(random, 2) ? 0 : hostile_flag(random);
  if (one_in(random, 4)) options.struct_size = random() % 5000;
  sparse_autotune_context* made = nullptr;
  if (calls.is_ok(sparse_autotune_context_create(Given(options), &made))) {
    auto info = SPARSE_AUTOTUNE_INIT(sparse_autotune_device_info);
    expect(calls.is_ok(sparse_autotune_context_device(made, &info)), "a context has no device");
  }
  sparse_autotune_context_destroy(made);
  auto settings = SPARSE_AUTOTUNE_INIT(sparse_autotune_settings);
  settings.mode = 4 + static_cast<int32_t>(random() % 1000);  // refused: the group keeps its own
  settings.budget_s = one_in(random, 2) ? NAN : -INFINITY;
  settings.plan_bytes = hostile(random, 0);
  settings.variant = hostile_text(random);
  expect(!calls.is_ok(sparse_autotune_set_settings(&settings)), "hostile settings are taken");
  expect(!calls.is_ok(sparse_autotune_pattern_create(context, nullptr, nullptr)), "null is taken");
  exchange_bundles(random, calls, folder);
}

}  // namespace fuzz
