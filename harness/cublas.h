// The dense product by cuBLAS, to compare with.
#pragma once

#include <string>

#include "harness/arguments.h"
#include "harness/device.h"

namespace harness {

// The median time of A @ B with a dense A, both row-major, in microseconds; 0, and why, where
// libcublas is not found or fails.
double cublas_us(const Device& device, const Point& point, std::string* why);

}  // namespace harness
