"""`set_process_group`: four processes choose alike, and none waits for one that is gone."""

import os
import pathlib
import re
import time
import traceback
import warnings

import pytest
import torch
import torch.distributed as dist
from parallel import group_processes, join_group
from records import make_winner

import sparse_autotune
from sparse_autotune import (
    _tuner,
    cache,
    matmul,
    random_bsr,
    set_process_group,
    settings,
    tune,
    tuning_count,
)
from sparse_autotune.tuning import announcements

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="torch without gloo")
RANKS = 4


def problem(n):
    generator = torch.Generator().manual_seed(0)
    return random_bsr(64, 48, 16, density=0.5, generator=generator), torch.randn(48, n)


def races(*ns):
    """Right products; how many races they took."""
    before = tuning_count()
    for n in ns:
        a, b = problem(n)
        torch.testing.assert_close(matmul(a, b), a.to_dense() @ b, rtol=1e-4, atol=1e-4)
    return tuning_count() - before


def gathered(value):
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def winner(n):
    """Of the record in memory."""
    found = [_tuner.parse_record(text) for _, text in _tuner.known()]
    (name,) = [r["winner"] for r in found if f"_n{n}_" in r["signature"]]
    return name


def all_cold(rank):
    """One rank races for all."""
    assert sum(gathered(races(8))) == 1
    assert len(set(gathered(winner(8)))) == 1
    assert len(set(gathered(cache.digest()))) == 1
    assert [entry.winner for entry in cache.entries()] == [winner(8)]
    assert races(8) == 0


def warm_and_cold(rank):
    """Whoever is warm decides, and its winner stays in the others' caches."""
    set_process_group(None)
    if rank == 2:
        races(8)
        make_winner("reference/fp64", of="_n8_")
    set_process_group(dist.group.WORLD)
    if rank == 2:
        assert races(8) == 0
    dist.barrier()
    assert races(8) == 0
    assert gathered(winner(8)) == ["reference/fp64"] * RANKS
    assert cache.entries()[0].winner == "reference/fp64"


def warm_with_different_winners(rank):
    set_process_group(None)
    races(8)
    own = ["reference/fp64", "dense/mm"][rank % 2]
    make_winner(own, of="_n8_")
    assert races(8) == 0 and winner(8) == own
    dist.barrier()
    set_process_group(dist.group.WORLD)
    assert races(8) == 0
    agreed = set(gathered(winner(8)))
    assert len(agreed) == 1 and agreed <= {"reference/fp64", "dense/mm"}
    assert len(set(gathered(cache.digest()))) == 1


def uneven_calls(rank):
    """A rank that alone meets a kind waits for nobody; who comes later takes over what it found."""
    if rank == 1:
        assert races(1, 64, 100) == 3
    dist.barrier()
    if rank != 3:
        assert races(64) == 0
    assert len(set(gathered(winner(64) if rank != 3 else None)) - {None}) == 1
    digests = gathered(cache.digest())
    assert len(set(digests)) > 1, "they met different kinds"
    assert races(100, 1, 64) == 0
    assert len(set(gathered(cache.digest()))) == 1


def in_any_order(rank):
    """No rank waits for another that waits for it."""
    ns = [1, 8, 40, 100, 200]
    ns = ns[rank:] + ns[:rank]
    assert sum(gathered(races(*ns))) == len(ns)
    assert len(set(gathered(cache.digest()))) == 1


def readonly_and_cold_first(rank):
    """Without an entry all go by the cost model, also a rank that would have had one."""
    set_process_group(None)
    if rank == 0:
        races(8)
        make_winner("reference/fp64", of="_n8_")
    with settings.override(mode="readonly"):
        set_process_group(dist.group.WORLD)
        if rank != 0:
            assert races(8) == 0
        dist.barrier()
        if rank == 0:
            assert races(8) == 0
        assert _tuner.known() == []
        assert len(cache.missed()) == 1
    assert len(set(gathered(cache.digest()))) == 1


def tune_changes_entries_only(rank):
    races(8)
    before = cache.digest()
    agreed = winner(8)
    a, b = problem(8)
    if rank == 0:
        make_winner("reference/fp64", of="_n8_")
        tune(a, b)
    assert races(8) == 0
    assert winner(8) == agreed and cache.digest() == before


def a_race_without_a_winner(rank):
    """Nobody waits for what will not come."""
    with settings.override(tuning_bytes=0):
        assert sum(gathered(races(8))) == 1
    assert _tuner.known() == []


def leaving(rank):
    races(8)
    set_process_group(None)
    with settings.override(cache_dir=settings.cache_dir + "_other"):
        assert races(8) == 1


def a_rank_dies(rank):
    """In the middle of its race: the others go on with the estimate, all of them, and say so."""
    set_process_group(dist.group.WORLD, timeout_s=0.5)
    cache._warned.clear()  # of what was said of this signature before
    mark = pathlib.Path(os.environ["RANKS_MARK"])
    if rank == 3:

        def die(*_):
            mark.write_text("racing")
            os._exit(7)

        _tuner.install_host(
            sparse_autotune.ranks.load, die, announcements.report, announcements.reclaim,
            sparse_autotune.ranks.may_race,
        )  # fmt: skip
        races(8)
    while not mark.exists():
        time.sleep(0.01)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert races(8) == 0
        assert races(8) == 0
    ours = [str(w.message) for w in caught if "sparse_autotune" in str(w.message)]
    (said,) = ours
    assert re.search(
        r"no rank's race of matmul_64x48\S+_n8_\S+ came to a winner within 0.5 s", said
    )
    assert f"the cost model chose on rank {rank}" in said
    assert races(40, 8) <= 1, "what is met later is agreed on as before"


EVERY = [all_cold, warm_and_cold, warm_with_different_winners, uneven_calls, in_any_order,
         readonly_and_cold_first, tune_changes_entries_only, a_race_without_a_winner,
         leaving]  # fmt: skip


def run(rank, port, results, names, directory):
    torch.set_num_threads(1)
    settings.verbosity, settings.budget_s = 0, 0.02
    join_group("gloo", rank, RANKS, port)
    for name in names:
        settings.cache_dir = f"{directory}/{name}/{rank}"
        settings.mode = "on"
        set_process_group(dist.group.WORLD)
        if name == "a_rank_dies" and rank == 3:  # with what it has not passed on by then
            results.close()
            results.join_thread()
        try:
            globals()[name](rank)
        except BaseException as error:
            results.put((rank, name, "".join(traceback.format_exception(error))))
            raise
        results.put((rank, name, None))
        if name != "a_rank_dies":
            dist.barrier()
    time.sleep(1)  # rank 0 has the store


def test_four_ranks(tmp_path, monkeypatch):
    """One of which dies in the end."""
    monkeypatch.setenv("RANKS_MARK", str(tmp_path / "mark"))
    names = [function.__name__ for function in (*EVERY, a_rank_dies)]
    processes, results = group_processes(run, RANKS, names, str(tmp_path))
    done = []
    for _ in range(RANKS * len(EVERY) + RANKS - 1):
        rank, name, error = results.get(timeout=200)
        if error is not None:
            for process in processes:
                process.terminate()
            raise AssertionError(f"rank {rank}, {name}: {error}")
        done.append(name)
    assert done.count("a_rank_dies") == RANKS - 1
    for process in processes:
        process.join(timeout=60)
    assert [process.exitcode for process in processes] == [0, 0, 0, 7]


@pytest.fixture
def alone(tmp_path):
    """A group of this process."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    set_process_group(None)
    dist.destroy_process_group()


def test_a_store_that_is_gone(alone, fresh_cache, monkeypatch):
    """The estimate serves, and one warning tells of it."""
    set_process_group(dist.group.WORLD)
    monkeypatch.setattr(cache, "_warned", {})

    class Gone:
        def check(self, keys):
            raise dist.DistNetworkError("connection reset")

    monkeypatch.setattr(sparse_autotune.ranks._current, "_store", Gone())
    with pytest.warns(RuntimeWarning, match=r"store .* is gone \(connection reset\); the cost"):
        assert races(8, 40, 8) == 0
    assert cache.entries() == []


def test_bad_arguments(alone):
    with pytest.raises(TypeError, match="group must be a process group or None, got int"):
        set_process_group(5)
    for timeout in (0, -1, float("nan"), float("inf"), "1"):
        with pytest.raises(ValueError, match="timeout_s must be a positive, finite number"):
            set_process_group(None, timeout_s=timeout)
    with pytest.raises((ValueError, TypeError), match="group must be"):
        set_process_group(dist.GroupMember.NON_GROUP_MEMBER)


def test_digest(fresh_cache):
    _tuner.forget()
    empty = cache.digest()
    assert races(8) == 1
    one = cache.digest()
    make_winner("reference/fp64", of="_n8_")
    assert cache.digest() == empty
    races(8)
    assert len({empty, one, cache.digest()}) >= 2 and cache.digest() != empty
