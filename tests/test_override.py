"""`override_torch`: torch's own products of native tensors, ours inside and torch's outside."""

import contextlib
import threading
import warnings

import pytest
import torch
from reference import close
from torch.utils._device import DeviceContext

import sparse_autotune
from sparse_autotune import override_torch, random_bsr, torch_functions

pytestmark = pytest.mark.usefixtures("no_races")

F = torch.nn.functional


@pytest.fixture
def calls(monkeypatch):
    """The products that the package was asked for."""
    heard = []
    for name in ("matmul", "linear"):
        real = getattr(torch_functions, name)

        def counted(*arguments, real=real, name=name, **keywords):
            heard.append(name)
            return real(*arguments, **keywords)

        monkeypatch.setattr(torch_functions, name, counted)
    return heard


def operands(dtype=torch.float32):
    a = random_bsr(16, 24, 4, density=0.5, dtype=dtype)
    return a.to_torch(), a.to_dense()


# Each as a function of the sparse matrix (16 x 24) and of dense x (24 x 5) and y (5 x 16).
PRODUCTS = {
    "@": lambda a, x, y: a @ x,
    "dense @": lambda a, x, y: y @ a,
    "transposed @": lambda a, x, y: a.t() @ y.t(),
    "@ transposed": lambda a, x, y: x.t() @ a.t(),
    "vector": lambda a, x, y: a @ x[:, 0],
    "batch": lambda a, x, y: torch.matmul(y.expand(2, 5, 16), a),
    "matmul": lambda a, x, y: torch.matmul(input=a, other=x),
    "matmul method": lambda a, x, y: y.matmul(a),
    "mm": lambda a, x, y: torch.mm(a, x),
    "mm by name": lambda a, x, y: torch.mm(a, mat2=x),
    "mm method": lambda a, x, y: a.mm(x),
    "mm out": lambda a, x, y: torch.mm(a, x, out=torch.empty(16, 5)),
    "mv": lambda a, x, y: torch.mv(a, x[:, 1]),
    "mv method": lambda a, x, y: a.mv(x[:, 1]),
    "linear": lambda a, x, y: F.linear(x.t(), a),
    "linear bias": lambda a, x, y: F.linear(x.t(), a, y[0]),
    "linear batch": lambda a, x, y: F.linear(x.t().expand(2, 5, 24), a, bias=y[0]),
    "addmm": lambda a, x, y: torch.addmm(y.t(), a, x),
    "addmm scaled": lambda a, x, y: torch.addmm(y.t(), a, x, beta=0.5, alpha=-2),
    "addmm method": lambda a, x, y: y.t().addmm(a, x, alpha=3),
    "addmm column": lambda a, x, y: torch.addmm(y.t()[:, :1], a, x, beta=2),
    "addmm bias": lambda a, x, y: torch.addmm(x[:, 0], y, a),
    "addmm bias and factor": lambda a, x, y: torch.addmm(x[:, 0], y, a, alpha=2),
    "addmm bias scaled": lambda a, x, y: torch.addmm(x[:, 0], y, a, beta=2),
    "addmm right": lambda a, x, y: torch.addmm(x.t(), y, a, alpha=2),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(calls, name):
    native, dense = operands()
    x, y = torch.randn(24, 5), torch.randn(5, 16)
    expected = PRODUCTS[name](dense, x, y)
    with override_torch():
        got = PRODUCTS[name](native, x, y)
    assert len(calls) == 1
    close(got, expected)
    assert got.layout == torch.strided


# Those of torch.sparse, and what they are of dense tensors.
PRODUCTS_OF_SPARSE = {
    "mm": (lambda a, x, y: torch.sparse.mm(a, x), lambda a, x, y: a @ x),
    "mm transposed": (lambda a, x, y: torch.sparse.mm(a.t(), y.t()), lambda a, x, y: a.t() @ y.t()),
    "mm dense": (lambda a, x, y: torch.sparse.mm(y, a), lambda a, x, y: y @ a),
    "addmm": (lambda a, x, y: torch.sparse.addmm(y.t(), a, x), lambda a, x, y: y.t() + a @ x),
    "addmm scaled": (
        lambda a, x, y: torch.sparse.addmm(y.t(), a, x, beta=2, alpha=-3),
        lambda a, x, y: 2 * y.t() - 3 * (a @ x),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS_OF_SPARSE)
def test_products_of_torch_sparse(calls, name):
    function, of_dense = PRODUCTS_OF_SPARSE[name]
    native, dense = operands()
    x, y = torch.randn(24, 5), torch.randn(5, 16)
    with override_torch():
        got = function(native, x, y)
    assert len(calls) == 1
    close(got, of_dense(dense, x, y))
    assert got.layout == torch.strided


def test_matrices_of_this_package_go_on_as_before(calls):
    a = random_bsr(16, 24, 4, density=0.5)
    x = torch.randn(24, 5)
    with override_torch():
        close(a @ x, a.to_dense() @ x)
        close(torch.mm(a, x), a.to_dense() @ x)
        with pytest.raises(TypeError, match="exp takes no BsrTensor"):
            torch.exp(a)


def test_beta_zero_does_not_read_its_input(calls):
    native, dense = operands()
    x = torch.randn(24, 5)
    with override_torch():
        got = torch.addmm(torch.full((16, 5), float("nan")), native, x, beta=0)
    close(got, dense @ x)


def test_gradients(calls):
    a = random_bsr(16, 24, 4, density=0.5)
    values = a.values.clone().requires_grad_()
    x = torch.randn(24, 5, requires_grad=True)
    native = torch.sparse_bsr_tensor(a.crow_indices, a.col_indices, values, a.shape)
    with override_torch():
        (native @ x).square().sum().backward()
    dense = sparse_autotune.BsrTensor(a.crow_indices, a.col_indices, values, a.shape).to_dense()
    expected = torch.autograd.grad((dense @ x).square().sum(), (values, x))
    close(values.grad, expected[0])
    close(x.grad, expected[1])


def test_what_is_left_to_torch(calls):
    """Everything that is no product of a BSR matrix and a dense one of its dtype."""
    native, dense = operands()
    x = torch.randn(24, 5)
    with override_torch():
        close(dense @ x, dense @ x)
        close((native * 2).to_dense(), 2 * dense)
        close(dense.to_sparse_csr() @ x, dense @ x)
        close(F.linear(x.t(), dense), x.t() @ dense.t())
        torch.addmm(torch.ones(16, 5), native, x, out=torch.empty(16, 5))
        assert not calls
        with pytest.raises(RuntimeError):
            native @ x.double()
    assert not calls


def test_what_torch_refuses_it_goes_on_refusing(calls):
    """Shapes that `matmul` takes and the function that was called does not."""
    native, _ = operands()
    x, y = torch.randn(24, 5), torch.randn(5, 16)
    refused = [
        lambda: torch.mm(native, x[:, 0]),
        lambda: torch.mm(native, x.expand(2, 24, 5)),
        lambda: torch.mm(y[0], native),
        lambda: torch.mm(y.expand(2, 5, 16), native),
        lambda: torch.mv(native, x),
        lambda: torch.mv(x.t(), native),
        lambda: torch.addmm(x[:, 0], native, x.expand(2, 24, 5)),
        lambda: torch.addmm(x.t(), y.expand(2, 5, 16), native),
        lambda: torch.addmm(torch.ones(16, 5).double(), native, x),
        lambda: F.linear(x, native.to_dense(), native),
        lambda: F.linear(x.t().double(), native),
        lambda: torch.mm(native, x, out=torch.ones(16, 5).to_sparse_bsr((4, 5))),
        lambda: torch.matmul(native),
        lambda: torch.matmul(native, x, x),
        lambda: torch.matmul(native, other=x, more=1),
        lambda: torch.matmul(native, torch.tensor(2.0)),
    ]
    for call in refused:
        with pytest.raises((IndexError, RuntimeError, TypeError)) as outside:
            call()
        with override_torch(), pytest.raises(outside.type):
            call()
    assert not calls


def test_out(calls):
    """Of the right shape; one that torch would resize is torch's."""
    native, _ = operands()
    x, y, z = torch.randn(24, 5), torch.randn(5, 16), torch.randn(2, 5, 16)
    with override_torch():
        for a, b in ((native, x), (native, x[:, 0]), (y, native), (y[0], native), (z, native)):
            expected = torch.matmul(*(t.to_dense() for t in (a, b)))
            out = torch.full_like(expected, float("nan"))
            assert torch.matmul(a, b, out=out) is out
            close(out, expected)
        assert len(calls) == 5
        resized = torch.empty(3)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with contextlib.suppress(RuntimeError):  # as without the override
                torch.mm(native, x, out=resized)
        assert len(calls) == 5


def test_a_body_in_a_body(calls):
    native, dense = operands()
    x = torch.randn(24, 5)
    manager = override_torch()
    with manager:
        with manager:
            native @ x
        close(native @ x, dense @ x)
    assert len(calls) == 2
    native @ x
    assert len(calls) == 2


def test_a_decorator(calls):
    """Each call has a body of its own: functions that call themselves, too."""
    native, dense = operands()
    x = torch.randn(24, 5)
    depth = torch._C._len_torch_function_stack()

    @override_torch()
    def product(a, x, times=1):
        """What it does."""
        return a @ x if times == 1 else product(a, x, times=times - 1) + a @ x

    assert product.__name__ == "product" and product.__doc__ == "What it does."
    for times in (1, 3):
        calls.clear()
        close(product(native, x, times=times), times * dense @ x)
        assert len(calls) == times
        assert torch._C._len_torch_function_stack() == depth
    calls.clear()
    native @ x
    assert not calls

    @override_torch()
    def fails():
        raise ZeroDivisionError

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            fails()
    assert torch._C._len_torch_function_stack() == depth


def test_it_ends_with_the_body(calls):
    native, dense = operands()
    x = torch.randn(24, 5)
    depth = torch._C._len_torch_function_stack()
    manager = override_torch()
    for _ in range(2):
        with manager:
            close(native @ x, dense @ x)
        assert torch._C._len_torch_function_stack() == depth
    assert len(calls) == 2
    native @ x
    assert len(calls) == 2
    with pytest.raises(ZeroDivisionError), override_torch():
        raise ZeroDivisionError
    assert torch._C._len_torch_function_stack() == depth


def test_the_switch(calls):
    native, _ = operands()
    x = torch.randn(24, 5)
    depth = torch._C._len_torch_function_stack()
    try:
        override_torch(True)
        override_torch(True)
        native @ x
        assert len(calls) == 1
        with override_torch():
            native @ x
        assert len(calls) == 2
        elsewhere = threading.Thread(target=lambda: native @ x)
        elsewhere.start()
        elsewhere.join()
        assert len(calls) == 2
    finally:
        override_torch(False)
    override_torch(False)
    native @ x
    assert len(calls) == 2 and torch._C._len_torch_function_stack() == depth
    with pytest.raises(TypeError, match="enabled must be None, True or False, got 1"):
        override_torch(1)


def test_the_switch_within_other_modes(calls):
    """Modes entered by others leave by popping theirs: the switch must not be on top of them."""
    native, _ = operands()
    x = torch.randn(24, 5)
    try:
        with DeviceContext(torch.device("cpu")):
            override_torch(True)
            native @ x
        native @ x
        assert len(calls) == 2
        with DeviceContext(torch.device("cpu")):
            override_torch(False)
            native @ x
        torch.set_default_device("cpu")
        override_torch(True)
        torch.set_default_device(None)
        native @ x
        assert len(calls) == 3
        override_torch(False)
        with torch.device("meta"):
            override_torch(True)
        assert not torch.empty(1).is_meta
        native @ x
        assert len(calls) == 4
    finally:
        override_torch(False)
        torch.set_default_device(None)
