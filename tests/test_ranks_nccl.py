"""`set_process_group` with NCCL: two processes, each with a GPU of its own, choose alike."""

import traceback

import pytest
import torch
import torch.distributed as dist
from parallel import group_processes, join_group
from records import entrants, make_winner
from test_ranks import gathered

from sparse_autotune import (
    SparseLinear,
    _tuner,
    cache,
    matmul,
    random_bsr,
    set_process_group,
    settings,
    tuning_count,
)

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs"),
]
RANKS = 2


def races(*ns):
    """Right products; how many races they took."""
    before = tuning_count()
    for n in ns:
        generator = torch.Generator().manual_seed(0)
        a = random_bsr(512, 384, 32, density=0.3, device="cuda", generator=generator)
        b = torch.randn(384, n, device="cuda")
        expected = (a.to_dense().double() @ b.double()).float()
        torch.testing.assert_close(matmul(a, b), expected, rtol=1e-4, atol=1e-3)
    return tuning_count() - before


def winners():
    """Of the records in memory, for both ways to launch."""
    found = [_tuner.parse_record(text) for _, text in _tuner.known()]
    return {r["signature"]: (r["winner"], r["captured_winner"]) for r in found}


def cold(rank):
    """One rank races, the other takes over what it found."""
    assert sum(gathered(races(8))) == 1
    mine, other = gathered(winners())
    assert mine == other and len(mine) == 1
    assert len(set(gathered(cache.digest()))) == 1
    assert races(8) == 0


def warm_and_cold(rank):
    """The warm rank's winner serves both, though it is not the fastest."""
    set_process_group(None)
    if rank == 1:
        races(40)
        make_winner([name for name, e in entrants().items() if e["median_us"]][-1])
    set_process_group(dist.group.WORLD)
    if rank == 1:
        assert races(40) == 0
    dist.barrier()
    assert races(40) == 0
    mine, other = gathered(winners())
    assert mine == other and len(mine) == 1
    assert len(set(gathered(cache.digest()))) == 1


def uneven(rank):
    """A rank that alone meets kinds waits for nobody, in the midst of collective calls."""
    total = torch.ones(1 << 20, device="cuda")
    pending = dist.all_reduce(total, async_op=True)
    if rank == 0:
        assert races(1, 16, 130) == 3
    pending.wait()
    assert bool((total == RANKS).all())
    dist.barrier()
    assert races(130, 1, 16) == 0
    assert len(set(gathered(cache.digest()))) == 1


def training(rank):
    """Steps of a model that DDP wraps: its gradients are the same on both."""
    torch.manual_seed(0)
    layer = SparseLinear(384, 512, 32, density=0.3, device="cuda")
    model = torch.nn.parallel.DistributedDataParallel(layer, device_ids=[rank])
    torch.manual_seed(rank)
    for _ in range(3):
        model.zero_grad()
        model(torch.randn(24, 384, device="cuda")).square().mean().backward()
        mine = torch.cat([parameter.grad.flatten() for parameter in model.parameters()])
        sums = mine.clone()
        dist.all_reduce(sums)
        assert bool(mine.isfinite().all()) and torch.equal(sums, mine * RANKS)
    assert len(set(gathered(cache.digest()))) == 1


EVERY = [cold, warm_and_cold, uneven, training]


def run(rank, port, results, directory):
    name = "the beginning"
    try:
        torch.cuda.set_device(rank)
        settings.verbosity, settings.budget_s = 0, 0.05
        join_group("nccl", rank, RANKS, port)
        for function in EVERY:
            name = function.__name__
            settings.cache_dir = f"{directory}/{name}/{rank}"
            set_process_group(dist.group.WORLD)
            function(rank)
            results.put((rank, name, None))
            dist.barrier()
        dist.destroy_process_group()
    except BaseException as error:
        results.put((rank, name, "".join(traceback.format_exception(error))))
        raise


def test_two_gpus(tmp_path):
    processes, results = group_processes(run, RANKS, str(tmp_path))
    try:
        for _ in range(RANKS * len(EVERY)):
            rank, name, error = results.get(timeout=120)
            assert error is None, f"rank {rank}, {name}: {error}"
        for process in processes:
            process.join(timeout=60)
            assert process.exitcode == 0
    finally:
        for process in processes:
            process.kill()
