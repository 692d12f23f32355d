"""Short calls through PyTorch: python bench/torch_short.py [THREADS,...]

12 heads of 128 and of 512, D 64, float32 and bfloat16, forward and backward by autograd: the fewest microseconds of
attngrad.torch and of torch's scaled_dot_product_attention in rounds in which both alternate, and PyTorch's time over
ours. The environment needs PyTorch and the package. Default: one thread, then one per processor."""

import os
import sys
import time

import torch

import attngrad.torch as ours

HEADS, SIZE = 12, 64
ROUNDS, CALLS = 30, 20


def fastest(functions):
    """Minimal microseconds per call of each function."""
    best = [float("inf")] * len(functions)
    for _ in range(ROUNDS):
        for n, function in enumerate(functions):
            function()
            start = time.perf_counter()
            for _ in range(CALLS):
                function()
            best[n] = min(best[n], 1e6 * (time.perf_counter() - start) / CALLS)
    return best


def forward_and_backward(attention, q, k, v, d_o):
    """Two functions: a forward that records, and the backward of one that has run."""
    o = attention(q, k, v)
    return lambda: attention(q, k, v), lambda: torch.autograd.grad(o, (q, k, v), d_o, retain_graph=True)


def row(n, dtype, threads):
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, HEADS, n, SIZE, dtype=dtype, requires_grad=True) for _ in range(3))
    d_o = torch.randn(1, HEADS, n, SIZE, dtype=dtype)
    mine = forward_and_backward(ours.scaled_dot_product_attention, q, k, v, d_o)
    theirs = forward_and_backward(torch.nn.functional.scaled_dot_product_attention, q, k, v, d_o)
    name = str(dtype).removeprefix("torch.")
    for part, a, b in zip(("forward", "backward"), mine, theirs):
        own, other = fastest((a, b))
        print(f"{HEADS} x {n:4d} {name:9s} {part:9s} {threads:3d} {own:10.0f} {other:10.0f} {other / own:8.2f}")


def main():
    limit = len(os.sched_getaffinity(0))
    numbers = [int(word) for word in sys.argv[1].split(",")] if len(sys.argv) > 1 else sorted({1, limit})
    print("heads x N                  threads    ours us   torch us    ratio")
    for threads in numbers:
        torch.set_num_threads(threads)
        for n in (128, 512):
            for dtype in (torch.float32, torch.bfloat16):
                row(n, dtype, threads)


main()
