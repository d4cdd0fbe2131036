"""The benchmark of the host time: every row, what the rows time, and what it says of them."""

import json
import pathlib
import sys

import pytest
import torch

import sparse_autotune

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks import host_time, run

pytestmark = pytest.mark.filterwarnings("ignore:.*Sparse BSR tensor support is in beta")


@pytest.fixture(autouse=True)
def _few_calls(monkeypatch):
    monkeypatch.setattr(host_time, "CALLS", 2)


@pytest.fixture
def suite(monkeypatch, tmp_path, capsys):
    """Runs the suite on a CPU: its exit status, what it printed and what it saved."""
    path = tmp_path / "saved" / "host.json"
    monkeypatch.setattr(run, "why_no_gpu", lambda: "not in this test")

    def go(*options):
        monkeypatch.setattr(
            sys, "argv", ["run.py", "--suite", "host", "--save", str(path), *options]
        )
        status = run.main()
        return status, capsys.readouterr(), json.loads(path.read_text()) if path.exists() else None

    return go


def test_every_row_and_the_environment(suite):
    status, printed, saved = suite("--rounds", "2")
    assert status == 0
    assert saved["suite"] == "host" and saved["complete"]
    assert saved["environment"]["torch"] == torch.__version__
    assert f'"torch": "{torch.__version__}"' in printed.out
    assert [row["name"] for row in saved["host_times"]] == list(host_time.LIMITS)
    for row in saved["host_times"]:
        reference, limit = host_time.LIMITS[row["name"]]
        assert (row["reference"], row["limit"]) == (reference, limit)
        assert row["ratio"] == row["us"] / row["reference_us"] > 0
        if limit is None:
            assert row["limit_us"] is row["holds"] is None
        else:
            assert row["limit_us"] == limit * row["reference_us"] + host_time.CPU_EXTRA_US
            assert row["holds"] == (row["us"] <= row["limit_us"])
        assert f"| `{row['name']}` |" in printed.out


def test_a_limit_that_is_exceeded_is_shown(suite, monkeypatch):
    limits = {name: (against, 1e9) for name, (against, _) in host_time.LIMITS.items()}
    limits["a @ b"] = (limits["a @ b"][0], 0.0)
    monkeypatch.setattr(host_time, "LIMITS", limits)
    monkeypatch.setattr(host_time, "CPU_EXTRA_US", 0.0)
    status, printed, saved = suite("--rounds", "1")
    assert status == 0
    assert [row["name"] for row in saved["host_times"] if not row["holds"]] == ["a @ b"]
    for line in printed.out.splitlines():
        if line.startswith("| `"):
            assert line.endswith("| **no** |" if line.startswith("| `a @ b` ") else "| yes |")


def test_some_rows_alone(suite):
    status, _, saved = suite("--rounds", "1", "--only", "linear,x3")
    assert status == 0
    assert [row["name"] for row in saved["host_times"]] == ["sa.linear(x3, a)"]


def test_no_such_row(suite):
    status, printed, saved = suite("--only", "nothing")
    assert (status, saved) == (2, None)
    assert "suite host has no row named like 'nothing'" in printed.err


def test_a_gpu_that_is_waited_for_is_shown():
    row = host_time.Row("a @ b", 9.0, "torch.mm(dense, b)", 3.0, True, 0.7, 0.0)
    assert "| 0.7 × = 2.10 µs | **no** (waited for the GPU) |" in host_time.table([row])


def test_the_one_line_of_other_suites():
    row = host_time.measure_short("cpu")
    said = host_time.show(row, "cpu")
    assert said.startswith("host time of a hit on cpu: sa.matmul(a, b) ")
    assert "torch.mm" in said


def test_the_calls_compute_the_same(device):
    """All but the steps, which return nothing, and the layers, which have weights of their own."""
    with torch.no_grad():
        results = {}
        for name, call in host_time.make_calls(device).items():
            with host_time.within(name):
                results[name] = call()
    attentions = [results.pop(name) for name in list(results) if name in host_time.ATTENTION]
    tolerance = {"cpu": 1e-5, "cuda": 3e-2}[device]
    for theirs, ours in zip(attentions[::2], attentions[1::2], strict=True):
        torch.testing.assert_close(ours, theirs, atol=tolerance, rtol=tolerance)
    expected = results.pop("torch.mm(dense, b)")
    transposed = results.pop("a.t() @ b")
    for name, result in results.items():
        if "Linear:" in name:
            continue
        right = "linear" in name
        want = expected.t() if right else transposed.t() if name.startswith("x") else expected
        for part in result.unbind() if result.dim() == 3 else [result]:
            torch.testing.assert_close(part, want, msg=name)


def test_a_race_while_time_is_taken_ends_it(monkeypatch):
    counts = iter(range(100))
    monkeypatch.setattr(sparse_autotune, "tuning_count", lambda: next(counts))
    with pytest.raises(RuntimeError, match="races ran while host time was taken: 1"):
        host_time.measure("cpu", ["a @ b"], rounds=1)
