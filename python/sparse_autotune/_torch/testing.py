"""``torch.testing.assert_close`` for what is compared as another kind of tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.testing._comparison import TensorLikePair


def compare_as(kind: type, tensor_of: Callable[[Any], Tensor]) -> None:
    """Has ``assert_close`` compare two objects of a type by the tensors that they stand for.

    It takes what ``torch.as_tensor`` takes, which knows nothing of ``__torch_function__``.
    """
    as_tensor = TensorLikePair._to_tensor

    def to_tensor(self: TensorLikePair, value: Any) -> Tensor:
        return tensor_of(value) if isinstance(value, kind) else as_tensor(self, value)

    TensorLikePair._to_tensor = to_tensor  # type: ignore[method-assign, assignment]
