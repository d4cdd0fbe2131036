"""The commands ``sparse-autotune cache …``."""

from __future__ import annotations

from typing import Any

import click

from .. import _tuner
from .. import cache as entries_on_disk
from ..choices import DeviceType
from ..tuning.report import BenchmarkReport, report_of, significant
from .output import json_option, show, show_json, table

_BUNDLE = click.Path(exists=True, dir_okay=False)


@click.group(epilog="Example: sparse-autotune cache export winners.txt")
def cache() -> None:
    """The remembered races of this environment, and bundles of them."""


@cache.command("list", epilog="Example: sparse-autotune cache list --json")
@json_option
def list_entries(as_json: bool) -> None:
    """The entries that are valid here: problem, winner, time, and when they were raced."""
    found = entries_on_disk.entries()
    if as_json:
        show_json([{**entry._asdict(), "path": str(entry.path)} for entry in found])
        return
    rows = [(e.problem, e.winner, significant(e.median_us, 4), e.when, e.signature) for e in found]
    show(table(("problem", "winner", "µs", "when", "signature"), rows, right=(2,)))


def _report_of(entry: entries_on_disk.CacheEntry) -> BenchmarkReport:
    assert entry.path is not None  # this process has raced nothing
    device_class = entry.path.parent.name.rpartition("-")[0]
    race = _tuner.parse_record(entries_on_disk.read(device_class, entry.signature) or "")
    devices = {variant["name"]: variant["device"] for variant in _tuner.variants()}
    device: DeviceType = "cpu" if devices.get(race["winner"], "cuda") == "cpu" else "cuda"
    return report_of(race, device, {}, race["timing"])


@cache.command("show", epilog="Example: sparse-autotune cache show matmul_4096x4096_bs64x64_n512")
@click.argument("signature")
@click.option("--configs", is_flag=True, help="Every configuration, not the best of each family.")
@json_option
def show_entry(signature: str, configs: bool, as_json: bool) -> None:
    """All times and reasons of one race. SIGNATURE may be a part of one that no other has."""
    every = entries_on_disk.entries()
    found = [entry for entry in every if entry.signature == signature]
    found = found or [entry for entry in every if signature in entry.signature]
    if len(found) != 1:
        raise click.UsageError(
            f"{len(found) or 'no'} entries have {signature!r} in their signature; "
            "`cache list` shows them."
        )
    report = _report_of(found[0])
    if as_json:
        show_json(report.to_dict())
    else:
        show(report.table(configs=configs))


def _done(as_json: bool, text: str, **facts: Any) -> None:
    if as_json:
        show_json(facts)
    else:
        show(text)


def _entries(count: int) -> str:
    return f"{count} {'entry' if count == 1 else 'entries'}"


@cache.command(epilog="Example: sparse-autotune cache export winners.txt")
@click.argument("path", type=click.Path(dir_okay=False))
@json_option
def export(path: str, as_json: bool) -> None:
    """Write this environment's entries, with all their times, to the bundle PATH."""
    count = entries_on_disk.export(path)
    _done(as_json, f"{_entries(count)} written to {path}", entries=count, path=path)


@cache.command(epilog="Example: sparse-autotune cache load winners.txt")
@click.argument("path", type=_BUNDLE)
@json_option
def load(path: str, as_json: bool) -> None:
    """Add the entries of the bundle PATH to the cache."""
    count = entries_on_disk.load(path)
    _done(as_json, f"{_entries(count)} loaded from {path}", entries=count, path=path)


@cache.command(epilog="Example: sparse-autotune cache merge rank0.txt rank1.txt --into all.txt")
@click.argument("paths", nargs=-1, required=True, type=_BUNDLE)
@click.option("--into", required=True, type=click.Path(dir_okay=False), help="The new bundle.")
@json_option
def merge(paths: tuple[str, ...], into: str, as_json: bool) -> None:
    """Make one bundle of PATHS: of each entry the newest race."""
    report = entries_on_disk.merge(*paths, into=into)
    lines = [f"{_entries(report.entries)} written to {into}"]
    for conflict in report.conflicts:
        dropped = ", ".join(conflict.dropped)
        lines.append(f"{conflict.signature}: {conflict.kept} kept, not {dropped}")
    _done(as_json, "\n".join(lines), **report.to_dict())


@cache.command(epilog="Example: sparse-autotune cache diff before.txt after.txt")
@click.argument("a", type=_BUNDLE)
@click.argument("b", type=_BUNDLE)
@json_option
def diff(a: str, b: str, as_json: bool) -> None:
    """How the bundle B differs from the bundle A: -, + and ~ are entries gone, new, changed."""
    difference = entries_on_disk.diff(a, b)
    _done(as_json, str(difference), **difference.to_dict())


@cache.command(epilog="Example: sparse-autotune cache prune --max-bytes 10000000")
@click.option("--max-bytes", type=click.IntRange(min=0), help="By default the setting cache_bytes.")
@json_option
def prune(max_bytes: int | None, as_json: bool) -> None:
    """Remove the oldest entries, other environments first, until the cache is small enough."""
    count = entries_on_disk.prune(max_bytes)
    _done(as_json, f"{_entries(count)} removed", removed=count)


@cache.command(epilog="Example: sparse-autotune cache clear --yes")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def clear(yes: bool, as_json: bool) -> None:
    """Remove the entries of all environments."""
    if not yes:
        click.confirm(f"Remove all entries in {entries_on_disk.path()}?", abort=True, err=True)
    count = entries_on_disk.clear()
    _done(as_json, f"{_entries(count)} removed", removed=count)
