"""New patterns of a kind that was raced before: their plans are made past the dispatcher."""

import gc
import weakref

import pytest
import torch
from counted_calls import CountedCalls
from reference import close
from test_dispatch import Listener

import sparse_autotune
from sparse_autotune import BsrTensor, matmul, random_bsr, sampled_matmul


@pytest.fixture
def calls(monkeypatch):
    monkeypatch.setattr(sparse_autotune.settings, "budget_s", 0.02)
    return CountedCalls(monkeypatch)


def fresh(a):
    """The same pattern in memory of its own, which nobody has looked at."""
    parts = a.crow_indices.clone(), a.col_indices.clone(), a.values
    return BsrTensor(*parts, a.shape)


def settle(a, multiply):
    """The first races, the second reads the record: what follows is settled."""
    for _ in range(2):
        multiply(fresh(a))


PRODUCTS = {
    "product": lambda a, x, y: matmul(a, y),
    "transposed": lambda a, x, y: matmul(a.t(), x),
    "right": lambda a, x, y: matmul(y.T, a.t()),
    "sampled": lambda a, x, y: sampled_matmul(x, y.T, a).values,
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_they_are_direct(calls, device, name):
    """As long as the operator has nothing to race, and with its bits."""
    a = random_bsr(64, 96, 16, density=0.5, device=device)
    x, y = (torch.randn(size, 12, device=device) for size in a.shape)

    def multiply(a):
        return PRODUCTS[name](a, x, y)

    settle(a, multiply)
    races, other = sparse_autotune.tuning_count(), fresh(a)
    for _ in range(2):
        count, result = calls.during(lambda: multiply(other))
        assert count == 0
        with Listener() as listener:
            assert torch.equal(multiply(other), result)
        assert listener.heard
    assert sparse_autotune.tuning_count() == races


def test_other_indices_are_noticed_at_the_same_places(calls, device):
    """Those written later, too: the plan that is made in place of the old one is direct."""
    a, b = random_bsr(64, 64, 16, density=0.5, device=device), torch.randn(64, 12, device=device)
    c = random_bsr(64, 64, 16, density=0.5, device=device)
    assert c.nnzb == a.nnzb
    settle(a, lambda a: matmul(a, b))
    settle(c, lambda c: matmul(c, b))  # its rows may be longer, and of another kind
    other = fresh(a)
    for now in (a, c, a, c):
        other.crow_indices.copy_(now.crow_indices), other.col_indices.copy_(now.col_indices)
        count, result = calls.during(lambda: matmul(other, b))
        assert count == 0
        close(result, other.to_dense() @ b)


def test_wrong_indices_are_refused(calls, device):
    a, b = random_bsr(64, 64, 16, density=0.5, device=device), torch.randn(64, 12, device=device)
    settle(a, lambda a: matmul(a, b))
    wrong = fresh(a)
    wrong.col_indices[0] = 4
    for _ in range(2):
        with pytest.raises(ValueError, match=r"col_indices must lie in \[0, 4\)"):
            matmul(wrong, b)
    wrong.col_indices.copy_(a.col_indices)
    close(matmul(wrong, b), a.to_dense() @ b)


def test_the_plan_keeps_the_indices_memory_as_long_as_the_matrix_lives(calls, device):
    """Tensors that get other memory, whose old one must not become another pattern's."""
    a, b = random_bsr(64, 64, 16, density=0.5, device=device), torch.randn(64, 12, device=device)
    settle(a, lambda a: matmul(a, b))
    other, expected = fresh(a), matmul(a, b)
    gc.collect()
    plans = sparse_autotune._tuner.memory()["plans"]
    before, asked = other.col_indices.data_ptr(), len(calls.asked)
    assert torch.equal(matmul(other, b), expected)
    assert not calls.asked[asked:]
    assert sparse_autotune._tuner.memory()["plans"] == plans + 1
    other.col_indices.data = other.col_indices.data.clone()
    again = torch.empty_like(other.col_indices)
    assert again.data_ptr() != before
    crow = weakref.ref(other.crow_indices)
    del other
    gc.collect()
    assert crow() is None
    assert sparse_autotune._tuner.memory()["plans"] == plans


@pytest.mark.gpu
def test_none_is_made_while_a_graph_is_captured(calls):
    a, b = random_bsr(64, 64, 16, density=0.5, device="cuda"), torch.randn(64, 12, device="cuda")
    settle(a, lambda a: matmul(a, b))
    other, graph = fresh(a), torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        count, result = calls.during(lambda: matmul(other, b))
    assert count == 1
    graph.replay()
    close(result, a.to_dense() @ b)
