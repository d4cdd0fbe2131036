#include "harness/device.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>

#include "harness/arguments.h"
#include "harness/driver.h"

namespace harness {
namespace {

class HostBuffer final : public Buffer {
 public:
  explicit HostBuffer(size_t bytes) {
    constexpr size_t kAlignment = 256;
    data_ = std::aligned_alloc(kAlignment,
                               std::max((bytes + 255) / kAlignment, size_t{1}) * kAlignment);
    if (data_ == nullptr) throw std::bad_alloc();
    bytes_ = bytes;
  }
  ~HostBuffer() override { std::free(data_); }
  void write(const void* from) override { std::memcpy(data_, from, bytes_); }
  void read(void* to) const override { std::memcpy(to, data_, bytes_); }
  void fill(int byte) override { std::memset(data_, byte, bytes_); }
};

class DeviceBuffer final : public Buffer {
 public:
  explicit DeviceBuffer(size_t bytes) {
    driver().must(driver().allocate(&address_, std::max(bytes, size_t{1})), "cuMemAlloc");
    data_ = reinterpret_cast<void*>(address_);
    bytes_ = bytes;
  }
  ~DeviceBuffer() override { driver().free(address_); }
  void write(const void* from) override {
    if (bytes_ > 0) driver().must(driver().to_device(address_, from, bytes_), "cuMemcpyHtoD");
  }
  void read(void* to) const override {
    if (bytes_ > 0) driver().must(driver().to_host(to, address_, bytes_), "cuMemcpyDtoH");
  }
  void fill(int byte) override {
    if (bytes_ == 0) return;
    driver().must(driver().fill(address_, static_cast<unsigned char>(byte), bytes_), "cuMemsetD8");
  }

 private:
  Driver::Address address_ = 0;
};

Context make_context(bool cuda, int32_t ordinal, int32_t threads) {
  sparse_autotune_context_options options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
  options.device_type = cuda ? SPARSE_AUTOTUNE_CUDA : SPARSE_AUTOTUNE_CPU;
  options.ordinal = ordinal;
  options.threads = threads;
  sparse_autotune_context* made = nullptr;
  if (sparse_autotune_context_create(&options, &made) != SPARSE_AUTOTUNE_OK) {
    const std::string why = sparse_autotune_error_message();
    const size_t reason = why.find("is not usable");
    throw BadArgument("--device " + (cuda ? "cuda:" + std::to_string(ordinal) : "cpu") + " " +
                      (reason == std::string::npos ? "fails: " + why : why.substr(reason)));
  }
  return Context(made);
}

}  // namespace

void must(sparse_autotune_status status, const char* what) {
  if (status == SPARSE_AUTOTUNE_OK) return;
  throw std::runtime_error(std::string(what) + ": " + sparse_autotune_error_message());
}

Device::Device(bool cuda, int32_t ordinal, int32_t threads)
    : cuda_(cuda), ordinal_(ordinal), context_(make_context(cuda, ordinal, threads)) {
  if (!cuda_) return;
  int device = 0;
  void* primary = nullptr;
  driver().must(driver().get_device(&device, ordinal_), "cuDeviceGet");
  driver().must(driver().retain(&primary, device), "cuDevicePrimaryCtxRetain");
  driver().must(driver().set_current(primary), "cuCtxSetCurrent");
}

sparse_autotune_device_info Device::info() const {
  sparse_autotune_device_info info = SPARSE_AUTOTUNE_INIT(sparse_autotune_device_info);
  must(sparse_autotune_context_device(context(), &info), "the device");
  return info;
}

std::unique_ptr<Buffer> Device::allocate(size_t bytes) const {
  if (cuda_) return std::make_unique<DeviceBuffer>(bytes);
  return std::make_unique<HostBuffer>(bytes);
}

void Device::wait() const {
  if (!cuda_) return;
  Stopwatch watch;
  watch.start();
  watch.stop_us();
}

bool cuda_is_usable() {
  sparse_autotune_context_options options = SPARSE_AUTOTUNE_INIT(sparse_autotune_context_options);
  options.device_type = SPARSE_AUTOTUNE_CUDA;
  sparse_autotune_context* made = nullptr;
  const bool usable = sparse_autotune_context_create(&options, &made) == SPARSE_AUTOTUNE_OK;
  sparse_autotune_context_destroy(made);
  return usable;
}

}  // namespace harness
