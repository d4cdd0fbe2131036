// One launch for each combination of the leading dimensions that fold into nothing.
#pragma once

#include <vector>

#include "calls/call.h"

namespace sparse_autotune {

// Calls run(launch) -> Status until one fails.
template <typename Run>
Status each_launch(const NormalisedCall& call, Run&& run) {
  if (call.outer.empty()) return run(call.launch);
  Launch l = call.launch;
  const int64_t item = size_of(call.problem.dtype);
  std::vector<int64_t> at(call.outer.size(), 0);
  for (bool more = true; more;) {
    int64_t b_offset = 0, c_offset = 0;
    for (size_t i = 0; i < at.size(); ++i) {
      b_offset += at[i] * call.outer[i].b;
      c_offset += at[i] * call.outer[i].c;
    }
    l.b = static_cast<const char*>(call.launch.b) + b_offset * item;
    l.c = static_cast<char*>(call.launch.c) + c_offset * item;
    if (Status status = run(l); !status) return status;
    more = false;
    for (size_t i = 0; i < at.size() && !more; ++i) {
      more = ++at[i] < call.outer[i].size;
      if (!more) at[i] = 0;
    }
  }
  return Status::ok();
}

}  // namespace sparse_autotune
