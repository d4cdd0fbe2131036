#include "autotune/private_files.h"

#include <fcntl.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <random>
#include <utility>
#include <vector>

namespace sparse_autotune {
namespace {

namespace fs = std::filesystem;

constexpr mode_t kDirectoryMode = 0700;
// Of links to follow and directories to make on the way to one directory.
constexpr int kMostSteps = 200;

Descriptor root() { return Descriptor::of(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC)); }

// The parts of a path, the next one last.
void add_parts(const fs::path& path, std::vector<std::string>* ahead) {
  const fs::path below = path.relative_path();
  const std::vector<fs::path> parts(below.begin(), below.end());
  for (auto it = parts.rbegin(); it != parts.rend(); ++it) {
    if (!it->empty()) ahead->push_back(it->string());
  }
}

// Where a link leads that may be followed; nullopt, and the number of the error.
std::optional<fs::path> target_of(const Descriptor& link, const struct stat& facts, int* error) {
  *error = EPERM;
  if (facts.st_uid != 0 && facts.st_uid != geteuid()) return std::nullopt;
  char target[PATH_MAX];
  const ssize_t length = readlinkat(link.get(), "", target, sizeof(target));
  *error = length < 0 ? errno : ENAMETOOLONG;
  if (length < 0 || length == sizeof(target)) return std::nullopt;
  return fs::path(std::string(target, static_cast<size_t>(length)));
}

Descriptor walk(const fs::path& path, bool create) {
  Descriptor here = root();
  std::vector<std::string> ahead;
  add_parts(path, &ahead);
  for (int step = 0; step < kMostSteps && here; ++step) {
    if (ahead.empty()) return here;
    const char* const name = ahead.back().c_str();
    Descriptor there = Descriptor::of(openat(here.get(), name, O_PATH | O_NOFOLLOW | O_CLOEXEC));
    if (!there) {
      if (there.error() != ENOENT || !create) return there;
      if (mkdirat(here.get(), name, kDirectoryMode) != 0 && errno != EEXIST) {
        return Descriptor::failed(errno);
      }
      continue;
    }
    ahead.pop_back();
    struct stat facts {};
    if (fstat(there.get(), &facts) != 0) return Descriptor::failed(errno);
    if (S_ISLNK(facts.st_mode)) {
      int error = 0;
      const auto target = target_of(there, facts, &error);
      if (!target) return Descriptor::failed(error);
      add_parts(*target, &ahead);
      if (!target->is_absolute()) continue;
      there = root();
    }
    here = std::move(there);
  }
  return here ? Descriptor::failed(ELOOP) : std::move(here);
}

// 0, or the number of the error.
int write_all(const Descriptor& file, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(file.get(), text.data(), text.size());
    if (written > 0) text.remove_prefix(static_cast<size_t>(written));
    if (written < 0 && errno != EINTR) return errno;
  }
  return 0;
}

}  // namespace

Descriptor Descriptor::of(int returned) { return Descriptor(returned < 0 ? -errno : returned); }

Descriptor::~Descriptor() {
  if (number_ >= 0) close(number_);
}

Descriptor::Descriptor(Descriptor&& other) noexcept
    : number_(std::exchange(other.number_, -EBADF)) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  std::swap(number_, other.number_);
  return *this;
}

Descriptor open_directory(const fs::path& path, bool create) {
  const Descriptor found = walk(path, create);
  if (!found) return Descriptor::failed(found.error());
  return Descriptor::of(openat(found.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
}

Descriptor open_below(const Descriptor& parent, const std::string& name, bool create) {
  if (!parent) return Descriptor::failed(parent.error());
  if (create && mkdirat(parent.get(), name.c_str(), kDirectoryMode) != 0 && errno != EEXIST) {
    return Descriptor::failed(errno);
  }
  return Descriptor::of(
      openat(parent.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
}

std::optional<std::string> read_file_in(const Descriptor& parent, const std::string& name,
                                        size_t most, int* error) {
  *error = parent.error();
  if (!parent) return std::nullopt;
  // Without O_NONBLOCK a pipe of that name would wait for somebody to write.
  const Descriptor file = Descriptor::of(
      openat(parent.get(), name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat facts {};
  *error = !file ? file.error() : fstat(file.get(), &facts) != 0 ? errno : 0;
  if (*error == 0 && !S_ISREG(facts.st_mode)) *error = EINVAL;
  if (*error != 0) return std::nullopt;
  std::string text;
  char part[1 << 14];
  while (text.size() <= most) {
    const ssize_t got = read(file.get(), part, sizeof(part));
    if (got == 0) return text;
    if (got > 0) text.append(part, static_cast<size_t>(got));
    if (got < 0 && errno != EINTR) {
      *error = errno;
      return std::nullopt;
    }
  }
  *error = EFBIG;
  return std::nullopt;
}

int replace_file_in(const Descriptor& parent, const std::string& name, std::string_view content,
                    mode_t mode) {
  if (!parent) return parent.error();
  static std::atomic<uint64_t> serial{0};
  char random[9];
  std::snprintf(random, sizeof(random), "%08x", std::random_device{}());
  const std::string temporary = "." + std::to_string(getpid()) + "." + std::to_string(gettid()) +
                                "." + std::to_string(serial++) + "." + random + ".tmp";
  int error = 0;
  {
    const Descriptor to =
        Descriptor::of(openat(parent.get(), temporary.c_str(),
                              O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, mode));
    if (!to) return to.error();
    error = write_all(to, content);
  }
  if (error == 0 && renameat(parent.get(), temporary.c_str(), parent.get(), name.c_str()) != 0) {
    error = errno;
  }
  if (error != 0) unlinkat(parent.get(), temporary.c_str(), 0);
  return error;
}

}  // namespace sparse_autotune
