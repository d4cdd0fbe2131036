"""What a server relies on: few races, races before the first request, and no dead winner."""

import re

import pytest
import torch
from records import entrants, make_winner, only_entry
from reference import close
from test_registration import Product, register  # noqa: F401  a fixture

from sparse_autotune import (
    SparseLinear,
    _tuner,
    benchmark,
    cache,
    matmul,
    missed_products,
    prewarm,
    random_bsr,
    settings,
    tune,
    tune_file,
    tuning_count,
)


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.02)
    monkeypatch.setattr(cache, "_warned", {})


def matrix(seed=0, **options):
    generator = torch.Generator().manual_seed(seed)
    return random_bsr(64, 48, 16, density=0.5, generator=generator, **options)


def problem(n=8):
    return matrix(), torch.randn(48, n)


def races(call):
    before = tuning_count()
    call()
    return tuning_count() - before


# Buckets of numbers of columns


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_loop_over_every_n_meets_few_kinds(dtype):
    a = matrix(dtype=dtype)
    b = torch.randn(48 * 8192).to(dtype)
    cache.clear()
    with settings.override(mode="readonly"):
        for n in range(1, 8193):
            matmul(a, b[: 48 * n].view(48, n))
    assert 10 < len(cache.missed()) <= 32


def test_exact_numbers_race_for_themselves():
    def loop():
        for n in (33, 40, 48):
            a, b = problem(n)
            close(matmul(a, b), a.to_dense() @ b)

    assert races(loop) == 1
    with settings.override(buckets="exact"):
        assert races(loop) == 3
        assert races(loop) == 0
    assert races(loop) == 0, "entries of both stay"
    exact = [entry for entry in cache.entries() if "_exactn" in entry.signature]
    assert {entry.problem.split()[0] for entry in exact} == {"64x48x33", "64x48x40", "64x48x48"}


def test_exact_numbers_are_recorded_as_such():
    with settings.override(mode="record", buckets="exact"):
        matmul(*problem(33))
    (race,) = tune_file(missed_products.path()).races
    assert "_exactn33_" in race.signature
    with settings.override(buckets="exact"):
        assert races(lambda: matmul(*problem(33))) == 0


# Before the first request


def test_prewarm_of_an_operand():
    a = matrix()
    assert prewarm(a, (1, 8, 40)) == 3
    assert prewarm(a, (1, 8, 48)) == 0
    for n in (1, 7, 40):
        assert races(lambda n=n: matmul(a, torch.randn(48, n))) == 0
    assert prewarm(a.t(), [8]) == 1
    assert prewarm(a.to_torch(), [8]) == 0
    assert prewarm(a, []) == 0


@pytest.mark.parametrize("frozen", [False, True])
def test_prewarm_of_a_model(frozen):
    model = torch.nn.Sequential(
        SparseLinear(48, 64, 16, density=0.5),
        torch.nn.GELU(),
        torch.nn.Sequential(SparseLinear(64, 48, 16, density=0.5, bias=False)),
        torch.nn.Linear(48, 3),
    )
    if frozen:
        model.requires_grad_(False)
        model[0].freeze()
        model[2][0].freeze()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    assert prewarm(model, range(7, 9)) == 2
    with torch.inference_mode():
        assert races(lambda: model(torch.randn(7, 48))) == 0
        assert races(lambda: model(torch.randn(2, 4, 48))) == 0
    assert model.training
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("mode", ["off", "readonly", "record"])
def test_prewarm_races_in_every_mode(mode):
    with settings.override(mode=mode):
        assert prewarm(matrix(), [8]) == 1
        assert settings.mode == mode
    assert not missed_products.path().exists()


@pytest.mark.parametrize(
    ("target", "ns", "error", "why"),
    [
        (torch.zeros(3, 3), [1], TypeError, "a module or a block-sparse matrix, got"),
        (torch.nn.Linear(3, 3), [1], ValueError, "Linear has no SparseLinear"),
        (None, 5, TypeError, "ns must be whole numbers, got"),
        (None, "12", TypeError, "ns must be whole numbers, got"),
        (None, [1.5], TypeError, "ns must be an int, got 1.5"),
        (None, [-1], ValueError, "ns must not be negative, got -1"),
        (None, [8, 0], ValueError, "ns must be positive; got 0"),
    ],
)
def test_prewarm_refuses(target, ns, error, why):
    with pytest.raises(error, match=re.escape(why)):
        prewarm(matrix() if target is None else target, ns)
    assert cache.entries() == []


# The incumbent


def slower_winner():
    """Makes a variant the winner that is far from the fastest, and returns its name."""
    name = "reference/fp64"
    make_winner(name)
    return name


def test_the_winner_of_before_stays_unless_beaten():
    a, b = problem(200)
    tune(a, b)
    incumbent = slower_winner()
    with settings.override(min_speedup=1e9, budget_s=0.5):
        assert tune(a, b).winner == incumbent
        assert cache.entries()[0].winner == incumbent
        assert benchmark(a, b).winner != incumbent, "a benchmark has no incumbent"
    with settings.override(budget_s=0.5):
        assert tune(a, b).winner != incumbent


def test_also_when_a_variant_has_joined(register):  # noqa: F811
    a, b = problem(200)
    with settings.override(min_speedup=1e9, budget_s=0.5):
        matmul(a, b)
        incumbent = slower_winner()
        register()
        assert races(lambda: matmul(a, b)) == 1
        assert cache.entries()[0].winner == incumbent


# A winner that fails to launch


class Failing(Product):
    """Fails from some time on."""

    error = None

    def __call__(self, *operands, **keywords):
        super().__call__(*operands, **keywords)
        if self.error is not None:
            keywords["out"].fill_(float("nan"))
            raise self.error


@pytest.fixture
def failing(register):  # noqa: F811
    """A product whose winner fails from now on."""
    fn = Failing()
    register("failing", fn)
    a, b = problem()
    with settings.override(budget_s=0.2):
        matmul(a, b)
    make_winner("failing/1")
    calls = fn.calls
    matmul(a, b)
    assert fn.calls == calls + 1
    fn.error = ArithmeticError("broken on purpose")
    return fn, a, b


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ArithmeticError("broken on purpose"), "launch_failed"),
        (torch.OutOfMemoryError("no room on purpose"), "out_of_memory"),
    ],
)
def test_the_next_best_replaces_it(error, status, failing):
    fn, a, b = failing
    fn.error = error
    before = entrants()
    with pytest.warns(RuntimeWarning, match=r"failing/1 failed to launch on 64x48x8 ") as w:
        close(matmul(a, b), a.to_dense() @ b)
    assert len(w) == 1 and w[0].filename == __file__ and "on purpose" in str(w[0].message)
    calls, count = fn.calls, tuning_count()
    entry, after = only_entry(), entrants()
    assert after["failing/1"]["status"] == status and "on purpose" in after["failing/1"]["reason"]
    assert after["failing/1"]["median_us"] == 0
    others = {n: e["median_us"] for n, e in before.items() if n != "failing/1" and e["median_us"]}
    assert entry.winner == min(others, key=others.get), "the fastest of the others"
    for _ in range(3):
        close(matmul(a, b), a.to_dense() @ b)
    _tuner.forget()  # as another process
    close(matmul(a, b), a.to_dense() @ b)
    assert (fn.calls, tuning_count()) == (calls, count)


def test_into_out_and_with_gradients(failing):
    _, a, b = failing
    out = torch.empty(64, 8)
    with pytest.warns(RuntimeWarning, match="failed to launch"):
        matmul(a, b, out=out)
    close(out, a.to_dense() @ b)


def test_under_compile(failing, fresh_dynamo):
    _, a, b = failing
    compiled = torch.compile(lambda b: matmul(a, b) * 2, fullgraph=True)
    with pytest.warns(RuntimeWarning, match="failed to launch"):
        close(compiled(b), 2 * (a.to_dense() @ b))
    close(compiled(b), 2 * (a.to_dense() @ b))


@pytest.mark.parametrize("mode", ["readonly", "record"])
def test_where_nothing_is_written_the_entry_stays(mode, failing):
    fn, a, b = failing
    with settings.override(mode=mode):
        before = cache.entries()[0].path.read_bytes()
        with pytest.warns(RuntimeWarning, match="failed to launch"):
            close(matmul(a, b), a.to_dense() @ b)
        calls = fn.calls
        close(matmul(a, b), a.to_dense() @ b)
        assert fn.calls == calls, "this process has learnt"
        assert cache.entries()[0].path.read_bytes() == before


def test_a_forced_variant_is_not_replaced(failing):
    fn, a, b = failing
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"failing/1 failed on .*broken on purpose"):
            matmul(a, b, variant="failing/1")
    assert fn.error is not None and cache.entries()[0].winner == "failing/1"


def test_the_last_one_is_not_replaced(failing):
    """Of a family with one variant, nothing is left."""
    _, a, b = failing
    with pytest.raises(RuntimeError, match=r"failing/1 failed on .*broken on purpose"):
        matmul(a, b, variant="failing")


def test_several_fail_one_after_the_other(failing, register):  # noqa: F811
    _, a, b = failing
    second = Failing()
    register("second", second)
    second.error = ArithmeticError("this one too")
    (entry,) = cache.entries()
    text = entry.path.read_text().splitlines(keepends=True)
    line = "entrant second/1\tok\t1\t0.002\t0\t7\t0\t0\t0\tcaptured\t\n"
    at = next(i for i, one in enumerate(text) if one.startswith("entrant "))
    text.insert(at, line)
    text[-1] = f"end {int(text[-1].split()[1]) + 1}\n"
    entry.path.write_text("".join(text))
    _tuner.forget()
    with pytest.warns(RuntimeWarning, match="failed to launch") as warned:
        close(matmul(a, b), a.to_dense() @ b)
    assert [str(w.message).split()[1] for w in warned] == ["failing/1", "second/1"]
    entry, after = only_entry(), entrants()
    assert {after[name]["status"] for name in ("failing/1", "second/1")} == {"launch_failed"}


def test_the_guess_is_replaced_too(register):  # noqa: F811
    """Without an entry: among variants without a cost model the first is taken."""
    first, second = Failing(), Product()
    register("mine", first, version="a")
    register("mine", second, version="b")
    first.error = ArithmeticError("broken on purpose")
    a, b = problem()
    with settings.override(mode="off"):
        with pytest.warns(RuntimeWarning, match="mine/a failed to launch"):
            close(matmul(a, b, variant="mine"), a.to_dense() @ b)
        close(matmul(a, b, variant="mine"), a.to_dense() @ b)
    assert (first.calls, second.calls) == (1, 2)
    assert cache.entries() == []


def test_clearing_the_cache_gives_it_another_chance(failing):
    fn, a, b = failing
    with pytest.warns(RuntimeWarning, match="failed to launch"):
        matmul(a, b)
    fn.error = None
    cache.clear()
    calls = fn.calls
    with settings.override(budget_s=0.2):
        close(matmul(a, b), a.to_dense() @ b)
    assert fn.calls > calls
