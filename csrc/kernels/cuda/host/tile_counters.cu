#include "kernels/cuda/host/tile_counters.h"

#include <mutex>
#include <unordered_map>

namespace sparse_autotune {
namespace {

constexpr int kMaxDevices = 64;

// So many sets of counters for streams, and for launches in graphs. Never given back, so neither
// streams that come and go nor graphs captured again and again may use more.
struct Supply {
  unsigned set, streams, captures;
};
// A counter alone takes 32 bytes: a sector of L2.
constexpr Supply kTiles{8, 1024, 15 * 1024}, kParts{kPartCounters, 128, 896};
__device__ unsigned tile_memory[kTiles.set * (kTiles.streams + kTiles.captures)];
__device__ unsigned part_memory[kParts.set * (kParts.streams + kParts.captures)];

// A device's.
class Counters {
 public:
  unsigned* take(const Supply& supply, const void* symbol, cudaStream_t stream) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    unsigned long long id = 0;
    if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) return nullptr;
    const bool is_capturing = capture != cudaStreamCaptureStatusNone;
    if (!is_capturing && cudaStreamGetId(stream, &id) != cudaSuccess) return nullptr;

    const std::lock_guard<std::mutex> lock(mutex_);
    if (memory_ == nullptr) {
      void* address = nullptr;
      if (cudaGetSymbolAddress(&address, symbol) != cudaSuccess) return nullptr;
      memory_ = static_cast<unsigned*>(address);
    }
    if (is_capturing) {
      if (captures_ == supply.captures) return nullptr;
      return memory_ + (supply.streams + captures_++) * supply.set;
    }
    const auto next = static_cast<unsigned>(of_stream_.size());
    if (next == supply.streams) {
      const auto it = of_stream_.find(id);
      return it == of_stream_.end() ? nullptr : memory_ + it->second * supply.set;
    }
    return memory_ + of_stream_.try_emplace(id, next).first->second * supply.set;
  }

 private:
  std::mutex mutex_;
  unsigned* memory_ = nullptr;
  std::unordered_map<unsigned long long, unsigned> of_stream_;  // by id, which is never used again
  unsigned captures_ = 0;
};

bool is_device(int ordinal) { return ordinal >= 0 && ordinal < kMaxDevices; }

}  // namespace

// Both are used while the process winds down, and so never destroyed.
unsigned* tile_counter(int ordinal, cudaStream_t stream) {
  static Counters* const all = new Counters[kMaxDevices];
  return is_device(ordinal) ? all[ordinal].take(kTiles, tile_memory, stream) : nullptr;
}

unsigned* part_counters(int ordinal, cudaStream_t stream) {
  static Counters* const all = new Counters[kMaxDevices];
  return is_device(ordinal) ? all[ordinal].take(kParts, part_memory, stream) : nullptr;
}

}  // namespace sparse_autotune
