"""Matrices that are not BSR, or break its rules: refused before anything reads the values."""

import pytest
import torch
from reference import poisoned
from refusals import K, M, N, check_refused, matrix

from sparse_autotune import BsrTensor, linear, matmul, random_bsr, sampled_matmul

pytestmark = pytest.mark.usefixtures("no_races")


# Layouts


def native(device, layout):
    dense = torch.ones(4, 4, device=device)
    return {
        "csr": dense.to_sparse_csr,
        "csc": dense.to_sparse_csc,
        "coo": dense.to_sparse,
        "dense": lambda: dense,
    }[layout]()


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("csr", r"a CSR tensor.*to_sparse_bsr\(block_size\)"),
        ("csc", r"a CSC tensor.*to_sparse_bsr\(block_size\)"),
        ("coo", r"a COO tensor.*to_sparse_bsr\(block_size\)"),
        ("dense", r"a dense tensor of shape \(4, 4\).*from_dense.*to_sparse_bsr"),
    ],
)
def test_other_layouts(layout, words, device):
    a, b = native(device, layout), torch.ones(4, 3, device=device)
    check_refused(TypeError, f"a must be a BSR matrix, got {words}", matmul, a, b)
    check_refused(TypeError, f"weight must be a BSR matrix, got {words}", linear, b.T, a)
    if layout != "dense":  # or it is as likely that a was meant
        check_refused(TypeError, f"b must be a BSR matrix, got {words}", matmul, b.T, a)
    check_refused(TypeError, f"a must be a BSR matrix, got {words}", BsrTensor.from_torch, a)


@pytest.mark.parametrize(("rows", "cols"), [(0, 12), (8, 0), (0, 0)], ids=str)
def test_blocks_in_a_matrix_without_elements(rows, cols, device):
    """No block row, and no one to look at where its blocks are said to be."""
    crow = torch.zeros(rows // 2 + 1, dtype=torch.int64, device=device)
    col = torch.tensor([0, 1, 2**40], device=device)
    a = BsrTensor(crow, col, torch.ones(3, 2, 3, device=device), (rows, cols))
    words = "crow_indices must end at nnzb = 3, got 0"
    left, right = (torch.ones(n, N, device=device) for n in (rows, cols))
    for call in (
        lambda: matmul(a, right), lambda: matmul(a.t(), left), lambda: matmul(left.T, a),
        lambda: linear(right.T, a), lambda: sampled_matmul(left, right.T, a), a.prepare, a.to_dense,
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.parametrize("layout", ["csr", "coo"])
def test_sparse_b(layout, device):
    b = native(device, layout)
    a = random_bsr(4, 4, 2, density=1, device=device)
    check_refused(TypeError, r"b must be dense.*to_dense\(\)", matmul, a, b)
    check_refused(TypeError, r"x must be dense.*to_dense\(\)", linear, b, a)
    out = native(device, layout)
    check_refused(TypeError, r"out must be dense", matmul, a, torch.ones(4, 4, device=device),
                  out=out)  # fmt: skip


def test_batched_and_hybrid_bsr(device):
    crow, col = torch.tensor([[0, 1, 2]] * 3), torch.tensor([[0, 1]] * 3)
    batched = torch.sparse_bsr_tensor(
        crow, col, torch.ones(3, 2, 2, 2), (3, 4, 4), check_invariants=True, device=device
    )
    words = r"one BSR matrix, got a batched one of shape \(3, 4, 4\).*matrices a\[i\]"
    check_refused(TypeError, words, matmul, batched, torch.ones(4, 3, device=device))
    hybrid = torch.sparse_bsr_tensor(
        crow[0], col[0], torch.ones(2, 2, 2, 3), (4, 4, 3), check_invariants=True, device=device
    )
    words = r"got a hybrid one of shape \(4, 4, 3\): multiply its matrices a\[\.\.\., i\]"
    check_refused(TypeError, words, matmul, hybrid, torch.ones(4, 3, device=device))
    for one in (batched[0], hybrid[..., 0]):  # as the messages advise
        assert matmul(one, torch.ones(4, 3, device=device)).shape == (4, 3)


def test_not_tensors():
    a, b = matrix(), torch.ones(K, N)
    check_refused(TypeError, "a must be a torch.sparse_bsr tensor or a BsrTensor, got builtins",
                  matmul, [[1.0]], b)  # fmt: skip
    check_refused(TypeError, r"a must be.*scipy.*from_scipy\(matrix.tobsr", matmul, a.to_scipy(), b)
    check_refused(TypeError, r"b must be.*scipy.*from_scipy", matmul, b.T, a.t().to_scipy())
    check_refused(TypeError, r"b must be a dense torch.Tensor, got numpy.ndarray: convert it with "
                  r"torch\.from_numpy\(b\)", matmul, a, b.numpy())  # fmt: skip
    check_refused(TypeError, r"b must be .*BsrTensor: convert it with b\.to_dense\(\)",
                  matmul, a, a.t())  # fmt: skip
    check_refused(TypeError, r"x must be .* convert it with x\.to_dense\(\)", linear, a, a)
    check_refused(TypeError, "b must be a dense torch.Tensor, got builtins.NoneType", matmul, a,
                  None)  # fmt: skip
    check_refused(TypeError, "bias must be a dense torch.Tensor, got builtins.float", matmul, a, b,
                  bias=1.0)  # fmt: skip
    check_refused(TypeError, "out must be a dense torch.Tensor, got builtins.list", matmul, a, b,
                  out=[])  # fmt: skip
    check_refused(TypeError, "x must be a dense torch.Tensor, got builtins.int", linear, 1, a)


def test_dense_times_bsr():
    a, right = torch.ones(N, M), matrix()
    words = r"the columns of a must match the rows of b: a has shape \(5, 7\), b \(8, 12\)"
    for b in (right, right.to_torch()):
        check_refused(ValueError, words, matmul, torch.ones(N, 7), b)
        check_refused(TypeError, "a must have the dtype of b", matmul, a.double(), b)
        check_refused(ValueError, r"per column of the result.*\(12,\); got \(8,\)", matmul, a, b,
                      bias=torch.ones(M))  # fmt: skip
        check_refused(ValueError, r"must have shape \(5, 12\), got \(5, 8\)", matmul, a, b,
                      out=torch.ones(N, M))  # fmt: skip
        check_refused(ValueError, "variant must be one of", matmul, a, b, variant="simtt")
        check_refused(TypeError, "a must be a dense torch.Tensor", matmul, 3, b)
    check_refused(TypeError, "b must be dense", matmul, matrix(), matrix().to_torch())


# Index content: pattern of 3 x 4 blocks, 6 of them stored

GOOD_CROW, GOOD_COL = [0, 2, 3, 6], [0, 3, 1, 0, 1, 3]
BAD_INDICES = {
    "start": ([1, 2, 3, 6], GOOD_COL, "crow_indices must start at 0, got 1"),
    "negative start": ([-1, 2, 3, 6], GOOD_COL, "crow_indices must start at 0, got -1"),
    "falls": ([0, 4, 3, 6], GOOD_COL, "crow_indices must not decrease, got 4 followed by 3 at.* 1"),
    "negative": ([0, -2, 3, 6], GOOD_COL, "crow_indices must not decrease, got 0 followed by -2"),
    "beyond": ([0, 2, 9, 6], GOOD_COL, "crow_indices must not decrease, got 9 followed by 6"),
    "short end": ([0, 2, 3, 5], GOOD_COL, "crow_indices must end at nnzb = 6, got 5"),
    "long end": ([0, 2, 3, 7], GOOD_COL, "crow_indices must end at nnzb = 6, got 7"),
    "far end": ([0, 2, 3, 2**30], GOOD_COL, f"crow_indices must end at nnzb = 6, got {2**30}"),
    "column": (GOOD_CROW, [0, 4, 1, 0, 1, 3],
               r"col_indices must lie in \[0, 4\).*got 4 at position 1"),
    "far column": (GOOD_CROW, [0, 3, 1, 0, 1, 2**30], rf"\[0, 4\).*got {2**30} at position 5"),
    "negative column": (GOOD_CROW, [0, 3, -1, 0, 1, 3], r"\[0, 4\).*got -1 at position 2"),
    "duplicate": (GOOD_CROW, [0, 3, 1, 0, 1, 1], "ascend within each block row, without "
                  "duplicates: block row 2 has 1 twice at position 4"),
    "unsorted": (GOOD_CROW, [3, 0, 1, 0, 1, 3], "ascend.*block row 0 has 3 before 0 at position 0"),
}  # fmt: skip


def indices(kind, device, dtype):
    crow, col, words = BAD_INDICES[kind]
    return (
        torch.tensor(crow, device=device, dtype=dtype),
        torch.tensor(col, device=device, dtype=dtype),
        words,
    )


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("kind", BAD_INDICES)
def test_bad_indices(kind, dtype, device):
    crow, col, words = indices(kind, device, dtype)
    values = torch.ones(6, 2, 3, device=device)
    b, out = torch.ones(12, 5, device=device), poisoned(6, 5, device=device)
    a = BsrTensor(crow, col, values, (6, 12))
    for _ in range(2):
        check_refused(ValueError, f"a.{words}" if words.startswith("c") else words,
                      matmul, a, b, out=out)  # fmt: skip
    check_refused(ValueError, words, linear, b.T, a)
    check_refused(ValueError, words, a.prepare)
    check_refused(ValueError, words, a.to_dense)
    check_refused(ValueError, words, a.to_scipy)
    check_refused(ValueError, words, BsrTensor, crow, col, values, (6, 12), check=True)
    unchecked = torch.sparse_bsr_tensor(crow, col, values, (6, 12), check_invariants=False)
    check_refused(ValueError, words, matmul, unchecked, b, out=out)


@pytest.mark.parametrize("kind", BAD_INDICES)
def test_indices_that_turn_bad_in_place(kind, device):
    crow, col, words = indices(kind, device, torch.int64)
    good_crow = torch.tensor(GOOD_CROW, device=device)
    good_col = torch.tensor(GOOD_COL, device=device)
    a = BsrTensor(good_crow, good_col, torch.ones(6, 2, 3, device=device), (6, 12), check=True)
    b = torch.ones(12, 5, device=device)
    before = matmul(a, b)
    good_crow.copy_(crow)
    good_col.copy_(col)
    check_refused(ValueError, words, matmul, a, b, out=poisoned(6, 5, device=device))
    good_crow.copy_(torch.tensor(GOOD_CROW))
    good_col.copy_(torch.tensor(GOOD_COL))
    assert torch.equal(matmul(a, b), before)


@pytest.mark.parametrize("at", [0, 1, 31, 32, 33, 63, 64, 98])
@pytest.mark.parametrize("row", [0, 31, 32, 69])
def test_a_fault_anywhere(row, at, device):
    """Rows and columns are checked many at a time; a check leaves nothing to the next one."""
    a = random_bsr(70, 200, (1, 2), density=1, device=device)
    col, b = a.col_indices, torch.ones(200, 3, device=device)
    good, place = matmul(a, b), 100 * row + at
    kept = col[place].clone()
    for bad, words in (
        (at + 1, f"block row {row} has {at + 1} twice at position {place}"),
        (100, rf"\[0, 100\).*got 100 at position {place}"),
        (-1, rf"\[0, 100\).*got -1 at position {place}"),
    ):
        col[place] = bad
        check_refused(ValueError, words, a.prepare)
        col[place] = kept
        assert torch.equal(matmul(a, b), good)


@pytest.mark.parametrize("row", [1, 31, 32, 33, 69])
def test_a_fault_of_any_row_pointer(row, device):
    a = random_bsr(70, 200, (1, 2), density=1, device=device)
    a.prepare()
    a.crow_indices[row] = 7001
    check_refused(ValueError, f"got 7001 followed by .* at position {row}", a.prepare)
    a.crow_indices[row] = 100 * row - 1  # the row before ends early: this one begins out of order
    check_refused(ValueError, f"ascend.*block row {row} has 99 before 0", a.prepare)


@pytest.mark.parametrize("crow", [[0, 1, 0], [1, 1, 1], [0, 0, 5], [0, -1, 0]], ids=str)
def test_bad_crow_indices_of_an_empty_matrix(crow, device):
    """Nothing is stored, and crow_indices still must say so."""
    crow = torch.tensor(crow, device=device)
    col = torch.empty(0, dtype=torch.int64, device=device)
    a = BsrTensor(crow, col, torch.ones(0, 2, 3, device=device), (4, 12))
    b = torch.ones(12, 5, device=device)
    check_refused(ValueError, "crow_indices must", matmul, a, b, out=poisoned(4, 5, device=device))


# Components


def components(**changes):
    parts = {
        "crow_indices": torch.tensor([0, 1, 2]),
        "col_indices": torch.tensor([0, 1]),
        "values": torch.ones(2, 2, 3),
        "shape": (4, 6),
    }
    return BsrTensor(**{**parts, **changes})


@pytest.mark.parametrize(
    ("error", "words", "changes"),
    [
        (ValueError, r"block size must divide the shape.*\(5, 6\).*\(2, 3\)", {"shape": (5, 6)}),
        (ValueError, r"block size must divide the shape.*\(4, 7\).*\(2, 3\)", {"shape": (4, 7)}),
        (ValueError, r"crow_indices must have block rows \+ 1 = 4.*got 3", {"shape": (6, 6)}),
        (ValueError, r"divide the shape: the matrix has shape \(5, 6\)", {"shape": (5, 6)}),
        (ValueError, r"must not be negative, got \(-4, 6\)", {"shape": (-4, 6)}),
        (ValueError, r"must not be negative, got \(4, -6\)", {"shape": (4, -6)}),
        (TypeError, r"shape must be two ints, got \(4,\)", {"shape": (4,)}),
        (TypeError, r"shape must be two ints, got \(4.0, 6\)", {"shape": (4.0, 6)}),
        (TypeError, r"shape must be two ints, got 4", {"shape": 4}),
        (ValueError, r"values holds 3 blocks, col_indices 2", {"values": torch.ones(3, 2, 3)}),
        (ValueError, r"values must have shape \(nnzb, block_m, block_k\).*got \(2, 2\)",
         {"values": torch.ones(2, 2)}),
        (ValueError, r"values must have shape.*got \(1, 1, 2, 2, 3\)",
         {"values": torch.ones(1, 1, 2, 2, 3)}),
        (ValueError, "values must hold one matrix at least, got a batch of 0",
         {"values": torch.ones(0, 2, 2, 3)}),
        (ValueError, r"block size of values must be at least 1.*\(0, 3\)",
         {"values": torch.ones(2, 0, 3)}),
        (TypeError, "values must be float16.*got torch.int64.*convert",
         {"values": torch.ones(2, 2, 3, dtype=torch.int64)}),
        (TypeError, "values has the complex dtype torch.complex128",
         {"values": torch.ones(2, 2, 3, dtype=torch.complex128)}),
        (TypeError, "crow_indices and col_indices must both be int32 or both int64, got "
         "torch.int64 and torch.int32", {"col_indices": torch.tensor([0, 1], dtype=torch.int32)}),
        (TypeError, "both be int32 or both int64, got torch.float32",
         {"crow_indices": torch.tensor([0.0, 1.0, 2.0])}),
        (ValueError, r"1-dimensional, got shapes \(3,\) and \(2, 1\)",
         {"col_indices": torch.tensor([[0], [1]])}),
        (ValueError, r"1-dimensional, got shapes \(1, 3\)",
         {"crow_indices": torch.tensor([[0, 1, 2]])}),
        (TypeError, "crow_indices must be a torch.Tensor, got builtins.list",
         {"crow_indices": [0, 1, 2]}),
        (TypeError, "values must be strided, got layout torch.sparse_coo",
         {"values": torch.ones(2, 2, 3).to_sparse()}),
    ],
)  # fmt: skip
def test_bad_components(error, words, changes):
    check_refused(error, words, components, **changes)


GAPS = {
    "values": lambda t: t.mT.contiguous().mT,
    "crow_indices": lambda t: torch.stack([t, t + 9], 1)[:, 0],
    "col_indices": lambda t: torch.stack([t, t + 9], 1)[:, 0],
}


@pytest.mark.parametrize("name", GAPS)
def test_components_with_gaps_are_copied(name):
    """Once, when the matrix is made; the others stay those that were given."""
    given = {
        "crow_indices": torch.tensor([0, 2, 3]),
        "col_indices": torch.tensor([0, 1, 1]),
        "values": torch.randn(3, 2, 3),
    }
    given[name] = GAPS[name](given[name]).requires_grad_(name == "values")
    assert not given[name].is_contiguous()
    a = components(**given)
    for part, tensor in given.items():
        kept = getattr(a, part)
        assert kept.is_contiguous() and torch.equal(kept, tensor)
        assert (kept is tensor) is (part != name)
    expected = torch.zeros(4, 6)
    expected[:2, :3], expected[:2, 3:], expected[2:, 3:] = given["values"].detach().unbind()
    assert torch.equal(a.to_dense(), expected)
    x = torch.randn(6, 5)
    result = matmul(a, x)
    torch.testing.assert_close(result.detach(), expected @ x)
    if name == "values":  # whose gradient reaches the tensor that was given
        result.sum().backward()
        blocks = x.sum(1).view(2, 3)[given["col_indices"]][:, None].expand(3, 2, 3)
        torch.testing.assert_close(given["values"].grad, blocks)


@pytest.mark.parametrize(
    ("error", "words", "arguments"),
    [
        (ValueError, r"block size must divide.*\(4, 6\).*\(3, 3\)", {"block_size": 3}),
        (ValueError, "2 dimensions, got shape", {"dense": torch.ones(2, 4, 6)}),
        (TypeError, "dense must be dense.*sparse_coo", {"dense": torch.ones(4, 6).to_sparse()}),
        (TypeError, "dense must be a dense torch.Tensor", {"dense": [[1.0]]}),
        (TypeError, "dense must be float16.*int64", {"dense": torch.ones(4, 6).long()}),
        (TypeError, "keep must be a bool mask of blocks, got torch.float32",
         {"keep": torch.ones(2, 2)}),
        (ValueError, r"keep must have one element per block, shape \(2, 2\); got \(4, 6\)",
         {"keep": torch.ones(4, 6, dtype=torch.bool)}),
        (RuntimeError, "keep must be on the device of dense",
         {"keep": torch.ones(2, 2, dtype=torch.bool, device="meta")}),
    ],
)  # fmt: skip
def test_bad_from_dense(error, words, arguments):
    arguments = {"dense": torch.ones(4, 6), "block_size": (2, 3), **arguments}
    check_refused(error, words, BsrTensor.from_dense, **arguments)
