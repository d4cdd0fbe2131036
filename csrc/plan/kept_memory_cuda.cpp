// Such memory on a GPU: freed in stream order behind every use, and kept by CUDA graphs that read
// them.
#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string_view>
#include <utility>
#include <vector>

#include "kernels/cuda/host/captured_graph.h"
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

// Where there is something else to do, a failure must not be blamed on the next launch.
bool succeeded(cudaError_t error) {
  if (error == cudaSuccess) return true;
  static_cast<void>(cudaGetLastError());
  return false;
}

// Makes `stream` wait for the event, or else this thread.
void follow(cudaStream_t stream, cudaEvent_t event) {
  if (succeeded(cudaStreamWaitEvent(stream, event, 0))) return;
  static_cast<void>(succeeded(cudaEventSynchronize(event)));
}

// Where a device's memory is freed; kept, as making a stream takes longer than all else that the
// memory's end does. Null: there is none to be had.
cudaStream_t freeing_stream(int ordinal) {
  static std::mutex mutex;
  static auto* const streams =
      new std::map<int, cudaStream_t>;  // used while the process winds down
  const std::lock_guard<std::mutex> lock(mutex);
  cudaStream_t& stream = (*streams)[ordinal];
  if (stream == nullptr && !succeeded(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) {
    stream = nullptr;
  }
  return stream;
}

// Makes `stream` wait for all that the current device's default stream was given. False where that
// stream must not be asked: while one that waits for it is being captured.
bool follow_default_stream(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (!succeeded(cudaStreamIsCapturing(nullptr, &status))) return false;
  cudaEvent_t event = nullptr;
  if (!succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return false;
  const bool follows = succeeded(cudaEventRecord(event, nullptr)) &&
                       succeeded(cudaStreamWaitEvent(stream, event, 0));
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

constexpr std::string_view kFilling = "waiting until kept memory is filled";
constexpr std::string_view kSharing = "giving a CUDA graph a share of the memory that it reads";

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
      if (!is_filled_) follow(stream, filled_);
      for (const auto& [used_on, event] : last_use_) follow(stream, event);
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

  Status filled_by(void* stream_handle) override {
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const std::lock_guard<std::mutex> lock(mutex_);
    if ((filled_ != nullptr ||
         succeeded(cudaEventCreateWithFlags(&filled_, cudaEventDisableTiming))) &&
        succeeded(cudaEventRecord(filled_, stream))) {
      is_filled_ = false;
      return Status::ok();
    }
    return to_status(cudaStreamSynchronize(stream), "waiting for what fills kept memory");
  }

  Status ready_for(void* stream_handle) override {
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    const bool captured = is_capturing(stream);
    if (is_filled_ && !captured) return Status::ok();
    const RelaxedCapture relaxed;
    Status status = is_filled_ ? Status::ok() : wait_until_filled(stream, captured);
    return status && captured ? share_with_graph(stream) : status;
  }

  Status used_by(void* stream_handle) override {
    release_waiting();
    // That stream cannot be captured and will never be gone: asked at this memory's end, it spares
    // every launch an event.
    if (stream_handle == nullptr) {
      used_on_default_stream_.store(true, std::memory_order_relaxed);
      return Status::ok();
    }
    const RelaxedCapture relaxed;
    const auto stream = static_cast<cudaStream_t>(stream_handle);
    if (is_capturing(stream)) return Status::ok();  // the graph has its share
    const std::lock_guard<std::mutex> lock(mutex_);
    const cudaEvent_t event = event_of(stream_handle);
    if (event != nullptr && succeeded(cudaEventRecord(event, stream))) return Status::ok();
    return to_status(cudaStreamSynchronize(stream), "waiting for a launch that reads kept memory");
  }

 private:
  // Of the last use on that stream; null: there is none to be had.
  cudaEvent_t event_of(void* stream_handle) {
    if (const auto it = last_use_.find(stream_handle); it != last_use_.end()) return it->second;
    cudaEvent_t event = nullptr;
    if (!succeeded(cudaEventCreateWithFlags(&event, cudaEventDisableTiming))) return nullptr;
    return last_use_[stream_handle] = event;
  }

  Status wait_until_filled(cudaStream_t stream, bool captured) {
    const std::lock_guard<std::mutex> lock(mutex_);
    cudaError_t error = cudaEventQuery(filled_);
    if (error == cudaErrorNotReady) {
      static_cast<void>(cudaGetLastError());
      // A graph may be launched on any stream.
      error = captured ? cudaEventSynchronize(filled_) : cudaStreamWaitEvent(stream, filled_, 0);
      if (!captured || error != cudaSuccess) return to_status(error, kFilling);
    }
    is_filled_ = error == cudaSuccess;
    return to_status(error, kFilling);
  }

  Status share_with_graph(cudaStream_t stream) {
    const auto destroy = [](void* data) {
      const std::unique_ptr<std::shared_ptr<KeptMemory>> last(
          static_cast<std::shared_ptr<KeptMemory>*>(data));
      const std::lock_guard<std::mutex> lock(released_mutex);
      released.push_back(std::move(*last));
    };
    auto share = std::make_unique<std::shared_ptr<KeptMemory>>(shared_from_this());
    return destroy_with_graph(stream, share.release(), destroy, kSharing);
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
