#include "libraries/loaded_library.h"

#include <dlfcn.h>

namespace sparse_autotune {

LoadedLibrary::LoadedLibrary(std::string_view name, std::initializer_list<const char*> sonames) {
  std::string tried;
  for (const int mode : {RTLD_NOLOAD | RTLD_NOW | RTLD_LOCAL, RTLD_NOW | RTLD_LOCAL}) {
    for (const char* soname : sonames) {
      handle_ = dlopen(soname, mode);
      if (handle_ != nullptr) {
        soname_ = soname;
        return;
      }
      if ((mode & RTLD_NOLOAD) == 0) {
        tried += tried.empty() ? "" : ", ";
        tried += soname;
      }
    }
  }
  // The loader's own words would only tell about the last name tried.
  static_cast<void>(dlerror());
  unavailable_ = std::string(name) + " is not loaded and the loader finds none of " + tried;
}

void* LoadedLibrary::symbol(const char* function) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, function);
}

}  // namespace sparse_autotune
