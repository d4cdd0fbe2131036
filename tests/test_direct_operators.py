"""What compiled graphs call past the dispatcher: the operator's bits, or the operator itself."""

import itertools

import pytest
import torch
from reference import close
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import sparse_autotune
from sparse_autotune import SparseLinear, direct, launching, ops, random_bsr
from sparse_autotune._tuner import DirectGradients, DirectProduct
from sparse_autotune.forms import Form, _packed

pytestmark = pytest.mark.usefixtures("no_races")

FORMS = list(itertools.product([False, True], [False, True], ["vector", "matrix", "batch"]))
PRODUCT, GRADIENTS = ops.bsr_product, ops.bsr_product_gradients
DISPATCHED = {
    op: torch._C._get_operation_overload(op._schema.name, "")[0] for op in (PRODUCT, GRADIENTS)
}

if not isinstance(PRODUCT._op, DirectProduct):
    pytest.skip("a torch whose tensors only the dispatcher may look at", allow_module_level=True)


class Counted:
    """The ways past the dispatcher, and how often they left a call to it."""

    def __init__(self):
        self.count = 0
        arguments = (launching.OPERANDS, direct._EAGER)
        self.product = DirectProduct(self._counting(PRODUCT), *arguments)
        self.gradients = DirectGradients(self._counting(GRADIENTS), *arguments)

    def _counting(self, operator):
        def call(*given, **keywords):
            self.count += 1
            return DISPATCHED[operator](*given, **keywords)

        return call

    def during(self, call):
        before = self.count
        result = call()
        return self.count - before, result


@pytest.fixture
def counted():
    return Counted()


class Calls(dict):
    """Arguments by what is computed, and the matrix, which keeps its plan."""

    def __init__(self, matrix, **calls):
        super().__init__(calls)
        self.matrix = matrix


def operands(device, sparse_right=True, transpose=True, shape="matrix", dtype=torch.float32):
    """Of both operators, after a call with each."""
    a = random_bsr(64, 96, (16, 32), density=0.5, device=device, dtype=dtype)
    inner, outer = (64, 96) if transpose != sparse_right else (96, 64)

    def dense(size):
        sizes = {
            "vector": (size,),
            "matrix": (5, size) if sparse_right else (size, 5),
            "batch": (3, 5, size) if sparse_right else (3, size, 5),
        }[shape]
        return torch.randn(sizes, device=device, dtype=dtype)

    x, grad, bias = dense(inner), dense(outer), torch.randn(outer, device=device, dtype=dtype)
    matrix = (a.crow_indices, a.col_indices, a.values, 64, 96)
    form = _packed(Form(64, 96, sparse_right, transpose))
    calls = Calls(
        a,
        product=(*matrix, x, None, form, None),
        with_bias=(*matrix, x, bias, form | 1 << ops.ACTIVATION_SHIFT, None),
        gradients=(*matrix, x, grad, form),
    )
    for name, arguments in calls.items():
        DISPATCHED[GRADIENTS if name == "gradients" else PRODUCT](*arguments)
    return calls


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("sparse_right", "transpose", "shape"), FORMS)
def test_the_same_bits(counted, device, sparse_right, transpose, shape, dtype):
    calls = operands(device, sparse_right, transpose, shape, dtype)
    for name, arguments in calls.items():
        way, op = (
            (counted.gradients, GRADIENTS) if name == "gradients" else (counted.product, PRODUCT)
        )
        count, got = counted.during(lambda way=way, arguments=arguments: way(*arguments))
        expected = DISPATCHED[op](*arguments)
        assert count == (shape == "batch" and not sparse_right), name
        pairs = zip(got, expected, strict=True) if op is GRADIENTS else [(got, expected)]
        for ours, theirs in pairs:
            assert ours.dtype == dtype and ours.shape == theirs.shape
            assert ours.stride() == theirs.stride()
            assert torch.equal(ours, theirs), name


def test_torch_calls_them(counted):
    assert isinstance(PRODUCT._op, DirectProduct) and isinstance(GRADIENTS._op, DirectGradients)
    # Some versions of torch find an operator in tables by what `_op` is found by.
    way = DirectProduct(len, launching.OPERANDS, direct._EAGER)
    assert hash(way) == hash(len)


class Listening(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.met = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.met.append(function)
        return function(*args, **(kwargs or {}))


class Functions(TorchFunctionMode):
    def __torch_function__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Own(torch.Tensor):
    """Somebody's own kind of tensor."""


def test_what_is_out_of_the_ordinary_is_the_operators(counted, device):
    calls = operands(device)
    product, gradients = list(calls["product"]), list(calls["gradients"])

    def left(arguments, context=None, **keywords):
        way = counted.gradients if len(arguments) == 8 else counted.product
        if context is None:
            return counted.during(lambda: way(*arguments, **keywords))[0]
        with context:
            return counted.during(lambda: way(*arguments, **keywords))[0]

    def changed(arguments, place, value):
        return [*arguments[:place], value, *arguments[place + 1 :]]

    assert left(product) == left(gradients) == 0
    variant = {"cpu": "reference", "cuda": "simt"}[device]
    for arguments in (
        changed(product, 8, variant),
        changed(product, 5, product[5].as_subclass(Own)),
        changed(product, 5, product[5].clone().requires_grad_()),
        changed(product, 2, product[2].clone().requires_grad_()),
        changed(product, 5, product[5].cfloat().conj().imag),
        changed(product, 5, product[5].repeat(1, 2)[:, ::2]),
        changed(gradients, 6, gradients[6].clone().requires_grad_()),
        changed(gradients, 6, gradients[6][:1].expand(5, -1)),
    ):
        assert left(arguments) == 1
    for context in (
        Listening(),
        Functions(),
        torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]),
        torch.autograd.forward_ad.dual_level(),
    ):
        assert left(product, context) == 1
    with torch.no_grad():
        assert left(changed(product, 2, torch.nn.Parameter(product[2]))) == 0
    names = [argument.name for argument in PRODUCT._schema.arguments]
    assert left(product[:-2], form=product[7], variant=None) == 1
    assert left([], **dict(zip(names, product, strict=True))) == 1
    with sparse_autotune.settings.override(variant=variant):
        assert left(product) == 1


def test_a_pattern_met_for_the_first_time_is_the_operators(counted, device):
    calls = operands(device)
    product = calls["product"]
    copied = (product[0].clone(), product[1].clone(), *product[2:])
    for left in (1, 0):
        count, got = counted.during(lambda: counted.product(*copied))
        assert count == left
        assert torch.equal(got, DISPATCHED[PRODUCT](*product))


def test_a_pattern_that_was_written_is_noticed(counted, device):
    """The version counter says so; on a CPU, the indices do as well."""
    calls = operands(device)
    while 1 not in calls.matrix.crow_indices.diff():  # a row whose block may lie elsewhere
        calls = operands(device)
    col = calls["product"][1]
    place = calls.matrix.crow_indices[calls.matrix.crow_indices.diff().tolist().index(1)]
    col[place] = (col[place] + 1) % 3
    for name, way, op in (
        ("product", counted.product, PRODUCT),
        ("gradients", counted.gradients, GRADIENTS),
    ):
        count, got = counted.during(lambda way=way, name=name: way(*calls[name]))
        assert count == 1, name  # the new pattern's first
        expected = DISPATCHED[op](calls[name][0], col.clone(), *calls[name][2:])
        pairs = zip(got, expected, strict=True) if op is GRADIENTS else [(got, expected)]
        for ours, theirs in pairs:
            assert torch.equal(ours, theirs)


def test_what_is_wrong_the_operator_says(counted, device):
    calls = operands(device)
    product = calls["product"]
    short = product[5][:, :-1].contiguous()
    for arguments, message in (
        ((*product[:5], short, *product[6:]), "inner dimensions"),
        ((*product[:3], 65, *product[4:]), "block_m must divide"),
        ((*product[:5], product[5].double(), *product[6:]), "one dtype"),
    ):
        with pytest.raises(RuntimeError, match=message):
            counted.product(*arguments)


def test_memory_that_was_given_back(counted, device):
    calls = operands(device)
    product = calls["product"]
    for place in (2, 5):
        arguments = [t.clone() if i == place else t for i, t in enumerate(product)]
        arguments[place].untyped_storage().resize_(0)
        with pytest.raises(RuntimeError, match="not allocated"):
            counted.product(*arguments)


@pytest.mark.usefixtures("fresh_dynamo")
def test_compiled_training_comes_here(counted, device, monkeypatch):
    """From its second step on: forward and backward of each layer by one call."""
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
    for op, way in ((PRODUCT, counted.product), (GRADIENTS, counted.gradients)):
        monkeypatch.setattr(
            op, "_op", lambda *given, op=op, way=way: (handled.append(op), way(*given))[1]
        )
    count, got = counted.during(lambda: torch.autograd.grad(step(x).square().sum(), inputs))
    assert handled == [PRODUCT, PRODUCT, GRADIENTS, GRADIENTS]
    assert count == 0
    close(got, torch.autograd.grad(model(x).square().sum(), inputs))
