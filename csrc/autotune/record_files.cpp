#include "autotune/record_files.h"

#include <fcntl.h>
#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <sstream>
#include <system_error>

#include "autotune/api.h"
#include "autotune/device.h"
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

// Writes and closes; 0, or the number of the error.
int write_all(int file, std::string_view text) {
  int error = 0;
  while (!text.empty() && error == 0) {
    const ssize_t written = write(file, text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    if (written < 0 && errno != EINTR) error = errno;
  }
  return close(file) == 0 || error != 0 ? error : errno;
}

// What fails here fails again, with a reason, when a file is written there.
void make_private(const fs::path& folder) {
  std::error_code error;
  if (fs::create_directories(folder, error)) {
    fs::permissions(folder, fs::perms::owner_all, error);
  }
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
  std::istringstream lines(api::environment(cuda_device_count(nullptr) > 0 ? 0 : -1));
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with("device ")) versions += "\n" + line;
  }
  for (const api::LibraryInfo& library : api::libraries()) {
    versions += "\n" + library.name + " " + library.version;
  }
  return sha256(versions).substr(0, 12);
}

std::string replace_file(const fs::path& file, std::string_view text) {
  static std::atomic<uint64_t> serial{0};
  const std::string unique = std::to_string(getpid()) + "." + std::to_string(serial++) + "." +
                             std::to_string(std::random_device{}());
  const fs::path temporary = file.parent_path() / ("." + unique + ".tmp");
  const int to = open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  int error = to < 0 ? errno : write_all(to, text);
  if (error == 0 && rename(temporary.c_str(), file.c_str()) != 0) error = errno;
  if (error != 0 && to >= 0) unlink(temporary.c_str());
  return error == 0 ? "" : error_text(error) + ": " + file.string();
}

std::optional<std::string> read_file(const fs::path& file, size_t most, std::string* why) {
  const auto refuse = [&](std::string reason) -> std::optional<std::string> {
    if (why != nullptr) *why = std::move(reason);
    return std::nullopt;
  };
  const int from = open(file.c_str(), O_RDONLY | O_CLOEXEC);
  if (from < 0) return refuse(error_text(errno) + ": " + file.string());
  std::string text;
  char part[1 << 14];
  ssize_t got = 1;
  while (got > 0 && text.size() <= most) {
    got = ::read(from, part, sizeof(part));
    if (got > 0) text.append(part, static_cast<size_t>(got));
    if (got < 0 && errno == EINTR) got = 1;
  }
  const int error = got < 0 ? errno : 0;
  close(from);
  if (error != 0) return refuse(error_text(error) + ": " + file.string());
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

RecordFiles::RecordFiles(fs::path directory, std::string_view torch_version, bool verbose)
    : directory_(std::move(directory)), torch_version_(torch_version), verbose_(verbose) {}

const std::string& RecordFiles::environment() const {
  std::call_once(environment_known_, [&] { environment_ = environment_hash(torch_version_); });
  return environment_;
}

fs::path RecordFiles::file_of(const std::string& device_class, const std::string& signature) const {
  return directory_ / (device_class + "-" + environment()) / (signature + ".txt");
}

std::optional<std::string> RecordFiles::load(const std::string& device_class,
                                             const std::string& signature) {
  const fs::path file = file_of(device_class, signature);
  if (!directory_.empty()) {
    std::string why;
    if (auto text = read_file(file, kMaxRecordBytes, &why)) return text;
    std::error_code error;
    if (fs::exists(file, error) || error) warn_of_directory("cannot be read: " + why);
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = in_memory_.find(file);
  return it == in_memory_.end() ? std::nullopt : std::optional(it->second);
}

void RecordFiles::save(const std::string& device_class, const std::string& signature,
                       const std::string& text) {
  const fs::path file = file_of(device_class, signature);
  std::string why = "there is no home directory";
  if (!directory_.empty()) {
    make_private(file.parent_path());
    why = replace_file(file, text);
    if (!why.empty()) {  // somebody may have cleared the cache meanwhile
      make_private(file.parent_path());
      why = replace_file(file, text);
    }
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (why.empty()) {
      in_memory_.erase(file);
    } else {
      in_memory_[file] = text;
    }
  }
  if (!why.empty() && !directory_.empty()) warn_of_directory("cannot be written: " + why);
}

void RecordFiles::warn_of_directory(const std::string& why) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::exchange(warned_, true)) return;
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
  std::error_code error;
  std::vector<fs::path> files;
  const std::string ending = "-" + environment();
  for (const auto& folder : fs::directory_iterator(directory_, error)) {
    if (!folder.path().filename().string().ends_with(ending)) continue;
    for (const auto& file : fs::directory_iterator(folder.path(), error)) {
      if (file.path().extension() == ".txt") files.push_back(file.path());
    }
  }
  std::sort(files.begin(), files.end());
  for (const fs::path& file : files) {
    std::string device_class = file.parent_path().filename();
    device_class.resize(device_class.size() - ending.size());
    auto text = read_file(file, kMaxRecordBytes, nullptr);
    if (text && is_record(*text, device_class, file)) found.push_back(*std::move(text));
  }
  const std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [file, text] : in_memory_) found.push_back(text);
  return found;
}

}  // namespace sparse_autotune
