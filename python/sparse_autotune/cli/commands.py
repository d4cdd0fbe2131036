"""The commands but those of the cache: info, bench, advise, tune."""

from __future__ import annotations

import platform
from typing import Any

import click
import torch

from .. import _tuner
from .. import cache as entries_on_disk
from ..configuration import show_config
from ..settings import settings
from ..tuning import advice, offline
from . import bench as bench_grid
from .cache_commands import cache
from .output import json_option, show, show_json, show_report, show_result


@click.group(epilog="Each command has --help with an example.")
@click.version_option(_tuner.build_info()["version"], message="%(version)s")
def cli() -> None:
    """Block-sparse products that race every kernel: measure them, tune them, ship the winners."""


cli.add_command(cache)


def _facts() -> dict[str, Any]:
    gpus = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)
    return {
        "build": _tuner.build_info(),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "torch": torch.__version__,
        "cpu": _tuner.device_info(-1, threads=torch.get_num_threads()),
        "gpus": [_tuner.device_info(ordinal) for ordinal in gpus],
        "libraries": _tuner.libraries(),
        "variants": [variant["name"] for variant in _tuner.variants()],
        "cache": str(entries_on_disk.path()),
        "settings": dict(settings.__dict__),
    }


@cli.command(epilog="Example: sparse-autotune info --json")
@json_option
def info(as_json: bool) -> None:
    """Versions, devices, variants and settings, for a bug report."""
    if as_json:
        show_json(_facts())
    else:
        show_config()


@cli.command(epilog="Example: sparse-autotune tune missed.jsonl --budget 600")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--budget", type=float, metavar="SECONDS", help="Begin no race after that time.")
@json_option
def tune(file: str, budget: float | None, as_json: bool) -> None:
    """Race the products that mode "record" wrote to FILE, and fill the cache.

    What has an entry already is not raced again.
    """
    show_result(offline.tune_file(file, budget_s=budget), as_json)


@cli.command(epilog="Example: sparse-autotune advise weight.npy -n 512 --block 16,64 --density 0.1")
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("-n", "columns", required=True, type=click.IntRange(min=1), help="Columns of b.")
@click.option("--block", "blocks", default="16,32,64,128", show_default=True, type=bench_grid.SIZES)
@click.option(
    "--density", type=float, help="Share of blocks to keep; without it all that are not zero."
)
@click.option("--device", help="cpu or cuda; the GPU if there is one.")
@json_option
def advise(
    file: str,
    columns: int,
    blocks: list[tuple[int, int]],
    density: float | None,
    device: str | None,
    as_json: bool,
) -> None:
    """What each block size would keep of the matrix in FILE, and how fast its product would be.

    FILE holds a tensor, as torch.save writes it, or an array, as numpy.save does (.npy).
    """
    matrix = bench_grid.matrix_in(file).to(bench_grid.device_of(device))
    show_result(advice.advise(matrix, columns, block_sizes=blocks, density=density), as_json)


@cli.command(
    epilog="Example: sparse-autotune bench --size 4096 --block 16,64 --density 0.1 -n 1,512"
)
@click.option("--size", "sizes", required=True, type=bench_grid.SIZES, help="4096, or 4096x1024.")
@click.option("--block", "blocks", required=True, type=bench_grid.SIZES, help="64, or 16x48.")
@click.option(
    "--density", "densities", required=True, type=bench_grid.NUMBERS, help="Share of stored blocks."
)
@click.option("-n", "columns", required=True, type=bench_grid.WHOLE_NUMBERS, help="Columns of b.")
@click.option("--dtype", "dtypes", default="float32", type=bench_grid.DTYPES, show_default=True)
@click.option("--pattern", default="uniform", show_default=True, help="As random_bsr has them.")
@click.option("--linear", is_flag=True, help="Time linear(x, a) with n rows of x.")
@click.option("--device", help="cpu or cuda; the GPU if there is one.")
@click.option("--budget", type=float, metavar="SECONDS", help="For each product.")
@click.option("--seed", default=0, show_default=True)
@json_option
def bench(as_json: bool, **options: Any) -> None:
    """Time every variant on random products; the cache stays as it is.

    Each option that describes the product takes several values, separated by commas: then each
    combination is timed, and shown as a line.
    """
    reports = bench_grid.run(bench_grid.Grid(**options))
    if as_json:
        show_json([report.to_dict() for report in reports])
    elif len(reports) == 1:
        show_report(reports[0])
    else:
        show(bench_grid.table_of(reports))
