"""Rows of bench/gpu.py that every table of kernels has: float32, float64, the portable kernels in bfloat16, double
backward, the gradient of a bias, short heads and few queries, host time. Each is a generator of rows; the numbers at
the end of a row's call are what it must reach, and what it aims at."""

import os
import re
import subprocess
import time

import attngrad
import torch
from attngrad.torch import scaled_dot_product_attention as sdpa
from gpu_timing import (
    CUDNN,
    DEVICE,
    SDPBackend,
    at,
    flops,
    fused,
    milliseconds,
    named,
    our_calls,
    peer_calls,
    quotient,
    rate,
    row,
    second_calls,
    square,
    tensors,
)


def float32(setting):
    goals = {"forward": (3.3, 4.2) if setting.table == "sm90" else (2.0, 2.5), "vjp": (1.6, 2.0)}
    for dim in (64, 128):
        for n in (2048, 8192):
            x = square(dim, n, torch.float32)
            calls = named("", our_calls(*x)) | named("torch ", peer_calls(*x, SDPBackend.EFFICIENT_ATTENTION))
            ms = milliseconds(calls, setting)
            for name, goal in goals.items():
                ours, theirs = ms.get(name), ms.get("torch " + name)
                place = at(name, dim, n, dtype=torch.float32)
                yield row("float32", f"{name} D{dim} N{n}", ours, theirs, *goal, tflops=rate(name, n, ours), **place)


def derivative_calls(q, k, v, d_o, **features):
    """The five maps; a direction of q, k, v and d_o."""
    f, t = attngrad.forward(q, k, v, **features), attngrad.jvp(q, k, v, k, v, q, **features)

    def jvp_jvp():
        attngrad.jvp_jvp(q, k, v, *f, t.mu, t.mu, k, v, q, k, v, q, **features)

    calls = named("", our_calls(q, k, v, d_o, **features)) | second_calls(q, k, v, d_o, **features)
    return calls | {"jvp_jvp": jvp_jvp}


def derivative_rows(group, setting, dtype, goals, causal=False):
    """goals: of each map the map whose rate it is compared with, must and aim."""
    for dim in (64, 128):
        for n in (2048, 8192):
            ms = milliseconds(derivative_calls(*square(dim, n, dtype), causal=causal), setting)
            rates = {name: rate(name, n / 2 if causal else n, time) for name, time in ms.items()}
            for name, (other, must, aim) in goals.items():
                value = quotient(rates.get(name), rates.get(other))
                case = f"rate of {name} over {other}'s D{dim} N{n}{' causal' * causal}"
                place = at(name, dim, n, causal, dtype)
                yield row(group, case, ms.get(name), None, must, aim, value=value, tflops=rates.get(name), **place)


def float32_derivatives(setting):
    goals = {"jvp": ("vjp", 0.65, 0.9), "vjp_jvp": ("vjp", 0.65, 0.9), "jvp_jvp": ("vjp", None, None)}
    yield from derivative_rows("float32 derivatives", setting, torch.float32, goals)


def probe(setting):
    """The operations per second of the tensor cores in float64, as the command measures them: its best of five."""
    command = [f"{setting.build}/cli/attngrad", "bench", "h1 q64 d64 f64", "--backend", "cuda", "--map", "forward"]
    if setting.only_calls:
        return 1.0
    done = subprocess.run(command, capture_output=True, text=True)
    found = re.search(r"tensor cores in f64: ([0-9.]+) GFLOP/s", done.stdout)
    if not found:
        reason = (done.stderr.strip().splitlines() or ["it printed no probe"])[-1]
        raise RuntimeError(f"{' '.join(command[:2])}: {reason}")
    return 1e9 * float(found[1])


def float64(setting):
    """Shares of the probe, which runs before and after the maps of each head size."""
    n, before = 2048, probe(setting)
    for dim in (64, 128):
        ms = milliseconds(named("", our_calls(*square(dim, n, torch.float64))), setting)
        after = probe(setting)
        best, before = max(before, after), after
        for name, must, aim in (("forward", 0.45, 0.58), ("vjp", 0.30, 0.40)):
            ours = ms.get(name)
            case = f"{name} D{dim} N{n}, share of the tensor cores' probe"
            value = flops(name, n) / (ours / 1e3) / best if ours else None
            more = {"value": value, "tflops": rate(name, n, ours), "probe_tflops": best / 1e12}
            yield row("float64", case, ours, None, must, aim, **more)


def bfloat16(setting):
    """The portable kernels: their goals are shares of cuDNN's speed."""
    for dim in (64, 128):
        for n in (2048, 8192):
            for causal in (False, True):
                x, pairs = square(dim, n), n / 2 if causal else n
                calls = named("", our_calls(*x, causal=causal)) | named("torch ", peer_calls(*x, CUDNN, causal))
                ms = milliseconds(calls, setting)
                for name, must, aim in (("forward", 0.42, 0.50), ("vjp", 0.28, 0.40)):
                    case = f"{name} D{dim} N{n}{' causal' * causal} over cuDNN's"
                    ours, theirs = ms.get(name), ms.get("torch " + name)
                    more = {"tflops": rate(name, pairs, ours)} | at(name, dim, n, causal)
                    yield row("bfloat16", case, ours, theirs, must, aim, **more)


def second_order(attention, q, k, v):
    """Forward, backward and double backward; returns the peak of memory."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    torch.cuda.reset_peak_memory_stats()
    o = attention(*leaves)
    gradients = torch.autograd.grad(o, leaves, torch.ones_like(o), create_graph=True)
    torch.autograd.grad(gradients, leaves, [torch.ones_like(g) for g in gradients])
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated()


def unfused(q, k, v):
    return fused(SDPBackend.MATH, q, k, v)


def double_backward(setting):
    hopper = setting.table == "sm90"
    goals = {torch.bfloat16: ((10, 13) if hopper else (3, 5), (50, 70)), torch.float32: ((1.7, 2.5), (20, 30))}
    for dtype, (goal, memory) in goals.items():
        for n in (8192, 4096):
            x = tensors(3, 2, 16, n, 128, dtype=dtype)
            calls = {"ours": lambda: second_order(sdpa, *x), "torch": lambda: second_order(unfused, *x)}
            ms = milliseconds(calls, setting)
            case = f"{str(dtype).removeprefix('torch.')} B2 H16 N{n} D128"
            if "torch" not in ms:
                continue  # out of memory: the reason is printed
            yield row("double backward", case, ms.get("ours"), ms["torch"], *goal)
            if not setting.only_calls:
                peaks = {name: call() / 2**20 for name, call in calls.items() if name in ms}
                more = {"unit": "MiB"}
                yield row("double backward memory, MiB", case, peaks.get("ours"), peaks["torch"], *memory, **more)
            break
        else:
            yield row("double backward", case, must=goal[0], aim=goal[1])


def bias_gradient(setting):
    q, k, v, d_o = tensors(4, 384, 4, 384, 32)
    (bias,) = tensors(1, 1, 4, 384, 384)
    f = attngrad.forward(q, k, v, bias=bias)

    def ours():
        attngrad.forward(q, k, v, bias=bias)
        attngrad.vjp(q, k, v, *f, d_o, bias=bias)

    def peer(backend):
        leaves = [x.detach().clone().requires_grad_() for x in (q, k, v, bias)]

        def run():
            o = fused(backend, *leaves[:3], attn_mask=leaves[3].expand(384, -1, -1, -1))
            torch.autograd.grad(o, leaves, d_o)

        return run

    calls = {"ours": ours, "efficient": peer(SDPBackend.EFFICIENT_ATTENTION), "unfused": peer(SDPBackend.MATH)}
    calls["cudnn"] = peer(CUDNN)
    ms = milliseconds(calls, setting)
    best = min((t for name, t in ms.items() if name != "ours"), default=None)
    yield row("bias and its gradient", "384 x 4 heads of 384, D32, forward + vjp", ms.get("ours"), best, 1.2, 3)


def small(setting):
    peers = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    peers |= {"cudnn": CUDNN, "unfused": SDPBackend.MATH}
    cases = {"4,096 heads of 64 x 64, D64": ((128, 32, 64, 64), (128, 32, 64, 64), (0.8, 1.2))}
    for count, name in ((1, "one query"), (4, "4 queries"), (16, "16 queries")):
        cases[f"{name}, 8,192 keys, 32 heads, D128"] = ((1, 32, count, 128), (1, 32, 8192, 128), (0.6, 1.0))
    for case, (q_shape, k_shape, goal) in cases.items():
        (q,), (k, v) = tensors(1, *q_shape), tensors(2, *k_shape)
        calls = {name: (lambda b=b: fused(b, q, k, v)) for name, b in peers.items()}
        calls["ours"] = lambda: attngrad.forward(q, k, v)
        ms = milliseconds(calls, setting)
        best = min((t for name, t in ms.items() if name != "ours"), default=None)
        yield row("small and decode", case, ms.get("ours"), best, *goal)


def host_in_c(program):
    """Of forward and vjp, by name; without those that failed, whose message is printed."""
    environment = os.environ | {"ATTNGRAD_BACKEND": "cuda"}
    try:
        done = subprocess.run([program, "b1 h8 q128 d64 bf16"], capture_output=True, text=True, env=environment)
    except OSError as error:
        print(f"    host: not run: {error}", flush=True)
        return {}
    found = re.search(r"forward ([0-9.]+) us, vjp ([0-9.]+) us", done.stdout)
    if done.returncode != 0 or not found:
        words = (done.stderr.strip() or done.stdout.strip() or "it printed nothing")[-1000:]
        print(f"    host: gpu_host ended with status {done.returncode}: {words}", flush=True)
        return {}
    return dict(zip(("C forward", "C vjp"), map(float, found.groups())))


def host(setting):
    """Microseconds; here less is better."""
    if setting.only_calls:
        return
    us = host_in_c(f"{setting.build}/tests/gpu_host")
    x = torch.randn(1, 8, 128, 64, device=DEVICE, dtype=torch.bfloat16)
    best = 1e9
    with torch.no_grad():
        for _ in range(20):
            torch.cuda.synchronize()
            begin = time.perf_counter()
            for _ in range(50):
                sdpa(x, x, x)
            best = min(best, (time.perf_counter() - begin) / 50 * 1e6)
    us["torch forward, unrecorded"] = best
    for name, must, aim in (("C forward", 8, 5), ("C vjp", 14, 9), ("torch forward, unrecorded", 45, 30)):
        more = {"value": us.get(name), "less_is_better": True, "unit": "us"}
        yield row("host time, us", name, us.get(name), None, must, aim, **more)


ROWS = {
    "float32": float32,
    "derivatives32": float32_derivatives,
    "float64": float64,
    "bfloat16": bfloat16,
    "double": double_backward,
    "bias": bias_gradient,
    "small": small,
    "host": host,
}
