"""Threads that begin together, process groups, and forked processes that fail, never hang."""

import os
import socket
import threading
import traceback

import torch
import torch.distributed as dist

TIMEOUT_S = 120.0


def run_threads(*functions):
    """Runs each function in a thread, all from the same moment; raises what one of them raises."""
    errors, start = [], threading.Barrier(len(functions))

    def guarded(function):
        try:
            start.wait(TIMEOUT_S)
            function()
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=[f], daemon=True) for f in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(TIMEOUT_S)
    if errors:
        raise errors[0]
    assert not any(thread.is_alive() for thread in threads), "a thread hangs"


def group_processes(run, count, *arguments):
    """Started processes, `run(rank, port, results, *arguments)` in each, and that queue."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = torch.multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [
        context.Process(target=run, args=(rank, port, results, *arguments), daemon=True)
        for rank in range(count)
    ]
    for process in processes:
        process.start()
    return processes, results


def join_group(backend, rank, count, port):
    """The process group of `group_processes`."""
    store = dist.TCPStore("127.0.0.1", port, count, rank == 0)
    dist.init_process_group(backend, store=store, rank=rank, world_size=count)


def in_fork(function):
    """Runs a function in a forked child; fails with its traceback, or when it hangs."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            torch.set_num_threads(1)  # as data loader workers do
            function()
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode())
        finally:
            os._exit(status)
    os.close(write)
    ended = threading.Event()
    timer = threading.Timer(TIMEOUT_S, lambda: ended.is_set() or os.kill(child, 9))
    timer.daemon = True
    timer.start()
    text = b""
    while chunk := os.read(read, 1 << 16):
        text += chunk
    os.close(read)
    _, status = os.waitpid(child, 0)
    ended.set()
    timer.cancel()
    assert status == 0, f"wait status {status} (9: it hung)\n{text.decode()}"
