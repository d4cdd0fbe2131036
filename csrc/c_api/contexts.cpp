// Contexts, and the settings of the process.
#include <cmath>
#include <memory>
#include <mutex>
#include <optional>

#include "autotune/api.h"
#include "autotune/build_info.h"
#include "autotune/device.h"
#include "autotune/record_files.h"
#include "autotune/registry.h"
#include "autotune/signature.h"
#include "c_api/handles.h"
#include "c_api/record_store.h"
#include "c_api/status.h"
#include "c_api/thread_pool.h"

namespace sparse_autotune {
namespace {

constexpr int kMostThreads = 1024;

void require_switch(int32_t value, const char* argument) {
  require(value == 0 || value == 1, argument, "must be 0 or 1", value);
}

int64_t bound_of(int64_t bytes, const char* argument, int64_t fallback) {
  require(bytes >= 0, argument, "must not be negative", bytes);
  return bytes == 0 ? fallback : bytes;
}

Settings settings_of(const sparse_autotune_settings& s) {
  Settings out;
  require(s.mode >= SPARSE_AUTOTUNE_ON && s.mode <= SPARSE_AUTOTUNE_RECORD, "settings.mode",
          "must be one of SPARSE_AUTOTUNE_ON to SPARSE_AUTOTUNE_RECORD", s.mode);
  require_switch(s.verbosity, "settings.verbosity");
  require(std::isfinite(s.budget_s) && s.budget_s >= 0, "settings.budget_s",
          "must be a finite number of seconds, not negative", s.budget_s);
  require_switch(s.exact_nonfinite, "settings.exact_nonfinite");
  require_switch(s.warm, "settings.warm");
  out.mode = static_cast<Mode>(s.mode);
  if (s.budget_s > 0) out.budget_s = s.budget_s;
  out.plan_bytes = bound_of(s.plan_bytes, "settings.plan_bytes", out.plan_bytes);
  out.frozen_bytes = bound_of(s.frozen_bytes, "settings.frozen_bytes", out.frozen_bytes);
  out.tuning_bytes = bound_of(s.tuning_bytes, "settings.tuning_bytes", out.tuning_bytes);
  out.exact_nonfinite = s.exact_nonfinite == 1;
  out.timing = s.warm == 1 ? Timing::kWarm : Timing::kCold;
  if (s.variant != nullptr && *s.variant != '\0') {
    out.variant = s.variant;
    if (select_variants(out.variant, DeviceType::kCpu).empty() &&
        select_variants(out.variant, DeviceType::kCuda).empty()) {
      break_rule("settings.variant",
                 "must be a variant or a family of this build, got '" + out.variant + "'");
    }
  }
  return out;
}

const Device& device_of(const sparse_autotune_context_options& o) {
  require(o.device_type == SPARSE_AUTOTUNE_CPU || o.device_type == SPARSE_AUTOTUNE_CUDA,
          "options.device_type", "must be SPARSE_AUTOTUNE_CPU or SPARSE_AUTOTUNE_CUDA",
          o.device_type);
  require(o.ordinal >= 0 && o.ordinal < 1024, "options.ordinal", "must be 0 to 1023", o.ordinal);
  require(o.threads >= 0 && o.threads <= kMostThreads, "options.threads", "must be 0 to 1024",
          o.threads);
  if (o.device_type == SPARSE_AUTOTUNE_CPU) {
    return cpu_device(o.threads == 0 ? std::min(usable_threads(), kMostThreads) : o.threads);
  }
  const Device& device = cuda_device(o.ordinal);
  if (!device.unavailable.empty()) {
    throw Broken(SPARSE_AUTOTUNE_NO_DEVICE, "options.ordinal " + std::to_string(o.ordinal) +
                                                " is not usable: " + device.unavailable);
  }
  return device;
}

}  // namespace
}  // namespace sparse_autotune

using namespace sparse_autotune;

sparse_autotune_status sparse_autotune_set_settings(const sparse_autotune_settings* given) {
  return guarded_call([&] {
    const auto s = read_struct(given, "settings");
    const Settings checked_settings = settings_of(s);
    RecordStore::instance().configure(
        s.cache_directory == nullptr ? std::nullopt : std::optional<std::string>(s.cache_directory),
        s.torch_version == nullptr ? std::nullopt : std::optional<std::string>(s.torch_version),
        s.verbosity == 1);
    api::set_settings(checked_settings);
  });
}

sparse_autotune_status sparse_autotune_context_create(const sparse_autotune_context_options* given,
                                                      sparse_autotune_context** context) {
  return guarded_call([&] {
    checked(context, "context");
    const sparse_autotune_context_options defaults = {sizeof(defaults), SPARSE_AUTOTUNE_CPU, 0, 0};
    const auto options = read_struct(given == nullptr ? &defaults : given, "options");
    const Device& device = device_of(options);
    RecordStore::instance().ensure_host();
    *context = new sparse_autotune_context{&device, device.threads, device_class(device)};
  });
}

void sparse_autotune_context_destroy(sparse_autotune_context* context) { delete context; }

sparse_autotune_status sparse_autotune_context_device(const sparse_autotune_context* context,
                                                      sparse_autotune_device_info* info) {
  return guarded_call([&] {
    const auto& c = checked(context, "context");
    const Device& d = *c.device;
    const bool cpu = d.type == DeviceType::kCpu;
    const sparse_autotune_device_info filled = {
        sizeof(filled),
        cpu ? SPARSE_AUTOTUNE_CPU : SPARSE_AUTOTUNE_CUDA,
        cpu ? 0 : d.ordinal,
        cpu ? d.threads : 0,
        d.compute_capability,
        d.multiprocessors,
        0,
        d.memory_bytes,
        d.name.c_str(),
        c.device_class.c_str(),
    };
    write_struct(filled, info, "info");
  });
}

int64_t sparse_autotune_tuning_count(void) { return api::tuning_count(); }
