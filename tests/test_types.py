"""What type checkers see: every choice and every setting with its type, so that typos are found."""

import json
import pathlib
import subprocess
import sys
from typing import Literal, get_args, get_origin

import pytest
import torch

from sparse_autotune import benchmark, choices, generators, random_bsr, settings
from sparse_autotune.nn import pruning, selection
from sparse_autotune.operators.forms import ACTIVATIONS

# A user's `mypy --strict`, of which the project's own options have the rest: with those the cache
# that `make lint` fills serves here, too.
STRICT = (
    *("disallow-any-generics", "disallow-subclassing-any", "disallow-untyped-calls"),
    *("disallow-incomplete-defs", "disallow-untyped-decorators", "check-untyped-defs"),
    *("warn-return-any", "strict-equality", "extra-checks"),
)
PREAMBLE = f"""\
# mypy: {", ".join(STRICT)}
from pathlib import Path

import torch

import sparse_autotune as sa
from sparse_autotune import settings
from sparse_autotune.choices import Activation

a, b = sa.random_bsr(8, 8, 4, density=0.5), torch.randn(8, 8)
dense, layer = torch.nn.Linear(8, 8), sa.SparseLinear(8, 8, 4, 0.5)
report = sa.benchmark(a, b)
"""

KEEP, PRUNE, REGROW = (
    get_args(criterion)[0]
    for criterion in (selection.Criterion, pruning.StoredScores, pruning.AbsentScores)
)
# Wherever a name is chosen or compared.
PLACES = {
    choices.Activation: [
        "sa.matmul(a, b, activation={})",
        "sa.linear(b, a, activation={})",
        "sa.variants(a, b, activation={})",
        "sa.tune(a, b, activation={})",
        "sa.benchmark(a, b, activation={})",
    ],
    choices.Pattern: ["sa.random_bsr(8, 8, 4, pattern={})"],
    choices.Mode: ["settings.mode = {}", "settings.override(mode={})", "sa.settings.mode = {}"],
    choices.Timing: [
        "settings.timing = {}",
        "settings.override(timing={})",
        "print(report.timing == {})",
    ],
    choices.Buckets: ["settings.buckets = {}", "settings.override(buckets={})"],
    choices.Verbosity: ["settings.verbosity = {}", "settings.override(verbosity={})"],
    choices.DeviceType: ["print(report.device_type == {})"],
    choices.Status: [
        "print(report.records[0].status == {})",
        "sa.VariantRecord('dense/mm', 'dense', {})",
    ],
    KEEP: [
        "sa.SparseLinear.from_linear(dense, 4, 0.5, {})",
        "sa.sparsify_(dense, 4, 0.5, criterion={})",
    ],
    PRUNE: ["sa.prune_(layer, 0.5, {})", "sa.prune_and_regrow_(layer, 0.5, prune={})"],
    REGROW: ["sa.regrow_(layer, 0.5, {})", "sa.prune_and_regrow_(layer, 0.5, regrow={})"],
}
ROOT = pathlib.Path(__file__).resolve().parent.parent
SETTINGS = list(vars(settings))

GOOD = [
    *(
        place.format(repr(n))
        for names, at in PLACES.items()
        for place in at
        for n in get_args(names)
    ),
    *(f"settings.{name} = settings.{name}" for name in SETTINGS),
    *(f"settings.override({name}=settings.{name})" for name in SETTINGS),
    "sa.matmul(a, b, activation=None)",
    "sa.prune_(layer, 0.5, lambda weight: weight.values.sum((1, 2)))",
    "def chosen(how: Activation) -> torch.Tensor: return sa.matmul(a, b, activation=how)",
    "settings.budget_s = 1",
    "settings.cache_dir = Path('here')",
    "settings.override(cache_dir=Path('here'), mode='off')",
    "settings.cache_dir = settings.variant = None",
    "directory: str | None = settings.cache_dir",
    "with settings.override(mode='off') as inside: inside.mode = 'on'",
]


def misspelt(names):
    first = get_args(names)[0]
    return repr(first + first[-1] if isinstance(first, str) else max(get_args(names)) + 1)


BAD = [
    "settings.mod = 'off'",
    "settings.mode = 'offf'",
    "settings.override(mode='offf')",
    "sa.matmul(a, b, activation='geluu')",
    "sa.random_bsr(8, 8, 4, pattern='unifrom')",
    *(place.format(misspelt(names)) for names, at in PLACES.items() for place in at),
    *(f"settings.{name}s = settings.{name}" for name in SETTINGS),
    *(f"settings.override({name}s=settings.{name})" for name in SETTINGS),
    *(f"settings.{name} = object()" for name in SETTINGS),
    *(f"settings.override({name}=object())" for name in SETTINGS),
    "print(settings.mod)",
    "cache_dir: str = settings.cache_dir",
    "settings.cache_dir = b'/tmp'",
]


def test_mypy_finds_every_typo_and_nothing_else(tmp_path):
    pytest.importorskip("mypy")
    snippets = tmp_path / "snippets.py"
    snippets.write_text("\n".join([PREAMBLE, *GOOD, *BAD]) + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--output=json", str(snippets)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert {pathlib.Path(one["file"]).name for one in said} == {snippets.name}
    lines = snippets.read_text().splitlines()
    errors = {lines[one["line"] - 1]: one["message"] for one in said if one["severity"] == "error"}
    assert {line: message for line, message in errors.items() if line not in BAD} == {}
    assert [line for line in BAD if line not in errors] == []


def test_every_choice_is_among_the_snippets():
    named = [c for c in vars(choices).values() if get_origin(c) is Literal]
    assert named and set(named) <= set(PLACES)


def test_tables_hold_the_choices():
    assert set(ACTIVATIONS) == {None, *get_args(choices.Activation)}
    assert [*generators._SIZED, *generators._FIXED] == [*get_args(choices.Pattern)]


def test_results_hold_choices():
    report = benchmark(random_bsr(32, 32, 16, density=0.5), torch.randn(32, 8))
    assert report.device_type in get_args(choices.DeviceType)
    assert report.timing in get_args(choices.Timing)
    assert {record.status for record in report.records} <= set(get_args(choices.Status))
