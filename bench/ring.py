"""attngrad.torch.ring_attention over processes of one machine, beside one process with as many threads:

    python3 bench/ring.py [--core FILE] [--ranks 1,2,4,8] [--threads 2] [--n 16384] [--ways queries,all_to_all]

float32, 8 heads of size 64, causal, forward and backward by autograd, gloo on the loopback. Prints the fewest seconds
in rounds in which the ways and the one process alternate; a time over ranks is that of the slowest. "one process": its
time over that of the ranks, on as many threads; "scaling": the time of one rank over that of P, divided by P. --core:
the extension module that CMake built, if the package is not installed. --seconds: no new round begins after so many."""

import argparse
import importlib.util
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
import traceback

HEADS, SIZE = 8, 64
ROUNDS = {1: 1, 2: 2}  # by ranks; otherwise MAX_ROUNDS
MAX_ROUNDS = 3
WARM_N = 512
ALONE = "one process"


# ---- A rank ----


def load_package(core):
    """attngrad from the sources, with this extension module."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "python"))
    spec = importlib.util.spec_from_file_location("attngrad._core", core)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attngrad._core"] = module
    spec.loader.exec_module(module)


def serve(options, rank, folder, pipe):
    """Answers (way, ranks, threads, n) with the seconds of forward and of backward on this rank, until None comes."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    if options.core:
        load_package(options.core)
    import torch.distributed as dist

    size = max(options.ranks)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=size)
    groups = {ranks: dist.new_group(range(ranks)) for ranks in options.ranks}
    while (order := pipe.recv()) is not None:
        way, ranks, threads, n = order
        try:
            pipe.send(seconds_of(way, groups[ranks], threads, n))
        except Exception:  # the parent reports it
            pipe.send(traceback.format_exc())


def seconds_of(way, group, threads, n):
    import torch
    import torch.distributed as dist

    from attngrad.torch import ring_attention, scaled_dot_product_attention, shard

    def barrier():
        if way != ALONE:
            dist.barrier(group)
        return time.perf_counter()

    torch.set_num_threads(threads)
    torch.manual_seed(0)
    whole = [torch.randn(1, HEADS, n, SIZE) for _ in range(4)]
    q, k, v, d_o = whole if way == ALONE else [shard(x, group) for x in whole]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    begin = barrier()
    if way == ALONE:
        o = scaled_dot_product_attention(*leaves, is_causal=True)
    else:
        o = ring_attention(*leaves, group, way, is_causal=True)
    forward, middle = time.perf_counter() - begin, barrier()
    torch.autograd.grad(o, leaves, d_o)
    return forward, time.perf_counter() - middle


# ---- All ranks ----


class Ranks:
    def __init__(self, options, folder):
        self.options = options
        context = multiprocessing.get_context("spawn")
        self.pipes, self.processes = [], []
        for rank in range(max(options.ranks)):
            ours, theirs = context.Pipe()
            self.processes.append(context.Process(target=serve, args=(options, rank, folder, theirs), daemon=True))
            self.processes[-1].start()
            self.pipes.append(ours)

    def close(self):
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join()

    def run(self, way, ranks, n):
        """Seconds of forward and backward of the slowest rank."""
        workers = 1 if way == ALONE else ranks
        threads = self.options.threads * ranks // workers
        for pipe in self.pipes[:workers]:
            pipe.send((way, ranks, threads, n))
        answers = [pipe.recv() for pipe in self.pipes[:workers]]
        for rank, answer in enumerate(answers):
            if isinstance(answer, str):
                sys.exit(f"rank {rank}: {answer}")
        return [max(times) for times in zip(*answers, strict=True)]

    def best(self, ranks, end):
        """The fewest seconds of forward and backward by way, with "one process" among the ways."""
        ways = [*(self.options.ways if ranks > 1 else self.options.ways[:1]), ALONE]  # one rank: all ways are the same
        found = {way: [float("inf")] * 2 for way in ways}
        for way in ways:
            self.run(way, ranks, WARM_N)
        for number in range(ROUNDS.get(ranks, MAX_ROUNDS)):
            if number > 0 and time.monotonic() > end:
                print(f"{ranks} ranks: {number} rounds only, the time is up")
                break
            for way in ways:
                found[way] = list(map(min, found[way], self.run(way, ranks, self.options.n)))
        return found


def table(options, ranks):
    end = time.monotonic() + options.seconds
    print(f"8 x {options.n} x 64, float32, causal; {options.threads} threads per rank; {os.cpu_count()} processors")
    print(f"{'ranks':>5} {'threads':>7} {'way':12} {'forward s':>10} {'backward s':>10} {ALONE:>12} {'scaling':>8}")
    first = None
    for number in options.ranks:
        if time.monotonic() > end:
            print(f"{number} ranks: not run, the time is up")
            continue
        found = ranks.best(number, end)
        alone = sum(found[ALONE])
        for way, (forward, backward) in found.items():
            total = forward + backward
            first = first or total * number
            right = "" if way == ALONE else f" {alone / total:12.2f} {first / (number * total):8.2f}"
            left = f"{number:5} {number * options.threads:7} {way:12} {forward:10.3f} {backward:10.3f}"
            print(left + right, flush=True)


def integers(text):
    return [int(word) for word in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--core")
    parser.add_argument("--ranks", type=integers, default=[1, 2, 4, 8])
    parser.add_argument("--threads", type=int, default=2, help="of each rank")
    parser.add_argument("--n", type=int, default=16384)
    parser.add_argument("--ways", type=lambda text: text.split(","), default=["queries", "all_to_all"])
    parser.add_argument("--seconds", type=float, default=70)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        ranks = Ranks(options, folder)
        table(options, ranks)
        ranks.close()


if __name__ == "__main__":
    main()
