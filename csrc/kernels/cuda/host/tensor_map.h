// TMA's descriptions of tensors, made on the host.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "operators/product/product.h"

namespace sparse_autotune {

// A tensor of up to four dimensions, the contiguous one first, and the box that one copy moves.
// `strides` are in elements, of all dimensions but the first. Unless `plain`, a box's lines, of 128
// bytes or of 64, are swizzled in shared memory; elements outside the tensor are loaded as zeros.
struct BoxedTensor {
  const void* data;
  DType dtype;
  uint32_t rank;
  int64_t sizes[4];
  int64_t strides[3];
  uint32_t box[4];
  bool plain = false;
};

// B or C, with the batch as third dimension: boxes of `along` elements of a row, or of a column
// where it is column-major, and `across` of these.
BoxedTensor tensor_of_b(const Problem& problem, const void* b, uint32_t along, uint32_t across);
BoxedTensor tensor_of_c(const Problem& problem, const void* c, uint32_t along, uint32_t across);

// The same with lines cut into pieces of 64 elements, `along` of which, in whole pieces, and as
// many lines as before make a box.
BoxedTensor in_columns_of_64(const BoxedTensor& tensor, uint32_t along);

// Values as nnzb * block_m rows, boxes of so many `rows` by a line of k; or, transposed, as nnzb *
// block_k rows with each 64 columns of a block as third dimension.
BoxedTensor tensor_of_values(const Problem& problem, const void* values, uint32_t rows);

// TMA's rules: data and strides in bytes are multiples of 16, sizes at most 2^32, strides less than
// 2^40 bytes, boxes at most 256 wide. The stride of a dimension of one element is not looked at.
Status make_tensor_map(const BoxedTensor& tensor, CUtensorMap* map);

}  // namespace sparse_autotune
