"""Mode "record" writes what it missed; `tune_file` races it, so that the products then do not."""

import fcntl
import json
import os
import re
import time
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from interpreters import run_python
from reference import close
from test_attention import CASES, make

from sparse_autotune import (
    BlockMask,
    BsrTensor,
    _tuner,
    attention,
    cache,
    linear,
    matmul,
    missed_products,
    random_bsr,
    sampled_matmul,
    settings,
    tune_file,
    tuning_count,
)
from sparse_autotune.choices import Pattern
from sparse_autotune.tuning.recorded_attention import _Mask


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.01)
    monkeypatch.setattr(settings, "mode", "record")
    monkeypatch.setattr(settings, "record_path", None)
    monkeypatch.setattr(cache, "_warned", {})


def matrix(dtype=torch.float32, seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    options = {"density": 0.4, "dtype": dtype} | options
    return random_bsr(96, 64, 16, generator=generator, **options)


def lines():
    return [json.loads(line) for line in missed_products.path().read_text().splitlines()]


def skipped():
    """The only line of the file, which is not raced."""
    report = tune_file(missed_products.path())
    assert report.races == []
    (line,) = report.skipped
    return line


def products():
    """Calls of many kinds; each makes its operands anew, of the same kind."""
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        a = matrix(dtype)
        b = torch.randn(64, 24).to(dtype)
        bias = torch.randn(96).to(dtype)
        yield lambda a=a, b=b: matmul(a, b)
        yield lambda a=a, b=b: matmul(a, b[:, 0])
        yield lambda a=a, b=b: matmul(a, b.T.contiguous().T)
        yield lambda a=a, b=b, bias=bias: matmul(a, b, bias=bias, activation="gelu")
        yield lambda a=a, b=b: matmul(a, b.expand(3, 64, 24))
        yield lambda a=a, b=b: matmul(a, torch.stack([b, b]))
        yield lambda a=a, bias=bias: matmul(a.t(), bias[:, None].expand(96, 5).contiguous())
        yield lambda a=a, b=b, bias=bias: linear(b.T.contiguous(), a, bias)
        yield lambda a=a, b=b: matmul(b.new_ones(7, 96), a)
        yield lambda a=a, b=b: matmul(a, b[:, ::2][:, :9])
        yield lambda a=a, b=b: sampled_matmul(b.new_ones(96, 24), b.T, a)
        yield lambda a=a, b=b: matmul(a, b, variant="cpu_rows")
    yield lambda: matmul(BsrTensor.from_dense(torch.randn(96, 64), 16).freeze(), torch.randn(64, 9))
    ints = matrix()
    ints = BsrTensor(ints.crow_indices.int(), ints.col_indices.int(), ints.values, (96, 64))
    yield lambda: matmul(ints, torch.randn(64, 9))
    yield lambda: _exactly(matrix())


def _exactly(a):
    with settings.override(exact_nonfinite=True):
        return matmul(a, torch.randn(64, 11))


@pytest.mark.parametrize("pattern", get_args(Pattern))
@pytest.mark.parametrize("transpose", [False, True])
def test_statistics_of_the_pattern(pattern, transpose):
    fixed = pattern in ("block_diagonal", "causal")
    a = random_bsr(512, 384, 8, density=None if fixed else 0.13, pattern=pattern)
    a = a.t() if transpose else a
    matmul(a, torch.randn(a.shape[1], 3))
    (line,) = lines()
    rows = a.to_dense().reshape(a.shape[0] // 8, 8, -1, 8).transpose(1, 2)
    longest = int((rows != 0).flatten(2).any(2).sum(1).max())
    assert (line["problem"]["nnzb"], line["problem"]["longest_row"]) == (a.nnzb, longest)
    (race,) = tune_file(missed_products.path()).races
    assert race.signature == line["signature"]


def test_rows_that_the_product_did_not_know():
    """On a GPU, of so few blocks that compiled code may write other indices there unseen."""
    edited(problem={"longest_row": -1})
    (race,) = tune_file(missed_products.path()).races
    assert "_skew0_" in race.signature
    assert tune_file(missed_products.path()).known == 1


# Attention


def attentions():
    """Forward and backward, with and without the gradient of lse; operands anew in each call."""
    for case in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            for with_lse in (False, True):
                yield lambda case=case, dtype=dtype, with_lse=with_lse: _attend(
                    *make(case, dtype), with_lse
                )
    # Masks of other room than the generators leave.
    q = torch.randn(2, 4, 64, 16)
    bsr = random_bsr(64, 64, 16, density=0.4)
    yield lambda: _attend(q, q, q, BlockMask.from_bsr(bsr), False, False)
    crow, col = torch.tensor([[0, 2], [3, 4], [4, 5], [5, 9]]), torch.arange(10) % 4
    sparse = BlockMask(crow.int(), col.int(), (64, 16), (64, 64))
    yield lambda: _attend(q, q, q, sparse, False, False)
    window = BlockMask.sliding_window(64, block_size=16, window=20)
    yield lambda: _attend(q, q, q, window, False, False)


def _attend(q, k, v, mask, is_causal, with_lse):
    q = q.clone().requires_grad_()
    out, lse = attention(q, k, v, mask, is_causal=is_causal, return_lse=True)
    (out.sum() + (lse.nan_to_num(0, 0, 0).sum() if with_lse else 0)).backward()


@pytest.mark.parametrize(("calls", "kinds"), [(products, 0.5), (attentions, 1)])
def test_what_was_recorded_is_raced_once_and_serves_the_calls(calls, kinds):
    """More than so many kinds for each call, as attention has a backward pass."""
    every = list(calls())
    for call in every:
        call()
    recorded = {line["signature"] for line in lines()}
    assert len(recorded) == len(lines()) > kinds * len(every)
    assert cache.entries() == []
    before = tuning_count()
    report = tune_file(missed_products.path())
    assert not report.skipped and report.known == report.left == 0
    # The operands are of the very kind that was missed, the number of blocks included.
    assert sorted(race.signature for race in report.races) == sorted(recorded)
    assert all(race.best is not None for race in report.races)
    assert tuning_count() == before + len(recorded)
    again = tune_file(missed_products.path())
    assert (again.races, again.known, again.skipped, again.left) == ([], len(recorded), [], 0)
    with settings.override(mode="on"):
        for call in every:
            call()
    assert tuning_count() == before + len(recorded)
    assert {entry.signature for entry in cache.entries()} >= recorded


def test_attention_is_raced_among_those_that_it_asked_for():
    q = torch.randn(1, 2, 64, 16)
    attention(q, q, q, variant="cpu_attention_tiled")
    (race,) = tune_file(missed_products.path()).races
    assert {record.family for record in race.records} == {"cpu_attention_tiled"}


def attention_line(**problem):
    mask = BlockMask.sliding_window(64, block_size=16, window=40)
    q = torch.randn(1, 2, 64, 16)
    attention(q, q, q, mask)
    (line,) = lines()
    line["problem"] |= problem
    missed_products.path().write_text(json.dumps(line) + "\n")
    return line["problem"]


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ({"heads": 0}, "'heads=0' says nothing of a problem"),
        ({"kv_heads": 4}, "heads is not a multiple of kv_heads"),
        ({"nnzb": 17}, "no room for that many blocks"),
        ({"nnzb": 17, "capacity": 20}, "a mask of 16 blocks cannot store 17"),
        ({"block_m": 0}, "no mask has neither"),
        ({"rows": 1 << 30, "columns": 1 << 30}, "larger than any memory|would take"),
        ({"capacity": 1 << 32}, r"its mask would take \d+ bytes, more than .*tuning_bytes"),
        ({"op": "attention_forwards"}, "no operator 'attention_forwards' is raced from a file"),
    ],
)
def test_an_attention_that_cannot_be(problem, why):
    attention_line(**problem)
    assert re.search(why, skipped().reason)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("nnzb", [-1, 0, 1, 25, 40, 96])
def test_masks_of_recorded_attention(nnzb, causal):
    """-1: of a mask on a GPU, whose blocks nobody counted."""
    problem = {
        "rows": 50, "columns": 40, "block_m": 16, "block_n": 8, "batch": 2, "heads": 3,
        "patterns": 6, "mask_batch_stride": 3, "mask_head_stride": 1, "nnzb": nnzb,
        "capacity": 130, "row_capacity": 120, "causal": causal,
    }  # fmt: skip
    made = _Mask(problem)
    rows = BlockMask(*made.by_row(), (16, 8), (50, 40))
    assert rows.shape == (2, 3, 50, 40) and rows.col_indices.shape == (130,)
    assert rows.nnzb == (30 if nnzb < 0 else nnzb)
    columns = BlockMask(*made.by_column(), (8, 16), (40, 50))
    assert columns.col_indices.shape == (120,)
    assert torch.equal(rows.blocks().mT, columns.blocks())
    counts = rows.blocks().sum((-1, -2)).flatten()
    assert counts.max() - counts.min() <= 1
    visible = torch.ones(50, 40).tril().bool()
    hidden = ~torch.tensor(
        [[bool(visible[16 * i : 16 * i + 16, 8 * j : 8 * j + 8].any()) for j in range(5)]
         for i in range(4)]
    )  # fmt: skip
    if causal and rows.nnzb <= 6 * int((~hidden).sum()):
        assert not rows.blocks()[..., hidden].any()


def test_each_kind_is_one_line(fresh_cache):
    a, b = matrix(), torch.randn(64, 8)
    for _ in range(3):
        close(matmul(a, b), a.to_dense() @ b)
        matmul(matrix(seed=1), b)
    matmul(a, torch.randn(64, 40))
    first, second = lines()
    assert (first["problem"]["n"], second["problem"]["n"]) == (8, 40)
    assert first["device"] == _tuner.device_info(-1)["name"]
    assert first["description"].startswith("96x64x8 bs16 density 0.")
    assert missed_products.path() == fresh_cache / "missed.jsonl"
    assert [p.name for p in fresh_cache.iterdir()] == ["missed.jsonl"]


def test_another_process_does_not_repeat_a_line():
    a, b = matrix(), torch.randn(64, 8)
    matmul(a, b)
    cache.clear()  # this process has told nobody of it, as a new one
    matmul(a, b)
    assert len(lines()) == 1


MANY = """
import os, torch, sparse_autotune as sa
torch.set_num_threads(1)
for _ in range(7):
    if os.fork() == 0:
        break
a = sa.random_bsr(64, 64, 16, density=0.5, generator=torch.Generator().manual_seed(0))
for n in range(1, 200, 7):
    sa.matmul(a, torch.randn(64, n))
"""


def test_many_processes_record_at_once(tmp_path):
    file = tmp_path / "missed.jsonl"
    run_python(MANY, tmp_path / "cache", mode="record", record=str(file), verbose="0")
    deadline = time.monotonic() + 60
    while len(file.read_text().splitlines()) < 10 and time.monotonic() < deadline:
        time.sleep(0.05)
    found, wrong = missed_products.read(file)
    assert wrong == []
    text = file.read_text().splitlines()
    assert len(found) == len({product.signature for product in found}) == len(text) == 10


@pytest.mark.parametrize("mode", ["on", "off", "readonly"])
def test_only_record_writes(mode):
    with settings.override(mode=mode):
        matmul(matrix(), torch.randn(64, 8))
    assert not missed_products.path().exists()


@pytest.mark.parametrize(
    ("mode", "missed"), [("readonly", 2), ("record", 2), ("off", 0), ("on", 0)]
)
def test_missed_signatures_are_counted(mode, missed):
    cache.clear()
    a = matrix()
    with settings.override(mode=mode):
        for n in (8, 8, 40):
            matmul(a, torch.randn(64, n))
    assert len(cache.missed()) == missed
    assert all("_n8_" in name or "_n48_" in name for name in cache.missed())
    cache.clear()
    assert cache.missed() == []


def test_readonly_neither_races_nor_writes(fresh_cache):
    before = tuning_count()
    with settings.override(mode="readonly"):
        a, b = matrix(), torch.randn(64, 8)
        close(matmul(a, b), a.to_dense() @ b)
    assert tuning_count() == before
    assert not fresh_cache.exists()


@pytest.mark.parametrize("mode", ["on", "off", "readonly", "record"])
def test_a_file_is_raced_in_every_mode(mode):
    matmul(matrix(), torch.randn(64, 8))
    with settings.override(mode=mode):
        assert len(tune_file(str(missed_products.path())).races) == 1
    assert len(cache.entries()) == 1


def test_an_entry_without_a_legal_variant_races_again():
    """As one of an older build, which had fewer variants."""
    a, b = matrix(), torch.randn(64, 8)
    matmul(a, b)
    tune_file(missed_products.path())
    (entry,) = cache.entries()
    text = entry.path.read_text().splitlines(keepends=True)
    entrants = [line for line in text if line.startswith("entrant ")]
    winner = next(line for line in entrants if f" {entry.winner}\t" in line)
    others = [line for line in text if line not in entrants and not line.startswith("end")]
    entry.path.write_text("".join([*others, winner, "end 1\n"]))
    _tuner.forget()
    assert len(tune_file(missed_products.path()).races) == 1


def test_budget():
    a = matrix()
    for n in (1, 8, 40, 100):
        matmul(a, torch.randn(64, n))
    report = tune_file(missed_products.path(), budget_s=1e-9)
    assert (report.races, report.known, report.left) == ([], 0, 4)
    assert cache.entries() == []
    assert len(tune_file(missed_products.path(), budget_s=1000).races) == 4


@pytest.mark.parametrize("budget", [0, -1.0, float("nan"), float("inf"), True, "1"])
def test_bad_budget(budget):
    with pytest.raises(ValueError, match="budget_s must be a positive, finite number of seconds"):
        tune_file("/nowhere", budget_s=budget)


def test_report():
    matmul(matrix(), torch.randn(64, 8))
    matmul(matrix(), torch.randn(64, 40))
    with missed_products.path().open("a") as file:
        file.write("half a li")
    report = tune_file(missed_products.path())
    (first, second), (skipped,) = report.races, report.skipped
    text = str(report).splitlines()
    assert text[0].startswith(f"{first.problem}: {first.winner}, ")
    assert text[1].startswith(f"{second.problem}: {second.winner}, ")
    assert text[2:] == ["line 3: skipped, it is not JSON", "2 raced, 0 known, 1 skipped, 0 left"]
    assert skipped.signature == "line 3"
    data = json.loads(json.dumps(report.to_dict()))
    assert [race["winner"] for race in data["races"]] == [first.winner, second.winner]
    assert data["seconds"] >= 0 and data["skipped"][0]["reason"] == "it is not JSON"


def test_a_race_without_a_winner_is_told_of():
    matmul(matrix(), torch.randn(64, 8))
    with settings.override(tuning_bytes=10_000):  # the pattern fits, operands do not
        report = tune_file(missed_products.path())
    (race,) = report.races
    assert race.best is None and "tuning_bytes" in race.failure
    assert "no winner, a race would take" in str(report)
    assert cache.entries() == []


# Files that were not written by us, or not for us


def edited(**changes):
    matmul(matrix(), torch.randn(64, 8))
    (line,) = lines()
    line["problem"] |= changes.pop("problem", {})
    line |= changes
    missed_products.path().write_text(json.dumps(line) + "\n")
    return line


def test_another_device():
    edited(device_class="abacus", signature="matmul_1")
    line = skipped()
    assert line.signature == "matmul_1"
    assert "of a device abacus, here is " in line.reason
    assert cache.entries() == []


@pytest.mark.parametrize(
    ("problem", "why"),
    [
        ({"m": 0}, "'m=0' says nothing of a problem"),
        ({"n": -1}, "'n=-1' says nothing"),
        ({"k": 2**63}, "says nothing"),
        ({"m": 2**39, "n": 2**39}, "a leading dimension is less"),
        ({"m": 2**40, "nnzb": 2**38, "longest_row": 4}, "larger than any memory|would take"),
        ({"nnzb": 10**6, "longest_row": 4}, "cannot hold that many blocks"),
        ({"block_m": 5}, "do not divide"),
        ({"dtype": "f31"}, "'dtype=f31' says nothing"),
        ({"dtype": "f32 m=3"}, "says nothing"),
        ({"b_alignment": 3}, "says nothing"),
        ({"b_alignment": 2}, "less than an element"),
        ({"ldb": 3}, "a leading dimension is less"),
        ({"batch": 2**40}, "its results overlap each other"),
        ({"batch": 2, "c_batch_stride": 7}, "its results overlap each other"),
        ({"more": 1}, "says nothing"),
        ({"transpose": 2}, "says nothing"),
        ({"op": "sampled_matmul", "bias": 1}, "what none has"),
    ],
)
def test_a_problem_that_cannot_be(problem, why):
    edited(problem=problem)
    assert re.search(why, skipped().reason)


def test_a_missing_field():
    line = edited()
    del line["problem"]["ldb"]
    missed_products.path().write_text(json.dumps(line))
    assert "some of a problem's fields are missing" in skipped().reason


def test_a_pattern_that_takes_too_much_memory():
    edited(problem={"m": 16 << 28, "nnzb": 1 << 28, "longest_row": 1})
    assert re.search(r"its pattern would take \d+ bytes, more .*tuning_bytes", skipped().reason)


def test_an_unknown_selector():
    edited(selector="warp_drive")
    assert "no variant or family is named 'warp_drive'" in skipped().reason


@pytest.mark.parametrize(
    ("line", "why"),
    [
        (b"nonsense", "it is not JSON"),
        (b"\xff\xfe\x00", "it is not JSON"),
        (b"[" * 50_000, "it is not JSON"),
        (b'"text"', "not an object of version 1"),
        (b"{}", "not an object of version 1"),
        (b'{"version": 2}', "not an object of version 1"),
        (b'{"version": 1}', "it must hold "),
        (b'{"version": 1, "x": "' + b"y" * 100_000 + b'"}', "more than 65536 bytes"),
    ],
)
def test_a_file_that_is_no_record(line, why, tmp_path):
    file = tmp_path / "file"
    file.write_bytes(line + b"\n")
    with pytest.raises(ValueError, match=f"path: {file} is not a record .*: line 1: .*{why}"):
        tune_file(file)


@pytest.mark.parametrize(
    "changes",
    [
        {"timing": "hot"},
        {"buckets": "some"},
        {"problem": {"device": "tpu"}},
        {"problem": {"m": [1]}},
        {"device": 5},
    ],
)
def test_a_line_of_wrong_values(changes):
    edited(**changes)
    with pytest.raises(ValueError, match="is not a record of missed products: line 1: "):
        tune_file(missed_products.path())


def test_an_empty_file_and_a_missing_one(tmp_path):
    (tmp_path / "empty").write_text("\n\n")
    report = tune_file(tmp_path / "empty")
    assert (report.races, report.skipped, report.left) == ([], [], 0)
    with pytest.raises(FileNotFoundError):
        tune_file(tmp_path / "missing")


def test_a_file_that_is_too_large(monkeypatch):
    matmul(matrix(), torch.randn(64, 8))
    monkeypatch.setattr(missed_products, "_MAX_BYTES", 100)
    with pytest.raises(ValueError, match=r"has more than 100 bytes"):
        tune_file(missed_products.path())
    cache.clear()
    with pytest.warns(RuntimeWarning, match=r"cannot be written .*it may have 100 bytes"):
        matmul(matrix(), torch.randn(64, 40))
    assert len(lines()) == 1


KEYS = ("op", "device", "dtype", "m", "n", "k", "nnzb", "block_m", "block_k", "longest_row", "ldb",
        "ldc", "batch", "b_batch_stride", "values_alignment", "transpose", "frozen")  # fmt: skip
VALUES = st.one_of(
    st.integers(-3, 70), st.integers(-(2**70), 2**70), st.sampled_from(["f16", "cuda", "row", ""]),
    st.text(max_size=5),
)  # fmt: skip


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=4))
def test_hostile_problems_are_refused_or_possible(changes):
    """No crash, no undefined behaviour; what is taken has operands that could exist."""
    good = {"op": "matmul", "device": "cpu", "dtype": "f32", "index": "i64", "m": 96, "n": 8,
            "k": 64, "nnzb": 10, "block_m": 16, "block_k": 16, "longest_row": 3, "ldb": 8,
            "ldc": 8, "batch": 1, "b_batch_stride": 0, "c_batch_stride": 0, "b_layout": "row",
            "c_layout": "row", "activation": "none", "bias": 0, "transpose": 0, "frozen": 0,
            "tf32": 0, "deterministic": 0, "exact_nonfinite": 0, "values_alignment": 16,
            "b_alignment": 16, "c_alignment": 16}  # fmt: skip
    problem = good | changes
    try:
        _tuner.check_problem(" ".join(f"{key}={value}" for key, value in problem.items()))
    except ValueError:
        assert problem != good
        return
    assert problem["m"] % problem["block_m"] == problem["k"] % problem["block_k"] == 0
    assert problem["longest_row"] * (problem["m"] // problem["block_m"]) >= problem["nnzb"] or (
        problem["longest_row"] == -1
    )


@given(st.text(max_size=300))
def test_hostile_texts_are_refused(text):
    with pytest.raises(ValueError, match="not a problem: "):
        _tuner.check_problem(text)


# Trouble with the file that is written


def test_behind_half_a_line():
    """As a full disk leaves it."""
    path = missed_products.path()
    path.parent.mkdir()
    path.write_text('{"device_cl')
    matmul(matrix(), torch.randn(64, 8))
    half, line = path.read_text().splitlines()
    assert half == '{"device_cl' and json.loads(line)["problem"]["n"] == 8
    assert len(tune_file(path).races) == 1


def test_a_lock_that_others_keep_holds_no_product_up():
    path = missed_products.path()
    path.parent.mkdir()
    with path.open("w") as others:
        fcntl.flock(others, fcntl.LOCK_EX)
        matmul(matrix(), torch.randn(64, 8))
        assert len(lines()) == 1


def a_directory(path):
    path.mkdir()


def a_link(path):
    path.symlink_to(path.with_name("target"))


def a_pipe(path):
    os.mkfifo(path)


@pytest.mark.parametrize("what", [a_directory, a_link, a_pipe])
def test_a_path_that_takes_no_lines(what, tmp_path, monkeypatch):
    what(tmp_path / "record")
    monkeypatch.setattr(settings, "record_path", tmp_path / "record")
    a = matrix()
    with pytest.warns(RuntimeWarning, match=r"the record .*/record of what was missed cannot be"):
        for n in (8, 40):
            b = torch.randn(64, n)
            close(matmul(a, b), a.to_dense() @ b)
    assert not (tmp_path / "target").exists()


def test_only_the_owner_reads_it():
    matmul(matrix(), torch.randn(64, 8))
    assert missed_products.path().stat().st_mode & 0o777 == 0o600


# The bar


def test_a_bar_on_a_terminal_only(monkeypatch, capsys):
    pytest.importorskip("tqdm")
    a = matrix()
    for n in (8, 40):
        matmul(a, torch.randn(64, n))
    monkeypatch.setattr(settings, "verbosity", 1)
    tune_file(missed_products.path())
    assert capsys.readouterr() == ("", "")
    cache.clear()
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    tune_file(missed_products.path(), progress=False)
    assert capsys.readouterr() == ("", "")
    cache.clear()
    tune_file(missed_products.path())
    shown = capsys.readouterr().err
    assert "0/2|" in shown and "1/2|" in shown and "96x64x40 bs16" in shown
