// PyTorch's own operators as variants: views over a launch's memory, and calls by name.
#pragma once

#include <functional>

#include "operators/product/product.h"
#include "ops/torch_runtime.h"

namespace sparse_autotune {

// B and C of one matrix of the batch, with the strides that the problem gives them.
Tensor view_of_b(const Problem& problem, const Launch& launch, int64_t batch);
Tensor view_of_c(const Problem& problem, const Launch& launch, int64_t batch);

// op(A), where `prepared` holds it in that layout.
Tensor densified(const Problem& problem, const Launch& launch, Layout layout);

// C = a @ B for every matrix of the batch through aten::mm.out; a failure of torch's is a Status.
// torch's own precision settings and current stream hold.
Status mm_into_c(const Tensor& a, const Problem& problem, const Launch& launch);

// The same by one call of aten::bmm.out, with op(A) as `prepared` holds it.
Status bmm_into_c(Layout prepared, const Problem& problem, const Launch& launch);

// The same for half types, whose sums are kept in fp32, in the workspace (batch x m x n), until all
// are added up: torch's settings do not reach them.
Status bmm_through_fp32(Layout prepared, const Problem& problem, const Launch& launch);

// Rows [first, first + rows) of C * B^T for one matrix of a sampled product's batch through
// aten::mm.out, into `product`: row-major and contiguous, rows x k, of the operands' dtype or, of
// half types, fp32.
Status mm_rows(const Problem& problem, const Launch& launch, int64_t batch, int64_t first,
               int64_t rows, DType dtype, void* product);

// values = `from`, which holds as many numbers in fp32.
Status round_values(const Problem& problem, const Launch& launch, const void* from);

// Runs `call`; what it throws becomes a Status.
Status guarded(const std::function<void()>& call);

}  // namespace sparse_autotune
