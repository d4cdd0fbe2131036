"""The results of training as text."""

from __future__ import annotations

from .layer import ALL, DENSE, OURS, STK, LayerResult, mode
from .mlp import MlpResult


def of_layer(result: LayerResult) -> str:
    """A line per pass: microseconds, TFLOP/s (of the dense layer: of all blocks), ratios."""
    cell = result.cell
    lines = [
        f"{cell.m}x{cell.k}, {cell.n} tokens, block {cell.block}, density {cell.density:.4g}, "
        f"{cell.dtype} ({mode(result.device)}; µs, nnz TFLOP/s; dense: dense TFLOP/s)",
        f"  {'':10}{OURS:>21}{STK:>19}{DENSE:>19}{'/ stk':>8}{'/ dense':>9}  variant",
    ]
    ratios = result.ratios()
    for step, rows in result.rows.items():
        line = f"  {step:10}"
        for name, width in ((OURS, 21), (STK, 19), (DENSE, 19)):
            median, rate = result.median(step, name), result.tflops(step, name)
            if median is None or rate is None:
                line += f"{rows[name].status:>{width}}"
            else:
                line += f"{f'{median:.1f} ({rate:.3g})':>{width}}"
        for other, width in ((STK, 8), (DENSE, 9)):
            ratio = ratios.get(f"{step} / {other}")
            line += f"{ratio:{width}.2f}" if ratio is not None else " " * width
        lines.append(f"{line}  {rows[OURS].detail}".rstrip())
    reasons = {
        f"{name}: {row.status}: {row.reason}"
        for step, rows in result.rows.items()
        for name, row in rows.items()
        if row.reason and step != ALL
    }
    lines += [f"  {reason}" for reason in sorted(reasons)]
    if "dX / own forward" in ratios:
        lines.append(f"  speed of dX / own forward: {ratios['dX / own forward']:.2f}")
    return "\n".join(lines) + "\n"


def of_mlp(result: MlpResult) -> str:
    """A step's time, eager and compiled, and its memory beside the dense MLP's."""
    ours, dense = (result.timings[name].median_us for name in (OURS, DENSE))
    lines = [
        f"MLP {result.width} -> {result.hidden} -> {result.width}, tanh-GELU, {result.tokens} "
        f"tokens, block {result.block}, density {result.density:.4g}, {result.dtype}, eager: "
        f"{ours:.0f} µs, dense {dense:.0f} µs: {result.speedup:.2f} times as fast",
    ]
    for way, steps in result.compiled.items():
        low, ratio, high = steps.over_eager
        lines.append(
            f"  {way}: {steps.timing.median_us:.0f} µs ({steps.issued_us:.0f} until issued), "
            f"{ratio:.3f} times the eager step's (quartiles {low:.3f}, {high:.3f})"
        )
    if result.step_bytes:
        kept, allocated = (
            ", ".join(f"{name} {found[name] / 2**20:.0f} MiB" for name in (OURS, DENSE))
            for found in (result.resident_bytes, result.step_bytes)
        )
        lines.append(f"  kept between steps: {kept}; at the peak of a step beyond it: {allocated}")
        lines.append(f"  a layer's dense weight: {result.dense_weight_bytes / 2**20:.0f} MiB")
    return "\n".join(lines) + "\n"


def broken(layers: list[LayerResult], mlps: list[MlpResult]) -> list[str]:
    """Our wrong results. Those of peers are in the tables."""
    found = [
        f"{result.cell}: {step} {rows[OURS].status}: {rows[OURS].reason}"
        for result in layers
        for step, rows in result.rows.items()
        if rows[OURS].status != "ok"
    ]
    found += [
        f"MLP block {result.block} density {result.density}: {result.wrong}"
        for result in mlps
        if result.wrong
    ]
    return found
