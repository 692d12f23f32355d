"""The CUDA backend beside PyTorch on one GPU, in one run: bench/gpu.py BUILD [--quick] [--rows WORD,...]

BUILD is a build of the preset gpu (make bench-gpu). Times are medians of events on the GPU; the calls that are compared
alternate in random order. 16,384 tokens, heads x head size = 2,048, random data, unless a row says otherwise. Writes
BUILD/bench-gpu.json and, with matplotlib, a plot; prints a table with the figures that docs/gpu.md asks for."""

import argparse
import importlib.util
import json
import pathlib
import random
import re
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
ROUNDS, QUICK_ROUNDS = 9, 3
TOKENS, WIDTH = 16384, 2048
SLEEP = 400_000  # cycles of the GPU before a call, so that the host is ahead of it


def load_package(build):
    """attngrad from the sources, with the extension module of the build."""
    sys.path.insert(0, str(ROOT / "python"))
    (core,) = pathlib.Path(build).glob("python/_core*.so")
    spec = importlib.util.spec_from_file_location("attngrad._core", core)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attngrad._core"] = module
    spec.loader.exec_module(module)


def time_once(call):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP)
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def milliseconds(calls, rounds):
    """The median time of each call by name; calls that fail are left out, with the reason printed."""
    times = {}
    for name, call in calls.items():
        try:
            call()
            torch.cuda.synchronize()
            times[name] = []
        except (RuntimeError, NotImplementedError) as error:
            print(f"    {name}: not run: {str(error).splitlines()[0][:120]}")
            torch.cuda.empty_cache()
    for _ in range(rounds):
        for name in random.sample(list(times), len(times)):
            times[name].append(time_once(calls[name]))
    return {name: sorted(t)[len(t) // 2] for name, t in times.items()}


def tensors(count, *shape, dtype, requires_grad=False):
    return [torch.randn(*shape, device="cuda", dtype=dtype, requires_grad=requires_grad) for _ in range(count)]


def fused(backend, *args, **keywords):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*args, **keywords)


def peer_calls(q, k, v, d_o, backend, causal=False):
    """Forward and backward of PyTorch's kernel; backward without the time of forward."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    saved = {}

    def backward():
        if "o" not in saved:
            saved["o"] = fused(backend, *leaves, is_causal=causal)
        torch.autograd.grad(saved["o"], leaves, d_o, retain_graph=True)

    return lambda: fused(backend, q, k, v, is_causal=causal), backward


def our_calls(q, k, v, d_o, **features):
    f = attngrad.forward(q, k, v, **features)
    return (
        lambda: attngrad.forward(q, k, v, **features),
        lambda: attngrad.vjp(q, k, v, f.o, f.lse, d_o, **features),
    )


def square(dim, n, dtype):
    return tensors(4, TOKENS // n, WIDTH // dim, n, dim, dtype=dtype)


def flops(dim, n):
    """Of forward: two products."""
    return 4 * TOKENS * n * WIDTH


def ratio(row, name, ours, theirs, must, aim):
    """Our speed over theirs."""
    value = None if ours is None or theirs is None else theirs / ours
    return {"row": row, "case": name, "ours_ms": ours, "theirs_ms": theirs, "value": value, "must": must, "aim": aim}


# ---- The rows ----


def float32(rounds):
    for dim in (64, 128):
        for n in (2048, 8192):
            x = square(dim, n, torch.float32)
            calls = dict(zip(("forward", "vjp"), our_calls(*x)))
            calls |= dict(zip(("torch forward", "torch vjp"), peer_calls(*x, SDPBackend.EFFICIENT_ATTENTION)))
            ms = milliseconds(calls, rounds)
            for name, must, aim in (("forward", 2.0, 2.5), ("vjp", 1.6, 2.0)):
                yield ratio("float32", f"{name} D{dim} N{n}", ms.get(name), ms.get("torch " + name), must, aim)


PRODUCTS = {"forward": 2, "vjp": 5, "jvp": 6, "vjp_jvp": 12, "jvp_jvp": 10}


def float32_derivatives(rounds):
    for dim in (64, 128):
        n = 2048
        q, k, v, d_o = square(dim, n, torch.float32)
        f, t = attngrad.forward(q, k, v), attngrad.jvp(q, k, v, q, k, v)
        calls = {
            "vjp": lambda: attngrad.vjp(q, k, v, *f, d_o),
            "jvp": lambda: attngrad.jvp(q, k, v, q, k, v),
            "vjp_jvp": lambda: attngrad.vjp_jvp(q, k, v, *t, d_o, q, k, v),
            "jvp_jvp": lambda: attngrad.jvp_jvp(q, k, v, *f, t.mu, t.mu, q, k, v, k, k, k),
        }
        ms = milliseconds(calls, rounds)
        rates = {name: PRODUCTS[name] * flops(dim, n) / 2 / time for name, time in ms.items()}
        for name in ("jvp", "vjp_jvp", "jvp_jvp"):
            goal = (0.65, 0.9) if name != "jvp_jvp" else (None, None)
            row = ratio("float32 derivatives", f"rate of {name} over vjp's D{dim} N{n}", ms.get(name), None, *goal)
            row["value"] = rates[name] / rates["vjp"] if name in rates else None
            yield row


def float64(rounds):
    size = 8192
    a, b = tensors(2, size, size, dtype=torch.float64)
    probe = 2 * size**3 / milliseconds({"probe": lambda: a @ b}, rounds)["probe"]
    for dim in (64, 128):
        n = 2048
        x = square(dim, n, torch.float64)
        ms = milliseconds(dict(zip(("forward", "vjp"), our_calls(*x))), rounds)
        for name, must, aim in (("forward", 0.45, 0.58), ("vjp", 0.30, 0.40)):
            row = ratio("float64", f"{name} D{dim} N{n}, share of {probe / 1e9:.0f} TFLOP/s", ms.get(name), None, must, aim)
            row["value"] = PRODUCTS[name] / 2 * flops(dim, n) / ms[name] / probe if name in ms else None
            yield row


def bfloat16(rounds):
    for dim in (64, 128):
        for n in (2048, 8192):
            for causal in (False, True):
                x = square(dim, n, torch.bfloat16)
                calls = dict(zip(("forward", "vjp"), our_calls(*x, causal=causal)))
                peer = peer_calls(*x, SDPBackend.CUDNN_ATTENTION, causal)
                calls |= dict(zip(("torch forward", "torch vjp"), peer))
                ms = milliseconds(calls, rounds)
                for name, must, aim in (("forward", 0.42, 0.50), ("vjp", 0.28, 0.40)):
                    case = f"{name} D{dim} N{n}{' causal' * causal} over cuDNN's"
                    yield ratio("bfloat16", case, ms.get(name), ms.get("torch " + name), must, aim)


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


def double_backward(rounds):
    for dtype, must, memory in ((torch.bfloat16, (3, 5), (50, 70)), (torch.float32, (1.7, 2.5), (20, 30))):
        for n in (8192, 4096):
            x = tensors(3, 2, 16, n, 128, dtype=dtype)
            calls = {"ours": lambda: second_order(sdpa, *x), "torch": lambda: second_order(unfused, *x)}
            ms = milliseconds(calls, max(3, rounds // 3))
            case = f"{str(dtype).removeprefix('torch.')} B2 H16 N{n} D128"
            if "torch" not in ms:
                continue  # out of memory: the reason is printed
            yield ratio("double backward", case, ms.get("ours"), ms["torch"], *must)
            peaks = {name: call() / 2**20 for name, call in calls.items() if name in ms}
            row = ratio("double backward memory, MiB", case, peaks.get("ours"), peaks["torch"], *memory)
            yield row
            break


def bias_gradient(rounds):
    shape, dtype = (384, 4, 384, 32), torch.bfloat16
    q, k, v, d_o = tensors(4, *shape, dtype=dtype)
    bias = torch.randn(1, 4, 384, 384, device="cuda", dtype=dtype)
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
    calls["cudnn"] = peer(SDPBackend.CUDNN_ATTENTION)
    ms = milliseconds(calls, rounds)
    best = min((t for name, t in ms.items() if name != "ours"), default=None)
    yield ratio("bias and its gradient", "384 x 4 heads of 384, D32, forward + vjp", ms.get("ours"), best, 1.2, 3)


def small(rounds):
    peers = {"flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}
    peers |= {"cudnn": SDPBackend.CUDNN_ATTENTION, "unfused": SDPBackend.MATH}
    cases = {"4,096 heads of 64 x 64, D64": ((128, 32, 64, 64), (128, 32, 64, 64), (0.8, 1.2))}
    cases["one query, 8,192 keys, 32 heads, D128"] = ((1, 32, 1, 128), (1, 32, 8192, 128), (0.6, 1.0))
    for case, (q_shape, k_shape, goal) in cases.items():
        (q,), (k, v) = tensors(1, *q_shape, dtype=torch.bfloat16), tensors(2, *k_shape, dtype=torch.bfloat16)
        calls = {name: (lambda b=b: fused(b, q, k, v)) for name, b in peers.items()}
        calls["ours"] = lambda: attngrad.forward(q, k, v)
        ms = milliseconds(calls, 3 * rounds)
        best = min((t for name, t in ms.items() if name != "ours"), default=None)
        yield ratio("small and decode", case, ms.get("ours"), best, *goal)


def host(rounds, build):
    """Microseconds; here less is better."""
    problem = "b1 h8 q128 d64 bf16"
    command = [f"{build}/tests/gpu_host", problem]
    text = subprocess.run(command, capture_output=True, text=True, env=ENVIRONMENT | {"ATTNGRAD_BACKEND": "cuda"}).stdout
    found = re.search(r"forward ([0-9.]+) us, vjp ([0-9.]+) us", text)
    us = dict(zip(("C forward", "C vjp"), map(float, found.groups()))) if found else {}
    x = torch.randn(1, 8, 128, 64, device="cuda", dtype=torch.bfloat16)
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
        row = ratio("host time, us", name, us.get(name), None, must, aim)
        row["value"], row["less_is_better"] = us.get(name), True
        yield row


ROWS = {
    "float32": float32,
    "derivatives": float32_derivatives,
    "float64": float64,
    "bfloat16": bfloat16,
    "double": double_backward,
    "bias": bias_gradient,
    "small": small,
    "host": host,
}


# ---- The report ----


def verdict(row):
    if row["value"] is None:
        return "not measured"
    if row["must"] is None:
        return ""
    sign = -1 if row.get("less_is_better") else 1
    value = sign * row["value"]
    return "aim" if value >= sign * row["aim"] else "must" if value >= sign * row["must"] else "BELOW"


def line(row):
    numbers = [f"{row[n]:.3f}" if row[n] is not None else "-" for n in ("ours_ms", "theirs_ms", "value")]
    goals = f"{row['must']} / {row['aim']}" if row["must"] is not None else ""
    return f"| {row['row']} | {row['case']} | {' | '.join(numbers)} | {goals} | {verdict(row)} |"


def plot(results, stem):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for r in results if r["value"] is not None and not r.get("less_is_better") and r["must"]]
    figure, axis = pyplot.subplots(figsize=(9, 0.28 * len(shown) + 1.5))
    axis.barh([f"{r['row']}: {r['case']}" for r in shown], [r["value"] / r["must"] for r in shown])
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xlabel("value / what it must be")
    axis.invert_yaxis()
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", default=",".join(ROWS))
    options = parser.parse_args()
    rounds, results = QUICK_ROUNDS if options.quick else ROUNDS, []
    about = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "attngrad": attngrad.__version__}
    about["commit"] = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True
    ).stdout.strip()
    print(about)
    print("| row | case | ours ms | theirs ms | value | must / aim | |\n|---|---|---|---|---|---|---|")
    stem = pathlib.Path(options.build) / "bench-gpu"
    for name in options.rows.split(","):
        arguments = (rounds, options.build) if name == "host" else (rounds,)
        try:
            for row in ROWS[name](*arguments):
                results.append(row)
                print(line(row), flush=True)
        except Exception as error:  # the other rows are still worth their time
            print(f"    {name}: failed: {error!r}", flush=True)
            results.append(ratio(name, "failed", None, None, None, None) | {"error": repr(error)})
        torch.cuda.empty_cache()
        stem.with_suffix(".json").write_text(json.dumps({"about": about, "rows": results}, indent=1))
    plot(results, stem)


if __name__ == "__main__":
    import os

    import torch
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    ENVIRONMENT = dict(os.environ)
    load_package(sys.argv[1])
    import attngrad
    from attngrad.torch import scaled_dot_product_attention as sdpa

    main()
