// TMA's descriptions of tensors, made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "variant.h"

namespace sparse_autotune {

// A tensor of up to four dimensions, the contiguous one first, and the box that one copy moves.
// `strides` are in elements, of all dimensions but the first. Unless `plain`, a box's lines, of 128
// bytes or of 64, are swizzled in shared memory; elements outside the tensor are loaded as zeros.
struct BoxedTensor {
  const void* data;
  DType dtype;  // a half type
  uint32_t rank;
  int64_t sizes[4];
  int64_t strides[3];
  uint32_t box[4];
  bool plain = false;
};

// TMA's rules: data and strides in bytes are multiples of 16, sizes at most 2^32, strides less than
// 2^40 bytes, boxes at most 256 wide.
Status make_tensor_map(const BoxedTensor& tensor, CUtensorMap* map);

}  // namespace sparse_autotune
