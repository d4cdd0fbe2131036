#include "autotune/verify.h"

#include <limits>
#include <string>
#include <utility>

namespace sparse_autotune {

Status judge(int64_t elements, uint64_t missing, uint64_t written, double worst, double* error) {
  const auto wrong = [](std::string what) {
    return Status::failed(StatusCode::kWrongResult, std::move(what));
  };
  *error = std::numeric_limits<double>::infinity();
  if (missing > 0) return wrong(std::to_string(missing) + " elements are NaN or were not written");
  // No element is poison by now, so what is not poison must be as many as the outputs have.
  if (written != static_cast<uint64_t>(elements)) return wrong("it wrote outside its output");
  *error = worst;
  if (worst <= 1) return Status::ok();
  return wrong("off by " + std::to_string(worst) + " times what rounding explains");
}

}  // namespace sparse_autotune
