// What several families ask of a problem or a device, and how they say so. Host code.
#pragma once

#include <string>
#include <string_view>

#include "operators/product/product.h"

namespace sparse_autotune {

Support from_ampere_on(const Device& d);
Support half_types_on_hopper(const Problem& p, const Device& d);
std::string block_text(int64_t block_m, int64_t block_k);
Support blocks_are(const Problem& p, int64_t block_m, int64_t block_k);
Support sides_are_multiples_of(int unit, const Problem& p);
// More than half of the rows, or columns, of a tile that has so many.
Support blocks_fill_rows(const Problem& p, int64_t rows);
Support n_fills_columns(const Problem& p, int64_t columns);
Support columns_are_within(const Problem& p, int64_t least, int64_t most);
// Those that Variant::grouping() asks for.
Support groups_are_known(const Problem& p, int grouping);
// For kernels that read 16 bytes at a time, by TMA or by themselves. `alignment`: the least of the
// operands', which the reason names.
Support aligned_to_16(std::string_view operands, int alignment);
// Those of values and B; of C, too.
Support copied_by_16(const Problem& p);
Support all_by_16(const Problem& p);
// What TMA writes of a row-major C.
Support c_comes_in_eights(const Problem& p);
// TMA's limits for the problem's sizes and strides; `coordinate`: another that a kernel counts up
// to.
Support tma_reaches(const Problem& p, int64_t coordinate);

}  // namespace sparse_autotune
