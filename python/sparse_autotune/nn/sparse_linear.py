"""`SparseLinear`, a linear layer with a block-sparse weight."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from .. import errors
from .._torch.compiling import is_exporting
from ..bsr_tensor import BsrTensor
from ..checks.matrix import (
    Components,
    block_shape,
    check_dense,
    check_divides,
    check_value_dtype,
    size,
)
from ..conversions import indices_of
from ..operands import matmul_operands
from ..operators.autograd import product
from ..plan_owner import own_plan
from .parameters import replace_data, whose_values
from .selection import Criterion, blocks_to_keep, stored_count

_INDICES = ("crow_indices", "col_indices")


def _copy(parameter: Tensor) -> torch.nn.Parameter:
    return torch.nn.Parameter(parameter.detach().clone(), parameter.requires_grad)


class SparseLinear(torch.nn.Module):
    """``x @ weight.T + bias`` with a block-sparse weight; only its stored blocks are trained.

    A new layer stores ``round(density * blocks)`` blocks at random places, drawn by torch's CPU
    generator. The state consists of strided tensors only: the parameters ``values`` (nnzb, block_m,
    block_k) and ``bias`` (out_features,), and the buffers ``crow_indices`` and ``col_indices``.
    ``load_state_dict`` also accepts a state with a different nnzb: ``values`` then changes shape,
    so create the optimizer afterwards. Layers created on the meta device get their pattern with
    their values, from `reset_parameters` or a state. Under autocast the layer computes in
    autocast's dtype.

    Args:
        in_features: columns of the weight, a multiple of block_k.
        out_features: rows of the weight, a multiple of block_m.
        block_size: an int or ``(block_m, block_k)``.
        density: the fraction of blocks to store, 0 to 1.
        bias: whether to add a trained bias.
        device: of the tensors; by default torch's default device.
        dtype: of values and bias: float16, bfloat16, float32 or float64.

    Raises:
        TypeError: a size, block size or dtype of the wrong kind.
        ValueError: a negative size, a block that does not divide the shape, or a density outside
            [0, 1].
    """

    values: torch.nn.Parameter
    bias: torch.nn.Parameter | None
    crow_indices: Tensor
    col_indices: Tensor

    def __init__(
        self,
        in_features: int,
        out_features: int,
        block_size: int | Sequence[int],
        density: float,
        bias: bool = True,
        *,
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        self.in_features = size(in_features, "in_features")
        self.out_features = size(out_features, "out_features")
        self.block_size = block_m, block_k = block_shape(block_size)
        check_divides((out_features, in_features), (block_m, block_k), "the weight")
        dtype = torch.get_default_dtype() if dtype is None else dtype
        check_value_dtype(dtype, "dtype")
        self._frozen_weight: BsrTensor | None = None
        nnzb = stored_count(density, self._grid())
        for name, length in zip(_INDICES, (self._grid()[0] + 1, nnzb), strict=True):
            self.register_buffer(name, torch.zeros(length, dtype=torch.int64, device=device))

        def parameter(*shape: int) -> torch.nn.Parameter:
            return torch.nn.Parameter(torch.empty(shape, dtype=dtype, device=device))

        self.values = parameter(nnzb, block_m, block_k)
        self.bias = parameter(out_features) if bias else None
        self.reset_parameters()

    def _grid(self) -> tuple[int, int]:
        """Block rows and block columns."""
        block_m, block_k = self.block_size
        return self.out_features // block_m, self.in_features // block_k

    def reset_parameters(self) -> None:
        """Redraws the pattern, with the same number of blocks, and the values.

        Uniform as in ``torch.nn.Linear``, with the mean number of stored inputs as the fan-in.
        """
        if not self.crow_indices.is_meta:
            rows, cols = self._grid()
            chosen = torch.randperm(rows * cols, device="cpu")[: self.nnzb].sort().values
            crow_indices, col_indices = indices_of(chosen, (rows, cols))
            self.crow_indices.copy_(crow_indices)
            self.col_indices.copy_(col_indices)
        fan_in = self.density * self.in_features
        bound = 1 / math.sqrt(fan_in) if fan_in else 0.0
        torch.nn.init.uniform_(self.values, -bound, bound)
        if self.bias is not None:
            torch.nn.init.uniform_(self.bias, -bound, bound)
        self._own_plan()

    @classmethod
    def from_linear(
        cls,
        linear: torch.nn.Linear,
        block_size: int | Sequence[int],
        density: float | None = None,
        criterion: Criterion = "magnitude",
    ) -> SparseLinear:
        """A layer that keeps, as copies, the most important blocks of a dense layer.

        Args:
            linear: the dense layer, which does not change.
            block_size: an int or ``(block_m, block_k)``.
            density: the fraction of blocks to keep; None with "nonzero" or a mask, which determine
                it.
            criterion: "magnitude" keeps the blocks of largest Frobenius norm; "nonzero", for a
                layer that is already pruned, those that hold a non-zero; a bool mask, shape
                (block rows, block columns), those it marks; a callable takes the dense weight
                (out_features, in_features) and returns one score per block, (block rows, block
                columns), and the blocks of highest score are kept.

        Raises:
            TypeError: ``linear`` is not a ``torch.nn.Linear``; the criterion or what it returns is
                of the wrong kind.
            ValueError: the block size does not divide the weight; density is missing, outside
                [0, 1] or not what the criterion keeps; scores have the wrong shape or contain NaN;
                the weight is on the meta device.
            RuntimeError: the mask is on a different device.
        """
        if not isinstance(linear, torch.nn.Linear):
            raise TypeError(f"linear must be a torch.nn.Linear, got {type(linear).__name__}")
        weight = linear.weight.detach()
        if weight.is_meta:
            raise ValueError(
                "linear is on the meta device, where no block is larger than another: make a "
                "SparseLinear there, or give linear its values first"
            )
        block = block_shape(block_size)
        check_divides(weight.shape, block, "the weight")
        keep = blocks_to_keep(weight, block, density, criterion)
        kept = BsrTensor.from_dense(weight, block, keep=keep)
        like: dict[str, Any] = {"device": weight.device, "dtype": weight.dtype}
        rows, cols = weight.shape
        layer = cls(cols, rows, block, 0.0, bias=linear.bias is not None, **like)
        layer._take(kept, linear.weight.requires_grad)
        if layer.bias is not None:
            layer.bias = _copy(linear.bias)
        return layer.train(linear.training)

    def to_linear(self) -> torch.nn.Linear:
        """A dense layer with this layer's weight, zeros included, and bias, as copies."""
        linear = torch.nn.Linear(
            self.in_features, self.out_features, bias=self.bias is not None, device="meta"
        )
        weight, values = self.weight.detach(), self.values
        dense = values.new_empty(weight.shape) if values.is_meta else weight.to_dense()
        linear.weight = torch.nn.Parameter(dense, values.requires_grad)
        if self.bias is not None:
            linear.bias = _copy(self.bias)
        return linear.train(self.training)

    def _take(self, weight: BsrTensor, requires_grad: bool) -> None:
        """Becomes a layer with this weight, whose tensors it owns from now on."""
        self.crow_indices, self.col_indices = weight.crow_indices, weight.col_indices
        self.values = torch.nn.Parameter(weight.values, requires_grad=requires_grad)
        self._own_plan()

    def _own_plan(self) -> None:
        """The plan of the indices goes with them, or with the layer."""
        self._plan_owner = own_plan(self.crow_indices, self.col_indices)

    @property
    def weight(self) -> BsrTensor:
        """The weight, (out_features, in_features), sharing the layer's tensors and plan."""
        return self._weight_with(self.values)

    def _weight_with(self, values: Tensor) -> BsrTensor:
        shape = self.out_features, self.in_features
        parts = Components(self.crow_indices, self.col_indices, values, *shape)
        return BsrTensor._made_of(parts, self.block_size, self._plan_owner)

    @property
    def nnzb(self) -> int:
        """The number of stored blocks."""
        return self.col_indices.shape[0]

    @property
    def density(self) -> float:
        """The fraction of blocks that are stored, 0 to 1."""
        rows, cols = self._grid()
        return self.nnzb / (rows * cols) if rows * cols else 0.0

    def forward(self, input: Tensor) -> Tensor:
        """(..., out_features), of the layer's dtype, from ``input`` (..., in_features).

        Under autocast, input, values and bias are converted first, as in ``torch.nn.Linear``;
        float64 ones are not.

        Raises:
            TypeError, ValueError, RuntimeError: as `linear`; RuntimeError also for values that
                changed, or require grad, while frozen.
        """
        x = input  # which keyword arguments call it, as in torch.nn.Linear
        if not isinstance(x, Tensor):
            if isinstance(x, torch.fx.Proxy) and (name := x.tracer.path_of_module(self)):
                return x.tracer.create_proxy("call_module", name, (x,), {})  # as torch's layers
            check_dense(x, "x")
        # By attribute each takes a third of a microsecond, and may be no parameter but computed.
        own: dict[str, Any] = self._parameters
        buffers: dict[str, Any] = self._buffers
        values = own["values"] if "values" in own else self.values  # noqa: SIM401
        bias = own["bias"] if "bias" in own else self.bias  # noqa: SIM401
        frozen = self._frozen_weight is not None and self._values_are_frozen(values)
        indices = buffers["crow_indices"], buffers["col_indices"]
        matrix = (*indices, values, self.out_features, self.in_features, False)
        operands = matmul_operands(matrix, frozen, x, bias, True, linear=True)
        try:
            return product(*operands)
        except errors.REFUSALS:
            if not torch.compiler.is_compiling():
                errors.explain_matmul(x, self._weight_with(values), bias, linear=True)
            raise

    def _values_are_frozen(self, values: Tensor) -> bool:
        """Raises where frozen values changed; False for others that stand in for them."""
        assert self._frozen_weight is not None
        if values is not self._frozen_weight.values:
            return is_exporting()  # which has fake ones stand in for the layer's own
        if not torch.compiler.is_compiling():
            self._frozen_weight.check_frozen()
        return True

    # For inference

    def freeze(self) -> SparseLinear:
        """Promises that ``values`` will not change until `thaw`; see ``BsrTensor.freeze``.

        The promise carries over when the layer is moved or converted. Returns self.

        Raises:
            RuntimeError: the values require grad: call ``requires_grad_(False)`` first.
        """
        if self._frozen_weight is None or self._frozen_weight.values is not self.values:
            self._frozen_weight = self.weight  # as load_state_dict(assign=True) leaves it, too
        try:
            self._frozen_weight.freeze()
        except RuntimeError:
            self._frozen_weight = None
            raise
        return self

    def thaw(self) -> SparseLinear:
        """Revokes `freeze` and drops the converted copies. Returns self."""
        if self._frozen_weight is not None:
            self._frozen_weight.thaw()
            self._frozen_weight = None
        return self

    def prepare(self) -> SparseLinear:
        """Checks the indices and builds the plan now, as for CUDA graph capture. Returns self.

        Raises:
            ValueError: the indices are not those of a BSR matrix.
        """
        self.weight.prepare()
        return self

    # What torch does to modules

    def _apply(self, fn: Callable[[Any], Any], recurse: bool = True) -> SparseLinear:
        # Tried on nothing first: a dtype that is refused must not have cost the values.
        tried = torch.empty(0, dtype=self.values.dtype, device=self.values.device)
        check_value_dtype(fn(tried).dtype, "values")
        frozen = self._frozen_weight is not None
        self.thaw()
        indices = {name: getattr(self, name) for name in _INDICES}
        super()._apply(fn, recurse)
        for name, before in indices.items():
            after = getattr(self, name)
            if after.dtype != before.dtype:  # by Module.type(), which converts buffers, too
                setattr(self, name, before.to(after.device))
        self._own_plan()
        return self.freeze() if frozen else self

    def _load_from_state_dict(
        self, state_dict: dict[str, Any], prefix: str, *arguments: Any
    ) -> None:
        missing_keys, error_messages = arguments[2], arguments[-1]
        given = [state_dict.get(prefix + name) for name in (*_INDICES, "values")]
        tensors = [tensor for tensor in given if isinstance(tensor, Tensor)]
        if len(tensors) == 3:
            shapes = tuple(tuple(tensor.shape) for tensor in tensors)
            nnzb = shapes[1][0] if len(shapes[1]) == 1 else -1
            fitting = ((self._grid()[0] + 1,), (nnzb,), (nnzb, *self.block_size))
            if shapes != fitting:
                block_m, block_k = self.block_size
                error_messages.append(
                    f"{prefix}crow_indices, col_indices and values have shapes "
                    f"{', '.join(map(str, shapes))}, but this layer needs {fitting[0]}, (nnzb,) "
                    f"and (nnzb, {block_m}, {block_k}): it is {self.out_features} x "
                    f"{self.in_features} with blocks of {block_m} x {block_k}"
                )
                return
            if nnzb != self.nnzb:
                self._resize(nnzb)
        super()._load_from_state_dict(state_dict, prefix, *arguments)
        if prefix + "weight" in state_dict and prefix + "values" in missing_keys:
            missing_keys[missing_keys.index(prefix + "values")] += (
                " (the state's weight is a dense layer's: load it into the dense model, and make "
                "that block-sparse by sparsify_ or SparseLinear.from_linear)"
            )
        self._own_plan()

    def _resize(self, nnzb: int) -> None:
        """Room for another number of blocks, of undefined content."""
        if not_ours := whose_values(self):
            raise RuntimeError(
                f"values is {not_ours}: the number of blocks cannot change once values are "
                "sharded, or computed from others; do it before"
            )
        self.thaw()
        self.col_indices = self.col_indices.new_empty(nnzb)
        replace_data(self.values, self.values.data.new_empty((nnzb, *self.block_size)))

    def __getstate__(self) -> dict[str, Any]:
        """Plans and frozen copies stay with this process, and with this layer."""
        return {**self.__dict__, "_plan_owner": None, "_frozen_weight": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._own_plan()

    def extra_repr(self) -> str:
        """What ``print(model)`` shows."""
        return (
            f"in_features={self.in_features}, out_features={self.out_features}, "
            f"block_size={self.block_size}, density={self.density:.4g}, "
            f"bias={self.bias is not None}"
        )
