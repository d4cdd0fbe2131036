#include "harness/driver.h"

#include <dlfcn.h>

#include <stdexcept>
#include <string>
#include <type_traits>

namespace harness {

void Driver::must(int result, const char* what) const {
  if (result == 0) return;
  throw std::runtime_error(std::string("CUDA's ") + what + " failed with " +
                           std::to_string(result));
}

const Driver& driver() {
  static const Driver found = [] {
    Driver d;
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
      throw std::runtime_error("the NVIDIA driver's libcuda.so.1 is not there");
    const auto find = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw std::runtime_error(std::string("libcuda.so.1 has no ") + name);
    };
    find("cuInit", d.init);
    find("cuDeviceGet", d.get_device);
    find("cuDevicePrimaryCtxRetain", d.retain);
    find("cuCtxSetCurrent", d.set_current);
    find("cuMemAlloc_v2", d.allocate);
    find("cuMemFree_v2", d.free);
    find("cuMemcpyHtoD_v2", d.to_device);
    find("cuMemcpyDtoH_v2", d.to_host);
    find("cuMemsetD8_v2", d.fill);
    find("cuEventCreate", d.create_event);
    find("cuEventDestroy_v2", d.destroy_event);
    find("cuEventRecord", d.record_event);
    find("cuEventSynchronize", d.wait_for_event);
    find("cuEventElapsedTime", d.elapsed_ms);
    d.must(d.init(0), "cuInit");
    return d;
  }();
  return found;
}

Stopwatch::Stopwatch() {
  driver().must(driver().create_event(&begin_, 0), "cuEventCreate");
  driver().must(driver().create_event(&end_, 0), "cuEventCreate");
}

Stopwatch::~Stopwatch() {
  driver().destroy_event(begin_);
  driver().destroy_event(end_);
}

void Stopwatch::start() { driver().must(driver().record_event(begin_, nullptr), "cuEventRecord"); }

double Stopwatch::stop_us() {
  float ms = 0;
  driver().must(driver().record_event(end_, nullptr), "cuEventRecord");
  driver().must(driver().wait_for_event(end_), "cuEventSynchronize");
  driver().must(driver().elapsed_ms(&ms, begin_, end_), "cuEventElapsedTime");
  return 1e3 * static_cast<double>(ms);
}

}  // namespace harness
