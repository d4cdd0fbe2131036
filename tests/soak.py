"""Eight threads, each on a stream of its own, use everything at once; every result is checked.

    python tests/soak.py --minutes 8 --seed 1

Products, gradients, sampled products, new patterns and frozen ones, and attention under new masks,
forward and backward, meet races, registered variants that come, fail and go, every mode, bundles,
and a cache that is cleared and pruned beneath them.
Ends with 1 if a result was wrong, anything raised, or the memory of host or device grew; a failure
names the thread and the number of its step.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import torch
from soaked_attention import Attention

import sparse_autotune as sa
from sparse_autotune import _tuner

THREADS = 8
SIZES = (128, 256)
BLOCKS = (8, 16, 32, 64)
COLUMNS = (1, 3, 16, 40, 64, 130)
DTYPES = (torch.float32, torch.float64, torch.bfloat16)
_MIB = 1 << 20
# What the memory's median may grow by from the second quarter of the time to the last.
_GROWTH = 48 * _MIB


class WrongError(Exception):
    """A result that is not the product."""


class Weight:
    """A block-sparse matrix and the same, dense."""

    def __init__(self, draw: random.Random, device: str) -> None:
        m, k = (draw.choice(SIZES) for _ in range(2))
        generator = torch.Generator().manual_seed(draw.randrange(1 << 30))
        self.a = sa.random_bsr(
            m,
            k,
            draw.choice(BLOCKS),
            density=draw.choice((0.1, 0.3)),
            dtype=draw.choice(DTYPES),
            device=device,
            generator=generator,
        )
        self.dense = self.a.to_dense().double()
        self.stored = sa.BsrTensor(
            self.a.crow_indices, self.a.col_indices, torch.ones_like(self.a.values), self.a.shape
        ).to_dense()

    def b(self, *shape: int) -> torch.Tensor:
        """A dense operand."""
        return torch.randn(shape, device=self.a.device).to(self.a.dtype)


def check(got: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """Element by element, within what rounding explains; NaN is wrong.

    Raises:
        WrongError: it is not the product.
    """
    left, right = left.double(), right.double()
    reference, magnitude = left @ right, left.abs() @ right.abs()
    sums = torch.float64 if got.dtype == torch.float64 else torch.float32
    length = left.shape[-1] + 8
    allowed = magnitude * length * torch.finfo(sums).eps
    allowed += 2 * torch.finfo(got.dtype).eps * reference.abs() + 1e-30
    good = (got.double() - reference).abs() <= allowed
    if not bool(good.all()):
        raise WrongError(
            f"{int((~good).sum())} of {good.numel()} elements of {got.dtype} are wrong"
        )


class Soak:
    """What the threads share."""

    def __init__(self, device: str, seed: int, folder: Path) -> None:
        self.device, self.seed, self.folder = device, seed, folder
        draw = random.Random(seed)
        self.weights = [Weight(draw, device) for _ in range(16)]
        self.keeper = threading.Lock()  # of settings and variants, which are the process's
        self.stop = threading.Event()
        self.done: Counter[str] = Counter()
        self.failures: list[str] = []
        self.serial = 0

    # Products, each compared

    def product(self, draw: random.Random, weight: Weight | None = None) -> None:
        """One of the forms."""
        w = weight or draw.choice(self.weights)
        (m, k), n = w.a.shape, draw.choice(COLUMNS)
        form = draw.choice(("matmul", "linear", "transposed", "right", "batch", "vector"))
        if form == "matmul":
            b = w.b(k, n)
            check(sa.matmul(w.a, b), w.dense, b)
        elif form == "linear":
            b = w.b(n, k)
            check(sa.linear(b, w.a), b, w.dense.T)
        elif form == "transposed":
            b = w.b(m, n)
            check(w.a.t() @ b, w.dense.T, b)
        elif form == "right":
            b = w.b(n, m)
            check(b @ w.a, b, w.dense)
        elif form == "batch":
            b = w.b(3, k, n)
            check(sa.matmul(w.a, b), w.dense, b)
        else:
            b = w.b(k)
            check(sa.matmul(w.a, b)[:, None], w.dense, b[:, None])

    def gradients(self, draw: random.Random) -> None:
        """Of both operands."""
        w, n = draw.choice(self.weights), draw.choice(COLUMNS)
        values = w.a.values.detach().clone().requires_grad_()
        a = sa.BsrTensor(w.a.crow_indices, w.a.col_indices, values, w.a.shape)
        b, upstream = w.b(w.a.shape[1], n).requires_grad_(), w.b(w.a.shape[0], n)
        sa.matmul(a, b).backward(upstream)
        check(b.grad, w.dense.T, upstream)
        grad = sa.BsrTensor(a.crow_indices, a.col_indices, values.grad, a.shape).to_dense()
        whole = upstream.double() @ b.detach().double().T
        kept = grad + (whole * (1 - w.stored.double())).to(grad.dtype)
        check(kept, upstream, b.detach().T)

    def fresh(self, draw: random.Random) -> None:
        """A pattern that nobody has seen."""
        self.product(draw, Weight(draw, self.device))

    def frozen(self, draw: random.Random) -> None:
        """With a copy that lasts as long as the matrix."""
        w = Weight(draw, self.device)
        w.a.freeze()
        for _ in range(3):
            self.product(draw, w)

    def attention(self, draw: random.Random) -> None:
        """Under a mask that nobody has seen."""
        attention = Attention(draw, self.device)
        for wrong in attention.check_forward():
            raise WrongError(wrong)

    def attention_gradients(self, draw: random.Random) -> None:
        """Of q, k and v."""
        attention = Attention(draw, self.device)
        for wrong in attention.check_gradients():
            raise WrongError(wrong)

    # What happens to the tuner meanwhile

    def chore(self, draw: random.Random) -> None:
        """One of them at a time."""
        with self.keeper:
            name = draw.choice(
                ("tune", "benchmark", "prewarm", "mode", "buckets", "bundles", "prune", "clear",
                 "variant", "record")
            )  # fmt: skip
            getattr(self, f"_{name}")(draw)
            self.done[name] += 1

    def _tune(self, draw: random.Random) -> None:
        w = draw.choice(self.weights)
        if not sa.tune(w.a, w.b(w.a.shape[1], draw.choice(COLUMNS))).winner:
            raise WrongError("a race without a winner")

    def _benchmark(self, draw: random.Random) -> None:
        w = draw.choice(self.weights)
        report = sa.benchmark(w.a, w.b(w.a.shape[1], draw.choice(COLUMNS)), num_runs=1)
        failed = [(r.name, r.reason) for r in report.records if r.status == "failed"]
        if failed := [found for found in failed if not found[0].startswith("soak_")]:
            raise WrongError(f"failed in a benchmark: {failed}")

    def _prewarm(self, draw: random.Random) -> None:
        sa.prewarm(draw.choice(self.weights).a, draw.sample(COLUMNS, 2))

    def _mode(self, draw: random.Random) -> None:
        sa.settings.mode = draw.choice(("on", "on", "off", "readonly", "record"))

    def _buckets(self, draw: random.Random) -> None:
        sa.settings.buckets = draw.choice(("geometric", "exact"))

    def _bundles(self, draw: random.Random) -> None:
        one, two = self.folder / "one.txt", self.folder / "two.txt"
        sa.cache.export(one)
        self._tune(draw)
        sa.cache.export(two)
        sa.cache.diff(one, two)
        sa.cache.merge(one, two, into=two)
        sa.cache.load(two)

    def _prune(self, draw: random.Random) -> None:
        sa.cache.prune(draw.randrange(200_000))

    def _clear(self, draw: random.Random) -> None:
        sa.cache.clear()

    def _record(self, draw: random.Random) -> None:
        path = sa.missed_products.path()
        if path.exists():
            sa.tune_file(path, budget_s=1, progress=False)
            path.unlink()

    def _variant(self, draw: random.Random) -> None:
        """Comes, races, perhaps fails from then on, and goes."""
        self.serial += 1
        fails = threading.Event()

        def fn(crow_indices, col_indices, values, b, *, out, **_):
            if fails.is_set():
                out.fill_(float("nan"))
                raise ArithmeticError("on purpose")
            block_m, block_k = values.shape[1:]
            rows = torch.arange(out.shape[0] // block_m, device=out.device)
            rows = rows.repeat_interleave(crow_indices.diff(), output_size=values.shape[0])
            products = values.double() @ b.double().unflatten(0, (-1, block_k))[col_indices]
            sums = products.new_zeros(out.shape[0] // block_m, block_m, out.shape[1])
            out.copy_(sums.index_add_(0, rows, products).flatten(0, 1))

        def supports(p):
            return not (p.transpose or p.bias or p.activation) or "plain products only"

        handle = sa.register_variant(
            f"soak_{self.serial % 8}", fn, supports=supports, device=self.device
        )
        try:
            w = draw.choice(self.weights)
            b = w.b(w.a.shape[1], draw.choice(COLUMNS))
            sa.tune(w.a, b)
            check(sa.matmul(w.a, b, variant=handle.name), w.dense, b)
            if draw.random() < 0.5:
                fails.set()
                check(sa.matmul(w.a, b), w.dense, b)
        finally:
            handle.unregister()

    # The threads

    STEPS: tuple[Callable[..., None], ...] = (
        *(product,) * 12, *(gradients,) * 3, fresh, frozen, chore,
        *(attention,) * 4, *(attention_gradients,) * 2,
    )  # fmt: skip

    def work(self, number: int) -> None:
        """One of the threads."""
        torch.set_num_threads(1)
        step = 0
        stream = torch.cuda.Stream() if self.device == "cuda" else None
        with torch.cuda.stream(stream):
            while not self.stop.is_set() and len(self.failures) < 20:
                step += 1
                draw = random.Random(f"{self.seed}:{number}:{step}")
                what = draw.choice(self.STEPS)
                try:
                    what(self, draw)
                except Exception as error:
                    self.failures.append(
                        f"thread {number}, step {step}, {what.__name__}: {error!r}\n"
                        + "".join(traceback.format_exception(error)[-3:])
                    )
                self.done[what.__name__] += 1


def memory(device: str) -> dict[str, int]:
    """Bytes that the process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    held = {"host": pages * os.sysconf("SC_PAGE_SIZE")}
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        held |= {"device": total - free, "pool": _tuner.memory(0)["pool_reserved"]}
    return held


def grown(samples: list[dict[str, int]]) -> dict[str, int]:
    """By how much the median of the last quarter exceeds that of the second, where by too much."""
    quarter = len(samples) // 4
    found = {}
    for name in samples[0]:
        second, last = (
            statistics.median(sample[name] for sample in part)
            for part in (samples[quarter : 2 * quarter], samples[-quarter:])
        )
        if last - second > max(_GROWTH, 0.05 * second):
            found[name] = round(last - second)
    return found


def main() -> int:
    """Runs the soak; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=THREADS)
    parser.add_argument("--device", choices=("cpu", "cuda"), help="by default the GPU, if any")
    options = parser.parse_args()
    device = options.device or ("cuda" if torch.cuda.is_available() else "cpu")
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="sparse_autotune: .* failed to launch")
    samples = []
    with tempfile.TemporaryDirectory(prefix="sparse_autotune_soak_") as folder:
        sa.settings.cache_dir, sa.settings.cache_bytes = folder, _MIB
        sa.settings.budget_s, sa.settings.verbosity = 0.02, 0
        sa.settings.plan_bytes = sa.settings.frozen_bytes = 16 * _MIB
        soak = Soak(device, options.seed, Path(folder))
        threads = [
            threading.Thread(target=soak.work, args=(i,), daemon=True)
            for i in range(options.threads)
        ]
        end = time.monotonic() + 60 * options.minutes
        for thread in threads:
            thread.start()
        while time.monotonic() < end and any(thread.is_alive() for thread in threads):
            time.sleep(min(1.0, 0.6 * options.minutes))
            samples.append(memory(device))
        soak.stop.set()
        for thread in threads:
            thread.join(120)
            if thread.is_alive():
                soak.failures.append("a thread does not end")
    for failure in soak.failures:
        print(f"FAILED: {failure}")
    for name, by in (growth := grown(samples)).items():
        print(f"FAILED: the memory of the {name} grew by {by / _MIB:.0f} MiB")
    held = ", ".join(f"{name} {size / _MIB:.0f} MiB" for name, size in samples[-1].items())
    steps = ", ".join(f"{name} {count}" for name, count in sorted(soak.done.items()))
    print(f"seed {options.seed}, {options.threads} threads on {device}: {steps}")
    print(f"{sa.tuning_count()} races, {len(soak.failures)} failures; at the end {held}")
    return 1 if soak.failures or growth else 0


if __name__ == "__main__":
    sys.exit(main())
