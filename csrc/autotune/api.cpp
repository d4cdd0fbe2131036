#include "autotune/api.h"

#include <pthread.h>

#include <algorithm>
#include <memory>

#include "autotune/device.h"
#include "autotune/known_races.h"
#include "autotune/private_files.h"
#include "autotune/problem_text.h"
#include "autotune/registry.h"
#include "autotune/signature.h"
#include "autotune/tuner.h"
#include "plan/kept_memory.h"
#include "plan/memory_pool.h"
#include "plan/plan_cache.h"

#ifdef SPARSE_AUTOTUNE_WITH_CUDA
#include "libraries/cusparse.h"
#endif

namespace sparse_autotune::api {
namespace {

class FunctionHost final : public Host {
 public:
  explicit FunctionHost(HostFunctions functions) : functions_(std::move(functions)) {}
  std::optional<std::string> load(const std::string& device_class,
                                  const std::string& signature) override {
    return functions_.load(device_class, signature);
  }
  bool may_race(const std::string& device_class, const std::string& signature) override {
    return functions_.may_race(device_class, signature);
  }
  void save(const std::string& device_class, const std::string& signature,
            const std::string& text) override {
    functions_.save(device_class, signature, text);
  }
  bool report(const Event& event) override { return functions_.report(event); }
  void reclaim(int ordinal) override { functions_.reclaim(ordinal); }

 private:
  HostFunctions functions_;
};

// A forked child has one thread, and locks as the parent's other threads left them.
void renew_locks() {
  host_after_fork();
  registry_after_fork();
  tuner_after_fork();
}
void after_fork_in_child() {
  renew_locks();
  PlanCache::instance().after_fork();
}
// What the handler uses is made before there are threads: where one makes it while another forks,
// the child waits for the thread that it does not have.
[[maybe_unused]] const int registered =
    (renew_locks(), PlanCache::instance(), pthread_atfork(nullptr, nullptr, after_fork_in_child));

}  // namespace

std::vector<VariantInfo> variants() {
  std::vector<VariantInfo> found;
  for (const AnyVariant* v : all_variants()) {
    found.push_back({std::string(v->name()), std::string(v->family()), v->device(),
                     std::string(v->op().name()), v->deterministic(), v->multiplies_padding()});
  }
  return found;
}

BuildInfo build() { return build_info(); }

Device device(int ordinal, int threads) {
  return ordinal < 0 ? cpu_device(threads) : cuda_device(ordinal);
}

std::string isa_name(CpuIsa isa) { return name_of(isa); }

std::vector<LibraryInfo> libraries() {
#ifdef SPARSE_AUTOTUNE_WITH_CUDA
  const CuSparse& found = cusparse();
  const std::string version = found.version == 0 ? "" : version_name(found.version);
  return {{"cusparse", version, found.unavailable}};
#else
  return {};
#endif
}

std::string class_of(const Device& device) { return device_class(device); }

std::string fault_of_problem(const std::string& text) {
  std::string why;
  parse_problem(text, &why);
  return why;
}

std::string environment(int ordinal) { return sparse_autotune::environment(device(ordinal, 1)); }

void install_host(HostFunctions functions) {
  set_reclaim([](int ordinal) { host()->reclaim(ordinal); });
  set_host(std::make_shared<FunctionHost>(std::move(functions)));
}
void remove_host() { set_host(nullptr); }

Settings get_settings() { return settings(); }
void set_settings(const Settings& settings) {
  sparse_autotune::set_settings(settings);
  PlanCache::instance().set_byte_bound(settings.plan_bytes);
}

int64_t tuning_count() { return sparse_autotune::tuning_count(); }
std::vector<std::pair<std::string, std::string>> known_records() {
  return sparse_autotune::known_records();
}
std::vector<std::string> missed_signatures() { return sparse_autotune::missed_signatures(); }
void forget_records() { sparse_autotune::forget_records(); }
std::optional<Record> parse(const std::string& text, std::string* why) {
  return parse_record(text, why);
}
std::string text_of(const Record& record) { return to_text(record); }
std::string outcome_name(Outcome outcome) { return name_of(outcome); }

int open_directory(const std::string& path, bool create) {
  return sparse_autotune::open_directory(path, create).release();
}

Memory memory(int ordinal) {
  const PlanCache::Use use = PlanCache::instance().use();
  const PoolUse pool = ordinal < 0 ? PoolUse{} : pool_use(ordinal);
  return {use.plans, use.bytes, frozen_bytes(), pool.used, pool.reserved};
}

void drop_plan(const void* crow_indices, const void* col_indices) {
  PlanCache::instance().drop(crow_indices, col_indices);
}
void own_indices(const void* crow_indices, const void* col_indices) {
  PlanCache::instance().own(crow_indices, col_indices);
}
void disown_indices(const void* crow_indices, const void* col_indices) {
  PlanCache::instance().disown(crow_indices, col_indices);
}
void drop_frozen(const void* crow_indices, const void* col_indices, const void* values) {
  PlanCache::instance().drop_copies(crow_indices, col_indices, values);
}

}  // namespace sparse_autotune::api
