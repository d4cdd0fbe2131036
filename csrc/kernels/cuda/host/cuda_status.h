// cudaError_t as a Status. Shared by every file that calls the CUDA runtime.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "variant.h"

namespace sparse_autotune {

// `what` names the call or kernel, for example "simt kernel". The error is taken from the runtime's
// last-error slot too: an error that stays there would be blamed on the next, innocent launch.
Status to_status(cudaError_t error, std::string_view what);

}  // namespace sparse_autotune
