#include <cuda_runtime_api.h>

#include <atomic>
#include <map>
#include <mutex>

#include "kernels/cuda/host/cuda_status.h"
#include "plan/capture_mode.h"
#include "plan/memory_pool.h"

namespace sparse_autotune {
namespace {

std::mutex pools_mutex;
std::atomic<Reclaim> reclaim_elsewhere{nullptr};

// The device's pool, or null when the driver has none to give.
cudaMemPool_t pool_of(int ordinal) {
  static std::map<int, cudaMemPool_t> pools;
  const std::lock_guard<std::mutex> lock(pools_mutex);
  const auto [it, is_new] = pools.try_emplace(ordinal, nullptr);
  if (is_new) {
    cudaMemPoolProps properties = {};
    properties.allocType = cudaMemAllocationTypePinned;
    properties.location.type = cudaMemLocationTypeDevice;
    properties.location.id = ordinal;
    if (cudaMemPoolCreate(&it->second, &properties) != cudaSuccess) {
      static_cast<void>(cudaGetLastError());
      it->second = nullptr;
      pools.erase(it);
      return nullptr;
    }
    // Keep what was used until somebody trims: a race allocates the same sizes again and again.
    uint64_t threshold = UINT64_MAX;
    cudaMemPoolSetAttribute(it->second, cudaMemPoolAttrReleaseThreshold, &threshold);
  }
  return it->second;
}

}  // namespace

Status pool_allocate(int ordinal, int64_t bytes, void* stream, void** memory) {
  const RelaxedCapture relaxed;
  const cudaMemPool_t pool = pool_of(ordinal);
  if (pool == nullptr) {
    return Status::failed(StatusCode::kOutOfMemory, "the device has no memory pools");
  }
  return to_status(cudaMallocFromPoolAsync(memory, static_cast<size_t>(bytes), pool,
                                           static_cast<cudaStream_t>(stream)),
                   "allocating " + std::to_string(bytes) + " bytes");
}

Status pool_require(int ordinal, int64_t bytes, void* stream, void** memory) {
  const Status status = pool_allocate(ordinal, bytes, stream, memory);
  const Reclaim reclaim = reclaim_elsewhere;
  if (status.code() != StatusCode::kOutOfMemory || reclaim == nullptr) return status;
  const RelaxedCapture relaxed;
  reclaim(ordinal);
  return pool_allocate(ordinal, bytes, stream, memory);
}

void set_reclaim(Reclaim reclaim) { reclaim_elsewhere = reclaim; }

void pool_free(void* memory, void* stream) {
  if (memory == nullptr) return;
  const RelaxedCapture relaxed;
  cudaFreeAsync(memory, static_cast<cudaStream_t>(stream));
}

void pool_trim(int ordinal) {
  const RelaxedCapture relaxed;
  const cudaMemPool_t pool = pool_of(ordinal);
  if (pool != nullptr) cudaMemPoolTrimTo(pool, 0);
}

PoolUse pool_use(int ordinal) {
  PoolUse use;
  const cudaMemPool_t pool = pool_of(ordinal);
  if (pool == nullptr) return use;
  uint64_t value = 0;
  if (cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &value) == cudaSuccess) {
    use.used = static_cast<int64_t>(value);
  }
  if (cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReservedMemCurrent, &value) == cudaSuccess) {
    use.reserved = static_cast<int64_t>(value);
  }
  return use;
}

}  // namespace sparse_autotune
