"""`sparsify_`: replaces the linear layers of a model with block-sparse ones."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence

import torch

from ..checks.matrix import kind
from .selection import Criterion
from .sparse_linear import SparseLinear

# How the attributes begin that hold what others registered on a layer, to be called with its input,
# output or gradients.
_HOOKS = ("_forward_", "_backward_", "_is_full_backward_")


def sparsify_(
    model: torch.nn.Module,
    block_size: int | Sequence[int],
    density: float | None = None,
    *,
    filter: Callable[[str, torch.nn.Module], bool] | None = None,
    criterion: Criterion = "magnitude",
) -> list[str]:
    """Replaces the ``torch.nn.Linear`` layers of a model with `SparseLinear`, in place.

    Subclasses of ``torch.nn.Linear`` are left alone: their owners may read ``weight``, as
    ``torch.nn.MultiheadAttention`` does. So does the fused inference of
    ``torch.nn.TransformerEncoderLayer``, which is switched off if its layers are replaced. If any
    chosen layer cannot be replaced, none is. Forward and backward hooks move to the new layers, and
    their handles stay valid.

    Args:
        model: the model; not itself a Linear.
        block_size: an int or ``(block_m, block_k)``; must divide the shape of every weight that is
            replaced.
        density: as in `SparseLinear.from_linear`.
        filter: called with the name and the layer; the layer is replaced if it returns True.
        criterion: as in `SparseLinear.from_linear`.

    Returns:
        The names of the replaced layers; a layer with several names is listed under each.

    Raises:
        TypeError, ValueError: as `SparseLinear.from_linear`, naming the layer; TypeError also if
            ``model`` is not a module or ``filter`` is not callable; ValueError also if ``model`` is
            itself a Linear, or if a weight is shared with another module or computed from other
            parameters.
        RuntimeError: as `SparseLinear.from_linear`.
    """
    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model must be a torch.nn.Module, got {kind(model)}")
    if filter is not None and not callable(filter):
        raise TypeError(f"filter must be callable or None, got {kind(filter)}")
    if type(model) is torch.nn.Linear:
        raise ValueError(
            "model is itself a Linear, which cannot be replaced in place: use "
            "SparseLinear.from_linear(model, block_size, density)"
        )
    owned = {(id(p), id(module)) for module in model.modules() for p in module._parameters.values()}
    owners = Counter(parameter for parameter, _ in owned)
    chosen = [
        (name, module)
        for name, module in model.named_modules(remove_duplicate=False)
        if type(module) is torch.nn.Linear and (filter is None or filter(name, module))
    ]
    replacements: dict[int, SparseLinear] = {}
    for name, module in chosen:
        if id(module.weight) not in owners:
            raise ValueError(
                f"{name}.weight is no parameter but computed from others, as by "
                "torch.nn.utils.prune: make it permanent first (prune.remove), or leave the layer "
                "out with filter"
            )
        if owners[id(module.weight)] > 1:
            raise ValueError(
                f"{name}.weight is shared with another module, and a block-sparse weight cannot "
                "be: leave the layer out with filter, or untie the weight first"
            )
        if id(module) not in replacements:
            try:
                replacements[id(module)] = SparseLinear.from_linear(
                    module, block_size, density, criterion
                )
            except (TypeError, ValueError) as error:
                raise type(error)(f"{name}: {error}") from error
            hooks = {name: of for name, of in vars(module).items() if name.startswith(_HOOKS)}
            vars(replacements[id(module)]).update(hooks)
    for name, module in chosen:
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, replacements[id(module)])
    _leave_fused_inference(model)
    return [name for name, _ in chosen]


def _leave_fused_inference(model: torch.nn.Module) -> None:
    """Has torch's encoders call their linear layers in inference, too."""
    for module in model.modules():
        if isinstance(module, torch.nn.TransformerEncoderLayer) and (
            isinstance(module.linear1, SparseLinear) or isinstance(module.linear2, SparseLinear)
        ):
            module.activation_relu_or_gelu = 0  # none that is fused
        elif isinstance(module, torch.nn.TransformerEncoder) and any(
            isinstance(layer, SparseLinear) for layer in module.modules()
        ):
            module.use_nested_tensor = False  # only fused layers take those
