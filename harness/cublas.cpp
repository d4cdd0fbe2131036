#include "harness/cublas.h"

#include <dlfcn.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "harness/driver.h"

namespace harness {
namespace {

// Of cublas_api.h and library_types.h.
constexpr int kNoTranspose = 0, kCompute32 = 68, kCompute64 = 70, kDefaultAlgorithm = -1;
int data_type(sparse_autotune_dtype dtype) {
  switch (dtype) {
    case SPARSE_AUTOTUNE_FLOAT16:
      return 2;
    case SPARSE_AUTOTUNE_BFLOAT16:
      return 14;
    case SPARSE_AUTOTUNE_FLOAT32:
      return 0;
    default:
      return 1;
  }
}
size_t size_of(sparse_autotune_dtype dtype) {
  return dtype == SPARSE_AUTOTUNE_FLOAT64 ? 8 : dtype == SPARSE_AUTOTUNE_FLOAT32 ? 4 : 2;
}

struct Cublas {
  int (*create)(void**) = nullptr;
  int (*destroy)(void*) = nullptr;
  int (*gemm)(void*, int, int, int, int, int, const void*, const void*, int, int, const void*, int,
              int, const void*, void*, int, int, int, int) = nullptr;

  Cublas() {
    void* library = nullptr;
    for (const char* name : {"libcublas.so.13", "libcublas.so.12"}) {
      if (library == nullptr) library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    }
    if (library == nullptr) throw std::runtime_error("the loader finds no libcublas");
    const auto find = [&](const char* name, auto& function) {
      function =
          reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      if (function == nullptr) throw std::runtime_error(std::string("libcublas has no ") + name);
    };
    find("cublasCreate_v2", create);
    find("cublasDestroy_v2", destroy);
    find("cublasGemmEx", gemm);
  }
};

// Its operands are small numbers: a GPU's clock depends on how many bits change.
class Gemm {
 public:
  Gemm(const Device& device, const Point& p)
      : p_(p),
        a_(filled(device, p.m * p.k)),
        b_(filled(device, p.k * p.n)),
        c_(filled(device, p.m * p.n)) {
    must(library_.create(&handle_));
  }
  ~Gemm() { library_.destroy(handle_); }
  Gemm(const Gemm&) = delete;
  Gemm& operator=(const Gemm&) = delete;

  // C^T = B^T A^T, column-major.
  void enqueue() {
    const int type = data_type(p_.dtype);
    const bool wide = p_.dtype == SPARSE_AUTOTUNE_FLOAT64;
    const double one = 1, zero = 0;
    const float narrow_one = 1, narrow_zero = 0;
    const void* alpha = wide ? static_cast<const void*>(&one) : &narrow_one;
    const void* beta = wide ? static_cast<const void*>(&zero) : &narrow_zero;
    const int m = static_cast<int>(p_.m), n = static_cast<int>(p_.n), k = static_cast<int>(p_.k);
    must(library_.gemm(handle_, kNoTranspose, kNoTranspose, n, m, k, alpha, b_->data(), type, n,
                       a_->data(), type, k, beta, c_->data(), type, n,
                       wide ? kCompute64 : kCompute32, kDefaultAlgorithm));
  }

 private:
  static void must(int status) {
    if (status != 0) throw std::runtime_error("cuBLAS fails with " + std::to_string(status));
  }

  std::unique_ptr<Buffer> filled(const Device& device, int64_t count) const {
    auto buffer = device.allocate(static_cast<size_t>(count) * size_of(p_.dtype));
    std::vector<unsigned char> bytes(buffer->bytes());
    uint64_t state = 1;
    for (size_t i = 0; i < bytes.size(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      // The highest byte of each number stays below an exponent of 1.
      const bool highest = i % size_of(p_.dtype) == size_of(p_.dtype) - 1;
      bytes[i] = highest ? (state >> 63 ? 0x3C : 0xBC) : static_cast<unsigned char>(state >> 56);
    }
    buffer->write(bytes.data());
    return buffer;
  }

  const Cublas library_;
  const Point p_;
  const std::unique_ptr<Buffer> a_, b_, c_;
  void* handle_ = nullptr;
};

}  // namespace

double cublas_us(const Device& device, const Point& point, std::string* why) {
  try {
    constexpr int kBurst = 10, kRounds = 9;
    Gemm gemm(device, point);
    Stopwatch watch;
    for (int i = 0; i < kBurst; ++i) gemm.enqueue();
    std::vector<double> times;
    for (int round = 0; round < kRounds; ++round) {
      watch.start();
      for (int i = 0; i < kBurst; ++i) gemm.enqueue();
      times.push_back(watch.stop_us() / kBurst);
    }
    std::nth_element(times.begin(), times.begin() + kRounds / 2, times.end());
    return times[kRounds / 2];
  } catch (const std::exception& error) {
    *why = error.what();
    return 0;
  }
}

}  // namespace harness
