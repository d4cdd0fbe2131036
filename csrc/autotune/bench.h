// A place where variants run on operands of the tuner's own: the race's view of a device.
#pragma once

#include <cstdint>
#include <memory>

#include "variant.h"

namespace sparse_autotune {

struct BenchOptions {
  bool cold = true;            // operands rotate so that none is in the cache when it is used
  int64_t tuning_bytes = 0;    // bound on all allocations
  int64_t scratch_bytes = 0;   // the largest workspace of any entrant
  int64_t prepared_bytes = 0;  // the largest converted copy of any entrant
};

// Of one launch in microseconds, the mean over a burst.
struct LaunchTime {
  double device_us = 0;  // the kernels' alone, where the host can run ahead of them
  double host_us = 0;    // until they are enqueued; 0 on a CPU, where both are one
};

class Bench {
 public:
  virtual ~Bench() = default;

  // Runs `variant` once on poisoned outputs and compares. `error` becomes the largest
  // |result - reference| as a share of what is allowed, infinity where something is NaN or was
  // never written, or where bytes outside the output changed. A failure's status says which. `us`
  // is the time of that one launch, a first impression.
  virtual Status check(const AnyVariant& variant, double* error, double* us) = 0;

  // A burst of `launches`. Includes prepare() unless what it reads is frozen. On a CPU, short
  // launches find the caches as a launch of the same variant left them.
  virtual Status time(const AnyVariant& variant, int64_t launches, LaunchTime* taken) = 0;

  // Makes the operands as they were, whatever a variant wrote there.
  virtual Status renew() = 0;

  // Whether operands really rotate: small enough for the cache, and asked for.
  virtual bool is_cold() const = 0;

  // After a failure: whether nothing can run here any more (a broken CUDA context).
  virtual bool is_broken() { return false; }
};

// Null, with the reason in `status`, when the operands do not fit. `problem` and `user` must
// outlive the bench.
std::unique_ptr<Bench> make_cpu_bench(AnyProblem problem, const Device& device,
                                      const AnyLaunch& user, const BenchOptions& options,
                                      Status* status);
// On the user's stream, which must not be capturing.
std::unique_ptr<Bench> make_cuda_bench(AnyProblem problem, const Device& device,
                                       const AnyLaunch& user, const BenchOptions& options,
                                       Status* status);

}  // namespace sparse_autotune
