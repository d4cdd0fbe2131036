"""Attention's suites: a tiny cell measured, kept, and shown on the pages."""

import copy
import json
import pathlib
import sys

import pytest
import torch

sys.path.append(str(pathlib.Path(__file__).parent.parent))

from benchmarks import keep, run
from benchmarks.attention import comparison, contestants, libraries, new_masks
from benchmarks.attention.block import BlockSize
from benchmarks.attention.cells import AttentionCell, AttentionOperands
from benchmarks.attention.comparison import both_passes, measure
from benchmarks.figures import attention, comparisons, dashboard, pages, results
from benchmarks.result import COVER_ATTENTION, DENSE_ATTENTION
from benchmarks.suite import Suite
from benchmarks.suites import attention_block

TINY = AttentionCell(2, 64, 16, 16, "random", 0.5, "float32")


def tiny_suite(*cells):
    return Suite("cpu", cells, 2, budget_s=0.02, measure=measure)


@pytest.fixture
def saved(monkeypatch, tmp_path):
    """What a run of a tiny suite saved: forward and backward."""
    from benchmarks.suites import cpu_attention

    path = tmp_path / "saved.json"
    monkeypatch.setattr(cpu_attention, "SUITE", tiny_suite(*both_passes("cpu", [TINY]).cells))
    monkeypatch.setattr(sys, "argv", ["run.py", "--suite", "cpu_attention", "--save", str(path)])
    monkeypatch.setattr(run, "why_no_gpu", lambda: "not in this test")
    assert run.main() == 0
    return path


def test_a_run_is_kept_and_shown(saved, tmp_path):
    whole = json.loads(saved.read_text())
    assert whole["complete"] and len(whole["cells"]) == 2
    path = keep.keep(saved, "abc123", tmp_path / "results")
    kept = json.loads(path.read_text())
    found = results.Run(path.parent.name, kept)
    assert results.is_of_attention(found) and results.of_matmul([found]) == []
    assert [result.cell for result in found.results] == both_passes("cpu", [TINY]).cells
    for result in found.results:
        assert result.row("choice").status == "ok"
        assert result.best_peer("wall") == "torch_attention"
        assert result.row(DENSE_ATTENTION).kind == "rate"
        assert 0 < result.nnz_flops == pytest.approx(result.cell.dense_flops / 2)
    text = attention.attention([found], "cpu_attention")
    assert "| 2 × 64 | 16, fp32 | blocks of 16, random 50% | forward |" in text
    assert "backward" in text and "torch SDPA" in text and "abc123" in text
    assert "times as fast as the best peer in geometric mean of 1 cells" in text
    assert f"attention_{found.folder}.svg" in pages.pictures([found])
    assert comparisons.losses([found]).startswith("Of the 0 products and 2 problems of attention")
    short = attention.reached([found])
    assert short.count("`cpu_attention` | forward") == short.count("| backward") == 1
    (shown,) = dashboard.data([found])
    assert shown["cells"][1]["name"].endswith("blocks of 16, random 50%, backward")
    again = keep.keep(saved, "abc124", tmp_path / "results")
    assert "history" in json.loads(again.read_text())


def test_flex_attention_and_the_blocks_around_small_ones(monkeypatch):
    """The first computes the mask, the second the blocks of 128 that it lies in."""
    from torch.nn.attention import flex_attention
    from torch.nn.functional import scaled_dot_product_attention

    monkeypatch.setattr(torch, "compile", lambda function: function)
    monkeypatch.setattr(flex_attention, "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG", True)
    operands = AttentionOperands(AttentionCell(2, 512, 16, 32, "random", 0.0625, "float32"), "cpu")
    q, k, v = operands.q, operands.k, operands.v
    seen, cover = operands.mask.to_dense(), operands.cover.to_dense()
    blocks = cover.unfold(1, 128, 128).unfold(2, 128, 128)
    assert torch.equal(blocks.all(-1).all(-1), blocks.any(-1).any(-1))
    around = seen.unfold(1, 128, 128).unfold(2, 128, 128).any(-1).any(-1)
    assert torch.equal(blocks.any(-1).any(-1), around) and not around.all()
    for way, mask in ((contestants._flex, seen), (contestants._cover, cover)):
        want = scaled_dot_product_attention(q, k, v, attn_mask=mask[None])
        torch.testing.assert_close(way(operands)(q, k, v), want)


def test_the_cover_is_shown_beside_small_blocks(saved, tmp_path):
    kept = json.loads(keep.keep(saved, "abc123", tmp_path / "results").read_text())
    for cell in kept["cells"]:
        (dense,) = (row for row in cell["rows"] if row["name"] == DENSE_ATTENTION)
        cell["rows"].append(dense | {"name": COVER_ATTENTION, "us": {"wall": [1e9]}})
    found = results.Run("epyc-2", kept)
    result = found.results[0]
    ratio = result.median(DENSE_ATTENTION, "wall") / result.median("choice", "wall")
    assert result.ratios()["speed choice / best cover, wall"] == ratio
    text = attention.attention([found], "cpu_attention")
    assert "| its blocks of 128 | × these or no mask |" in text and f"| {ratio:.2f} |" in text


def test_a_result_unlike_all_others_is_wrong(monkeypatch):
    """And is no failure of theirs alone: the run ends with an error."""
    real = contestants._ours

    def off_by_one(operands, variant):
        way = real(operands, variant)
        return lambda q, k, v: way(q, k, v) + (1 if variant == "auto" else 0)

    monkeypatch.setattr(contestants, "_ours", off_by_one)
    suite = tiny_suite(TINY)
    found = comparison.measure(TINY, suite)
    assert found.row("choice").status == "wrong"
    assert any("unlike all others" in line for line in run.broken([found]))


def test_a_peer_that_fails_is_told(monkeypatch):
    def fails(operands):
        raise RuntimeError("no such kernel\nand more")

    monkeypatch.setattr(contestants, "_sdpa", fails)
    found = comparison.measure(TINY, tiny_suite(TINY))
    row = found.row("torch_attention")
    assert (row.status, row.reason) == ("failed", "RuntimeError: no such kernel")
    assert found.row("choice").timings


@pytest.mark.parametrize(
    ("block", "mask", "backward", "names"),
    [
        (128, "random", True, ["flash_attention_4", "cudnn_bsa"]),
        (128, "causal", True, ["flash_attention_4"]),
        (64, "random", False, ["flash_attention_4", "cudnn_bsa"]),
        (64, "window", True, []),
        (32, "random", False, []),
        (0, "is_causal", True, ["flash_attention_4"]),
    ],
)
def test_which_cells_installed_peers_take(block, mask, backward, names, monkeypatch):
    cell = AttentionCell(2, 512, 128, block, mask, 0.5, backward=backward)
    monkeypatch.setattr(libraries, "find_spec", lambda name: name)
    assert list(libraries.installed(cell)) == names
    monkeypatch.setattr(libraries, "find_spec", lambda name: None if "." in name else name)
    assert not libraries.installed(cell)


@pytest.mark.gpu
@pytest.mark.parametrize("backward", [False, True], ids=["forward", "backward"])
def test_installed_peers_agree_with_us(backward):
    cell = AttentionCell(2, 512, 128, 128, "random", 0.5, backward=backward)
    names = libraries.installed(cell)
    if not names:
        pytest.skip("none is installed")
    found = measure(cell, Suite("cuda", [cell], 2, budget_s=0.02, measure=measure))
    assert {name: found.row(name).status for name in names} == dict.fromkeys(names, "ok")


@pytest.mark.parametrize("mask", ["random", "window", "causal", "none", "is_causal"])
@pytest.mark.parametrize("batch", [1, 3])
def test_stored_blocks_and_flops(mask, batch):
    cell = AttentionCell(2, 64, 16, 16, mask, 0.5, "float32", batch=batch)
    operands = AttentionOperands(cell, "cpu")
    assert operands.q.shape == (batch, 2, 64, 16)
    pairs = 2 * 64 * 64.0 if mask == "none" else 64 * 65.0
    if operands.mask is not None:
        blocks = operands.mask.blocks().expand(2, 4, 4)
        pairs = float(blocks.sum()) * 16 * 16
    assert cell.nnz_flops(operands.nnzb) == 4 * 16 * batch * pairs
    assert both_passes("cpu", [cell]).cells[1].nnz_flops(operands.nnzb) == 10 * 16 * batch * pairs


def test_the_transformer_block(monkeypatch, tmp_path):
    size = BlockSize(64, 32, 4, 2, 48, 16, 8, 8, "float32")
    measured = attention_block.measure("cpu", 1, size)
    assert measured["error"] <= 1
    assert [step["name"] for step in measured["steps"]] == [
        "forward, 64 tokens", "forward and backward, 64 tokens"]  # fmt: skip
    environment = {"revision": "abc", "cpu": "EPYC", "threads": 2, "torch": "2.11.0"}
    kept = {"suite": "attention_block", "command": "x", "complete": True, "started": "2026-11-28",
            "seconds": 1.0, "environment": environment, **copy.deepcopy(measured)}  # fmt: skip
    found = results.Run("epyc-zen5-2", keep.reduced(kept))
    text = attention.block([found])
    assert "sparse_autotune, ms" in text and "torch SDPA, ms" in text
    assert "64 tokens, 32 features, 4 heads (2 of k and v), fp32" in text
    (shown,) = dashboard.data([found])
    assert shown["cells"][0]["rows"][0]["kind"] == "choice"


@torch.no_grad()
def test_what_a_new_mask_costs(device):
    length = {"cpu": 64, "cuda": 256}[device]
    block, dtype = {"cpu": (16, "float32"), "cuda": (64, "bfloat16")}[device]
    costs = new_masks.measure(AttentionCell(2, length, 64, block, "random", 0.5, dtype), device)
    assert costs[0].what == "make a mask"
    assert all(cost.host_us > 0 for cost in costs)
    assert (costs[0].device_us is None) == (device == "cpu")
    assert "| make a mask |" in new_masks.table(costs)
