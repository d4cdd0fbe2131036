"""DistributedDataParallel and FSDP2: two processes train as one does on the whole batch."""

import pytest
import torch
import torch.distributed as dist
from parallel import group_processes, join_group
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, distribute_tensor

import sparse_autotune
from sparse_autotune import (
    SparseLinear,
    linear,
    matmul,
    prune_,
    prune_and_regrow_,
    random_bsr,
    sampled_matmul,
)

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
STEPS = 3


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(
        SparseLinear(24, 32, 4, 0.4), torch.nn.ReLU(), SparseLinear(32, 24, (8, 4), 0.5)
    )


def batches():
    return torch.randn(STEPS, 8, 24, generator=torch.Generator().manual_seed(1))


def train(model, rank=None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches():
        part = x if rank is None else x.chunk(2)[rank]
        optimizer.zero_grad()
        model(part).square().mean().backward()
        optimizer.step()


def assert_trained_alike(state):
    alone = network()
    train(alone)
    for name, expected in alone.state_dict().items():
        torch.testing.assert_close(state[name], expected, rtol=1e-5, atol=1e-6)


def with_ddp(rank):
    model = network()
    if rank == 1:  # which rank 0 must overrule
        with torch.no_grad():
            for tensor in model.parameters():
                tensor.zero_()
        model[0].crow_indices.zero_()
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    train(ddp, rank)
    assert_trained_alike(model.state_dict())
    assert_patterns_may_change(rank)


def assert_patterns_may_change(rank):
    def step(model, optimizer, x):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    states = []
    for wrap in (lambda model: model, torch.nn.parallel.DistributedDataParallel):
        inner = network()
        model = wrap(inner)
        optimizer = torch.optim.SGD(inner.parameters(), lr=0.1, momentum=0.9)
        for x in batches():
            step(model, optimizer, x if model is inner else x.chunk(2)[rank])
            assert prune_and_regrow_(inner[0], 0.3, optimizer=optimizer)
        states.append(inner.state_dict())
    for name, expected in states[0].items():
        torch.testing.assert_close(states[1][name], expected, rtol=1e-5, atol=1e-6)


def with_fsdp2(rank):
    model = network()
    mesh = dist.init_device_mesh("cpu", (2,))
    for layer in (model[0], model[2], model):
        fully_shard(layer, mesh=mesh)
    assert isinstance(model[0].values, DTensor)
    train(model, rank)
    with pytest.raises(RuntimeError, match=r"DTensor, .* sharded, .*, cannot change"):
        prune_(model[0], 0.1)
    assert_sharded_tensors_are_refused(model[0].weight, mesh)
    model[0].unshard()  # as the layers of an outermost module stay after a forward without backward
    with pytest.raises(RuntimeError, match=r"that FSDP shards.*, cannot change"):
        prune_and_regrow_(model[0], 0.5)
    fewer = network()[0]
    prune_(fewer, 0.1)
    with pytest.raises(RuntimeError, match=r"that FSDP shards.* cannot change"):
        model[0].load_state_dict(fewer.state_dict())
    model[0].reshard()
    state = {
        name: tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        for name, tensor in model.state_dict().items()
    }
    assert_trained_alike(state)


def assert_sharded_tensors_are_refused(sharded, mesh):
    x = torch.randn(3, 24)
    with pytest.raises(TypeError, match=r"weight.values must be a plain tensor.*full_tensor"):
        linear(x, sharded)
    distributed = distribute_tensor(x, mesh, [Replicate()])
    whole = network()[0]
    for product in (lambda: whole(distributed), lambda: matmul(distributed, whole.weight.t())):
        with pytest.raises(TypeError, match=r"[xa] must be a plain tensor, got a DTensor.*local"):
            product()
    with pytest.raises(TypeError, match=r"x must be a plain tensor, got a DTensor"):
        sampled_matmul(distributed.t(), x, random_bsr(24, 24, 4, density=0.5))


def run(rank, port, results):
    torch.set_num_threads(1)
    sparse_autotune.settings.mode = "off"
    join_group("gloo", rank, 2, port)
    try:
        for function in (with_ddp, with_fsdp2):
            function(rank)
        results.put((rank, None))
    except BaseException as error:
        results.put((rank, f"{function.__name__}: {error!r}"))
        raise
    finally:
        dist.destroy_process_group()


def test_two_processes():
    processes, results = group_processes(run, 2)
    outcomes = dict(results.get(timeout=240) for _ in processes)
    for process in processes:
        process.join(timeout=60)
    assert outcomes == {0: None, 1: None}
    assert [process.exitcode for process in processes] == [0, 0]
