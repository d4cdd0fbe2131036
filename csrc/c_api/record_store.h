// Where the records of C programs are kept.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "autotune/record_files.h"

namespace sparse_autotune {

class RecordStore {
 public:
  static RecordStore& instance();

  // Null: the default. Takes effect at once where the records are ours to keep.
  void configure(std::optional<std::string> directory, std::optional<std::string> torch_version,
                 bool verbose);
  // Keeps records in files from now on, unless somebody (Python) keeps them already.
  void ensure_host();

  // See Python's cache.export() and cache.load(); they return how many records there were.
  int64_t export_bundle(const std::string& path);
  int64_t load_bundle(const std::string& path);

  std::mutex& mutex() { return mutex_; }

 private:
  // With the mutex held; then the records of before are to be forgotten, without it.
  void install();

  std::mutex mutex_;
  std::optional<std::string> directory_, torch_version_;
  bool verbose_ = false;
  std::shared_ptr<RecordFiles> ours_;  // null: there was no need yet
};

}  // namespace sparse_autotune
