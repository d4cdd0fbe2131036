#include "autotune/record_files.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <new>
#include <sstream>
#include <system_error>

#include "autotune/api.h"
#include "autotune/device.h"
#include "autotune/private_files.h"
#include "autotune/sha256.h"

namespace sparse_autotune {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

fs::path home() {
  if (const std::string home = variable("HOME"); !home.empty()) return home;
  const passwd* user = getpwuid(getuid());
  return user == nullptr || user->pw_dir == nullptr ? "" : user->pw_dir;
}

std::string error_text(int number) { return std::system_category().message(number); }

bool is_missing(int error) { return error == ENOENT || error == ENOTDIR; }

// The line of a record that names its environment; empty where it has none.
std::string environment_in(std::string_view text) {
  constexpr std::string_view kKey = "\nenvironment ";
  const size_t at = text.find(kKey);
  if (at == std::string_view::npos) return "";
  const size_t begin = at + kKey.size();
  return std::string(text.substr(begin, text.find('\n', begin) - begin));
}

// The record with such a line, as bundles and Python's cache have it.
std::string naming(const std::string& text, const std::string& environment) {
  const size_t key = text.find("\ndevice_class ");
  const size_t end = key == std::string::npos ? key : text.find('\n', key + 1);
  if (end == std::string::npos) return text;
  return text.substr(0, end + 1) + "environment " + environment + text.substr(end);
}

bool is_record(const std::string& text, const std::string& device_class, const fs::path& file) {
  const auto record = parse_record(text, nullptr);
  return record && record->device_class == device_class && record->signature == file.stem();
}

}  // namespace

fs::path default_cache_directory() {
  if (const std::string named = variable("SPARSE_AUTOTUNE_CACHE_DIR"); !named.empty()) {
    return named.starts_with("~/") ? home() / named.substr(2) : fs::absolute(named);
  }
  const fs::path base = variable("XDG_CACHE_HOME");
  // The XDG specification ignores relative paths.
  if (base.is_absolute()) return base / "sparse_autotune";
  const fs::path root = home();
  return root.empty() ? root : root / ".cache" / "sparse_autotune";
}

std::string environment_hash(std::string_view torch_version) {
  std::string versions = std::string(api::build().version) + "\n" + std::string(torch_version);
  const bool on_gpu = cuda_device_count(nullptr) > 0;
  std::istringstream lines(api::environment(on_gpu ? 0 : -1));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("device ")) versions += "\n" + line;
  }
  // They race on GPUs alone, so a build with CUDA shares a CPU's entries with one without.
  if (on_gpu) {
    for (const api::LibraryInfo& library : api::libraries()) {
      versions += "\n" + library.name + " " + library.version;
    }
  }
  return sha256(versions).substr(0, 12);
}

std::string replace_file(const fs::path& file, std::string_view text) {
  const Descriptor folder = open_directory(file.parent_path(), false);
  const int error = replace_file_in(folder, file.filename(), text, 0666);
  return error == 0 ? "" : error_text(error) + ": " + file.string();
}

std::optional<std::string> read_file(const fs::path& file, size_t most, std::string* why) {
  const auto refuse = [&](std::string reason) -> std::optional<std::string> {
    *why = std::move(reason);
    return std::nullopt;
  };
  std::ifstream stream(file, std::ios::binary);
  if (!stream) return refuse(error_text(errno) + ": " + file.string());
  std::string text(most + 1, '\0');
  stream.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (stream.bad()) return refuse("reading failed: " + file.string());
  text.resize(static_cast<size_t>(stream.gcount()));
  if (text.size() > most) return refuse("it has more than " + std::to_string(most) + " bytes");
  return text;
}

bool may_name_entry(std::string_view device_class, std::string_view signature) {
  const auto fits = [](std::string_view name) {
    return !name.empty() && name.size() <= 200 && name.front() != '.' &&
           std::all_of(name.begin(), name.end(), [](char c) {
             return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                    c == '.' || c == '_' || c == '-';
           });
  };
  return fits(device_class) && fits(signature);
}

bool may_name_environment(std::string_view environment) {
  return environment.size() == 12 &&
         std::all_of(environment.begin(), environment.end(),
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

RecordFiles::RecordFiles(fs::path directory, std::string_view torch_version, bool verbose)
    : directory_(std::move(directory)), torch_version_(torch_version), verbose_(verbose) {}

std::string RecordFiles::environment() const {
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    if (!state_.environment.empty()) return state_.environment;
  }
  std::string found = environment_hash(torch_version_);
  const std::lock_guard<std::mutex> lock(state_.mutex);
  return state_.environment = std::move(found);
}

void RecordFiles::after_fork() {
  if (state_.mutex.try_lock()) {
    state_.mutex.unlock();
  } else {
    new (&state_) State;  // another thread was changing it: what it left stays behind
  }
}

fs::path RecordFiles::file_of(const std::string& device_class, const std::string& signature,
                              const std::string& environment) const {
  return directory_ / (device_class + "-" + environment) / (signature + ".txt");
}

std::optional<std::string> RecordFiles::load(const std::string& device_class,
                                             const std::string& signature) {
  const fs::path file = file_of(device_class, signature, environment());
  if (!directory_.empty()) {
    int error = 0;
    const Descriptor folder =
        open_below(open_directory(directory_, false), file.parent_path().filename(), false);
    if (auto text = read_file_in(folder, file.filename(), kMaxRecordBytes, &error)) return text;
    if (!is_missing(error)) {
      warn_of_directory("cannot be read: " + error_text(error) + ": " + file.string());
    }
  }
  const std::lock_guard<std::mutex> lock(state_.mutex);
  const auto it = state_.in_memory.find(file);
  return it == state_.in_memory.end() ? std::nullopt : std::optional(it->second);
}

void RecordFiles::save(const std::string& device_class, const std::string& signature,
                       const std::string& given) {
  const std::string named = environment_in(given);
  const std::string text = named.empty() ? naming(given, environment()) : given;
  const fs::path file = file_of(device_class, signature, named.empty() ? environment() : named);
  const auto put = [&] {
    const Descriptor folder =
        open_below(open_directory(directory_, true), file.parent_path().filename(), true);
    return replace_file_in(folder, file.filename(), text);
  };
  int error = ENOENT;
  if (!directory_.empty()) {
    error = put();
    if (error == ENOENT) error = put();  // somebody cleared the cache meanwhile
  }
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    if (error == 0) {
      state_.in_memory.erase(file);
    } else {
      state_.in_memory[file] = text;
    }
  }
  if (error != 0 && !directory_.empty()) {
    warn_of_directory("cannot be written: " + error_text(error) + ": " + file.string());
  }
}

void RecordFiles::warn_of_directory(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(state_.mutex);
    if (std::exchange(state_.warned, true)) return;
  }
  report({.kind = Event::Kind::kWarning,
          .text = "the cache directory " + directory_.string() + " " + why +
                  "; what it lacks is raced, and kept in memory only"});
}

bool RecordFiles::report(const Event& event) {
  if (verbose_) print(event);
  return true;
}

std::vector<std::string> RecordFiles::texts() const {
  std::vector<std::string> found;
  std::error_code failure;
  std::vector<fs::path> files;
  const std::string ending = "-" + environment();
  for (const auto& folder : fs::directory_iterator(directory_, failure)) {
    if (!folder.path().filename().string().ends_with(ending)) continue;
    for (const auto& file : fs::directory_iterator(folder.path(), failure)) {
      if (file.path().extension() == ".txt") files.push_back(file.path());
    }
  }
  std::sort(files.begin(), files.end());
  const Descriptor root = open_directory(directory_, false);
  for (const fs::path& file : files) {
    const std::string folder = file.parent_path().filename();
    int error = 0;
    auto text =
        read_file_in(open_below(root, folder, false), file.filename(), kMaxRecordBytes, &error);
    const std::string device_class = folder.substr(0, folder.size() - ending.size());
    if (text && is_record(*text, device_class, file)) found.push_back(*std::move(text));
  }
  const std::lock_guard<std::mutex> lock(state_.mutex);
  for (const auto& [file, text] : state_.in_memory) {
    if (file.parent_path().filename().string().ends_with(ending)) found.push_back(text);
  }
  return found;
}

}  // namespace sparse_autotune
