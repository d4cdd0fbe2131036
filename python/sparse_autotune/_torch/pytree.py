"""Types whose objects torch takes apart into tensors and puts together again."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from torch.utils import _pytree as pytree


def register_node(
    kind: type,
    flatten: Callable[[Any], tuple[list[Any], Any]],
    unflatten: Callable[[Iterable[Any], Any], Any],
    names: tuple[str, ...],
    serialized_name: str,
) -> None:
    """Registers a type; ``names`` are the attributes that its last leaves come from."""

    def flatten_with_keys(node: Any) -> tuple[list[tuple[Any, Any]], Any]:
        leaves, context = flatten(node)
        keys = [pytree.GetAttrKey(name) for name in names[-len(leaves) :]]
        return list(zip(keys, leaves, strict=True)), context

    pytree.register_pytree_node(
        kind,
        flatten,
        unflatten,
        serialized_type_name=serialized_name,
        to_dumpable_context=list,
        from_dumpable_context=list,
        flatten_with_keys_fn=flatten_with_keys,
    )
