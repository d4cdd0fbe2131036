"""Threads that begin together, and forked processes; both fail instead of hanging."""

import os
import threading
import traceback

import torch

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
