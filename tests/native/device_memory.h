// A GPU's memory and streams for a program that calls the C interface.
#pragma once

#include <cuda_runtime_api.h>
#include <sparse_autotune.h>

#include <stdexcept>
#include <string>

#include "hostile.h"
#include "reference.h"

namespace fuzz {

inline void must(sparse_autotune_status status) {
  if (status != SPARSE_AUTOTUNE_OK) throw std::runtime_error(sparse_autotune_error_message());
}
inline void must(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}
inline void expect(bool holds, const std::string& what) {
  if (!holds) throw std::runtime_error(what);
}

// Of exactly so many bytes, with the host's copy of them.
class Device {
 public:
  explicit Device(int64_t bytes, int fill = 0) : host(bytes, fill) {
    must(cudaMalloc(&data_, host.size));
    must(cudaMemset(data_, fill, host.size));
    must(cudaDeviceSynchronize());
  }
  ~Device() { cudaFree(data_); }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  void* data() const { return data_; }
  // Streams of ours do not wait for the default stream, on which a copy may go on behind this.
  void send() {
    must(cudaMemcpy(data_, host.data(), host.size, cudaMemcpyHostToDevice));
    must(cudaDeviceSynchronize());
  }
  void fetch() { must(cudaMemcpy(host.data(), data_, host.size, cudaMemcpyDeviceToHost)); }
  void fill_with_numbers(int32_t dtype, uint64_t seed) {
    fuzz::fill_with_numbers(host.data(), host.size, dtype, seed);
    send();
  }
  void clear() { must(cudaMemset(data_, 0xFF, host.size)); }

  Memory host;

 private:
  void* data_ = nullptr;
};

class Stream {
 public:
  Stream() { must(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking)); }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  operator cudaStream_t() const { return stream_; }
  void wait() const { must(cudaStreamSynchronize(stream_)); }

 private:
  cudaStream_t stream_ = nullptr;
};

}  // namespace fuzz
