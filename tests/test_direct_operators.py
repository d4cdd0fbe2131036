"""What compiled graphs call past the dispatcher: the operator's bits, or the operator itself."""

import itertools
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from interpreters import run_python
from reference import close
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_autotune
from sparse_autotune import BsrTensor, SparseLinear, random_bsr
from sparse_autotune._torch.direct import install
from sparse_autotune._tuner import DirectOperator
from sparse_autotune.operators.library import bsr_matmul, bsr_sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races")

FORMS = list(itertools.product([False, True], [False, True], ["vector", "matrix", "batch"]))
OPERATORS = (bsr_matmul, bsr_sampled_matmul)
DISPATCHED = {op: torch._C._get_operation_overload(op._schema.name, "")[0] for op in OPERATORS}


class Call(NamedTuple):
    """An operator and its arguments."""

    operator: object
    arguments: tuple
    keywords: dict

    def dispatched(self):
        return DISPATCHED[self.operator](*self.arguments, **self.keywords)

    def changed(self, place, value):
        arguments = (*self.arguments[:place], value, *self.arguments[place + 1 :])
        return self._replace(arguments=arguments)

    def with_keywords(self, **keywords):
        return self._replace(keywords=self.keywords | keywords)


class Counted:
    """Ways past the dispatcher such as torch calls, and how often they left a call to it."""

    def __init__(self):
        self.count = 0
        self.ways = {operator: self._way(operator) for operator in OPERATORS}

    def _way(self, operator):
        def counting(*given, **keywords):
            self.count += 1
            return DISPATCHED[operator](*given, **keywords)

        stand_in = SimpleNamespace(_schema=operator._schema, _op=counting)
        install(stand_in)
        return stand_in._op

    def during(self, call):
        before = self.count
        result = call()
        return self.count - before, result

    def left(self, call):
        """How often the dispatcher was asked, and the result."""
        return self.during(lambda: self.ways[call.operator](*call.arguments, **call.keywords))


@pytest.fixture
def counted():
    return Counted()


def calls_on(device, sparse_right=True, transpose=True, shape="matrix", dtype=torch.float32):
    """One of each operator and one with a bias, all made before; and the matrix."""
    a = random_bsr(64, 96, (16, 32), density=0.5, device=device, dtype=dtype)
    inner, outer = (64, 96) if transpose != sparse_right else (96, 64)

    def dense(size):
        sizes = {
            "vector": (size,),
            "matrix": (5, size) if sparse_right else (size, 5),
            "batch": (3, 5, size) if sparse_right else (3, size, 5),
        }[shape]
        return torch.randn(sizes, device=device, dtype=dtype)

    x, bias = dense(inner), torch.randn(outer, device=device, dtype=dtype)
    matrix = (a.crow_indices, a.col_indices, a.values, 64, 96)
    form = {"sparse_right": sparse_right, "transpose": transpose}
    lead = {"vector": (), "matrix": (), "batch": (3,)}[shape]
    left = torch.randn(*lead, 64, 5, device=device, dtype=dtype)
    right = torch.randn(*lead, 5, 96, device=device, dtype=dtype)
    sample = (a.crow_indices, a.col_indices, 64, 96, 16, 32, left, right)
    calls = {
        "product": Call(bsr_matmul, (*matrix, x), form),
        "with_bias": Call(bsr_matmul, (*matrix, x, bias), form | {"activation": 1}),
        "sampled": Call(bsr_sampled_matmul, sample, {}),
    }
    for call in calls.values():
        call.dispatched()
    return calls, a


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("sparse_right", "transpose", "shape"), FORMS)
def test_the_same_bits(counted, device, sparse_right, transpose, shape, dtype):
    calls, _a = calls_on(device, sparse_right, transpose, shape, dtype)
    for name, call in calls.items():
        count, got = counted.left(call)
        assert count == 0, name
        expected = call.dispatched()
        assert got.dtype == dtype and got.shape == expected.shape
        assert got.stride() == expected.stride()
        assert torch.equal(got, expected), name


def test_torch_calls_them():
    for operator in OPERATORS:
        assert type(operator._op) is DirectOperator
    # Some versions of torch find an operator in tables by what `_op` is found by.
    stand_in = SimpleNamespace(_schema=bsr_matmul._schema, _op=len)
    install(stand_in)
    assert type(stand_in._op) is DirectOperator and hash(stand_in._op) == hash(len)


class Listening(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """Somebody's own kind of tensor."""


def test_what_is_out_of_the_ordinary_is_the_operators(counted, device):
    calls, _a = calls_on(device)
    product, sampled = calls["product"], calls["sampled"]
    for call in calls.values():
        assert counted.left(call)[0] == 0
    x, left = product.arguments[5], sampled.arguments[6]
    for call in (
        product.changed(5, x.as_subclass(Own)),
        product.changed(5, x.clone().requires_grad_()),
        product.changed(2, product.arguments[2].clone().requires_grad_()),
        product.changed(5, x.cfloat().conj().imag),
        product.changed(5, x.repeat(2, 2)[::2, ::2]),
        calls["with_bias"].changed(6, torch.randn(128, device=device)[::2]),
        product.changed(5, x[:1, :1].expand_as(x)),
        sampled.changed(6, left.as_subclass(Own)),
        sampled.changed(6, left.clone().requires_grad_()),
        sampled.changed(6, left.repeat(2, 2)[::2, ::2]),
    ):
        for _ in range(2):
            assert counted.left(call)[0] == 1, call
    for call in calls.values():
        for context in (
            Listening(),
            Functions(),
            torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
            torch.autograd.forward_ad.dual_level(),
        ):
            with context:
                assert counted.left(call)[0] == 1, (call, context)
        assert counted.left(call)[0] == 0


def test_parameters_are_the_ordinary(counted, device):
    calls, _a = calls_on(device)
    with torch.no_grad():
        for name, place in (("product", 2), ("product", 5), ("with_bias", 6)):
            call = calls[name]
            parameter = torch.nn.Parameter(call.arguments[place])
            count, got = counted.left(call.changed(place, parameter))
            assert count == 0
            assert torch.equal(got, call.dispatched()) and not got.requires_grad


def test_a_variant_is_the_operators_once(counted, device):
    """By keyword or by the setting: it is looked up like any other decision then."""
    calls, _a = calls_on(device)
    ours = {"cpu": ("reference", "sampled_reference"), "cuda": ("simt", "sampled_simt")}[device]
    for name, variant in zip(("product", "sampled"), ours, strict=True):
        call = calls[name]
        forced = call.with_keywords(variant=variant)
        assert [counted.left(forced)[0] for _ in range(3)] == [1, 0, 0]
        assert torch.equal(counted.left(forced)[1], forced.dispatched())
        with sparse_autotune.settings.override(variant=variant):
            assert [counted.left(call)[0] for _ in range(3)] == [1, 0, 0]
            assert torch.equal(counted.left(call)[1], forced.dispatched())
        assert [counted.left(call)[0] for _ in range(2)] == [1, 0]  # the setting changed again


def test_keywords(counted):
    """As the schema has them; what it does not have the dispatcher refuses."""
    calls, _a = calls_on("cpu")
    crow, col, values, rows, cols, x = calls["product"].arguments
    way = counted.ways[bsr_matmul]
    expected = calls["product"].dispatched()
    count, got = counted.during(
        lambda: way(
            crow, col, values, rows, dense=x, cols=cols, transpose=True, sparse_right=True,
            bias=None, activation=0, frozen=False, allow_tf32=False, deterministic=False,
            variant=None,
        )
    )  # fmt: skip
    assert count == 0 and torch.equal(got, expected)
    for wrong in (
        lambda: way(crow, col, values, rows, cols, x, None, True, transpose=True),
        lambda: way(crow, col, values, rows, cols, x, dense=x),
        lambda: way(crow, col, values, rows, cols, x, sparse_left=True),
        lambda: way(crow, col, values, rows, cols),
        lambda: way(),
    ):
        with pytest.raises((RuntimeError, TypeError)):
            wrong()


MISSING = """
import torch, sparse_autotune as sa
from sparse_autotune._torch import direct
from sparse_autotune.operators.forms import Form, SampleForm
a, b = sa.random_bsr(64, 64, 16, density=0.5), torch.randn(64, 8)
indices, ops = (a.crow_indices, a.col_indices), torch.ops.sparse_autotune
form, sample = Form(64, 64), SampleForm(64, 64, 16, 16)
refused = 0
for operator, arguments in (
    (ops.bsr_matmul.default, (*indices, a.values, 64, 64, b)),
    (ops.bsr_sampled_matmul.default, (*indices, 64, 64, 16, 16, b, b.T)),
):
    assert operator(*arguments) is not None
    shorter = [arguments[:n] for n in range(len(arguments))]
    emptier = [(*arguments[:n], None, *arguments[n + 1:]) for n in range(len(arguments))]
    for wrong in shorter + emptier:
        try:
            operator(*wrong)
        except Exception:
            refused += 1
sa.sampled_matmul(b, b.T, a), sa.matmul(a.t(), b)
for way, arguments in (
    (direct.matmul, (*indices, a.values, b, None, form)),
    (direct.gradients, (*indices, a.values, b, b, form)),
    (direct.or_else("bsr_sampled_matmul", lambda *_: None), (*indices, b, b.T, sample)),
):
    assert way(*arguments) is not None
    given = [arguments[:n] for n in range(len(arguments))]
    given += [(*arguments[:n], None, *arguments[n + 1:]) for n in (0, 1, 2, 3, len(arguments) - 1)]
    given += [(*arguments[:-1], form[:n]) for n in range(2)]
    given += [(*arguments, *range(n)) for n in (9, 20)]
    for wrong in given:
        assert way(*wrong) is None or wrong == arguments, (way, wrong)
print(refused)
"""


def test_missing_arguments(tmp_path):
    """They are the dispatcher's to refuse, none to look at; in another process, lest it crashes."""
    assert run_python(MISSING, tmp_path, mode="off").split() == [str(2 * (6 + 8))]


def test_a_pattern_met_for_the_first_time_is_the_operators(counted, device):
    calls, _a = calls_on(device)
    for call in calls.values():
        crow, col = (index.clone() for index in call.arguments[:2])
        copied = call.changed(0, crow).changed(1, col)
        # On a GPU few indices that nobody owns are distrusted: no transpose is kept of them.
        owner = BsrTensor(crow, col, calls["product"].arguments[2], (64, 96))
        for expected in (1, 0):
            count, got = counted.left(copied)
            assert count == expected and torch.equal(got, call.dispatched())
        del owner


def test_a_pattern_that_was_written_is_noticed(counted, device):
    """The version counter says so; on a CPU, the indices do as well."""
    calls, a = calls_on(device)
    while 1 not in a.crow_indices.diff():  # a row whose block may lie elsewhere
        calls, a = calls_on(device)
    col = a.col_indices
    place = a.crow_indices[a.crow_indices.diff().tolist().index(1)]
    for name, call in calls.items():
        col[place] = (col[place] + 1) % 3
        count, got = counted.left(call)
        assert count == 1, name  # the new pattern's first
        assert torch.equal(got, call.changed(1, col.clone()).dispatched())


def test_what_is_wrong_the_operator_says(counted, device):
    calls, _a = calls_on(device)
    product, sampled = calls["product"], calls["sampled"]
    x = product.arguments[5]
    for call, message in (
        (product.changed(5, x[:, :-1].contiguous()), "inner dimensions"),
        (product.changed(3, 65), "block_m must divide"),
        (product.changed(5, x.double()), "one dtype"),
        (product.with_keywords(activation=5), "activation must be one of"),
        (sampled.changed(6, sampled.arguments[6][:-1]), "the rows of the pattern"),
        (sampled.changed(4, 17), "block_m must divide"),
    ):
        with pytest.raises(RuntimeError, match=message):
            counted.left(call)


def test_memory_that_was_given_back(counted, device):
    calls, _a = calls_on(device)
    for name, places in (("product", (2, 5)), ("sampled", (6, 7))):
        for place in places:
            memory = calls[name].arguments[place].clone()
            memory.untyped_storage().resize_(0)
            with pytest.raises(RuntimeError, match="not allocated"):
                counted.left(calls[name].changed(place, memory))


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_training_comes_here(counted, device, monkeypatch):
    """From its second step on: the forward and each gradient of a layer by one call."""
    model = torch.nn.Sequential(
        SparseLinear(96, 64, (16, 32), 0.5, bias=False, device=device),
        torch.nn.ReLU(),
        SparseLinear(64, 96, (32, 16), 0.5, device=device),
    )
    step = torch.compile(model, backend="aot_eager", fullgraph=True)
    x = torch.randn(5, 96, device=device, requires_grad=True)
    inputs = (x, *model.parameters())
    for _ in range(2):
        torch.autograd.grad(step(x).sum(), inputs)
    handled = []
    for op, way in counted.ways.items():
        monkeypatch.setattr(
            op,
            "_op",
            lambda *given, op=op, way=way, **k: (handled.append(op), way(*given, **k))[1],
        )
    count, got = counted.during(lambda: torch.autograd.grad(step(x).square().sum(), inputs))
    assert handled.count(bsr_matmul) == 4 and handled.count(bsr_sampled_matmul) == 2
    assert count == 0
    close(got, torch.autograd.grad(model(x).square().sum(), inputs))
