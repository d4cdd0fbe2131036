// Such memory on a GPU: freed in stream order behind every use, and kept by CUDA graphs that read
// them.
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/kept_memory.h"
#include "plan/memory_pool.h"

namespace sparse_autotune {
namespace {

// A graph's last reference is dropped inside CUDA, where no CUDA call is allowed: it is put here
// and released by the next use of any such memory.
std::mutex released_mutex;
std::vector<std::shared_ptr<KeptMemory>> released;

void release_waiting() {
  std::vector<std::shared_ptr<KeptMemory>> waiting;
  const std::lock_guard<std::mutex> lock(released_mutex);
  waiting.swap(released);
}

cudaGraph_t capturing_graph(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  cudaGraph_t graph = nullptr;
#if CUDART_VERSION >= 13000
  const cudaError_t error =
      cudaStreamGetCaptureInfo(stream, &status, nullptr, &graph, nullptr, nullptr, nullptr);
#else
  const cudaError_t error =
      cudaStreamGetCaptureInfo_v2(stream, &status, nullptr, &graph, nullptr, nullptr);
#endif
  return error == cudaSuccess && status == cudaStreamCaptureStatusActive ? graph : nullptr;
}

// Where a device's memory is freed; kept, as making a stream takes longer than all else that the
// memory's end does. Null: there is none to be had.
cudaStream_t freeing_stream(int ordinal) {
  static std::mutex mutex;
  static auto* const streams =
      new std::map<int, cudaStream_t>;  // used while the process winds down
  const std::lock_guard<std::mutex> lock(mutex);
  cudaStream_t& stream = (*streams)[ordinal];
  if (stream == nullptr &&
      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
    stream = nullptr;
  }
  return stream;
}

// Makes `stream` wait for all that the current device's default stream was given. False where that
// stream must not be asked: while one that waits for it is being captured.
bool follow_default_stream(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(nullptr, &status) != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return false;
  }
  cudaEvent_t event = nullptr;
  if (cudaEventCreateWithFlags(&event, cudaEventDisableTiming) != cudaSuccess) return false;
  const bool follows = cudaEventRecord(event, nullptr) == cudaSuccess &&
                       cudaStreamWaitEvent(stream, event, 0) == cudaSuccess;
  cudaEventDestroy(event);
  return follows;
}

// Frees memory of that device, the current one, on `stream` once the default stream is done with
// it; what that stream cannot be asked about now is freed by a later call.
void free_behind_default_stream(int ordinal, void* data, cudaStream_t stream) {
  static std::mutex mutex;
  static auto* const unfreed = new std::map<int, std::vector<void*>>;
  const std::lock_guard<std::mutex> lock(mutex);
  std::vector<void*>& memory = (*unfreed)[ordinal];
  memory.push_back(data);
  if (!follow_default_stream(stream)) return;
  for (void* const piece : memory) pool_free(piece, stream);
  memory.clear();
}

class DeviceMemory final : public KeptMemory, public std::enable_shared_from_this<DeviceMemory> {
 public:
  DeviceMemory(int ordinal, void* data, int64_t bytes, std::shared_ptr<const void> owner,
               std::atomic<int64_t>* count)
      : ordinal_(ordinal), owner_(std::move(owner)), count_(count) {
    data_ = data;
    bytes_ = bytes;
    if (count_ != nullptr) *count_ += bytes;
  }

  ~DeviceMemory() override {
    const RelaxedCapture relaxed;
    int current = 0;
    cudaGetDevice(&current);
    cudaSetDevice(ordinal_);
    if (const cudaStream_t stream = freeing_stream(ordinal_)) {
      if (!is_filled_) cudaStreamWaitEvent(stream, filled_, 0);
      for (const auto& [used_on, event] : last_use_) cudaStreamWaitEvent(stream, event, 0);
      if (used_on_default_stream_) {
        free_behind_default_stream(ordinal_, data_, stream);
      } else {
        pool_free(data_, stream);
      }
    }
    for (const auto& [used_on, event] : last_use_) cudaEventDestroy(event);
    if (filled_ != nullptr) cudaEventDestroy(filled_);
    cudaSetDevice(current);
    if (count_ != nullptr) *count_ -= bytes_;
  }

  void filled_by(void* stream_handle) override {
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cudaEventCreateWithFlags(&filled_, cudaEventDisableTiming) == cudaSuccess &&
        cudaEventRecord(filled_, stream) == cudaSuccess) {
      is_filled_ = false;
    } else {
      cudaStreamSynchronize(stream);
    }
  }

  void ready_for(void* stream_handle) override {
    if (is_filled_) return;
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const std::lock_guard<std::mutex> lock(mutex_);
    if (cudaEventQuery(filled_) == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      if (!is_capturing(stream)) {
        cudaStreamWaitEvent(stream, filled_, 0);
        return;
      }
      // A graph may be launched on any stream.
      cudaEventSynchronize(filled_);
    }
    is_filled_ = true;
  }

  void used_by(void* stream_handle) override {
    release_waiting();
    // That stream cannot be captured and will never be gone: asked at this memory's end, it spares
    // every launch an event.
    if (stream_handle == nullptr) {
      used_on_default_stream_.store(true, std::memory_order_relaxed);
      return;
    }
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    if (const cudaGraph_t graph = capturing_graph(stream)) {
      retain(graph);
      return;
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    cudaEvent_t& event = last_use_[stream_handle];
    if (event == nullptr) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    cudaEventRecord(event, stream);
  }

 private:
  void retain(cudaGraph_t graph) {
    auto* reference = new std::shared_ptr<KeptMemory>(shared_from_this());
    cudaUserObject_t object = nullptr;
    const auto destroy = [](void* data) {
      auto* last = static_cast<std::shared_ptr<KeptMemory>*>(data);
      const std::lock_guard<std::mutex> lock(released_mutex);
      released.push_back(std::move(*last));
      delete last;
    };
    if (cudaUserObjectCreate(&object, reference, destroy, 1, cudaUserObjectNoDestructorSync) !=
        cudaSuccess) {
      delete reference;
      return;
    }
    cudaGraphRetainUserObject(graph, object, 1, cudaGraphUserObjectMove);
  }

  const int ordinal_;
  const std::shared_ptr<const void> owner_;
  std::atomic<int64_t>* const count_;
  std::mutex mutex_;
  std::map<void*, cudaEvent_t> last_use_;  // of streams but the default one
  std::atomic<bool> used_on_default_stream_{false};
  cudaEvent_t filled_ = nullptr;
  std::atomic<bool> is_filled_{true};  // as far as is known
};

}  // namespace

namespace detail {

std::shared_ptr<KeptMemory> make_kept_memory_cuda(const Device& device, int64_t bytes, void* stream,
                                                  std::shared_ptr<const void> values_owner,
                                                  std::atomic<int64_t>* count, Status* status) {
  release_waiting();
  void* data = nullptr;
  // Frozen values can be converted with every launch instead; what a pattern is said to have is
  // needed.
  const auto allocate = count == nullptr ? pool_require : pool_allocate;
  *status = allocate(device.ordinal, bytes, stream, &data);
  if (!*status) return nullptr;
  return std::make_shared<DeviceMemory>(device.ordinal, data, bytes, std::move(values_owner),
                                        count);
}

Status wait_until_filled_cuda(void* stream) {
  const RelaxedCapture relaxed;
  return to_status(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)),
                   "waiting for a frozen copy");
}

}  // namespace detail
}  // namespace sparse_autotune
