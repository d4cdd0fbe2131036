// Files for their owner alone, reached through no link that another user could have planted.
//
// A cache may lie where others can write, in /tmp for instance. So every directory on the way is
// opened relative to the one before it: a link is followed only if it belongs to this user or to
// root, and below the cache directory none is followed at all.
#pragma once

#include <sys/types.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace sparse_autotune {

// An open file or directory, or the number of the error for which there is none.
class Descriptor {
 public:
  // What a call of the system's returned.
  static Descriptor of(int returned);
  static Descriptor failed(int error) { return Descriptor(-error); }
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  explicit operator bool() const { return number_ >= 0; }
  int get() const { return number_; }
  // What is the caller's to close now, or -error().
  int release() { return std::exchange(number_, -EBADF); }
  int error() const { return number_ < 0 ? -number_ : 0; }

 private:
  explicit Descriptor(int number) : number_(number) {}
  int number_;
};

// The directory of that absolute path; `create` makes what is missing, private. A link on the way
// is followed only if it belongs to this user or to root.
Descriptor open_directory(const std::filesystem::path& path, bool create);
// A directory in another, which is no link.
Descriptor open_below(const Descriptor& parent, const std::string& name, bool create);

// The content of a regular file that is no link, or nullopt and the number of the error: EFBIG
// where it has more than `most` bytes.
std::optional<std::string> read_file_in(const Descriptor& parent, const std::string& name,
                                        size_t most, int* error);
// All of the content or nothing, whatever kills the process. 0, or the number of the error.
int replace_file_in(const Descriptor& parent, const std::string& name, std::string_view content,
                    mode_t mode = 0600);

}  // namespace sparse_autotune
