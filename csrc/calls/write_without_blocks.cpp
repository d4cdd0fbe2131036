#include "calls/write_without_blocks.h"

#include <cstring>

#include "calls/each_launch.h"
#include "kernels/cpu/shared/epilogue.h"

namespace sparse_autotune {
namespace detail {

#ifndef SPARSE_AUTOTUNE_WITH_CUDA
Status clear_lines_cuda(void*, int64_t, int64_t, int64_t, void*) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
Status apply_epilogue_to_cuda(const Problem&, const Launch&) {
  return Status::failed(StatusCode::kLaunchFailed, "this build has no CUDA");
}
#endif

}  // namespace detail

namespace {

Status clear_lines(void* first, int64_t pitch, int64_t length, int64_t lines, const Launch& l) {
  if (l.device->type == DeviceType::kCuda) {
    return detail::clear_lines_cuda(first, pitch, length, lines, l.stream);
  }
  for (int64_t line = 0; line < lines; ++line) {
    std::memset(static_cast<char*>(first) + line * pitch, 0, static_cast<size_t>(length));
  }
  return Status::ok();
}

Status write_c(const Problem& p, const Launch& l) {
  const bool rows = p.c_layout == Layout::kRowMajor;
  const int64_t item = size_of(p.dtype);
  for (int64_t matrix = 0; matrix < p.batch; ++matrix) {
    Status status = clear_lines(static_cast<char*>(l.c) + matrix * p.c_batch_stride * item,
                                p.ldc * item, (rows ? p.n : p.m) * item, rows ? p.m : p.n, l);
    if (!status) return status;
  }
  if (p.device == DeviceType::kCuda) return detail::apply_epilogue_to_cuda(p, l);
  apply_epilogue_cpu(p, l);
  return Status::ok();
}

}  // namespace

Status write_without_blocks(const NormalisedCall& call) {
  const Problem& p = call.problem;
  const Launch& l = call.launch;
  if (p.op == Op::kSampled) {
    const int64_t bytes = p.nnzb * p.block_m * p.block_k * size_of(p.dtype);
    return bytes > 0 ? clear_lines(l.sampled, bytes, bytes, 1, l) : Status::ok();
  }
  if (call.is_empty()) return Status::ok();
  return each_launch(call, [&](const Launch& one) { return write_c(p, one); });
}

}  // namespace sparse_autotune
