// What the kernels of one wave of thread blocks are told, whatever tasks they make of it. Host
// code.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/sampled/sampled_early.cuh"
#include "kernels/cuda/sampled/sampled_operands.h"
#include "operators/product/product.h"

namespace sparse_autotune {

constexpr int64_t kWaveNeighbours = 2;  // thread blocks of a cluster

// Thread blocks of whole clusters that run at a time.
inline int64_t wave_places(const Device& d) {
  return std::max<int64_t>(d.multiprocessors / kWaveNeighbours, 1) * kWaveNeighbours;
}

// Of 64 terms, in all matrices of a batch.
inline int64_t wave_steps(const Problem& p) { return ceil_div(p.n, kStepK) * p.batch; }

// `side`: of the stored blocks.
inline Status set_wave_arguments(const Problem& p, const Launch& l, uint32_t side,
                                 WaveArguments* a) {
  Status status = map_sampled_c(p, l, side, &a->c);
  if (status) status = map_sampled_b(p, l, side, &a->b);
  if (!status) return status;
  a->crow_indices = l.crow_indices;
  a->col_indices = l.col_indices;
  a->values = l.sampled;
  a->blocks = static_cast<int>(p.nnzb);
  a->block_rows = static_cast<int>(block_rows(p));
  a->block_columns = static_cast<int>(block_cols(p));
  a->steps = static_cast<int>(wave_steps(p));
  a->matrix_steps = static_cast<int>(ceil_div(p.n, kStepK));
  a->wide_indices = p.index_type == IndexType::kInt64;
  a->c_batched = p.c_batch_stride != 0;
  a->b_batched = p.b_batch_stride != 0;
  return Status::ok();
}

}  // namespace sparse_autotune
