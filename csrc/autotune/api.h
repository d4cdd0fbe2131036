// What the core shows to its Python module.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autotune/build_info.h"
#include "autotune/device.h"
#include "autotune/host.h"
#include "autotune/record.h"
#include "autotune/settings.h"
#include "exported.h"
#include "variant.h"

namespace sparse_autotune::api {

struct VariantInfo {
  std::string name, family;
  DeviceType device;
  std::string op;  // its operator's name
  bool deterministic, multiplies_padding;
};
SPARSE_AUTOTUNE_API std::vector<VariantInfo> variants();

SPARSE_AUTOTUNE_API BuildInfo build();
// -1: the CPU with `threads` threads.
SPARSE_AUTOTUNE_API Device device(int ordinal, int threads);
SPARSE_AUTOTUNE_API std::string isa_name(CpuIsa isa);
SPARSE_AUTOTUNE_API std::string environment(int ordinal);
SPARSE_AUTOTUNE_API std::string class_of(const Device& device);
// Why it is not the text of a problem; empty: it is one.
SPARSE_AUTOTUNE_API std::string fault_of_problem(const std::string& text);

// The calls of a Host; those about records get device class and signature first.
struct HostFunctions {
  std::function<std::optional<std::string>(const std::string&, const std::string&)> load;
  std::function<bool(const std::string&, const std::string&)> may_race;
  std::function<void(const std::string&, const std::string&, const std::string&)> save;
  std::function<bool(const Event&)> report;
  std::function<void(int)> reclaim;
};
SPARSE_AUTOTUNE_API void install_host(HostFunctions functions);
// Back to memory and stderr.
SPARSE_AUTOTUNE_API void remove_host();

SPARSE_AUTOTUNE_API Settings get_settings();
SPARSE_AUTOTUNE_API void set_settings(const Settings& settings);

SPARSE_AUTOTUNE_API int64_t tuning_count();
SPARSE_AUTOTUNE_API std::vector<std::pair<std::string, std::string>> known_records();
SPARSE_AUTOTUNE_API std::vector<std::string> missed_signatures();
SPARSE_AUTOTUNE_API void forget_records();
SPARSE_AUTOTUNE_API std::optional<Record> parse(const std::string& text, std::string* why);
SPARSE_AUTOTUNE_API std::string text_of(const Record& record);
SPARSE_AUTOTUNE_API std::string outcome_name(Outcome outcome);
// Of that absolute path (see private_files.h): a descriptor to close, or minus an error's number.
SPARSE_AUTOTUNE_API int open_directory(const std::string& path, bool create);

// A vendor library that variants need.
struct LibraryInfo {
  std::string name;
  std::string version;      // empty when it is not there
  std::string unavailable;  // why its variants are off
};
SPARSE_AUTOTUNE_API std::vector<LibraryInfo> libraries();

struct Memory {
  int64_t plans, plan_bytes, frozen_bytes;
  int64_t pool_used, pool_reserved;  // of the device's private pool
};
SPARSE_AUTOTUNE_API Memory memory(int ordinal);
SPARSE_AUTOTUNE_API void drop_plan(const void* crow_indices, const void* col_indices);
// See PlanCache.
SPARSE_AUTOTUNE_API void own_indices(const void* crow_indices, const void* col_indices);
SPARSE_AUTOTUNE_API void disown_indices(const void* crow_indices, const void* col_indices);
SPARSE_AUTOTUNE_API void drop_frozen(const void* crow_indices, const void* col_indices,
                                     const void* values);

}  // namespace sparse_autotune::api
