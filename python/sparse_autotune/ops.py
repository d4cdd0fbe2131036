"""Loads the operator library; ``torch.ops.sparse_autotune`` exists once this is imported."""

from __future__ import annotations

from pathlib import Path

import torch

LIBRARY = Path(__file__).with_name("libsparse_autotune.so")
torch.ops.load_library(str(LIBRARY))

# A schema that torch cannot parse is dropped without a word by some versions: fail here instead.
bsr_matmul = torch.ops.sparse_autotune.bsr_matmul.default
bsr_matmul_out = torch.ops.sparse_autotune.bsr_matmul_out.default
bsr_matmul_race = torch.ops.sparse_autotune.bsr_matmul_race.default
bsr_matmul_legality = torch.ops.sparse_autotune.bsr_matmul_legality.default
bsr_sampled_matmul = torch.ops.sparse_autotune.bsr_sampled_matmul.default
bsr_sampled_matmul_race = torch.ops.sparse_autotune.bsr_sampled_matmul_race.default
bsr_sampled_matmul_legality = torch.ops.sparse_autotune.bsr_sampled_matmul_legality.default
bsr_prepare = torch.ops.sparse_autotune.bsr_prepare.default
