"""The operators themselves, as torch.library.opcheck sees them: schemas, fake kernels, autograd."""

import pytest
import torch
from torch.autograd import forward_ad

from sparse_autotune import random_bsr
from sparse_autotune._torch import direct
from sparse_autotune.operators import forms
from sparse_autotune.operators.forms import ACTIVATIONS
from sparse_autotune.operators.library import ProductArguments

pytestmark = pytest.mark.usefixtures("no_races", "fresh_dynamo")

OPS = torch.ops.sparse_autotune


def product_arguments(requires_grad=True, transpose=False):
    a = random_bsr(8, 12, (2, 3), density=0.5)
    b = torch.randn(8 if transpose else 12, 5, requires_grad=requires_grad)
    bias = torch.randn(12 if transpose else 8, requires_grad=requires_grad)
    values = a.values.requires_grad_(requires_grad)
    return (a.crow_indices, a.col_indices, values, 8, 12, b, bias)


@pytest.mark.parametrize(
    "keywords", [{}, {"activation": 1}, {"activation": 4}, {"transpose": True}], ids=str
)
def test_opcheck_of_products(keywords):
    arguments = product_arguments(transpose=keywords.get("transpose", False))
    torch.library.opcheck(OPS.bsr_matmul.default, arguments, keywords)


def test_opcheck_of_products_into_a_tensor():
    arguments = product_arguments(requires_grad=False)
    torch.library.opcheck(OPS.bsr_matmul_out.default, arguments, {"out": torch.empty(8, 5)})


@pytest.mark.parametrize("where", [2, 5, 6, "out"])
def test_a_product_into_a_tensor_has_no_derivative(where):
    tensors = dict(enumerate(product_arguments(requires_grad=False))) | {"out": torch.empty(8, 5)}

    def call(tensor):
        *arguments, out = ({**tensors, where: tensor}).values()
        OPS.bsr_matmul_out(*arguments, out=out)

    with forward_ad.dual_level():
        dual = forward_ad.make_dual(tensors[where], torch.ones_like(tensors[where]))
        with pytest.raises(RuntimeError, match="out, which has no forward-mode derivative"):
            call(dual)
    with pytest.raises(RuntimeError, match="out, which has no derivative"):
        call(tensors[where].requires_grad_())


def test_opcheck_of_sampled_products():
    a = random_bsr(8, 12, (2, 3), density=0.5)
    x, y = torch.randn(8, 5, requires_grad=True), torch.randn(5, 12, requires_grad=True)
    arguments = (a.crow_indices, a.col_indices, 8, 12, 2, 3, x, y)
    torch.library.opcheck(OPS.bsr_sampled_matmul.default, arguments)


# What is wrong with the arguments of a product, and what the operator says: it must not read or
# write memory that is not theirs, whoever calls it.
REFUSED = {
    "values are a matrix": ({"values": lambda v: v[0]}, r"values must have shape \(nnzb"),
    "a block of 0 rows": ({"values": lambda v: v[:, :0]}, "at least one row and one column"),
    "integers": ({"values": torch.Tensor.int, "dense": torch.Tensor.int, "bias": lambda _: None},
                 "values must be float16"),
    "nnzb": ({"values": lambda v: v[1:]}, "col_indices and values must agree on nnzb"),
    "crow_indices are a matrix": ({"crow": lambda c: c[None]}, "indices must be vectors"),
    "crow_indices": ({"crow": lambda c: c[:-1]}, "one entry more than there are block rows"),
    "fewer rows": ({"rows": lambda _: 6}, "one entry more than there are block rows"),
    "ragged rows": ({"rows": lambda _: 9}, "block_m must divide the rows"),
    "negative rows": ({"rows": lambda _: -8}, "block_m must divide the rows"),
    "ragged columns": ({"cols": lambda _: 13}, "block_k must divide the columns"),
    "negative columns": ({"cols": lambda _: -12}, "block_k must divide the columns"),
    "one dtype of indices": ({"col": torch.Tensor.int}, "indices must share one dtype"),
    "indices of no integers": ({"crow": torch.Tensor.float, "col": torch.Tensor.float},
                               "indices must be int32 or int64"),
    "no columns": ({"cols": lambda _: 0, "dense": lambda d: d[:0]},
                   "a matrix without elements has no block"),
    "a column out of range": ({"col": lambda c: c + 9}, r"col_indices must lie in \[0"),
    "dense is a scalar": ({"dense": lambda d: d[0, 0]}, "at least one dimension"),
    "dense": ({"dense": lambda d: d[1:]}, "inner dimensions of the product must agree"),
    "dtype of dense": ({"dense": torch.Tensor.double}, "values and dense must share one dtype"),
    "bias": ({"bias": lambda b: b[1:]}, "bias must have one value per row of the product"),
    "bias is a matrix": ({"bias": lambda b: b[:, None]}, "bias must have one value per row"),
    "dtype of bias": ({"bias": torch.Tensor.half}, "the device and dtype of values"),
}  # fmt: skip


@pytest.mark.parametrize("what", REFUSED)
def test_operators_refuse_what_does_not_fit(what):
    changes, words = REFUSED[what]
    names = ("crow", "col", "values", "rows", "cols", "dense", "bias")
    arguments = dict(zip(names, product_arguments(requires_grad=False), strict=True))
    arguments |= {name: change(arguments[name]) for name, change in changes.items()}
    dense = arguments["dense"]
    out = torch.full((8, 5), 7, dtype=dense.dtype)
    with pytest.raises(RuntimeError, match=words):
        OPS.bsr_matmul(*arguments.values())
    with pytest.raises(RuntimeError, match=words):
        OPS.bsr_matmul_race(*arguments.values(), dry_run=True)
    with pytest.raises(RuntimeError, match=words):
        OPS.bsr_matmul_out(*arguments.values(), out=out)
    assert (out == 7).all()


@pytest.mark.parametrize("activation", [-1, 5])
def test_operators_refuse_unknown_activations(activation):
    with pytest.raises(RuntimeError, match="activation must be one of 0 to 4"):
        OPS.bsr_matmul(*product_arguments(requires_grad=False), activation=activation)


@pytest.mark.parametrize("variant", ["no_such_family", "", "simt"])
@pytest.mark.parametrize("empty", ["no block", "no column of dense"])
def test_operators_refuse_variants_that_have_nothing_to_launch(variant, empty):
    """One that does not exist, no name, one of another device: though no variant would run."""
    crow, col, values, rows, cols, dense, _ = product_arguments(requires_grad=False)
    if empty == "no block":
        crow, col, values = torch.zeros_like(crow), col[:0], values[:0]
    else:
        dense = dense[:, :0]
    with pytest.raises(RuntimeError, match="variant"):
        OPS.bsr_matmul(crow, col, values, rows, cols, dense, variant=variant)
    x, y = torch.randn(8, dense.shape[1]), dense.mT.contiguous()
    with pytest.raises(RuntimeError, match="variant"):
        OPS.bsr_sampled_matmul(crow, col, rows, cols, 2, 3, x, y, variant=variant)


SWITCHES = ("deterministic", "frozen", "sparse_right", "transpose", "allow_tf32")


@pytest.mark.parametrize("on", [(), *((name,) for name in SWITCHES), SWITCHES], ids="-".join)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_form_means_the_same_by_position_and_by_name(on, activation):
    """What the operator decided for its keywords is found for these fields, and for no others."""
    a = random_bsr(24, 24, 4, density=0.5)
    x, bias = torch.randn(24, 24), torch.randn(24)
    form = forms.Form(24, 24, **dict.fromkeys(on, True), activation=ACTIVATIONS[activation])

    def directly(form):
        return direct.matmul(a.crow_indices, a.col_indices, a.values, x, bias, form)

    operands = (a.crow_indices, a.col_indices, a.values, 24, 24, x, bias)
    named = OPS.bsr_matmul(*operands, **forms.switches(form, 2))
    assert torch.equal(directly(form), named)
    others = [{name: name not in on} for name in SWITCHES] + [{"activation": form.activation ^ 1}]
    for other in others:
        assert directly(form._replace(**other)) is None, other


def test_opcheck_of_the_others():
    arguments = product_arguments(requires_grad=False)
    torch.library.opcheck(OPS.bsr_prepare.default, (*arguments[:2], 8, 12, 2, 3))
    # What a race measures differs from run to run, so results are not compared.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    keywords = {"variants": "reference", "rounds": 1, "save": False}
    torch.library.opcheck(OPS.bsr_matmul_race.default, arguments, keywords, test_utils=tests)
    sample = (*arguments[:2], 8, 12, 2, 3, torch.randn(8, 5), torch.randn(5, 12))
    keywords["variants"] = "sampled_reference"
    torch.library.opcheck(OPS.bsr_sampled_matmul_race.default, sample, keywords, test_utils=tests)
    # Nothing is measured where only what is legal is asked for.
    torch.library.opcheck(OPS.bsr_matmul_race.default, arguments, {"dry_run": True})
    torch.library.opcheck(OPS.bsr_sampled_matmul_race.default, sample, {"dry_run": True})


def test_opcheck_of_a_race_of_a_problem():
    crow = torch.tensor([0, 1, 3])
    col = torch.tensor([1, 0, 1])
    problem = (
        "op=matmul device=cpu dtype=f32 index=i64 b_layout=row c_layout=row activation=none "
        "m=4 n=5 k=6 nnzb=3 block_m=2 block_k=3 longest_row=2 ldb=5 ldc=5 batch=1 "
        "b_batch_stride=0 c_batch_stride=0 bias=0 transpose=0 frozen=0 tf32=0 deterministic=0 "
        "exact_nonfinite=0 values_alignment=16 b_alignment=4 c_alignment=4"
    )
    # What a race measures differs from run to run, so results are not compared.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    arguments = crow, col, problem, "reference"
    torch.library.opcheck(OPS.bsr_problem_race.default, arguments, test_utils=tests)


def test_defaults_are_those_of_the_schemas():
    """The dispatcher leaves out what a caller left out: the kernel in Python fills it in."""
    of_matmul, of_sampled = (
        [a for a in operator.default._schema.arguments if not a.kwarg_only]
        for operator in (OPS.bsr_matmul, OPS.bsr_sampled_matmul)
    )
    assert [a.name for a in of_matmul] == list(ProductArguments._fields)
    defaults = {a.name: a.default_value for a in of_matmul if a.has_default_value()}
    assert defaults == ProductArguments._field_defaults
    assert not any(a.has_default_value() for a in of_sampled)
    form, sample = forms.Form(1, 1), forms.SampleForm(1, 1, 1, 1)
    for operator, given in ((OPS.bsr_matmul, form), (OPS.bsr_sampled_matmul, sample)):
        for argument in operator.default._schema.arguments:
            if argument.kwarg_only:
                assert getattr(given, argument.name) == argument.default_value, argument.name


META = {
    "inner": ({"dense": (11, 5)}, "inner dimensions"),
    "bias": ({"bias": (9,)}, "bias must have one value per row of the product, 8"),
    "out": ({"out": (8, 6)}, "never resized"),
    "dtype of dense": ({"dense": torch.float64}, "share one dtype"),
    "dtype of bias": ({"bias": torch.float64}, "share one dtype"),
    "dtype of out": ({"out": torch.float64}, "share one dtype"),
    "device of dense": ({"dense": "cpu"}, "on one device"),
}


@pytest.mark.parametrize("what", META)
def test_tracing_refuses_what_does_not_fit(what):
    """Where nothing is run, shapes, dtypes and devices must fit all the same."""
    changes, words = META[what]

    def tensor(name, shape):
        change = changes.get(name)
        dtype = change if isinstance(change, torch.dtype) else torch.float32
        return torch.empty(
            change if isinstance(change, tuple) else shape,
            dtype=dtype,
            device=change if isinstance(change, str) else "meta",
        )

    crow, col = (
        torch.empty(5, dtype=torch.int64, device="meta"),
        torch.empty(3, device="meta").long(),
    )
    values, dense, bias = (
        tensor("values", (3, 2, 3)), tensor("dense", (12, 5)), tensor("bias", (8,))
    )  # fmt: skip
    matrix = (crow, col, values, 8, 12)

    def into(dense, bias, out):
        OPS.bsr_matmul_out(*matrix, dense, bias, out=out)

    out = tensor("out", (8, 5))
    if "out" in changes:
        calls = [lambda: into(dense, bias, out)]
    else:
        calls = [
            lambda: OPS.bsr_matmul(*matrix, dense, bias),
            lambda: into(dense, bias, out),
        ]
    for call in calls:
        with pytest.raises(RuntimeError, match=words):
            call()


def test_tracing_refuses_factors_that_do_not_fit():
    crow, col = (torch.empty(n, dtype=torch.int64, device="meta") for n in (5, 3))
    x, y = torch.empty(8, 5, device="meta"), torch.empty(5, 12, device="meta")
    assert OPS.bsr_sampled_matmul(crow, col, 8, 12, 2, 3, x, y).shape == (3, 2, 3)
    for left, right, words in (
        (x, y[1:], "columns of x must match the rows of y, got 5 and 4"),
        (x, y.double(), "share one dtype"),
        (torch.empty(8, 5), y, "on one device"),
        (torch.empty(8, 5), torch.empty(5, 12), "on one device, got meta and cpu"),
    ):
        with pytest.raises(RuntimeError, match=words):
            OPS.bsr_sampled_matmul(crow, col, 8, 12, 2, 3, left, right)


def test_opcheck_covers_every_operator():
    """A new operator needs a test above."""
    names = {
        str(schema.name).removeprefix("sparse_autotune::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("sparse_autotune::")
    }
    assert names == {
        "bsr_matmul", "bsr_matmul_out", "bsr_matmul_race", "bsr_prepare", "bsr_problem_race",
        "bsr_sampled_matmul", "bsr_sampled_matmul_race",
        # tests/test_attention.py has them.
        "attention", "attention_backward", "attention_race", "attention_backward_race",
        "attention_problem_race",
        # tests/test_block_mask.py has them.
        "mask_rows", "mask_columns", "mask_of_lists", "mask_of_rule",
        # Of CUDA tensors alone, called by C++ below autograd.
        "sdpa_flash", "sdpa_cudnn",
        "sdpa_flash_backward", "sdpa_efficient_backward",
    }  # fmt: skip
