#include "libraries/cusparse.h"

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <vector>

#include "libraries/loaded_library.h"

namespace sparse_autotune {
namespace {

constexpr int kMinimumVersion = 12000;
constexpr int kCreateBsrVersion = 12100;

template <typename Function>
bool resolve(const LoadedLibrary& library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(library.symbol(name));
  return function != nullptr;
}

// The version without a handle: a handle needs a device.
int read_version(const CuSparse& c) {
  int major = 0, minor = 0, patch = 0;
  if (c.get_property(MAJOR_VERSION, &major) != CUSPARSE_STATUS_SUCCESS ||
      c.get_property(MINOR_VERSION, &minor) != CUSPARSE_STATUS_SUCCESS ||
      c.get_property(PATCH_LEVEL, &patch) != CUSPARSE_STATUS_SUCCESS) {
    return 0;
  }
  return major * 1000 + minor * 100 + patch;
}

CuSparse load() {
  CuSparse c;
  // CUDA 12 and CUDA 13 both ship libcusparse.so.12.
  const LoadedLibrary library("libcusparse",
                              {"libcusparse.so.12", "libcusparse.so.13", "libcusparse.so.11"});
  c.unavailable = library.unavailable();
  if (!c.unavailable.empty()) return c;

  const char* missing = nullptr;
  const auto need = [&](const char* name, auto& function) {
    if (!resolve(library, name, function) && missing == nullptr) missing = name;
  };
  need("cusparseGetProperty", c.get_property);
  if (missing == nullptr) {
    c.version = read_version(c);
    if (c.version < kMinimumVersion) {
      c.unavailable = "cuSPARSE " + version_name(c.version) + " (" + library.soname() +
                      ") is loaded, " + version_name(kMinimumVersion) + " is needed";
      return c;
    }
  }
  need("cusparseCreate", c.create);
  need("cusparseSetStream", c.set_stream);
  need("cusparseGetErrorName", c.error_name);
  need("cusparseGetErrorString", c.error_string);
  if (c.version >= kCreateBsrVersion) need("cusparseCreateBsr", c.create_bsr);
  need("cusparseCreateBlockedEll", c.create_blocked_ell);
  need("cusparseDestroySpMat", c.destroy_sparse);
  need("cusparseCreateDnMat", c.create_dense);
  need("cusparseDestroyDnMat", c.destroy_dense);
  need("cusparseDnMatSetValues", c.set_dense_values);
  need("cusparseSpMM_bufferSize", c.spmm_buffer_size);
  need("cusparseSpMM", c.spmm);
  need("cusparseSDDMM_bufferSize", c.sddmm_buffer_size);
  need("cusparseSDDMM", c.sddmm);
  if (missing != nullptr) c.unavailable = library.soname() + " has no function " + missing;
  return c;
}

struct HandlePool {
  std::mutex mutex;
  std::map<int, std::vector<cusparseHandle_t>> idle;  // by device
};

// Never destroyed: at exit the driver may be gone before us, and a handle dies with it.
HandlePool& pool() {
  static HandlePool& p = *new HandlePool;
  return p;
}

Status create_handle(cusparseHandle_t& handle) {
  // Allocations are forbidden to a thread while any stream captures, unless it says it knows.
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  cudaThreadExchangeStreamCaptureMode(&mode);
  const cusparseStatus_t status = cusparse().create(&handle);
  cudaThreadExchangeStreamCaptureMode(&mode);
  return to_status(status, "cusparseCreate");
}

}  // namespace

std::string version_name(int version) {
  return std::to_string(version / 1000) + "." + std::to_string(version / 100 % 10) + "." +
         std::to_string(version % 100);
}

const CuSparse& cusparse() {
  static const CuSparse& loaded = *new CuSparse(load());
  return loaded;
}

Support cusparse_since(int version, std::string_view feature) {
  const CuSparse& c = cusparse();
  if (!c.unavailable.empty()) return Support::no(c.unavailable);
  if (c.version < version) {
    return Support::no("cuSPARSE " + version_name(c.version) + " has no " + std::string(feature) +
                       ", " + version_name(version) + " is needed");
  }
  return Support::yes();
}

Status to_status(cusparseStatus_t status, std::string_view what) {
  if (status == CUSPARSE_STATUS_SUCCESS) return Status::ok();
  const bool memory =
      status == CUSPARSE_STATUS_ALLOC_FAILED || status == CUSPARSE_STATUS_INSUFFICIENT_RESOURCES;
  return Status::failed(memory ? StatusCode::kOutOfMemory : StatusCode::kLaunchFailed,
                        std::string(what) + ": " + cusparse().error_string(status) + " (" +
                            cusparse().error_name(status) + ")");
}

CuSparseLease::CuSparseLease(int device, void* stream) : device_(device) {
  {
    HandlePool& p = pool();
    const std::lock_guard<std::mutex> lock(p.mutex);
    std::vector<cusparseHandle_t>& idle = p.idle[device];
    if (!idle.empty()) {
      handle_ = idle.back();
      idle.pop_back();
    }
  }
  if (handle_ == nullptr) status_ = create_handle(handle_);
  if (status_) {
    status_ = to_status(cusparse().set_stream(handle_, static_cast<cudaStream_t>(stream)),
                        "cusparseSetStream");
  }
}

CuSparseLease::~CuSparseLease() {
  if (handle_ == nullptr) return;
  HandlePool& p = pool();
  const std::lock_guard<std::mutex> lock(p.mutex);
  p.idle[device_].push_back(handle_);
}

}  // namespace sparse_autotune
