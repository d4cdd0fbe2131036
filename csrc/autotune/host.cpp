#include "autotune/host.h"

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <mutex>
#include <new>
#include <utility>

namespace sparse_autotune {
namespace {

constexpr std::streamsize kMaxBundleBytes = std::streamsize{64} << 20;

// For processes without Python: an AOTInductor package, a C++ test.
class MemoryHost final : public Host {
 public:
  MemoryHost() {
    const char* verbose = std::getenv("SPARSE_AUTOTUNE_VERBOSE");
    quiet_ = verbose != nullptr && std::string_view(verbose) == "0";
    if (const char* path = std::getenv("SPARSE_AUTOTUNE_BUNDLE")) read_bundle(path);
  }

  std::optional<std::string> load(const std::string& device_class,
                                  const std::string& signature) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto it = records_.find({device_class, signature});
    if (it == records_.end()) return std::nullopt;
    return it->second;
  }

  void save(const std::string& device_class, const std::string& signature,
            const std::string& text) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    records_[{device_class, signature}] = text;
  }

  bool report(const Event& event) override {
    if (!quiet_) print(event);
    return true;
  }

  void reclaim(int) override {}

  void after_fork() override { new (&mutex_) std::mutex; }

 private:
  void say(const std::string& text) { report({.kind = Event::Kind::kWarning, .text = text}); }

  void read_bundle(const std::string& path) {
    std::ifstream file(path, std::ios::binary | std::ios::ate);
    if (!file || file.tellg() > kMaxBundleBytes) {
      say("SPARSE_AUTOTUNE_BUNDLE: " + path + " cannot be read, or exceeds 64 MiB");
      return;
    }
    file.seekg(0);
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    std::string why;
    for (std::string& one : split_bundle(text, &why)) {
      const auto record = parse_record(one, nullptr);
      records_[{record->device_class, record->signature}] = std::move(one);
    }
    if (!why.empty()) say("SPARSE_AUTOTUNE_BUNDLE: " + path + ": " + why);
  }

  bool quiet_ = false;
  std::mutex mutex_;
  std::map<std::pair<std::string, std::string>, std::string> records_;
};

// Never destroyed: threads may still tune while the process winds down.
struct State {
  std::mutex mutex;
  std::shared_ptr<MemoryHost> memory;
  std::shared_ptr<Host> current;
};
State& state() {
  static State* const s = new State;
  return *s;
}

}  // namespace

std::shared_ptr<Host> host() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  if (s.current != nullptr) return s.current;
  if (s.memory == nullptr) s.memory = std::make_shared<MemoryHost>();
  return s.memory;
}

void set_host(std::shared_ptr<Host> replacement) {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  s.current.swap(replacement);  // the old one is destroyed by `replacement`, after the lock
}

bool has_host() {
  State& s = state();
  const std::lock_guard<std::mutex> lock(s.mutex);
  return s.current != nullptr;
}

void print(const Event& event) {
  const auto say = [](const std::string& text) {
    std::fprintf(stderr, "sparse_autotune: %s\n", text.c_str());
  };
  switch (event.kind) {
    case Event::Kind::kStart:
      return say("tuning " + event.description + " on " + event.device);
    case Event::Kind::kProgress:
      return;
    case Event::Kind::kFinish:
      return say(event.record.winner.empty() ? "no winner: " + event.record.failure
                                             : "winner " + event.record.winner);
    case Event::Kind::kMissed:
      return say("missed " + event.signature);
    case Event::Kind::kWarning:
      return say(event.text);
  }
}

void host_after_fork() {
  State& s = state();
  new (&s.mutex) std::mutex;
  if (s.memory != nullptr) s.memory->after_fork();
  if (s.current != nullptr) s.current->after_fork();
}

}  // namespace sparse_autotune
