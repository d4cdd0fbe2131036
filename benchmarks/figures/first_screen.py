"""README's picture and table: a row of each kind of work, one where we lose among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from benchmarks.keep import median_us
from benchmarks.markdown import lines
from benchmarks.result import CHOICE, Result
from benchmarks.training.layer import DENSE, OURS

from . import names
from .results import Run, speedup
from .tables import number


@dataclass(frozen=True)
class _Product:
    """A row: which cell of a suite, what it is called, and in which mode and unit it is shown."""

    suite: str
    what: str
    mode: str
    unit: str
    cell: dict[str, Any]


def _of_8192(suite: str, block: int, stored: str = "") -> _Product:
    cell = {"m": 8192, "n": 8192, "block": block, "density": 0.125}
    what = f"8192³ bf16, blocks of {block}, 12.5%{stored}"
    return _Product(suite, what, "warm", "TFLOP/s", cell)


_PRODUCTS = (
    _of_8192("gpu_large_blocks", 128, " stored"),
    _of_8192("gpu_large_blocks", 64),
    _of_8192("gpu_small_blocks", 16),
    _Product(
        suite="gpu_small_n",
        what="`linear`, 1 token, 4096² bf16, blocks of 64, 12.5%",
        mode="warm",
        unit="µs",
        cell={"m": 4096, "n": 1, "block": 64, "density": 0.125, "op": "linear"},
    ),
    _Product(
        suite="gpu_science",
        what="1,000,000² × vector, fp64, 27 blocks of 3×3 a row",
        mode="warm",
        unit="µs",
        cell={"m": 999_999, "n": 1, "block": 3, "dtype": "float64"},
    ),
)
_LOSS = _Product(
    suite="gpu_losses",
    what="4096² × 16 columns, bf16, single elements, 10% (cold caches)",
    mode="cold",
    unit="µs",
    cell={"n": 16, "block": 1, "density": 0.1},
)
_MLP = {"block": 64, "density": 0.125, "width": 4096, "hidden": 14336}
_TARGETS = {"gpu_large_blocks": "make bench-gpu", "training": "make bench-training"}


# A row and the suite that it comes from.
_Found = tuple[str, dict[str, str]]


def _row(what: str, ours: str, peer: str, ratio: float) -> dict[str, str]:
    return {"product": what, "`matmul`'s choice": ours, "best peer": peer, "×": f"{ratio:.2f}"}


def _of_product(product: _Product, by_suite: dict[str, Run]) -> Iterator[_Found]:
    if product.suite not in by_suite:
        return
    mode = product.mode

    def figure(result: Result, name: str | None) -> str:
        us = result.median(name, mode)
        assert us is not None
        return number(result.nnz_flops / (us * 1e6) if product.unit == "TFLOP/s" else us)

    for result in by_suite[product.suite].results:
        best = result.best_peer(mode)
        ratio = speedup(result, best, mode)
        same = all(getattr(result.cell, key) == value for key, value in product.cell.items())
        if same and ratio is not None:
            ours, theirs = figure(result, CHOICE), figure(result, best)
            ours, theirs = (f"**{ours}**", theirs) if ratio >= 1 else (ours, f"**{theirs}**")
            peer = f"{names.shown(best)} {theirs}"
            yield product.suite, _row(product.what, f"{ours} {product.unit}", peer, ratio)
            return


def _of_models(by_suite: dict[str, Run]) -> Iterator[_Found]:
    if "training" in by_suite:
        for mlp in by_suite["training"].kept["mlps"]:
            if all(mlp[key] == value for key, value in _MLP.items()):
                ms = {name: f"{median_us(taken) / 1e3:.2f}" for name, taken in mlp["us"].items()}
                what = "training step of an MLP 4096 → 14336 → 4096, blocks of 64, 12.5%"
                ours = f"**{ms[OURS]}** ms" if ms else "–"
                dense = f"dense {ms[DENSE]}" if ms else "dense"
                yield "training", _row(what, ours, dense, mlp["speedup"])
    if "llama" in by_suite:
        run = by_suite["llama"]
        step = run.kept["steps"][0]
        dense_us, ours_us = (median_us(step["us"][name]) for name in (DENSE, OURS))
        model = run.kept["model"]
        what = (
            f"Llama, {model['layers']} layers of the 8B model's size, {step['name']}, MLPs in "
            f"blocks of {model['block']}, 12.5%"
        )
        shown = f"**{number(ours_us / 1e3)}** ms"
        peer = f"dense {number(dense_us / 1e3)}"
        yield "llama", _row(what, shown, peer, dense_us / ours_us)


def _device(runs: list[Run]) -> str | None:
    """The first GPU that has results."""
    return next((run.folder for run in runs if run.gpu), None)


def picture(runs: list[Run]) -> str:
    """The speed over each peer."""
    device = _device(runs)
    if device is None:
        return ""
    path = f"docs/figures/speedups_{device}.svg"
    said = "Each point is a product; right of the line `matmul`'s choice is faster than that peer."
    if any("source" in run.kept for run in runs if run.folder == device):
        said += " Of older runs only the best peers of each product are on record."
    return f"![Speed over each peer, a point for each product]({path})\n\n{said}"


def table(runs: list[Run]) -> str:
    """A row of each kind of work, and how to measure them."""
    device = _device(runs)
    by_suite = {run.suite: run for run in runs if run.folder == device}
    found = [row for product in _PRODUCTS for row in _of_product(product, by_suite)]
    found += _of_models(by_suite)
    found += _of_product(_LOSS, by_suite)
    if not found:
        return ""
    used = [by_suite[suite] for suite in dict.fromkeys(suite for suite, _ in found)]
    dates = sorted({run.date for run in used})
    commands = [
        f"`{_TARGETS.get(suite, f'make bench-gpu SUITE={suite}')}` (row"
        f"{'s' * (len(at) > 1)} {' and '.join(map(str, at))})"
        for suite in dict.fromkeys(suite for suite, _ in found)
        for at in [[i for i, (other, _) in enumerate(found, 1) if other == suite]]
    ]
    first = used[0]
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    lost = float(found[-1][1]["×"]) < 1
    loses = ["The last row is one of those that we lose."] if lost else []
    return "\n\n".join(
        [
            lines([row for _, row in found]),
            f"{first.device}, {first.versions}, {when}. TFLOP/s count stored blocks only; times "
            "are of kernels, with warm caches unless a row says otherwise, medians of interleaved "
            f"rounds; × is how many times as fast. Measure them with {', '.join(commands)}.",
            *loses,
        ]
    )


SECTIONS = {"first_picture": picture, "first_table": table}
