// Records in files, where Python's cache.py keeps them: one file an entry, written atomically, read
// without locks, <directory>/<device class>-<environment>/<signature>.txt. They are for their owner
// alone (see private_files.h).
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "autotune/host.h"

namespace sparse_autotune {

// $SPARSE_AUTOTUNE_CACHE_DIR, else $XDG_CACHE_HOME/sparse_autotune, else ~/.cache/sparse_autotune;
// empty where there is no home either.
std::filesystem::path default_cache_directory();

// What every record of a process depends on, as a short hash: the versions of package, PyTorch,
// kernels and, on a machine with a CUDA device, driver, runtime and libraries.
std::string environment_hash(std::string_view torch_version);

// All of the text or nothing, whatever kills the process; as readable as umask allows, because a
// bundle is made to be shared. Why it could not be; empty: it could.
std::string replace_file(const std::filesystem::path& file, std::string_view text);
// All of a file of at most `most` bytes, else nullopt and why.
std::optional<std::string> read_file(const std::filesystem::path& file, size_t most,
                                     std::string* why);

class RecordFiles final : public Host {
 public:
  // An empty directory keeps records in memory only. Warnings and a line a race go to stderr if
  // `verbose`.
  RecordFiles(std::filesystem::path directory, std::string_view torch_version, bool verbose);

  std::optional<std::string> load(const std::string& device_class,
                                  const std::string& signature) override;
  void save(const std::string& device_class, const std::string& signature,
            const std::string& text) override;
  bool report(const Event& event) override;
  void reclaim(int) override {}
  void after_fork() override;

  // The texts that lie in files of this environment, complete records alone.
  std::vector<std::string> texts() const;

 private:
  struct State {
    std::mutex mutex;
    std::string environment;
    std::map<std::filesystem::path, std::string> in_memory;  // what no file could take
    bool warned = false;
  };

  // Asked for on the first miss: it asks for the machine's GPU.
  std::string environment() const;
  std::filesystem::path file_of(const std::string& device_class, const std::string& signature,
                                const std::string& environment) const;
  void warn_of_directory(const std::string& why);

  const std::filesystem::path directory_;
  const std::string torch_version_;
  const bool verbose_;
  mutable State state_;
};

constexpr size_t kMaxBundleBytes = size_t{64} << 20;

// Whether a device class and a signature may be names of a folder and a file.
bool may_name_entry(std::string_view device_class, std::string_view signature);
// Whether it may be part of the name of such a folder: a hash as environment_hash() gives it.
bool may_name_environment(std::string_view environment);

}  // namespace sparse_autotune
