"""Host time of a hit: what a tuned call costs the caller, by each way to ask for it.

The operands are tiny, so that a GPU keeps up with the host, and its queue of launches never fills:
a host that waits for room in it would be timed at the device's pace. On a CPU the product itself is
part of every figure.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

import torch

import sparse_autotune as sa

from . import markdown, timing
from .cell import Call
from .training.host import step_of

# A host with other work is slow for a while and fast for a while. Medians of few samples, of 1000
# calls each, were of either kind: the same call differed by a fifth between two rows.
CALLS = 200
ROUNDS = 75
# Before the first sample: a pattern's first products may be found more slowly than later ones.
_WARM_UP_CALLS = 3
# On a GPU also so few at a time: their launches fit any queue. Who takes longer when there are
# `CALLS` of them, by so much between the quartiles, which noise does not part, waited for room.
_BURST = 50
_WAITED = 1.1
_SIZE, _BLOCK, _COLUMNS = 32, 16, 8
# Of attention: what kernels of a GPU take, and on a CPU, whose kernels' time counts, less.
_SHAPES = {"cuda": (1, 2, 128, 64), "cpu": (1, 2, 32, 16)}

_MATMUL, _MM = "sa.matmul(a, b)", "torch.mm(dense, b)"
_OVERRIDDEN = "native @ b, override_torch"
_SDPA, _MASKED_SDPA = "F.scaled_dot_product_attention(q, k, v)", "the same, attn_mask=dense"
_BACKWARD, _SDPA_BACKWARD = "gradients of sa.attention(q, k, v)", "gradients of torch's"
_MASKED_BACKWARD = "gradients of sa.attention(q, k, v, mask)"
_MASKED_SDPA_BACKWARD = "gradients of torch's, attn_mask=dense"
_STEP, _DENSE_STEP = (f"{layer}: forward, backward" for layer in ("SparseLinear", "nn.Linear"))
# What each call is held against, and how many times as long it may take; None: no limit is set.
LIMITS: dict[str, tuple[str, float | None]] = {
    _MATMUL: (_MM, 0.7),
    "a @ b": (_MM, 0.7),
    "sa.matmul(native, b)": (_MM, 2.0),
    "sa.matmul(a, b, variant=winner)": (_MM, 1.5),
    "a.t() @ b": (_MM, 1.5),
    "x @ a": (_MM, 2.0),
    _OVERRIDDEN: (_MM, 2.5),
    "a @ b3": ("a @ b", 1.2),
    "x3 @ a": ("x @ a", 1.2),
    "sa.linear(x3, a)": ("sa.linear(x, a)", 1.2),
    "sa.linear(x, a)": ("F.linear(x, dense)", None),
    "sa.attention(q, k, v)": (_SDPA, 1.5),
    "sa.attention(q, k, v, mask)": (_MASKED_SDPA, 1.5),
    _BACKWARD: (_SDPA_BACKWARD, 1.5),
    _MASKED_BACKWARD: (_MASKED_SDPA_BACKWARD, 1.5),
    "SparseLinear: forward": ("nn.Linear: forward", None),
    _STEP: (_DENSE_STEP, 1.0),
}
# Each behind its reference.
ATTENTION = (_SDPA, "sa.attention(q, k, v)", _MASKED_SDPA, "sa.attention(q, k, v, mask)",
             _SDPA_BACKWARD, _BACKWARD, _MASKED_SDPA_BACKWARD, _MASKED_BACKWARD)  # fmt: skip
# A CPU may take so much longer than that: it computes the product in the same time.
CPU_EXTRA_US = 4.0


@dataclass(frozen=True)
class Row:
    """One way to a product, beside the reference that took part in the same rounds.

    Attributes:
        us: median microseconds of a call; `reference_us` likewise.
        waited: whether it, or the reference, waited for a GPU, so that this is no host time.
        limit: times the reference's time; None where no limit is set.
        extra_us: what this device may take beyond that.
    """

    name: str
    us: float
    reference: str
    reference_us: float
    waited: bool
    limit: float | None
    extra_us: float

    @property
    def ratio(self) -> float:
        """Times as long as the reference."""
        return self.us / self.reference_us

    @property
    def limit_us(self) -> float | None:
        """The limit on this device, in microseconds of this run."""
        return None if self.limit is None else self.limit * self.reference_us + self.extra_us

    @property
    def holds(self) -> bool | None:
        """Whether it is within the limit; None where no limit is set."""
        return None if self.limit_us is None else self.us <= self.limit_us

    def to_dict(self) -> dict[str, Any]:
        """For JSON."""
        derived = ("ratio", "limit_us", "holds")
        return {**asdict(self), **{name: getattr(self, name) for name in derived}}


def _attention_calls(device: str) -> dict[str, Call]:
    """Attention of tiny heads beside torch's, without a mask and with one of blocks."""
    # Whose kernels on a GPU are of half types.
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    *_, length, dim = shape = _SHAPES[device]
    q, k, v = (torch.randn(shape, device=device, dtype=dtype) for _ in range(3))
    blocks = sa.BlockMask.causal(length, block_size=dim, device=device).blocks()
    mask = sa.BlockMask.from_blocks(blocks, dim, is_causal=True)  # of which nobody knows the rule
    dense = mask.to_dense()
    sdpa = torch.nn.functional.scaled_dot_product_attention
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]

    @torch.enable_grad()
    def gradients(attend: Callable[..., torch.Tensor], *mask: Any) -> Call:
        out = attend(*leaves, *mask)
        return lambda: torch.autograd.grad(out, leaves, q, retain_graph=True)

    return {
        _SDPA: lambda: sdpa(q, k, v),
        "sa.attention(q, k, v)": lambda: sa.attention(q, k, v),
        _MASKED_SDPA: lambda: sdpa(q, k, v, attn_mask=dense),
        "sa.attention(q, k, v, mask)": lambda: sa.attention(q, k, v, mask),
        _SDPA_BACKWARD: gradients(sdpa),
        _BACKWARD: gradients(sa.attention),
        _MASKED_SDPA_BACKWARD: gradients(sdpa, dense),
        _MASKED_BACKWARD: gradients(sa.attention, mask),
    }


def make_calls(device: str) -> dict[str, Call]:
    """Every call by its name; a race chooses the variant.

    All products are the same one or parts of it: `x` is the transpose of `b`. Each attention
    follows torch's own.
    """
    torch.manual_seed(0)  # SparseLinear draws its pattern from it
    pattern = torch.Generator(device).manual_seed(0)
    a = sa.random_bsr(_SIZE, _SIZE, _BLOCK, density=0.5, device=device, generator=pattern)
    dense, native, b = a.to_dense(), a.to_torch(), torch.randn(_SIZE, _COLUMNS, device=device)
    x = b.t().contiguous()
    b3, x3 = torch.stack((b, b)), torch.stack((x, x))
    best = sa.tune(a, b).best
    assert best is not None
    winner = best.name
    sparse_layer = sa.SparseLinear(_SIZE, _SIZE, _BLOCK, 0.5, device=device)
    dense_layer = torch.nn.Linear(_SIZE, _SIZE, device=device)
    leaf, upstream = x.clone().requires_grad_(), torch.ones_like(x)
    return {
        _MM: lambda: torch.mm(dense, b),
        _MATMUL: lambda: sa.matmul(a, b),
        "a @ b": lambda: a @ b,
        "sa.matmul(native, b)": lambda: sa.matmul(native, b),
        "sa.matmul(a, b, variant=winner)": lambda: sa.matmul(a, b, variant=winner),
        "a.t() @ b": lambda: a.t() @ b,
        "x @ a": lambda: x @ a,
        _OVERRIDDEN: lambda: native @ b,
        "a @ b3": lambda: a @ b3,
        "x3 @ a": lambda: x3 @ a,
        "F.linear(x, dense)": lambda: torch.nn.functional.linear(x, dense),
        "sa.linear(x, a)": lambda: sa.linear(x, a),
        "sa.linear(x3, a)": lambda: sa.linear(x3, a),
        "nn.Linear: forward": lambda: dense_layer(x),
        "SparseLinear: forward": lambda: sparse_layer(x),
        **_attention_calls(device),
        _DENSE_STEP: step_of(dense_layer, leaf, upstream),
        _STEP: step_of(sparse_layer, leaf, upstream),
    }


def within(name: str) -> AbstractContextManager[Any]:
    """What a call runs in, where all others run without gradients."""
    if name in (_STEP, _DENSE_STEP):
        return torch.enable_grad()
    return sa.override_torch() if name == _OVERRIDDEN else contextlib.nullcontext()


def _sampler(name: str, call: Call, calls: int, wait: Call) -> timing.Sampler:
    run = timing.host_sampler(call, calls, wait)

    def sample() -> float:
        with within(name):
            return run()

    return sample


def measure(device: str, names: Collection[str] = tuple(LIMITS), rounds: int = ROUNDS) -> list[Row]:
    """The rows of these names, from interleaved rounds in which all of them take part.

    The calls of a sample are issued without waiting for any.

    Raises:
        RuntimeError: a race ran while time was taken.
    """
    wanted = {*names, *(LIMITS[name][0] for name in names)}
    wait = timing.wait_of(device)
    with torch.no_grad():
        calls = {name: call for name, call in make_calls(device).items() if name in wanted}
        for name, call in calls.items():
            with within(name):
                for _ in range(_WARM_UP_CALLS):
                    call()
        samplers = {name: _sampler(name, call, CALLS, wait) for name, call in calls.items()}
        bursts = {
            f"{name}, burst": _sampler(name, call, _BURST, wait)
            for name, call in calls.items()
            if device == "cuda"
        }
        before = sa.tuning_count()
        # All stay in every round: the slower ones are no losers here but the subject.
        taken = timing.interleave(samplers | bursts, rounds, keep=samplers | bursts)
        if races := sa.tuning_count() - before:
            raise RuntimeError(f"races ran while host time was taken: {races}")
    us = {name: taken[name].median_us for name in calls}
    waited = {
        name: bool(bursts) and taken[name].low_us > _WAITED * taken[f"{name}, burst"].high_us
        for name in calls
    }
    return [
        Row(
            name=name,
            us=us[name],
            reference=reference,
            reference_us=us[reference],
            waited=waited[name] or waited[reference],
            limit=limit,
            extra_us=CPU_EXTRA_US if device == "cpu" else 0.0,
        )
        for name, (reference, limit) in LIMITS.items()
        if name in names
    ]


def table(rows: list[Row]) -> str:
    """A line a call: its time, its reference's, and whether it is within the limit."""
    return markdown.lines([_line(row) for row in rows])


def _line(row: Row) -> dict[str, str]:
    line = {
        "call": f"`{row.name}`",
        "µs": f"{row.us:.2f}",
        "reference": f"`{row.reference}`",
        "its µs": f"{row.reference_us:.2f}",
        "×": f"{row.ratio:.2f}",
        "limit": "",
        "holds": "",
    }
    if row.limit is not None:
        extra = f" + {row.extra_us:g} µs" if row.extra_us else ""
        line["limit"] = f"{row.limit:g} ×{extra} = {row.limit_us:.2f} µs"
        line["holds"] = "yes" if row.holds else "**no**"
    if row.waited:
        line["holds"] += " (waited for the GPU)"
    return line


def measure_short(device: str) -> Row:
    """The row that every comparison ends with: `matmul` of a BsrTensor, and torch.mm."""
    return measure(device, [_MATMUL])[0]


def show(row: Row, device: str) -> str:
    """One line."""
    return (
        f"host time of a hit on {device}: {row.name} {row.us:.2f} µs, {row.reference} "
        f"{row.reference_us:.2f} µs (x{row.ratio:.2f}, {row.us - row.reference_us:+.2f} µs)"
    )
