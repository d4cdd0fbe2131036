"""The parameters of a layer where their data, or their shape, change between steps."""

from __future__ import annotations

import torch
from torch import Tensor


def replace_data(parameter: torch.nn.Parameter, data: Tensor) -> None:
    """Gives a parameter other data, and no gradient; it stays the one optimizers know.

    A graph that saved the old data raises in its backward. Data of the same shape is copied, which
    leaves whoever waits for the gradient in place, as DistributedDataParallel does.
    """
    parameter.grad = None
    if data.shape == parameter.shape:
        parameter.data.copy_(data)
    else:
        # While an old graph lives, torch goes on accumulating into the old shape, unless the type
        # changes, too.
        other = torch.float64 if data.dtype != torch.float64 else torch.float32
        parameter.data = data.new_empty(0, dtype=other)
        parameter.data = data
    torch.autograd.graph.increment_version(parameter)  # `.data` does not tell saved tensors


def whose_values(layer: torch.nn.Module) -> str | None:
    """What the values of a layer are where they are not its own to change; None: they are.

    FSDP gives a layer whole parameters for a while, and takes them away with all changes.
    """
    kind = type(layer.values)
    if kind is not torch.nn.Parameter:
        return f"a {kind.__name__}, no Parameter"
    if getattr(layer, "_is_fsdp_managed_module", False):
        return "a Parameter that FSDP shards"
    return None
