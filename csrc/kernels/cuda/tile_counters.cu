#include "kernels/cuda/tile_counters.h"

#include <mutex>
#include <unordered_map>

namespace sparse_autotune {
namespace {

constexpr int kMaxDevices = 64;
// 32 bytes apart: a sector of L2 each. Never given back, so neither streams that come and go nor
// graphs captured again and again may use more.
constexpr unsigned kApart = 8, kStreams = 1024, kCaptures = 15 * 1024;
__device__ unsigned counters[(kStreams + kCaptures) * kApart];

struct Counters {
  std::mutex mutex;
  unsigned* memory = nullptr;
  std::unordered_map<unsigned long long, unsigned> of_stream;  // by id, which is never used again
  unsigned captures = 0;
};

}  // namespace

unsigned* tile_counter(int ordinal, cudaStream_t stream) {
  static Counters* const all = new Counters[kMaxDevices];  // used while the process winds down
  if (ordinal < 0 || ordinal >= kMaxDevices) return nullptr;
  cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
  unsigned long long id = 0;
  if (cudaStreamIsCapturing(stream, &capture) != cudaSuccess) return nullptr;
  const bool is_capturing = capture != cudaStreamCaptureStatusNone;
  if (!is_capturing && cudaStreamGetId(stream, &id) != cudaSuccess) return nullptr;

  Counters& mine = all[ordinal];
  const std::lock_guard<std::mutex> lock(mine.mutex);
  if (mine.memory == nullptr) {
    void* address = nullptr;
    if (cudaGetSymbolAddress(&address, counters) != cudaSuccess) return nullptr;
    mine.memory = static_cast<unsigned*>(address);
  }
  if (is_capturing) {
    if (mine.captures == kCaptures) return nullptr;
    return mine.memory + (kStreams + mine.captures++) * kApart;
  }
  const auto next = static_cast<unsigned>(mine.of_stream.size());
  if (next == kStreams) {
    const auto it = mine.of_stream.find(id);
    return it == mine.of_stream.end() ? nullptr : mine.memory + it->second * kApart;
  }
  return mine.memory + mine.of_stream.try_emplace(id, next).first->second * kApart;
}

}  // namespace sparse_autotune
