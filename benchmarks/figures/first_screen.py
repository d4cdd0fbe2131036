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
from .results import Run, by_device, speedup
from .tables import number


@dataclass(frozen=True)
class _Product:
    """A row: which cell of a suite, of products or of attention, and how it is shown."""

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
    _Product(
        suite="gpu_attention",
        what="`attention`, 8 heads of 128 × 32,768 tokens, bf16, a quarter of blocks of 128",
        mode="warm",
        unit="TFLOP/s",
        cell={"length": 32768, "density": 0.25, "mask": "random", "backward": False},
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


@dataclass(frozen=True)
class _Found:
    """What a row says of a device, and the suite that it comes from."""

    suite: str
    what: str
    ours: str
    peer: str
    ratio: float
    unit: str = ""

    @property
    def columns(self) -> tuple[str, str]:
        """Both contestants, the faster one in bold, if their times are known; and the ratio."""
        if not self.ours:
            return "–", f"{self.ratio:.2f}"
        ours, peer, figure = self.ours, *self.peer.rpartition(" ")[::2]
        ours, figure = (f"**{ours}**", figure) if self.ratio >= 1 else (ours, f"**{figure}**")
        return f"{ours} {self.unit}; {peer} {figure}", f"{self.ratio:.2f}"


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
            peer = f"{names.shown(best)} {figure(result, best)}"
            ours = figure(result, CHOICE)
            yield _Found(product.suite, product.what, ours, peer, ratio, product.unit)
            return


def _of_models(by_suite: dict[str, Run]) -> Iterator[_Found]:
    if "training" in by_suite:
        for mlp in by_suite["training"].kept["mlps"]:
            if all(mlp[key] == value for key, value in _MLP.items()):
                us = {name: median_us(taken) for name, taken in mlp["us"].items()}
                ours, dense = (f"{us[name] / 1e3:.2f}" if us else "" for name in (OURS, DENSE))
                what = "training step of an MLP 4096 → 14336 → 4096, blocks of 64, 12.5%"
                yield _Found("training", what, ours, f"dense {dense}", mlp["speedup"], "ms")
    if "llama" in by_suite:
        run = by_suite["llama"]
        step = run.kept["steps"][0]
        dense_us, ours_us = (median_us(step["us"][name]) for name in (DENSE, OURS))
        model = run.kept["model"]
        what = (
            f"Llama, {model['layers']} layers of the 8B model's size, {step['name']}, MLPs in "
            f"blocks of {model['block']}, 12.5%"
        )
        ours, dense = number(ours_us / 1e3), f"dense {number(dense_us / 1e3)}"
        yield _Found("llama", what, ours, dense, dense_us / ours_us, "ms")


def _found(by_suite: dict[str, Run]) -> list[_Found]:
    """The rows of a device, in their order."""
    found = [row for product in _PRODUCTS for row in _of_product(product, by_suite)]
    return [*found, *_of_models(by_suite), *_of_product(_LOSS, by_suite)]


def _gpus(runs: list[Run]) -> dict[str, list[Run]]:
    """The runs of each GPU that has results."""
    return by_device([run for run in runs if run.gpu])


def _model(run: Run) -> str:
    """The GPU without its maker's name and its memory: "H200"."""
    return run.device.removeprefix("NVIDIA ").partition(" ")[0]


def picture(runs: list[Run]) -> str:
    """The speed over each peer on the first GPU, and where the others' are."""
    gpus = _gpus(runs)
    if not gpus:
        return ""
    paths = {folder: f"docs/figures/speedups_{folder}.svg" for folder in gpus}
    first, *others = gpus
    said = "Each point is a product; right of the line `matmul`'s choice is faster than that peer."
    if any("source" in run.kept for run in gpus[first]):
        said += " Of older runs only the best peers of each product are on record."
    same = [f"an [{_model(gpus[folder][0])}]({paths[folder]})" for folder in others]
    said += f" The same on {' and '.join(same)}." if same else ""
    return f"![Speed over each peer, a point for each product]({paths[first]})\n\n{said}"


def table(runs: list[Run]) -> str:
    """A row of each kind of work with what each GPU did, and how to measure them."""
    gpus = {folder: {run.suite: run for run in theirs} for folder, theirs in _gpus(runs).items()}
    rows: dict[str, dict[str, _Found]] = {}
    for folder, by_suite in gpus.items():
        for found in _found(by_suite):
            rows.setdefault(found.what, {})[folder] = found
    if not rows:
        return ""
    gpus = {folder: by_suite for folder, by_suite in gpus.items() if _found(by_suite)}
    lost = rows.pop(_LOSS.what, {})
    rows |= {_LOSS.what: lost} if lost else {}  # the last one, whichever GPU has it
    shown = []
    for what, by_folder in rows.items():
        line = {"product": what}
        for folder, by_suite in gpus.items():
            model = _model(next(iter(by_suite.values())))
            said, ratio = by_folder[folder].columns if folder in by_folder else ("–", "–")
            line |= {f"{model}: choice, best peer": said, f"×, {model}": ratio}
        shown.append(line)
    suites = [next(iter(by_folder.values())).suite for by_folder in rows.values()]
    commands = [
        f"`{_TARGETS.get(suite, f'make bench-gpu SUITE={suite}')}` (row"
        f"{'s' * (len(at) > 1)} {' and '.join(map(str, at))})"
        for suite in dict.fromkeys(suites)
        for at in [[i for i, other in enumerate(suites, 1) if other == suite]]
    ]
    loses = any(found.ratio < 1 for found in lost.values())
    return "\n\n".join(
        [
            lines(shown),
            f"{'; '.join(_when(by_suite) for by_suite in gpus.values())}. TFLOP/s count stored "
            "blocks only; times are of kernels, with warm caches unless a row says otherwise, "
            "medians of interleaved rounds; × is how many times as fast. Measure them with "
            f"{', '.join(commands)}.",
            *(["The last row is one of those that we lose."] if loses else []),
        ]
    )


def _when(by_suite: dict[str, Run]) -> str:
    """The GPU, its versions, and the days on which the rows were measured."""
    used = [by_suite[suite] for suite in dict.fromkeys(row.suite for row in _found(by_suite))]
    dates = sorted({run.date for run in used})
    when = dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}"
    return f"{used[0].device}, {used[0].versions}, {when}"


SECTIONS = {"first_picture": picture, "first_table": table}
