"""The store of the default process group: what its ranks write there, all of them can read."""

from __future__ import annotations

import torch.distributed as dist
from torch.distributed.distributed_c10d import _get_default_store


def store_of_all_ranks(prefix: str) -> dist.Store:
    """A part of it, whose keys begin with ``prefix``."""
    return dist.PrefixStore(prefix, _get_default_store())
