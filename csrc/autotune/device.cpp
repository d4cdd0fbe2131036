#include "autotune/device.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>

#include "autotune/build_info.h"
#include "autotune/held_by_fork.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#endif

namespace sparse_autotune {
namespace {

#if defined(__x86_64__)
// AMX state is off until a process asks the kernel for it, once, for all of its threads.
bool amx_usable(std::string* why_refused) {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0) return true;
  *why_refused =
      std::string("the operating system refused AMX to this process: ") + std::strerror(errno);
  return false;
}

CpuIsa detect_isa(std::string* amx_refused) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (!avx2) return CpuIsa::kBaseline;
  if (!avx512) return CpuIsa::kAvx2;
  if (!__builtin_cpu_supports("avx512bf16")) return CpuIsa::kAvx512;
  return amx_usable(amx_refused) ? CpuIsa::kAmx : CpuIsa::kAvx512Bf16;
}
#else
CpuIsa detect_isa(std::string*) { return CpuIsa::kBaseline; }
#endif

std::string cpu_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("model name", 0) == 0) {
      const size_t at = line.find(": ");
      if (at != std::string::npos) return line.substr(at + 2);
    }
  }
  return "unknown CPU";
}

Device describe_cpu(int threads) {
  static const Device machine = [] {
    Device d;
    d.type = DeviceType::kCpu;
    d.name = cpu_name();
    d.isa = detect_isa(&d.amx_refused);
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    d.l2_bytes = cache > 0 ? cache : int64_t{8} << 20;
    d.memory_bytes = int64_t{sysconf(_SC_PHYS_PAGES)} * sysconf(_SC_PAGE_SIZE);
    return d;
  }();
  Device d = machine;
  d.threads = threads;
  // Two FMA units at 3 GHz, and 10 GB/s a thread: leads for the heuristic.
  const double lanes = d.isa >= CpuIsa::kAvx512 ? 16 : d.isa == CpuIsa::kAvx2 ? 8 : 4;
  d.fp32_tflops = threads * lanes * 2 * 2 * 3e-3;
  d.fp64_tflops = d.fp32_tflops / 2;
  d.tensor_tflops = d.fp32_tflops * (d.isa == CpuIsa::kAmx          ? 8
                                     : d.isa == CpuIsa::kAvx512Bf16 ? 2
                                                                    : 1);
  d.memory_gbps = 10.0 * threads;
  return d;
}

// FLOPs a clock and multiprocessor, from NVIDIA's architecture papers: dense half-precision tensor
// cores with fp32 accumulation, plain fp32, plain fp64, fp64 on tensor cores. TF32 runs at half of
// the first.
struct Rates {
  int tensor, fp32, fp64, fp64_tensor;
};
Rates rates(int capability) {
  if (capability == 80) return {2048, 128, 64, 128};
  if (capability < 90) return {512, 256, 4, 4};
  if (capability == 90) return {4096, 256, 128, 256};
  if (capability < 120) return {8192, 256, 128, 128};
  return {1024, 256, 4, 4};
}

}  // namespace

Device describe_gpu(const GpuFacts& facts) {
  Device d;
  d.type = DeviceType::kCuda;
  d.compute_capability = facts.compute_capability;
  d.multiprocessors = facts.multiprocessors;
  d.l2_bytes = facts.l2_bytes;
  d.shared_memory_per_block = facts.shared_memory_per_block;
  d.memory_bytes = facts.memory_bytes;
  d.memory_gbps = facts.memory_gbps;
  d.l2_gbps = facts.l2_gbps;
  const Rates r = rates(d.compute_capability);
  const double unit = d.l2_gbps / kL2BytesPerClock * 1e-3;  // TFLOP/s for one FLOP a clock
  d.tensor_tflops = unit * r.tensor;
  d.tf32_tflops = unit * r.tensor / 2;
  d.fp32_tflops = unit * r.fp32;
  d.fp64_tflops = unit * r.fp64;
  d.fp64_tensor_tflops = unit * r.fp64_tensor;
  return d;
}

namespace {

std::mutex& devices_mutex() {
  static auto* const mutex = new std::mutex;
  return *mutex;
}
[[maybe_unused]] const int held = held_by_fork<devices_mutex>();

}  // namespace

const Device& cpu_device(int threads) {
  thread_local const Device* last = nullptr;  // the number of threads hardly ever changes
  if (last != nullptr && last->threads == threads) return *last;
  static auto* const known = new std::map<int, const Device*>;  // never freed: launches refer to it
  const std::lock_guard<std::mutex> lock(devices_mutex());
  const Device*& device = (*known)[threads];
  if (device == nullptr) device = new Device(describe_cpu(threads));
  last = device;
  return *last;
}

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
int cuda_device_count(std::string* why_none) {
  if (why_none != nullptr) {
    *why_none = std::string("this build has no CUDA: ") + build_info().cuda_reason;
  }
  return 0;
}

const Device& cuda_device(int) {
  static const Device none = [] {
    Device d;
    d.type = DeviceType::kCuda;
    cuda_device_count(&d.unavailable);
    return d;
  }();
  return none;
}

std::string environment(const Device& device) {
  return "device " + device.name + "\nkernels " + build_info().kernel_hash + "\n";
}
#endif

}  // namespace sparse_autotune
