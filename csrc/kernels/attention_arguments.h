// What every attention kernel is told, on CPUs and GPUs. No torch and no CUDA header is included
// here.
//
//   out[b, h, i, :] = sum over j of p[i, j] * v[b, h / group, j, :]
//   p[i, j] = exp(scale * q[b, h, i, :] . k[b, h / group, j, :] - lse[b, h, i])
//
// where group = heads / kv_heads, j runs over the columns that row i may see, and lse is the
// natural logarithm of the sum of exp(scale * q . k) over the same columns. A row that sees no
// column has zeros in `out`, and lse -inf; it contributes nothing to a gradient.
//
// Row i may see column j where the mask stores block (i / block_m, j / block_n), and, if
// `is_causal`, j <= i. This is torch's rule for `is_causal`: the diagonal begins at the top left
// corner, also where rows and columns differ in number.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// (batch, heads, rows, dim), the last dimension contiguous; strides are in elements.
struct AttentionTensor {
  void* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 0;
};

// fp32, (batch, heads, rows); strides are in elements. Of fp64 tensors they are fp64, too.
struct AttentionRowValues {
  float* data = nullptr;
  int64_t batch_stride = 0, head_stride = 0, row_stride = 1;
};

// Which blocks are stored. A pattern has ceil(rows / block_m) block rows. That of batch entry b and
// query head h is number p = b * batch_stride + h * head_stride (0 and 0: one for all). The stored
// blocks of its block row r are
//   col_indices[crow[r]] ... col_indices[crow[r + 1] - 1], crow = crow_indices + p * (block_rows +
//   1).
// All patterns share one col_indices, so crow counts from its beginning. Columns of a row are
// distinct; kernels do not rely on their order. Last blocks may be ragged.
struct AttentionMask {
  const int32_t* crow_indices = nullptr;  // null: every block is stored (dense attention)
  const int32_t* col_indices = nullptr;
  int64_t batch_stride = 0, head_stride = 0;  // in patterns
  int32_t block_m = 0, block_n = 0;
  int32_t patterns = 0;
};

// The same blocks by block column: what gradients of k and v walk along. Block column c of pattern
// p has the block rows
//   row_indices[ccol[c]] ... row_indices[ccol[c + 1] - 1], ccol = ccol_indices + p * (block_columns
//   + 1).
// Null where the mask is null.
struct AttentionMaskByColumn {
  const int32_t* ccol_indices = nullptr;
  const int32_t* row_indices = nullptr;
};

struct AttentionShape {
  int64_t batch = 0, heads = 0, kv_heads = 0;  // heads is a multiple of kv_heads
  int64_t rows = 0, columns = 0;               // S of q, T of k and v
  int64_t dim = 0;                             // of a head, of q, k and v alike
};

struct AttentionForward {
  AttentionShape shape;
  AttentionTensor q, k, v, out;  // q, k and v are only read
  AttentionRowValues lse;        // data may be null: nobody wants it
  AttentionMask mask;
  double scale = 1;
  bool is_causal = false;
  void* workspace = nullptr;  // 256-byte aligned
  void* stream = nullptr;     // a cudaStream_t; unused on CPUs
};

struct AttentionBackward {
  AttentionShape shape;
  AttentionTensor q, k, v, out, dout;  // only read
  AttentionRowValues lse;              // as the forward pass wrote it; only read
  AttentionRowValues dlse;             // the gradient of lse; data may be null: zeros
  AttentionTensor dq, dk, dv;          // all elements are written
  AttentionMask mask;
  AttentionMaskByColumn by_column;
  double scale = 1;
  bool is_causal = false;
  void* workspace = nullptr;
  void* stream = nullptr;
};

}  // namespace sparse_autotune
