"""Time and peak memory of a piece of work, on the CPU and on a GPU. A peak never falls, so each piece that is measured
runs in a process of its own."""

import multiprocessing
import resource
import signal
import sys
import time
from contextlib import contextmanager
from multiprocessing import resource_tracker

import torch

START = {"cpu": "fork", "cuda": "spawn"}  # of a process that uses this device: CUDA does not work after a fork


def peak_bytes():
    """The most memory of the host that this process has had at once."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def now(device):
    """The time in seconds, after the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


def measured(device, warm_up, work):
    """What work() returns, and its peak memory in bytes. On a GPU that is all that PyTorch's allocator gave out; on the
    CPU, what the process took in addition to warm_up(), a small piece of the same work, which loads what a first call
    loads."""
    warm_up()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return work(), torch.cuda.max_memory_allocated()
    before = peak_bytes()
    return work(), peak_bytes() - before


@contextmanager
def _without_ctrl_c():
    """Ctrl-C waits for the end, and processes that are started meanwhile never get it. A mask is one thread's, and
    PyTorch has others, which may take it: so it needs a handler too."""
    taken = []
    handler = signal.signal(signal.SIGINT, lambda *_: taken.append(True))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGINT, handler)
    if taken:
        raise KeyboardInterrupt


def in_own_process(function, *arguments, start="fork"):
    """What function(*arguments) returns in a new process; None if it ran out of memory. Ctrl-C reaches this process
    alone, which then ends the other."""
    context = multiprocessing.get_context(start)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_run, args=(there, function, arguments), daemon=True)
    if start == "spawn":
        resource_tracker.ensure_running()  # which process.start() would do, and unblock SIGINT
    try:
        with _without_ctrl_c():
            process.start()
        there.close()
        return here.recv()
    except EOFError:  # it ended without an answer
        process.join()
        if process.exitcode == -signal.SIGKILL:  # what the system does if memory is short
            return None
        sys.exit(f"the process that runs {function.__name__} ended with status {process.exitcode}")
    finally:
        if process.pid is not None:  # it was started
            process.kill()
            process.join()


def _run(connection, function, arguments):
    try:
        result = function(*arguments)
    except RuntimeError as error:
        if not isinstance(error, torch.OutOfMemoryError) and "DefaultCPUAllocator" not in str(error):
            raise
        result = None
    connection.send(result)


def in_words(seconds, size):
    """One measurement as the columns of a table."""
    return f"{1e3 * seconds:10,.1f} ms {size / 2**20:10,.1f} MiB"
