"""`variants`, `tune` and `tuning_count`: asking the tuner, and racing ahead of time."""

import re

import pytest
import torch
from machine import lacks_this_machine
from records import won_by
from reference import close

from sparse_autotune import (
    _tuner,
    benchmark,
    cache,
    linear,
    matmul,
    random_bsr,
    settings,
    tune,
    tuning_count,
    variants,
)

M, K, N, BLOCK = 64, 48, 24, 16


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 1.0)


def problem(device="cpu", dtype=torch.float32, n=N):
    a = random_bsr(M, K, BLOCK, density=0.5, device=device, dtype=dtype)
    return a, torch.randn(K, n, device=device).to(dtype)


# variants


def test_variants_of_the_build():
    names = variants()
    assert names == sorted(names) == [v["name"] for v in _tuner.variants()]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_]+/[a-z0-9_]+", name) for name in names)
    assert {"reference", "dense", "aten_bsr", "cpu_tiled"} <= {n.split("/")[0] for n in names}


def test_variants_of_a_product_run(device):
    """Exactly those that are listed can be forced."""
    a, b = problem(device)
    legal = variants(a, b)
    assert set(legal) <= {v["name"] for v in _tuner.variants() if v["device"] == device}
    expected = a.to_dense().double() @ b.double()
    for name in variants():
        if name in legal:
            assert (matmul(a, b, variant=name) - expected).abs().max() < 1e-3, name
        else:
            with pytest.raises(ValueError, match="not legal"):
                matmul(a, b, variant=name)


def test_variants_depend_on_the_keywords():
    a, b = problem()
    with torch.no_grad(), settings.override(exact_nonfinite=True):
        assert set(variants(a, b)) < set(variants())
    assert variants(a, torch.randn(5, K), linear=True)
    with pytest.raises(ValueError, match="bias"):
        variants(a, b, bias=torch.ones(3))
    with pytest.raises(ValueError, match="activation"):
        variants(a, b, activation="tanh")
    with pytest.raises(TypeError, match="both a and b"):
        variants(a)


# tune


def test_tune_races_always_and_replaces_the_entry(device):
    a, b = problem(device)
    for times in (1, 2):
        before = tuning_count()
        report = tune(a, b)
        assert tuning_count() == before + 1
        (entry,) = cache.entries()
        assert (entry.signature, entry.winner) == (report.signature, report.winner), times
        assert entry.median_us == report.best.median_us
    before = tuning_count()
    assert torch.equal(matmul(a, b), matmul(a, b, variant=report.winner))
    assert tuning_count() == before


@pytest.mark.parametrize("mode", ["off", "readonly", "record"])
def test_tune_races_in_every_mode(mode):
    with settings.override(mode=mode):
        before = tuning_count()
        tune(*problem())
        assert tuning_count() == before + 1
        assert len(cache.entries()) == 1


def test_a_new_race_decides_at_once():
    """Also for a matrix whose plan has remembered the older winner."""
    a, b = problem()
    matmul(a, b)
    (entry,) = cache.entries()
    bundle = entry.path.with_suffix(".bundle")
    other = next(name for name in variants(a, b) if name.startswith("reference/"))
    bundle.write_text(won_by(entry.path.read_text(), other))
    cache.load(bundle)
    expected = matmul(a, b, variant=other)
    assert torch.equal(matmul(a, b), expected)
    winner = tune(a, b).winner
    assert winner != other, "the reference is the fastest here: this shows nothing"
    assert torch.equal(matmul(a, b), matmul(a, b, variant=winner))
    assert not torch.equal(matmul(a, b), expected)


def test_a_winner_that_is_not_legal_here():
    """Problems of one signature may differ in that: the next best serves, without another race."""
    a, b = problem()
    matmul(a, b)
    (entry,) = cache.entries()
    text = entry.path.read_text()
    line = re.search(rf"^entrant {entry.winner}\t.*\n", text, flags=re.MULTILINE).group()
    text = text.replace(line, line.replace(entry.winner, "elsewhere/legal") + line)
    text = re.sub(r"^winner .*$", "winner elsewhere/legal", text, flags=re.MULTILINE)
    text = re.sub(r"^end (\d+)", lambda m: f"end {int(m[1]) + 1}", text, flags=re.MULTILINE)
    bundle = entry.path.with_suffix(".bundle")
    bundle.write_text(text)
    cache.load(bundle)
    assert [e.winner for e in cache.entries()] == ["elsewhere/legal"]
    before = tuning_count()
    assert torch.equal(matmul(a, b), matmul(a, b, variant=entry.winner))
    assert tuning_count() == before


def test_tune_with_the_keywords_of_matmul():
    """Each changes the kind of problem: the product that follows does not race."""
    a, b = problem()
    bias = torch.randn(M)
    for keywords in ({}, {"bias": bias}, {"activation": "gelu"}):
        tune(a, b, **keywords)
    assert len(cache.entries()) == 3
    before = tuning_count()
    for keywords in ({}, {"bias": bias}, {"activation": "gelu"}):
        matmul(a, b, **keywords)
    x = torch.randn(3, 5, K)
    tune(a, x, linear=True, bias=bias)
    assert tuning_count() == before + 1
    linear(x, a, bias)
    matmul(a.to_torch(), b)
    assert tuning_count() == before + 1


def test_linear_takes_the_weight_first():
    """Not as `linear` does: in its order both would fit a square weight, of another product."""
    weight, x = random_bsr(M, M, BLOCK, density=0.5), torch.randn(5, M)
    for ask in (variants, tune, benchmark):
        with pytest.raises(TypeError, match=r"weight must be a BSR matrix, got a dense tensor"):
            ask(x, weight, linear=True)
    assert cache.entries() == []


def test_a_product_from_the_left():
    """With the block-sparse matrix as `b`."""
    a, _ = problem()
    x = torch.randn(5, M)
    for name in variants(x, a):
        got = matmul(x, a, variant=name)
        close(got, x @ a.to_dense())
    tune(x, a)
    before = tuning_count()
    matmul(x, a)
    assert tuning_count() == before
    (entry,) = cache.entries()
    assert benchmark(x, a, variants="reference").signature == entry.signature
    with pytest.raises(ValueError, match="the columns of a must match the rows of b"):
        variants(x[:, 1:], a)


def test_tune_for_an_out():
    """The layout of the result is part of the kind of problem; `out` itself is not written."""
    a, b = problem()
    column_major = torch.full((N, M), 5.0).t()
    tune(a, b, out=column_major)
    assert (column_major == 5).all()
    (entry,) = cache.entries()
    assert "_cC_" in entry.signature
    before = tuning_count()
    matmul(a, b, out=column_major)
    assert torch.allclose(column_major, a.to_dense() @ b, atol=1e-4)
    assert tuning_count() == before
    tune(a, b, out=torch.full((2 * M, 3 * N), 5.0)[::2, ::3])  # into which no variant writes
    assert [e.signature.count("_cR_") for e in cache.entries()] == [0, 1]
    empty, out = random_bsr(M, K, BLOCK, density=0), torch.full((M, N), 5.0)
    assert tune(empty, b, out=out).best is None
    assert (out == 5).all()
    with pytest.raises(ValueError, match="out is never resized"):
        tune(a, b, out=torch.empty(M, N + 1))
    with pytest.raises(RuntimeError, match="share memory"):
        tune(a, b, out=b.new_empty(M * N).as_strided((M, N), (1, 1)))
    with pytest.raises(ValueError, match="linear has no out"):
        tune(a, b.t(), out=torch.empty(N, M), linear=True)


def test_tune_one_family_leaves_the_entry():
    a, b = problem()
    tune(a, b)
    before = cache.entries()[0].path.read_text()
    for variant in ("reference", "reference/fp64"):
        report = tune(a, b, variant=variant)
        assert [r.name for r in report.records] == ["reference/fp64"]
    assert [entry.path.read_text() for entry in cache.entries()] == [before]


def test_tune_does_not_touch_the_operands():
    a, b = problem()
    b.fill_(float("nan"))
    before = a.values.clone()
    assert tune(a, b).best is not None
    assert torch.equal(a.values, before)
    assert b.isnan().all()


def test_tune_refuses_what_matmul_refuses():
    a, b = problem()
    with pytest.raises(ValueError, match=r"variant must be one of .*'fastest'"):
        tune(a, b, variant="fastest")
    with pytest.raises(ValueError, match=r"'sampled_reference' .* computes sampled_matmul, not"):
        tune(a, b, variant="sampled_reference")
    with pytest.raises(ValueError, match="b"):
        tune(a, b[1:])
    with pytest.raises(TypeError, match="dtype"):
        tune(a, b.double())


def test_empty_products_tune_nothing():
    before = tuning_count()
    empty = random_bsr(M, K, BLOCK, density=0)
    report = tune(empty, problem()[1])
    assert report.best is None
    assert "nothing to race" in report.failure
    tune(problem()[0], torch.empty(K, 0))
    matmul(empty, problem()[1])
    assert tuning_count() == before
    assert cache.entries() == []


@pytest.mark.skipif(lacks_this_machine("AVX2"), reason="the CPU's own kernels need AVX2")
@pytest.mark.parametrize("kind", ["matmul", "linear", "sampled"])
def test_the_widest_vectors_come_first(kind):
    """A race that has time for one entrant, as for a large product, runs what is likely to win."""
    a, x = random_bsr(512, 512, 32, density=0.5), torch.randn(512, 512)
    operands = (x, x, a) if kind == "sampled" else (a, x)
    keywords = {"pattern": operands[2]} if kind == "sampled" else {"linear": kind == "linear"}
    for _ in range(20):  # a first launch that waits for the processor lets others in
        with settings.override(budget_s=1e-6):
            report = tune(*operands[:2], **keywords)
        ran = [record.name for record in report.records if record.samples]
        if len(ran) == 1:
            break
    level = "avx2" if lacks_this_machine("AVX-512") else "avx512"
    assert len(ran) == 1 and f"/{level}" in ran[0], ran
    assert kind != "matmul" or not ran[0].endswith("_block")  # the slowest at that size
