"""The command line: what each command does, as text and as JSON, and how it refuses."""

import io
import json
import os
import re
import subprocess
import sys

import numpy
import pytest
import torch
from interpreters import end_of_python, run_python

import sparse_autotune
from sparse_autotune import (
    _tuner,
    cache,
    matmul,
    missed_products,
    random_bsr,
    settings,
    tuning_count,
)

pytest.importorskip("click", reason="click is not installed")
pytest.importorskip("rich", reason="rich is not installed")
from sparse_autotune.cli import main
from sparse_autotune.cli.commands import cli

BENCH = ("bench", "--size", "64x96", "--density", "0.4", "--device", "cpu", "--budget", "0.05")


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.01)


@pytest.fixture
def run(capsys):
    """Runs a command that succeeds, and returns what it printed; `json` as data."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (end.value.code, printed.err) == (0, ""), printed
        return json.loads(printed.out) if "--json" in arguments else printed.out

    return call


@pytest.fixture
def refused(capsys):
    """Runs a command that refuses, and returns its sentence."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        assert (end.value.code, printed.out) == (2, ""), printed
        assert printed.err.startswith("sparse-autotune: ")
        assert printed.err.count("\n") == 1 and printed.err.endswith("\n")
        return printed.err.removeprefix("sparse-autotune: ").removesuffix("\n")

    return call


def race(n=8, k=96):
    a = random_bsr(64, k, 16, density=0.4, generator=torch.Generator().manual_seed(1))
    matmul(a, torch.randn(k, n))


def commands(group=cli, path=()):
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield (*path, name)


EVERY = list(commands())


def test_every_command_is_there():
    of_cache = ("list", "show", "export", "load", "merge", "diff", "prune", "clear")
    expected = {
        ("info",),
        ("bench",),
        ("advise",),
        ("tune",),
        *(("cache", name) for name in of_cache),
    }
    assert set(EVERY) == expected


@pytest.mark.parametrize("command", EVERY, ids=" ".join)
def test_help_has_an_example_and_json(command, run):
    text = " ".join(run(*command, "--help").split())
    assert re.search(rf"Example: sparse-autotune {' '.join(command)}\b", text)
    assert "--json" in text


def test_help_of_the_groups(run):
    assert "Each command has --help" in run("--help")
    assert "Example: sparse-autotune cache" in run("cache", "--help")
    assert run("--version") == f"{sparse_autotune.__version__}\n"


def test_info(run):
    assert run("info").startswith(f"sparse_autotune {sparse_autotune.__version__}, kernels ")
    facts = run("info", "--json")
    assert facts["build"]["kernel_hash"] == _tuner.build_info()["kernel_hash"]
    assert facts["variants"] == sparse_autotune.variants()
    assert facts["cache"] == str(cache.path())
    assert facts["settings"]["budget_s"] == 0.01
    assert facts["cpu"]["threads"] == torch.get_num_threads()


def test_bench_of_one_product(run):
    text = run(*BENCH, "--block", 16, "-n", 8)
    assert text.startswith("64x96x8 bs16 density 0.417 f32 on ")
    assert "TFLOP/s (nnz)" in text and "cpu_rows/" in text
    assert cache.entries() == []


def test_bench_of_a_grid(run):
    grid = ("--block", "16,16x32", "-n", "1,8", "--dtype", "float32,bfloat16", "--linear")
    reports = run(*BENCH, *grid, "--json")
    problems = [report["problem"] for report in reports]
    assert len(set(problems)) == len(problems) == 8
    assert problems[0] == "64x96x1 bs16 density 0.417 f32"
    assert problems[-1] == "64x96x8 bs16x32 density 0.417 bf16"
    assert all(report["winner"] for report in reports)
    assert all("_bC_" in report["signature"] or "n1_" in report["signature"] for report in reports)


def test_the_table_of_a_grid(run):
    headings, _, *rows = run(*BENCH, "--block", 16, "-n", "1,8").splitlines()
    assert headings.split() == ["problem", "winner", "µs", "TFLOP/s", "(nnz)", "dense", "µs"]
    assert [row.split()[0] for row in rows] == ["64x96x1", "64x96x8"]
    for row in rows:
        winner, us, rate, dense = row.split()[-4:]
        assert winner in sparse_autotune.variants()
        assert float(us) > 0 and float(rate) > 0 and float(dense) > 0


@pytest.mark.parametrize(
    ("option", "value", "why"),
    [
        ("--block", "x", "'x' is not a size like 64 or 16x48."),
        ("--block", "0", "'0' is not a size like"),
        ("--block", "7", "divide"),
        ("--size", "64x", "'64x' is not a size"),
        ("--density", "-1", "'-1' is not a positive number."),
        ("--density", "nan", "'nan' is not a positive number."),
        ("--density", "2", "density"),
        ("-n", "1,x", "'x' is not a positive whole number."),
        ("-n", "", "'' is not a positive whole number."),
        ("--dtype", "int8", "'int8' is not one of float16, bfloat16, float32, float64."),
        ("--pattern", "stripes", "pattern must be one of"),
        ("--device", "abacus", "--device must be cpu or cuda; got 'abacus'"),
        ("--device", "meta", "--device must be cpu or cuda; got 'meta'"),
        ("--budget", "0", "budget_s must be a positive"),
        ("--budget", "soon", "'soon' is not a valid float"),
    ],
)
def test_bench_refuses(option, value, why, refused):
    options = {"--block": "16", "-n": "8", option: value}
    text = refused(*BENCH, *(word for pair in options.items() for word in pair))
    assert why in text, text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_bench_without_a_gpu(refused):
    assert "sees no usable GPU" in refused(*BENCH, "--block", 16, "-n", 1, "--device", "cuda")


@pytest.mark.parametrize("name", ["weight.npy", "weight.pt"])
def test_advise(name, run, tmp_path):
    file = tmp_path / name
    weight = torch.randn(64, 96)
    if name.endswith(".npy"):
        numpy.save(file, weight.numpy())
    else:
        torch.save(weight, file)
    options = ("-n", 8, "--block", "16,48", "--density", 0.5, "--device", "cpu")
    title, _, first, second = run("advise", file, *options).splitlines()
    assert title.startswith("64x96x8 float32 on cpu, dense ")
    assert first.split()[:2] == ["16", "50.0%"] and "does not divide" in second
    data = run("advise", file, *options, "--json")
    assert [size["block_size"] for size in data["sizes"]] == [[16, 16], [48, 48]]


def test_advise_refuses(refused, tmp_path):
    assert "does not exist" in refused("advise", tmp_path / "missing", "-n", 8)
    for name, content in (("a.npy", b"hello"), ("a.pt", b"hello"), ("b.npy", b"")):
        (tmp_path / name).write_bytes(content)
        assert "holds no tensor" in refused("advise", tmp_path / name, "-n", 8)
    torch.save({"weight": torch.zeros(16, 16)}, tmp_path / "c.pt")
    assert "holds no tensor" in refused("advise", tmp_path / "c.pt", "-n", 8)
    torch.save(torch.zeros(16, 16), tmp_path / "d.pt")
    cpu = ("--device", "cpu")
    assert "density must" in refused("advise", tmp_path / "d.pt", "-n", 8, "--density", 2, *cpu)
    assert "0 is not in the range" in refused("advise", tmp_path / "d.pt", "-n", 0)


def test_tune(run):
    with settings.override(mode="record"):
        race(8)
        race(40)
    first, second, counts = run("tune", missed_products.path()).splitlines()
    assert first.startswith("64x96x8 bs16 ") and second.startswith("64x96x40 bs16 ")
    assert counts == "2 raced, 0 known, 0 skipped, 0 left"
    again = run("tune", missed_products.path(), "--json")
    assert (again["races"], again["known"]) == ([], 2)
    cache.clear()
    assert run("tune", missed_products.path(), "--budget", "1e-9", "--json")["left"] == 2


def test_tune_refuses(refused, tmp_path):
    assert "missing" in refused("tune", tmp_path / "missing")
    (tmp_path / "file").write_text("hello\n")
    assert "is not a record of missed products" in refused("tune", tmp_path / "file")
    assert "budget_s must be" in refused("tune", tmp_path / "file", "--budget", "-1")


def test_cache_list_and_show(run, refused):
    race(8)
    race(40)
    headings, _, *rows = run("cache", "list").splitlines()
    assert headings.split() == ["problem", "winner", "µs", "when", "signature"]
    listed = run("cache", "list", "--json")
    assert [row.split()[-1] for row in rows] == [entry["signature"] for entry in listed]
    entry = listed[0]
    text = run("cache", "show", entry["signature"])
    assert text.startswith(entry["problem"])
    assert f"{entry['winner']} *" in text
    report = run("cache", "show", "_n8_", "--json")
    assert "_n8_" in report["signature"]
    assert len(report["records"]) == len(run("cache", "show", "_n8_", "--configs").split("\n")) - 3
    assert refused("cache", "show", "64x96").startswith("2 entries have '64x96' in their signature")
    assert refused("cache", "show", "nothing").startswith("no entries have 'nothing'")


def test_cache_show_prefers_the_whole_signature(run):
    race(8)
    (entry,) = cache.entries()
    a = random_bsr(64, 96, 16, density=0.4, generator=torch.Generator().manual_seed(1))
    matmul(a, torch.randn(96, 8), variant="cpu_rows")
    assert len(cache.entries()) == 2
    assert run("cache", "show", entry.signature, "--json")["signature"] == entry.signature


def test_an_empty_cache(run):
    assert run("cache", "list").splitlines()[0].split()[0] == "problem"
    assert run("cache", "list", "--json") == []


def test_cache_export_and_load(run, tmp_path):
    race()
    bundle = tmp_path / "bundle"
    assert run("cache", "export", bundle) == f"1 entry written to {bundle}\n"
    assert run("cache", "clear", "--yes") == "1 entry removed\n"
    assert run("cache", "load", bundle) == f"1 entry loaded from {bundle}\n"
    assert run("cache", "export", bundle, "--json") == {"entries": 1, "path": str(bundle)}
    assert run("cache", "load", bundle, "--json") == {"entries": 1, "path": str(bundle)}
    before = tuning_count()
    race()
    assert tuning_count() == before


def test_cache_merge_and_diff(run, tmp_path):
    race(8)
    one, two, both = (tmp_path / name for name in ("one", "two", "both"))
    cache.export(one)
    text = one.read_text()
    other = re.search(r"^entrant (\S+)\t", text.replace(_winner_line(text), ""), re.MULTILINE)[1]
    changed = re.sub(r"^winner .*$", f"winner {other}", text, flags=re.MULTILINE)
    changed = re.sub(r"^when .*$", "when 2099-01-01T00:00:00Z", changed, flags=re.MULTILINE)
    line = f"entrant {other}\tok\t1\t2\t0\t1\t0\t0\t0\tcaptured\t"
    changed = re.sub(rf"^entrant {other}\t.*$", line, changed, flags=re.MULTILINE)
    two.write_text(changed)
    written, conflict = run("cache", "merge", one, two, "--into", both).splitlines()
    assert written == f"1 entry written to {both}"
    assert f": {other} kept, not " in conflict
    assert both.read_text() == changed
    assert (
        run("cache", "merge", one, two, "--into", both, "--json")["conflicts"][0]["kept"] == other
    )
    assert run("cache", "diff", one, both).startswith("~ matmul_64x96_")
    assert run("cache", "diff", one, both, "--json")["changed"][0]["winner_b"] == other


def _winner_line(text):
    winner = _tuner.parse_record(text)["winner"]
    return re.search(rf"^entrant {winner}\t.*\n", text, re.MULTILINE)[0]


def test_cache_prune_and_clear(run):
    race(8)
    race(40)
    assert run("cache", "prune") == "0 entries removed\n"
    assert run("cache", "prune", "--max-bytes", 0, "--json") == {"removed": 2}
    race(8, k=48)
    assert run("cache", "clear", "--yes", "--json") == {"removed": 1}


@pytest.mark.parametrize(("answer", "removed"), [("y\n", True), ("n\n", False), ("", False)])
def test_clear_asks(answer, removed, capsys, monkeypatch):
    race()
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(SystemExit) as end:
        main(["cache", "clear"])
    assert end.value.code == (0 if removed else 130)
    assert f"Remove all entries in {cache.path()}?" in capsys.readouterr().err
    assert len(cache.entries()) == (0 if removed else 1)


def test_cache_commands_refuse(refused, tmp_path):
    (tmp_path / "bad").write_text("hello")
    missing = tmp_path / "missing"
    for command in (("load", missing), ("diff", missing, missing)):
        assert f"'{missing}' does not exist" in refused("cache", *command)
    assert "is not a bundle" in refused("cache", "load", tmp_path / "bad")
    into = ("--into", tmp_path / "into")
    assert "is not a bundle" in refused("cache", "merge", tmp_path / "bad", *into)
    assert "PATHS" in refused("cache", "merge", *into)
    assert "--into" in refused("cache", "merge", tmp_path / "bad")
    assert "No such file" in refused("cache", "export", missing / "bundle")
    assert "-1 is not in the range x>=0" in refused("cache", "prune", "--max-bytes", -1)


@pytest.mark.parametrize("arguments", [["nonsense"], ["info", "--nonsense"], ["tune"], ["bench"]])
def test_bad_command_lines(arguments, refused):
    refused(*arguments)


# As a program


def program(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-m", "sparse_autotune", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **options,
    )


def test_in_a_pipe_there_is_no_progress(tmp_path):
    environment = {**os.environ, "SPARSE_AUTOTUNE_VERBOSE": "1"}
    done = program(*BENCH, "--block", 16, "-n", 8, "--json", env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)[0]["winner"]
    refused = program("tune", tmp_path / "missing")
    assert refused.returncode == 2
    assert refused.stderr.count("\n") == 1


def test_on_a_terminal_there_is_progress(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    with settings.override(mode="record"):
        race(8)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setattr(settings, "verbosity", 1)
    with pytest.raises(SystemExit):
        main(["tune", str(missed_products.path())])
    assert "0/1|" in capsys.readouterr().err


WITHOUT = """
import sys
sys.modules["click"] = None
from sparse_autotune.cli import main
main(["info"])
"""


def test_without_click(tmp_path):
    done = end_of_python(WITHOUT, tmp_path)
    assert done.returncode == 2
    assert done.stderr == "sparse-autotune: click is missing (pip install 'sparse-autotune[cli]')\n"


def test_importing_the_package_imports_no_command_line(tmp_path):
    code = (
        "import sparse_autotune, sys\n"
        "print([name for name in ('click', 'rich', 'sparse_autotune.cli') if name in sys.modules])"
    )
    assert run_python(code, tmp_path) == "[]\n"
