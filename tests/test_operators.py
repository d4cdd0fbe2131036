"""The operators themselves, as torch.library.opcheck sees them: schemas, fake kernels, autograd."""

import pytest
import torch

from sparse_autotune import random_bsr

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


def test_opcheck_of_sampled_products():
    a = random_bsr(8, 12, (2, 3), density=0.5)
    x, y = torch.randn(8, 5, requires_grad=True), torch.randn(5, 12, requires_grad=True)
    arguments = (a.crow_indices, a.col_indices, 8, 12, 2, 3, x, y)
    torch.library.opcheck(OPS.bsr_sampled_matmul.default, arguments)


def test_opcheck_of_the_others():
    arguments = product_arguments(requires_grad=False)
    torch.library.opcheck(OPS.bsr_matmul_legality.default, arguments)
    torch.library.opcheck(OPS.bsr_prepare.default, (*arguments[:2], 8, 12, 2, 3))
    # What a race measures differs from run to run, so results are not compared.
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    keywords = {"variants": "reference", "rounds": 1, "save": False}
    torch.library.opcheck(OPS.bsr_matmul_race.default, arguments, keywords, test_utils=tests)
    sample = (*arguments[:2], 8, 12, 2, 3, torch.randn(8, 5), torch.randn(5, 12))
    torch.library.opcheck(OPS.bsr_sampled_matmul_legality.default, sample)
    keywords["variants"] = "sampled_reference"
    torch.library.opcheck(OPS.bsr_sampled_matmul_race.default, sample, keywords, test_utils=tests)


def test_opcheck_covers_every_operator():
    """A new operator needs a test above."""
    names = {
        str(schema.name).removeprefix("sparse_autotune::")
        for schema in torch._C._jit_get_all_schemas()
        if schema.name.startswith("sparse_autotune::")
    }
    assert names == {
        "bsr_matmul", "bsr_matmul_out", "bsr_matmul_race", "bsr_matmul_legality", "bsr_prepare",
        "bsr_sampled_matmul", "bsr_sampled_matmul_race", "bsr_sampled_matmul_legality",
    }  # fmt: skip
