"""What tests of plans on a GPU share: problems that no plan knows, bytes that are kept, graphs."""

import dataclasses
import gc
import math

import numpy as np
import pytest
import torch
from problem import Problem
from reference import assert_close, make
from sampled_problems import make_sampled

from sparse_autotune import BsrTensor, _tuner


def fresh_operands(variant, problem):
    """The tensors of a product or sampled product, with indices that no other test's plan knows."""
    operands = (make if type(problem) is Problem else make_sampled)(problem, "cuda")
    why = operands.legality()[variant]
    if why is not None:
        pytest.skip(f"{variant} is not legal: {why}")
    return dataclasses.replace(operands, a=operands.a.clone())


def plan_bytes():
    gc.collect()
    return _tuner.memory()["plan_bytes"]


def index_bytes(a):
    return sum(t.numel() * t.element_size() for t in (a.crow_indices, a.col_indices))


def captured(call):
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph, result


def replayed(call):
    """The result of a call in a graph, which has nothing of the capture's own in it."""
    graph, result = captured(call)
    result.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    return result


def check_the_same_bits(call, times, beside=lambda: None):
    """On several streams and in a graph: each launch finds what it writes to as another left it.

    `beside` is called before each, for other work."""
    first = call()
    graph, in_graph = captured(lambda: [call() for _ in range(3)])
    streams = [torch.cuda.Stream() for _ in range(3)]
    torch.cuda.synchronize()
    results = []
    for i in range(times):
        beside()
        with torch.cuda.stream(streams[i % 3]):
            results.append(call())
        if i % 20 == 0:
            for result in in_graph:
                result.fill_(math.nan)
            graph.replay()
            torch.cuda.synchronize()
            assert all(torch.equal(result, first) for result in in_graph)
    torch.cuda.synchronize()
    assert all(torch.equal(result, first) for result in results)
    return first


def reversed_rows(a):
    """Indices of the same blocks with the first block row last, and where those blocks are now."""
    lengths = a.crow_indices.diff()
    crow = torch.zeros_like(a.crow_indices)
    crow[1:] = lengths.flip(0).cumsum(0)
    where = torch.arange(len(a.col_indices), device=a.device).split(lengths.tolist())
    where = torch.cat(where[::-1])
    return crow, a.col_indices[where], where


def with_reversed_rows(operands):
    """Edits the matrix in place; the operands with what their product must be now."""
    a, p = operands.a, operands.problem
    crow, col, where = reversed_rows(a)
    a.crow_indices.copy_(crow), a.col_indices.copy_(col), a.values.copy_(a.values[where])
    reference, tolerance = (
        np.ascontiguousarray(x.reshape(-1, p.block[0], p.n)[::-1]).reshape(p.m, p.n)
        for x in (operands.reference, operands.tolerance)
    )
    return dataclasses.replace(operands, reference=reference, tolerance=tolerance)


def check_a_capture_that_keeps_nothing(operands, variant):
    """A graph in which nothing of the plan's could be made is right; returns its last result."""
    before = plan_bytes()
    graph, result = captured(lambda: operands.call(variant))
    assert plan_bytes() == before
    for _ in range(2):
        result.fill_(math.nan)
        graph.replay()
        assert_close(result, operands)
    return result


def check_that_a_race_gives_its_memory_back(tune):
    """But for what the plan keeps of the pattern, and torch for cuBLAS: the first race makes it."""
    tune()
    gc.collect()  # what earlier tests left must not go meanwhile
    torch.cuda.synchronize()
    before, torchs = _tuner.memory(0), torch.cuda.memory_allocated()
    assert tune().best is not None
    torch.cuda.synchronize()
    after = _tuner.memory(0)
    assert after["pool_used"] == before["pool_used"]
    assert after["pool_reserved"] <= before["pool_reserved"]
    assert torch.cuda.memory_allocated() == torchs


def check_that_a_graph_keeps_what_it_reads(variant, problem):
    """The matrix and its plan are gone; what others' plans hold wants the memory."""
    operands = fresh_operands(variant, problem)
    a = operands.a
    crow, col, _ = reversed_rows(a)
    kept, shape = (a.crow_indices, a.col_indices, a.values), a.shape
    operands.call(variant)
    graph, result = captured(lambda: operands.call(variant))
    expected, before = dataclasses.replace(operands, a=None), plan_bytes()
    operands = a = None
    assert plan_bytes() < before
    others = [BsrTensor(crow.clone(), col, kept[-1], shape) for _ in range(4)]
    for other in others:
        dataclasses.replace(expected, a=other).call(variant)
    result.fill_(math.nan)
    graph.replay()
    torch.cuda.synchronize()
    assert_close(result, expected)
    del kept


def check_that_others_wait_for_it(variant, problem):
    """A piece is enqueued behind work under way: no other stream, and no graph, may be earlier."""
    for elsewhere in ("stream", "graph"):
        operands = fresh_operands(variant, problem)
        operands.a.prepare()
        builder, other = torch.cuda.Stream(), torch.cuda.Stream()
        torch.cuda.synchronize()
        with torch.cuda.stream(builder):
            torch.cuda._sleep(200_000_000)
            first = operands.call(variant)
        assert not builder.query()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.stream(other):
            if elsewhere == "graph":
                graph.capture_begin()  # torch.cuda.graph() would wait for all streams
            result = operands.call(variant)
            if elsewhere == "graph":
                graph.capture_end()
                graph.replay()
        other.synchronize()
        assert_close(result, operands)
        torch.cuda.synchronize()
        assert torch.equal(result, first)
