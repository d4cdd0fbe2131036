#include "c_api/record_store.h"

#include <vector>

#include "autotune/build_info.h"
#include "autotune/held_by_fork.h"
#include "autotune/known_races.h"
#include "c_api/status.h"

namespace sparse_autotune {
namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail(const std::string& what) {
  throw Broken(SPARSE_AUTOTUNE_IO, "path: " + what);
}

}  // namespace

RecordStore& RecordStore::instance() {
  static auto* const store = new RecordStore;  // used while the process winds down
  return *store;
}

namespace {

std::mutex& store_mutex() { return RecordStore::instance().mutex(); }
[[maybe_unused]] const int held = held_by_fork<store_mutex>();

}  // namespace

void RecordStore::install() {
  fs::path directory = default_cache_directory();
  if (directory_) directory = directory_->empty() ? fs::path() : fs::absolute(*directory_);
  ours_ = std::make_shared<RecordFiles>(
      directory, torch_version_.value_or(build_info().built_with_torch), verbose_);
  set_host(ours_);
}

void RecordStore::configure(std::optional<std::string> directory,
                            std::optional<std::string> torch_version, bool verbose) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool same =
        directory == directory_ && torch_version == torch_version_ && verbose == verbose_;
    directory_ = std::move(directory);
    torch_version_ = std::move(torch_version);
    verbose_ = verbose;
    const bool in_force = ours_ != nullptr && host() == ours_;
    if (in_force ? same : has_host()) return;
    install();
  }
  forget_records();  // what another directory remembered
}

void RecordStore::ensure_host() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (has_host()) return;
    install();
  }
  forget_records();
}

int64_t RecordStore::export_bundle(const std::string& path) {
  ensure_host();
  std::shared_ptr<RecordFiles> ours;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    ours = ours_;
  }
  std::vector<std::string> texts;
  if (ours != nullptr && host() == ours) texts = ours->texts();
  if (texts.empty()) {  // they are kept by somebody else, or in memory
    for (auto& [device_class, text] : known_records()) texts.push_back(std::move(text));
  }
  std::string bundle;
  for (const std::string& text : texts) bundle += text;
  if (bundle.size() > kMaxBundleBytes) {
    fail("a bundle may have " + std::to_string(kMaxBundleBytes) + " bytes; the records have " +
         std::to_string(bundle.size()));
  }
  const std::string why = replace_file(fs::absolute(path), bundle);
  if (!why.empty()) fail("cannot be written: " + why);
  return static_cast<int64_t>(texts.size());
}

int64_t RecordStore::load_bundle(const std::string& path) {
  ensure_host();
  std::string why;
  const auto bundle = read_file(path, kMaxBundleBytes, &why);
  if (!bundle) fail("cannot be read: " + why);
  const std::vector<std::string> texts = split_bundle(*bundle, &why);
  if (!why.empty()) fail(path + " is not a bundle: " + why);
  std::vector<Record> records;
  for (const std::string& text : texts) {
    records.push_back(*parse_record(text, nullptr));
    const Record& r = records.back();
    if (!may_name_entry(r.device_class, r.signature) ||
        (!r.environment.empty() && !may_name_environment(r.environment))) {
      fail(path + " is not a bundle: a record's environment, device class and signature, '" +
           r.environment + "', '" + r.device_class + "' and '" + r.signature +
           "', cannot be the names of an entry");
    }
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    host()->save(records[i].device_class, records[i].signature, texts[i]);
  }
  forget_records();
  return static_cast<int64_t>(texts.size());
}

}  // namespace sparse_autotune

using namespace sparse_autotune;

sparse_autotune_status sparse_autotune_bundle_export(const char* path, int64_t* entries) {
  return guarded_call([&] {
    const int64_t count = RecordStore::instance().export_bundle(&checked(path, "path"));
    if (entries != nullptr) *entries = count;
  });
}

sparse_autotune_status sparse_autotune_bundle_load(const char* path, int64_t* entries) {
  return guarded_call([&] {
    const int64_t count = RecordStore::instance().load_bundle(&checked(path, "path"));
    if (entries != nullptr) *entries = count;
  });
}
