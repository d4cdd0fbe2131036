#include "kernels/cuda/host/tile_counters.h"

#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "kernels/cuda/host/captured_graph.h"

namespace sparse_autotune {
namespace {

constexpr int kMaxDevices = 64;

// So many sets of counters for streams, which keep theirs, and for launches in graphs, which give
// theirs back.
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
    unsigned* const memory = memory_of(symbol);
    if (memory == nullptr) return nullptr;
    if (is_capturing(stream)) {
      const int slot = captured_slot(supply.captures, stream);
      return slot < 0 ? nullptr : memory + (supply.streams + slot) * supply.set;
    }
    unsigned long long id = 0;
    if (cudaStreamGetId(stream, &id) != cudaSuccess) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto next = static_cast<unsigned>(of_stream_.size());
    if (next == supply.streams && !of_stream_.contains(id)) return nullptr;
    return memory + of_stream_.try_emplace(id, next).first->second * supply.set;
  }

 private:
  // A captured launch's, until its graph is gone.
  struct Loan {
    Counters* from;
    int slot;
  };

  unsigned* memory_of(const void* symbol) {
    const std::lock_guard<std::mutex> lock(mutex_);
    void* address = memory_;
    if (address == nullptr && cudaGetSymbolAddress(&address, symbol) != cudaSuccess) return nullptr;
    return memory_ = static_cast<unsigned*>(address);
  }

  // Negative: there is none.
  int captured_slot(unsigned supply, cudaStream_t stream) {
    const int slot = free_slot(supply);
    if (slot < 0) return slot;
    const auto give_back = [](void* data) {
      const std::unique_ptr<Loan> loan(static_cast<Loan*>(data));
      const std::lock_guard<std::mutex> lock(loan->from->free_mutex_);
      loan->from->free_.push_back(loan->slot);
    };
    const Status kept = destroy_with_graph(stream, new Loan{this, slot}, give_back,
                                           "giving a CUDA graph a counter of tiles");
    return kept ? slot : -1;
  }

  int free_slot(unsigned supply) {
    const std::lock_guard<std::mutex> lock(free_mutex_);
    if (!free_.empty()) {
      const int slot = free_.back();
      free_.pop_back();
      return slot;
    }
    return captures_ < supply ? static_cast<int>(captures_++) : -1;
  }

  std::mutex mutex_;
  unsigned* memory_ = nullptr;
  std::unordered_map<unsigned long long, unsigned> of_stream_;  // by id, which is never used again
  // Graphs give back inside CUDA: whoever holds this one calls nothing of CUDA.
  std::mutex free_mutex_;
  std::vector<int> free_;
  unsigned captures_ = 0;  // slots that were ever taken
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
