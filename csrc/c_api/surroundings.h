// Everything that holds while a product of a C program is looked at or runs.
#pragma once

#include "c_api/handles.h"
#include "c_api/thread_pool.h"
#include "plan/current_device.h"

namespace sparse_autotune {

class Surroundings {
 public:
  Surroundings(const sparse_autotune_pattern& pattern, void* stream)
      : current_(pattern.context.ordinal()),
        pool_(pattern.context.threads),
        caller_(pattern.context, pool_.parallel(), stream) {}
  Caller& caller() { return caller_; }

 private:
  const CurrentDevice current_;
  const PoolScope pool_;
  CCaller caller_;
};

// Runs what reads the pattern's indices on `stream`, at the end of which they may be freed, also
// where it fails half-way.
template <typename Run>
void while_reading(const sparse_autotune_pattern& pattern, void* stream, Run&& run) {
  if (const Status ready = pattern.memory->ready_for(stream); !ready) {
    refuse(ready.message(), Fault::kLaunch);
  }
  try {
    run();
  } catch (...) {
    static_cast<void>(pattern.memory->used_by(stream));  // the first failure is the one to tell
    throw;
  }
  if (const Status used = pattern.memory->used_by(stream); !used) {
    refuse(used.message(), Fault::kLaunch);
  }
}

}  // namespace sparse_autotune
