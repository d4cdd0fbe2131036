// The blocks of attention masks, listed by row: from a grid of bools, and from lists of the other
// direction. Nothing here waits for a device, and CUDA graphs may hold all of it.
#pragma once

#include <cstdint>

#include "exported.h"
#include "host_device.h"
#include "variant.h"

namespace sparse_autotune {

// `patterns` grids of rows by columns, contiguous: a byte a block, not 0 where it is stored.
struct MaskGrid {
  int64_t patterns, rows, columns;

  SPARSE_AUTOTUNE_HOST_DEVICE int64_t lines() const { return patterns * rows; }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t room() const { return rows * columns; }
  SPARSE_AUTOTUNE_HOST_DEVICE int64_t blocks() const { return patterns * room(); }
};

// Row r of pattern p has the columns entries[begins[i]] to entries[begins[i + 1] - 1], where i is
// p * (rows + 1) + r; they ascend. Each pattern has room for all its blocks; behind its last entry
// stand zeros.
struct MaskLists {
  int32_t* begins;   // patterns * (rows + 1)
  int32_t* entries;  // grid.blocks()
};

// What kernels work in, on the device.
struct MaskScratch {
  int32_t* counts;  // grid.lines()
  uint8_t* grid;    // grid.blocks(); of turned lists alone
};

SPARSE_AUTOTUNE_API void list_blocks(const MaskGrid& shape, const uint8_t* grid,
                                     const MaskLists& out);
SPARSE_AUTOTUNE_API Status list_blocks_cuda(const MaskGrid& shape, const uint8_t* grid,
                                            const MaskLists& out, const MaskScratch& scratch,
                                            void* stream);

// The columns of `shape` become rows. `lists` hold at most `capacity` entries; those that are out
// of range are left out on a device. False for them on the host, with `out` unfinished.
SPARSE_AUTOTUNE_API bool turn_lists(const MaskGrid& shape, const MaskLists& lists, int64_t capacity,
                                    const MaskLists& out);
SPARSE_AUTOTUNE_API Status turn_lists_cuda(const MaskGrid& shape, const MaskLists& lists,
                                           int64_t capacity, const MaskLists& out,
                                           const MaskScratch& scratch, void* stream);

}  // namespace sparse_autotune
