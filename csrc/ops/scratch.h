// Scratch of CPU variants. No torch.
#pragma once

#include <cstdint>

namespace sparse_autotune {

// Above what cpu_tiled and sampled_tiled pack at a time. Pages that malloc returns and maps again
// in every call cost as much as a fifth of such a product; races keep their scratch too.
constexpr int64_t kMaxKeptScratch = int64_t{32} << 20;

// What variant.h asks of a launch's workspace and prepared copy, bytes.
constexpr int64_t kScratchAlignment = 256;

// This thread's, for one launch at a time, aligned so; kept, and so at most kMaxKeptScratch.
// Null: no memory.
void* cpu_scratch(int64_t bytes);

}  // namespace sparse_autotune
