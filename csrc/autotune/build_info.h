// What the build was told; the text of each is fixed at compile time.
#pragma once

namespace sparse_autotune {

struct BuildInfo {
  const char* version;
  bool cuda;
  const char* cuda_version;
  const char* cuda_reason;    // why CUDA was left out; empty when it was not
  const char* architectures;  // as TORCH_CUDA_ARCH_LIST writes them
  const char* kernel_hash;    // of csrc/kernels, csrc/libraries and variant.h
  const char* built_with_torch;
  const char* compiler;
};

const BuildInfo& build_info();

}  // namespace sparse_autotune
