// A host that keeps records in memory, and notes what it is told.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autotune/host.h"
#include "autotune/known_races.h"

namespace sparse_autotune::test {

class MemoryHost final : public Host {
 public:
  std::optional<std::string> load(const std::string& device, const std::string& name) override {
    const auto it = saved.find({device, name});
    return it == saved.end() ? std::nullopt : std::optional(it->second);
  }
  void save(const std::string& device, const std::string& name, const std::string& text) override {
    saved[{device, name}] = text;
  }
  bool report(const Event& event) override {
    if (event.kind == Event::Kind::kStart && on_start) on_start();
    if (event.kind != Event::Kind::kProgress) events.push_back(event);
    return true;
  }
  void reclaim(int) override {}

  std::map<std::pair<std::string, std::string>, std::string> saved;  // by device and signature
  std::vector<Event> events;
  std::function<void()> on_start;
};

// A tuner that remembers nothing but what `host` does, a new one unless it is given.
inline std::shared_ptr<MemoryHost> begin(Mode mode = Mode::kOn,
                                         std::shared_ptr<MemoryHost> host = nullptr) {
  if (host == nullptr) host = std::make_shared<MemoryHost>();
  set_host(host);
  forget_records();
  Settings settings;
  settings.mode = mode;
  settings.budget_s = 0.2;
  set_settings(settings);
  return host;
}

}  // namespace sparse_autotune::test
