// A vendor's shared library, found while the process runs.
//
// Nothing of ours is linked against a vendor library: torch may come with another CUDA than ours,
// or with none, and a missing or older library must only disable the variants that need it.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>

namespace sparse_autotune {

class LoadedLibrary {
 public:
  // Takes the first of `sonames` that is in the process already (the copy that torch uses), else
  // the first that the dynamic loader finds. `name` is for messages. The library is never closed.
  LoadedLibrary(std::string_view name, std::initializer_list<const char*> sonames);

  // Why the library cannot be used; empty when it was found.
  const std::string& unavailable() const { return unavailable_; }
  const std::string& soname() const { return soname_; }

  // The function's address, or null.
  void* symbol(const char* function) const;

 private:
  void* handle_ = nullptr;
  std::string soname_;
  std::string unavailable_;
};

}  // namespace sparse_autotune
