"""Bad arguments of a product: an error that names argument, rule and value, and nothing lost."""

from functools import partial

import pytest
import torch
from reference import poisoned
from refusals import K, M, N, check_refused, matrix
from torch._subclasses.fake_tensor import FakeTensorMode

import sparse_autotune
from sparse_autotune import (
    BsrTensor,
    _tuner,
    bsr_tensor,
    errors,
    functional,
    linear,
    matmul,
    random_bsr,
    sampled_matmul,
)
from sparse_autotune.nn import sparse_linear

pytestmark = pytest.mark.usefixtures("no_races")


# Shapes


def test_inner_dimensions(device):
    a = matrix(device)
    for shape in ((K + 1, N), (M, N), (2, K - 1, N), (K + 3,), (0, N)):
        b = torch.ones(shape, device=device)
        words = rf"columns of a must match.*b.*\(8, 12\).*{str(shape)[:-1].replace('(', '')}"
        check_refused(ValueError, words, matmul, a, b, out=poisoned(M, N, device=device))
    x = torch.ones(N, K - 1, device=device)
    check_refused(ValueError, r"last dimension of x.*\(5, 11\).*\(8, 12\)", linear, x, a)


def test_scalar(device):
    b = torch.ones((), device=device)
    check_refused(ValueError, "b must have at least 1 dimension", matmul, matrix(device), b)
    check_refused(ValueError, "a must have at least 1 dimension", matmul, b, matrix(device))
    check_refused(ValueError, "x must have at least 1 dimension", linear, b, matrix(device))


@pytest.mark.parametrize("shape", [(M + 1,), (N,), (M, 1), (1, M), (), (1,)])
def test_bias_shape(shape, device):
    a, bias = matrix(device), torch.ones(shape, device=device)
    words = r"bias must have one value per row.*\(8,\); got "
    check_refused(ValueError, words, matmul, a, torch.ones(K, N, device=device), bias=bias)
    words = r"bias must have one value per out feature.*\(8,\); got "
    check_refused(ValueError, words, linear, torch.ones(N, K, device=device), a, bias)


# Dtypes


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.complex64], ids=str
)
def test_dtype_mismatch(dtype, device):
    a, b = matrix(device), torch.ones(K, N, device=device)
    other = b.to(dtype)
    words = rf"b must have the dtype of a: a has torch.float32, b {dtype}"
    check_refused(TypeError, words, matmul, a, other, out=poisoned(M, N, device=device))
    words = rf"x must have the dtype of weight: weight has torch.float32, x {dtype}"
    check_refused(TypeError, words, linear, other.T, a)
    bias = torch.ones(M, device=device, dtype=dtype)
    check_refused(TypeError, rf"bias must have the dtype of a.*bias {dtype}", matmul, a, b,
                  bias=bias)  # fmt: skip
    check_refused(TypeError, rf"bias must have the dtype of weight.*bias {dtype}", linear, b.T, a,
                  bias)  # fmt: skip


def test_native_matrix_of_unsupported_dtype(device):
    dense = torch.ones(4, 4, device=device)
    for dtype, words in (
        (torch.complex64, r"a has the complex dtype torch.complex64.*view_as_real"),
        (torch.int32, r"a must be float16, bfloat16, float32 or float64, got torch.int32.*\.to\("),
    ):
        a = dense.to(dtype).to_sparse_bsr((2, 2))
        check_refused(TypeError, words, matmul, a, dense.to(dtype))


def test_none_is_refused_without_a_word_from_torch(device, capfd):
    """It reaches the operators as a tensor that is not there, which torch's own code tells of."""
    a, y = matrix(device), torch.ones(N, K, device=device)
    with torch.no_grad():
        check_refused(TypeError, "b must be a dense.*NoneType", matmul, a, None)
        check_refused(TypeError, "x must be a dense.*NoneType", linear, None, a)
        check_refused(TypeError, "y must be.*NoneType", sampled_matmul, y.mT[:M], None, a)
    for ask in (sparse_autotune.benchmark, sparse_autotune.tune):
        check_refused(TypeError, "b must be a dense.*NoneType", ask, a, None)
        check_refused(TypeError, "x must be a dense.*NoneType", ask, a, None, linear=True)
        check_refused(TypeError, "y must be a dense.*NoneType", ask, y.mT[:M], None, pattern=a)
    assert capfd.readouterr().err == ""


def test_compiled_linear_calls_its_weight_so():
    call = torch.compile(linear, backend="eager", fullgraph=True)
    with pytest.raises(Exception, match=r"weight must be a BSR matrix.*from_dense\(weight"):
        call(torch.ones(N, K), torch.ones(M, K))


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    x = torch.nested.nested_tensor([torch.ones(2, K), torch.ones(3, K)], layout=layout)
    for call in (lambda: linear(x, matrix()), lambda: sparse_autotune.SparseLinear(K, M, 2, 1)(x)):
        with pytest.raises(TypeError, match=r"x must be one dense tensor.*nested.*unbind"):
            call()


# Devices


@pytest.mark.gpu
@pytest.mark.parametrize("where", ["a", "b", "bias", "out"])
def test_device_mismatch(where):
    def on(name):
        return "cuda" if name == where else "cpu"

    a, b = matrix(on("a")), torch.ones(K, N, device=on("b"))
    bias, out = torch.ones(M, device=on("bias")), poisoned(M, N, device=on("out"))
    wrong = "b" if where == "a" else where
    words = f"{wrong} must be on the device of a: a is on c.*, {wrong} on c"
    check_refused(RuntimeError, words, matmul, a, b, bias=bias, out=out)


@pytest.mark.parametrize("where", ["b", "bias", "out"])
def test_device_mismatch_with_meta(where):
    def on(name):
        return "meta" if name == where else "cpu"

    a, b = matrix(), torch.ones(K, N, device=on("b"))
    bias, out = torch.ones(M, device=on("bias")), torch.ones(M, N, device=on("out"))
    words = f"{where} must be on the device of a: a is on cpu, {where} on meta"
    check_refused(RuntimeError, words, matmul, a, b, bias=bias, out=out)


def test_device_that_is_off(monkeypatch):
    """A build without CUDA says so, where torch has CUDA tensors: here, fake ones."""
    off = {"unavailable": "this build has no CUDA: no nvcc was found"}
    monkeypatch.setattr(errors._tuner, "device_info", lambda ordinal: off)
    with FakeTensorMode(), torch.device("cuda"):
        indices = torch.zeros(2, dtype=torch.int64)
        a, b = BsrTensor(indices, indices[:1], torch.ones(1, 4, 4), (4, 4)), torch.ones(4, 4)
        words = "is on cuda:0, where products are off: this build has no CUDA: no nvcc was found"
        for explain, arguments in (
            (errors.explain_matmul, (a, b)),
            (errors.explain_matmul, (b, a)),
            (partial(errors.explain_matmul, linear=True), (b, a)),
            (errors.explain_sampled_matmul, (b, b, a)),
        ):
            with pytest.raises(RuntimeError, match=words):
                explain(*arguments)


def test_components_on_different_devices():
    a = matrix()
    with pytest.raises(RuntimeError, match=r"on one device, got meta, cpu and cpu"):
        BsrTensor(a.crow_indices.to("meta"), a.col_indices, a.values, a.shape)


# Gradients


@pytest.mark.parametrize("where", ["a", "b", "bias", "out"])
def test_grad_with_out(where, device):
    a, b = matrix(device), torch.ones(K, N, device=device)
    bias, out = torch.ones(M, device=device), poisoned(M, N, device=device)
    {"a": a.values, "b": b, "bias": bias, "out": out}[where].requires_grad_()
    words = f"out has no backward, but {where} requires grad and grad mode is on.*no_grad"
    check_refused(RuntimeError, words, matmul, a, b, bias=bias, out=out)
    with torch.no_grad():
        expected = a.to_dense() @ b + bias[:, None]
        assert torch.allclose(matmul(a, b, bias=bias), expected, atol=1e-5)
        matmul(a, b, bias=bias, out=out)
        assert torch.allclose(out, expected, atol=1e-5)


@pytest.mark.parametrize("where", ["a", "b", "bias", "out"])
def test_grad_with_out_of_a_product_from_the_left(where):
    a, b = torch.ones(N, M), matrix()
    bias, out = torch.ones(K), poisoned(N, K)
    {"a": a, "b": b.values, "bias": bias, "out": out}[where].requires_grad_()
    words = f"out has no backward, but {where} requires grad"
    check_refused(RuntimeError, words, matmul, a, b, bias=bias, out=out)


# Names


def test_activation(device):
    a, b = matrix(device), torch.ones(K, N, device=device)
    words = "activation must be one of relu, gelu, gelu_tanh, silu; got 'relo'.*mean 'relu'"
    check_refused(ValueError, words, matmul, a, b, activation="relo")
    check_refused(ValueError, words, linear, b.T, a, activation="relo")
    check_refused(TypeError, "activation must be None or a name, got", matmul, a, b,
                  activation=torch.relu)  # fmt: skip
    check_refused(TypeError, "activation must be None or a name, got builtins.list", matmul, a, b,
                  activation=["relu"])  # fmt: skip


def test_unknown_variant(device):
    a, b = matrix(device), torch.ones(K, N, device=device)
    for wrong in ("simtt", "reference/fp65", "", "auto "):
        check_refused(ValueError, rf"variant must be one of auto, .*; got '{wrong}'", matmul, a, b,
                      variant=wrong)  # fmt: skip
    check_refused(ValueError, "did you mean 'reference'", matmul, a, b, variant="referense")
    check_refused(ValueError, "did you mean 'dense/mm'", matmul, a, b, variant="dense/nm")
    check_refused(ValueError, "variant must be one of", linear, b.T, a, variant="simtt")
    check_refused(TypeError, "variant must be a name or 'auto', got builtins.int", matmul, a, b,
                  variant=3)  # fmt: skip


def test_unknown_variant_lists_what_could_be_meant(device):
    """The families of that device and operation: all names of a build fill a screen."""
    a, b = matrix(device), torch.ones(K, N, device=device)
    of_device = {v["family"] for v in _tuner.variants() if v["device"] == device}
    for op, call in (
        ("matmul", lambda: matmul(a, b, variant="fastest")),
        ("sampled_matmul", lambda: sampled_matmul(b.new_ones(M, N), b.T, a, variant="fastest")),
    ):
        families = {v["family"] for v in _tuner.variants() if v["op"] == op} & of_device
        with pytest.raises(ValueError, match="must be one of auto, ") as raised:
            call()
        listed, _, rest = str(raised.value).partition(", or a full name ")
        assert set(listed.removeprefix("variant must be one of auto, ").split(", ")) == families
        assert rest.startswith("as variants() lists them; got 'fastest'")


def test_forced_variant_of_a_product_that_launches_none(device):
    """Nothing runs, but a wrong name is wrong all the same."""
    a, empty = matrix(device), random_bsr(M, K, (2, 3), density=0, device=device)
    values = empty.values.new_ones(2, 0, 2, 3)
    batch = BsrTensor(empty.crow_indices, empty.col_indices, values, empty.shape)
    x, y = torch.ones(M, N, device=device), torch.ones(N, K, device=device)
    out = torch.ones(M, N, device=device)
    right = "reference" if device == "cpu" else "simt"
    for function, *arguments in (
        (matmul, empty, y.T),
        (matmul, a, y.T[:, :0]),
        (matmul, x.T[:0], a),
        (matmul, batch, y.T),
        (linear, y, empty),
        (linear, y, batch),
    ):
        for wrong, words in (
            ("fastest", "must be one of auto, .*; got 'fastest'"),
            (f"sampled_{right}", "is not legal .* computes sampled_matmul, not matmul"),
        ):
            check_refused(ValueError, f"variant .*{words}", function, *arguments, variant=wrong)
        function(*arguments, variant=right)
    check_refused(ValueError, "must be one of auto", matmul, empty, y.T, out=out, variant="fastest")
    check_refused(ValueError, f"'{right}' is not legal .* computes matmul", sampled_matmul, x, y,
                  empty, variant=right)  # fmt: skip
    assert sampled_matmul(x, y, empty, variant=f"sampled_{right}").nnzb == 0


def test_forced_variant_of_what_stands_in_for_an_empty_product():
    """Tensors without memory, and those of transforms, have no variant to look for."""
    empty, b = random_bsr(M, K, (2, 3), density=0), torch.ones(K, N)
    parts = empty.crow_indices, empty.col_indices, empty.values, b
    for fake in (tensors_of_fake_mode(*parts), [tensor.to("meta") for tensor in parts]):
        crow, col, values, dense = fake
        product = matmul(BsrTensor(crow, col, values, (M, K)), dense, variant="reference")
        assert product.shape == (M, N)
    many = torch.func.vmap(lambda x: matmul(empty, x, variant="reference"))(b.expand(4, K, N))
    assert torch.equal(many, torch.zeros(4, M, N))


def tensors_of_fake_mode(*tensors):
    mode = FakeTensorMode()
    return [mode.from_tensor(tensor) for tensor in tensors]


def test_illegal_variant(device):
    """The reason is the variant's own."""
    a, b = matrix(device), torch.ones(K, N, device=device)
    reasons = errors.legality(a, b, None, None, linear=False)
    illegal = {name: why for name, why in reasons.items() if why is not None}
    assert illegal, "2 x 3 blocks suit no fast variant: some must refuse"
    for name, why in illegal.items():
        with pytest.raises(ValueError) as raised:
            matmul(a, b, variant=name)
        assert f"variant '{name}' is not legal" in str(raised.value)
        assert why in str(raised.value)


def test_illegal_family():
    a, b = matrix(), torch.ones(K, N)
    reasons = errors.legality(a, b, None, None, linear=False)
    families = {name.split("/")[0] for name in reasons}
    for family in families:
        configurations = [why for name, why in reasons.items() if name.split("/")[0] == family]
        if None in configurations:
            assert torch.allclose(matmul(a, b, variant=family), a.to_dense() @ b, atol=1e-5)
        else:
            words = f"variant '{family}' is not legal for this product"
            check_refused(ValueError, words, matmul, a, b, variant=family)


def test_variant_of_another_device():
    cuda = [name for name in sparse_autotune.variants() if name.startswith("simt/")]
    if not cuda:
        pytest.skip("built without CUDA: the variant does not exist")
    words = "simt.* is not legal for this product: it runs on CUDA tensors, not on CPU tensors"
    check_refused(ValueError, words, matmul, matrix(), torch.ones(K, N), variant="simt")
    check_refused(ValueError, words, matmul, matrix(), torch.ones(K, N), variant=cuda[0])


def test_refusal_comes_before_index_content_is_read():
    """A wrong shape on a device that would have to wait is found without waiting."""
    a = BsrTensor(torch.tensor([7, 7]), torch.tensor([0]), torch.ones(1, 2, 2), (2, 2))
    check_refused(ValueError, "columns of a must match", matmul, a, torch.ones(3, 2))


def test_what_nobody_can_explain_is_not_swallowed(monkeypatch):
    """Errors of the operators for arguments in which nothing is wrong."""

    def broken(*_, **__):
        raise RuntimeError("broken on purpose")

    a, b = matrix(), torch.ones(K, N)
    layer = sparse_autotune.SparseLinear(K, M, 2, 1)
    batch = BsrTensor(a.crow_indices, a.col_indices, a.values.expand(2, -1, -1, -1).clone(), (M, K))
    for module, name in (
        (functional, "product"), (functional, "sampled"), (sparse_linear, "product"),
        (bsr_tensor, "bsr_prepare"), (errors, "ask"),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, broken)
    for call in (
        lambda: matmul(a, b),
        lambda: linear(b.T, a),
        lambda: matmul(batch, b),
        lambda: linear(b.T, batch),
        lambda: sampled_matmul(torch.ones(M, N), b.T, a),
        lambda: layer(b.T),
        lambda: a.prepare(),
        lambda: sparse_autotune.variants(a, b),
    ):
        with pytest.raises(RuntimeError, match="broken on purpose"):
            call()
    monkeypatch.setattr(errors, "legality", lambda *_, **__: {"reference/fp64": None})
    with pytest.raises(RuntimeError, match="broken on purpose"):
        sparse_autotune.tune(a, b)


def test_explanations_return_when_nothing_is_wrong(device):
    a, b = matrix(device), torch.ones(K, N, device=device)
    bias, out = torch.ones(M, device=device), poisoned(M, N, device=device)
    assert errors.explain_matmul(a, b, bias, "relu", out) is None
    assert errors.explain_matmul(a.to_torch(), b[:, 0]) is None
    assert errors.explain_matmul(b.T, a.t(), bias, "silu", out.new_empty(N, M)) is None
    assert errors.explain_matmul(b[:, 0], a.t(), bias) is None
    assert errors.explain_matmul(a, b[:, :0], out=out[:, :0]) is None
    assert errors.explain_sampled_matmul(out, b.T, a) is None
    assert errors.explain_matmul(b.T, a, bias, "gelu", linear=True) is None
    assert bool(out.isnan().all())
