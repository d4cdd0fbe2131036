"""`register_variant`: Python callables race, win, fail and go like this package's own variants."""

import signal
import sys
import threading
import time

import pytest
import torch
from records import entrants, make_winner, only_entry
from reference import close

import sparse_autotune
from sparse_autotune import (
    VariantProblem,
    _tuner,
    benchmark,
    linear,
    matmul,
    missed_products,
    random_bsr,
    register_variant,
    sampled_matmul,
    settings,
    tune,
    tune_file,
    tuning_count,
    variants,
)

ACTIVATIONS = {
    "relu": torch.relu,
    "gelu": torch.nn.functional.gelu,
    "gelu_tanh": lambda x: torch.nn.functional.gelu(x, approximate="tanh"),
    "silu": torch.nn.functional.silu,
}


class Product:
    """Computes products from what the documentation says of the arguments, and counts them."""

    def __init__(self):
        self.calls = 0
        self.transposed = 0
        self.outputs = set()

    def __call__(
        self, crow_indices, col_indices, values, b, *, out, bias, activation, transpose, positions
    ):
        self.calls += 1
        self.outputs.add(out.data_ptr())
        assert (positions is not None) == transpose
        self.transposed += transpose
        _, block_m, block_k = values.shape
        rows = crow_indices.numel() - 1
        if positions is not None:
            values = values[positions.long()]
        row = torch.repeat_interleave(torch.arange(rows), crow_indices.long().diff())
        a = b.new_zeros(rows, b.shape[0] // block_k, block_m, block_k, dtype=torch.float64)
        a[row, col_indices.long()] = values.double()
        product = a.transpose(1, 2).reshape(rows * block_m, -1) @ b.double()
        if bias is not None:
            product += bias.double()[:, None]
        out.copy_(ACTIVATIONS.get(activation, lambda x: x)(product))


@pytest.fixture(autouse=True)
def _quick(fresh_cache, monkeypatch):
    monkeypatch.setattr(settings, "budget_s", 0.05)


@pytest.fixture
def register():
    """As `register_variant` on the CPU; what a test registers ends with it."""
    handles = []

    def call(name="mine", fn=None, **options):
        handles.append(register_variant(name, fn or Product(), device="cpu", **options))
        return handles[-1]

    yield call
    for handle in handles:
        handle.unregister()


def problem(n=8, dtype=torch.float32):
    a = random_bsr(64, 48, 16, density=0.5, dtype=dtype)
    return a, torch.randn(48, n).to(dtype)


# What it computes


def test_it_is_a_variant(register):
    handle = register()
    assert handle.name == "mine/1"
    assert repr(handle) == "RegisteredVariant('mine/1')"
    assert variants() == sorted(variants()) and "mine/1" in variants()
    assert "mine/1" in variants(*problem())
    assert next(v for v in _tuner.variants() if v["name"] == "mine/1") == {
        "name": "mine/1",
        "family": "mine",
        "device": "cpu",
        "op": "matmul",
        "deterministic": True,
        "multiplies_padding": False,
    }


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("variant", ["mine", "mine/1"])
def test_forced_products(variant, dtype, register):
    fn = Product()
    register(fn=fn)
    a, b = problem(dtype=dtype)
    dense, bias = a.to_dense(), torch.randn(64).to(dtype)
    x = b.T.contiguous()
    results = [
        (matmul(a, b, variant=variant), dense @ b),
        (matmul(a, b[:, 0], variant=variant), dense @ b[:, 0]),
        (matmul(a, x.T, variant=variant), dense @ b),
        (matmul(a, torch.stack([b, 2 * b]), variant=variant), dense @ torch.stack([b, 2 * b])),
        (matmul(a, b, bias=bias, activation="relu", variant=variant),
         (dense.double() @ b.double() + bias.double()[:, None]).relu().to(dtype)),
        (linear(x, a, bias, activation="silu", variant=variant), torch.nn.functional.silu(
            x.double() @ dense.double().T + bias.double()).to(dtype)),
    ]  # fmt: skip
    assert fn.calls == len(results) + 1, "one for each matrix of the batch"
    assert fn.transposed == 0
    c = torch.randn(64, 3).to(dtype)
    results += [
        (matmul(a.t(), c, variant=variant), dense.T @ c),
        (matmul(c.T, a, variant=variant), c.T @ dense),
    ]
    assert fn.transposed == 2
    for found, expected in results:
        tolerance = 4 * torch.finfo(dtype).eps * 30
        torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


def test_out_and_int32_indices(register):
    register()
    a, b = problem()
    narrow = sparse_autotune.BsrTensor(
        a.crow_indices.int(), a.col_indices.int(), a.values, (64, 48)
    )
    out = torch.zeros(8, 70).T
    assert matmul(narrow, b, out=out[:64], variant="mine") is not None
    close(out[:64], a.to_dense() @ b)
    assert (out[64:] == 0).all()


def test_sampled_products(register):
    def fn(crow_indices, col_indices, x, y, *, out):
        row = torch.repeat_interleave(torch.arange(4), crow_indices.diff())
        blocks = (x @ y).reshape(4, 16, 3, 16).transpose(1, 2)
        out.copy_(blocks[row, col_indices])

    register(fn=fn, op="sampled_matmul")
    a, _ = problem()
    x, y = torch.randn(64, 24), torch.randn(24, 48)
    found = sampled_matmul(x, y, a, variant="mine")
    torch.testing.assert_close(found, sampled_matmul(x, y, a, variant="sampled_reference"))
    report = tune(x, y, pattern=a)
    assert next(r for r in report.records if r.name == "mine/1").error <= 1
    batch = torch.randn(2, 64, 24), torch.randn(2, 24, 48)
    with pytest.raises(ValueError, match="do not sum over a batch"):
        sampled_matmul(*batch, a, variant="mine")
    with pytest.raises(ValueError, match="computes sampled_matmul, not matmul"):
        matmul(a, torch.randn(48, 3), variant="mine")


def test_gradients_flow_past_it(register):
    register()
    a, b = problem()
    b.requires_grad_()
    matmul(a, b, variant="mine").sum().backward()
    close(b.grad, a.to_dense().T @ torch.ones(64, 8))


# In races


def test_it_races_and_is_reported(register):
    fn = Product()
    register(fn=fn)
    a, b = problem()
    close(matmul(a, b), a.to_dense() @ b)
    assert fn.calls >= 1
    mine = entrants()["mine/1"]
    assert mine["status"] in ("ok", "eliminated")
    assert mine["median_us"] > 0 and 0 <= mine["error"] <= 1 and mine["expected_us"] == 0
    report = benchmark(a, b)
    (record,) = [r for r in report.records if r.name == "mine/1"]
    assert record.status == "ok" and record.tflops > 0 and record.expected_us is None
    assert "mine/1" in report.table()


def test_races_use_operands_of_their_own(register):
    fn = Product()
    register(fn=fn)
    a, b = problem()
    out = torch.full((64, 8), 7.0)
    tune(a, b, out=out)
    assert fn.calls > 0 and out.data_ptr() not in fn.outputs
    assert (out == 7).all()


def test_a_winner_serves_hits_and_later_processes(register):
    fn = Product()
    register(fn=fn)
    a, b = problem()
    matmul(a, b)
    make_winner("mine/1")
    races, calls = tuning_count(), fn.calls
    for i in range(1, 4):
        close(matmul(a, b), a.to_dense() @ b)
        assert fn.calls == calls + i
    assert tuning_count() == races


def test_under_compile_it_is_inside_of_the_product(register, fresh_dynamo):
    fn = Product()
    register(fn=fn)
    a, b = problem()
    matmul(a, b)
    make_winner("mine/1")
    graphs = []

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    calls = fn.calls
    compiled = torch.compile(lambda b: matmul(a, b) + 1, fullgraph=True, backend=backend)
    close(compiled(b), a.to_dense() @ b + 1)
    assert fn.calls == calls + 1
    called = {str(node.target) for node in graphs[0].graph.nodes if node.op == "call_function"}
    assert not [name for name in called if "sparse_autotune_variants" in name]
    inductor = torch.compile(lambda b: matmul(a, b) + 1, fullgraph=True)
    close(inductor(b), a.to_dense() @ b + 1)
    assert fn.calls == calls + 2


def wrong(*_, out, **__):
    out.fill_(1.0)


def partial(*_, out, **__):
    pass


def nan(*_, out, **__):
    out.fill_(float("nan"))


def raising(*_, **__):
    raise ArithmeticError("broken on purpose")


def too_large(*_, **__):
    raise torch.OutOfMemoryError("no room on purpose")


@pytest.mark.parametrize(
    ("fn", "status", "why"),
    [
        (wrong, "wrong_result", ""),
        (partial, "wrong_result", ""),
        (nan, "wrong_result", ""),
        (raising, "launch_failed", "ArithmeticError: broken on purpose"),
        (too_large, "out_of_memory", "OutOfMemoryError: no room on purpose"),
    ],
)
def test_one_that_fails_never_wins(fn, status, why, register, capfd):
    register(fn=fn)
    a, b = problem()
    close(matmul(a, b), a.to_dense() @ b)
    mine = entrants()["mine/1"]
    assert mine["status"] == status and why in mine["reason"]
    assert only_entry().winner != "mine/1"
    assert capfd.readouterr().err == ""


def test_a_forced_one_that_raises(register):
    register(fn=raising)
    with pytest.raises(RuntimeError, match=r"mine/1 failed on .*ArithmeticError: broken on purp"):
        matmul(*problem(), variant="mine")


def test_one_that_writes_to_its_operands(register):
    right = Product()

    def careless(crow_indices, col_indices, values, b, **rest):
        right(crow_indices, col_indices, values, b, **rest)
        b.zero_()

    register(fn=careless)
    matmul(*problem())
    statuses = {name: entrant["status"] for name, entrant in entrants().items()}
    assert statuses.pop("mine/1") == "wrong_result" and "wrong_result" not in statuses.values()


def test_one_that_would_end_the_process(register):
    register(fn=lambda *_, **__: sys.exit("enough"))
    matmul(*problem())
    assert "SystemExit: enough" in entrants()["mine/1"]["reason"]
    with pytest.raises(RuntimeError, match=r"mine/1 failed on .*SystemExit: enough"):
        matmul(*problem(), variant="mine")


def test_an_interrupt_in_supports_reaches_the_caller(register):
    def supports(problem):
        raise KeyboardInterrupt

    register(fn=Product(), supports=supports)
    with pytest.raises(KeyboardInterrupt):
        matmul(*problem())


@pytest.mark.parametrize("call", ["forced", "race"])
def test_an_interrupt_in_it_is_raised_behind_the_product(call, register, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    # Python's own handler raises in whatever runs next. Where that is a finalizer, the exception
    # is printed and lost, so this one counts.
    raised = []
    before = signal.signal(signal.SIGINT, lambda *_: raised.append(signal.SIGINT))
    monkeypatch.setattr(settings, "budget_s", 1.0)
    register(fn=interrupted)
    a, b = problem()
    try:
        if call == "race":
            close(matmul(a, b), a.to_dense() @ b)
        else:
            with pytest.raises(RuntimeError, match=r"mine/1 failed on .*: interrupted"):
                matmul(a, b, variant="mine")
        for _ in range(600):  # an interrupt that is simulated does not end a sleep
            if raised:
                break
            time.sleep(0.1)
    finally:
        signal.signal(signal.SIGINT, before)
    assert raised
    close(matmul(a, b, variant="cpu_rows"), a.to_dense() @ b)


def test_without_a_measurement_it_is_not_chosen(register):
    fn = Product()
    register(fn=fn)
    a, b = problem()
    for mode in ("off", "readonly"):
        with settings.override(mode=mode):
            close(matmul(a, b), a.to_dense() @ b)
    assert fn.calls == 0
    register(fn=fn, version="2")
    with settings.override(mode="off"):  # among themselves
        close(matmul(a, b, variant="mine"), a.to_dense() @ b)
    assert fn.calls == 1


def test_recorded_products_race_with_it(register):
    with settings.override(mode="record"):
        matmul(*problem())
    register()
    (race,) = tune_file(missed_products.path()).races
    assert "mine/1" in {record.name for record in race.records}


def test_products_in_it(register):
    def fn(crow_indices, col_indices, values, b, *, out, **_):
        a = sparse_autotune.BsrTensor(crow_indices, col_indices, values, (64, 48))
        matmul(a, b, out=out, variant="cpu_rows/avx2")

    if "cpu_rows/avx2" not in variants(*problem()):
        pytest.skip("no AVX2")
    register(fn=fn, supports=lambda p: p.m == 64 or "only 64 rows")
    a, b = problem()
    close(matmul(a, b), a.to_dense() @ b)
    close(matmul(a, b, variant="mine"), a.to_dense() @ b)


# supports


def test_supports_is_asked_about_the_problem(register):
    asked = []

    def supports(problem):
        asked.append(problem)
        return "not today"

    register(supports=supports)
    a = random_bsr(64, 48, (16, 8), density=0.5, dtype=torch.bfloat16)
    b = torch.randn(48, 5).bfloat16()
    with pytest.raises(ValueError, match="not today"):
        matmul(a, b, bias=torch.randn(64).bfloat16(), activation="gelu", variant="mine")
    longest = int(a.crow_indices.diff().max())
    expected = VariantProblem(
        op="matmul",
        device="cpu",
        dtype=torch.bfloat16,
        index_dtype=torch.int64,
        m=64,
        n=5,
        k=48,
        block_m=16,
        block_k=8,
        nnzb=a.nnzb,
        longest_row=longest,
        batch=1,
        b_layout="row",
        c_layout="row",
        activation="gelu",
        bias=True,
        transpose=False,
        frozen=False,
        allow_tf32=False,
        deterministic=False,
    )
    assert expected in asked
    with pytest.raises(ValueError, match="not today"):
        matmul(a.t(), torch.randn(2, 64, 5).bfloat16(), variant="mine")
    assert asked[-1].transpose and (asked[-1].m, asked[-1].block_m, asked[-1].batch) == (48, 8, 2)
    with pytest.raises(ValueError, match="not today"):
        linear(b.T.contiguous(), a, variant="mine")
    assert asked[-1].b_layout == asked[-1].c_layout == "col"


def _raises(problem):
    raise KeyError("oops")


@pytest.mark.parametrize(
    ("supports", "why"),
    [
        (lambda p: False, r"returned False, neither True nor a reason"),
        (lambda p: "", r"returned '', neither True nor a reason"),
        (lambda p: None, r"returned None, neither True nor a reason"),
        (_raises, r"supports\(\) raised KeyError: 'oops'"),
        (lambda p: "only n = 1 — no other", "only n = 1"),
    ],
)
def test_what_it_does_not_support(supports, why, register):
    fn = Product()
    register(fn=fn, supports=supports)
    a, b = problem()
    close(matmul(a, b), a.to_dense() @ b)
    assert fn.calls == 0 and "mine/1" not in variants(a, b)
    with pytest.raises(ValueError, match=why):
        matmul(a, b, variant="mine")


def test_the_flags(register):
    register(deterministic=False, multiplies_padding=True)
    a, b = problem()
    assert "mine/1" in variants(a, b)
    with settings.override(exact_nonfinite=True):
        assert "mine/1" not in variants(a, b)
    torch.use_deterministic_algorithms(True)
    try:
        assert "mine/1" not in variants(a, b)
    finally:
        torch.use_deterministic_algorithms(False)


# Coming, going and changing


def test_unregister(register):
    fn = Product()
    handle = register(fn=fn)
    a, b = problem()
    matmul(a, b)
    make_winner("mine/1")
    matmul(a, b)
    calls, races = fn.calls, tuning_count()
    handle.unregister()
    handle.unregister()
    assert repr(handle) == "RegisteredVariant('mine/1', unregistered)"
    assert "mine/1" not in variants()
    close(matmul(a, b), a.to_dense() @ b)
    assert (fn.calls, tuning_count()) == (calls, races), "the next best, without a race"
    with pytest.raises(ValueError, match="variant must be"):
        matmul(a, b, variant="mine")
    with pytest.raises(ValueError):
        settings.variant = "mine"


def test_a_new_version_races_again(register):
    a, b = problem()

    def races(version):
        before = tuning_count()
        handle = register(version=version)
        matmul(a, b)
        _tuner.forget()
        matmul(a, b)
        handle.unregister()
        return tuning_count() - before

    assert [races(version) for version in ("1", "1", "2", "2")] == [1, 0, 1, 0]


def test_a_process_without_it_takes_the_entry(register):
    handle = register()
    a, b = problem()
    matmul(a, b)
    handle.unregister()
    _tuner.forget()
    before = tuning_count()
    close(matmul(a, b), a.to_dense() @ b)
    assert tuning_count() == before


def test_it_can_be_the_setting(register):
    fn = Product()
    register(fn=fn)
    a, b = problem()
    with settings.override(variant="mine"):
        close(matmul(a, b), a.to_dense() @ b)
    assert fn.calls == 1


def test_names_are_taken_once(register):
    register()
    with pytest.raises(ValueError, match="a variant is named 'mine/1' already"):
        register()
    assert register(version="other").name == "mine/other"
    with pytest.raises(ValueError, match="family 'mine' is for another device or operation"):
        register(version="3", op="sampled_matmul")
    with pytest.raises(ValueError, match="family 'mine' is for another device"):
        register_variant("mine", Product(), version="4")
    with pytest.raises(ValueError, match="a variant is named 'reference/fp64' already"):
        register("reference", version="fp64")


@pytest.mark.parametrize(
    ("options", "error", "why"),
    [
        ({"name": "Mine"}, ValueError, "name must match"),
        ({"name": "mine/fast"}, ValueError, "name must match"),
        ({"name": "mine\n"}, ValueError, "name must match"),
        ({"name": 5}, TypeError, "name must be a string, got int"),
        ({"version": ""}, ValueError, "version must match"),
        ({"version": 2}, TypeError, "version must be a string, got int"),
        ({"fn": 5}, TypeError, "fn must be callable, got int"),
        ({"supports": True}, TypeError, "supports must be callable, got bool"),
        ({"op": "conv"}, ValueError, "op must be one of matmul, .*attention_backward; got 'conv'"),
        ({"device": "tpu"}, ValueError, "device must be one of cpu, cuda; got 'tpu'"),
    ],
)
def test_bad_arguments(options, error, why):
    before = variants()
    arguments = {"name": "mine", "fn": Product(), "device": "cpu"} | options
    with pytest.raises(error, match=why):
        register_variant(arguments.pop("name"), arguments.pop("fn"), **arguments)
    assert variants() == before


def test_threads_multiply_while_it_comes_and_goes(register):
    a, b = problem()
    expected = a.to_dense() @ b
    stop, wrong = threading.Event(), []

    def work():
        while not stop.is_set():
            if not torch.allclose(matmul(a, b), expected, atol=1e-4):
                wrong.append(1)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(20):
        register(version=str(i)).unregister()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and "mine/1" not in variants()
