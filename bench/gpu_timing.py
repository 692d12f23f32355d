"""What the rows of bench/gpu.py share: times on the GPU, tensors, calls of ours and of PyTorch, the form of a row."""

import dataclasses
import math
import random
import statistics

import attngrad
import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = "cuda"
TOKENS, WIDTH = 16384, 2048  # of a problem, unless its row says otherwise; WIDTH: heads x head size
SLEEP = 2_000_000  # cycles of the GPU before a call, so that the host is ahead of it
RUN_MS = 8000  # a run takes no longer than this, or has 3 rounds
PRODUCTS = {"forward": 2, "vjp": 5, "jvp": 6, "vjp_jvp": 12, "jvp_jvp": 10}
CUDNN, FLASH = SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION


@dataclasses.dataclass
class Setting:
    """table: "sm80" or "sm90". rounds, runs: of a measurement. only_calls: nothing is timed, as the rows are wanted for
    their calls."""

    build: str
    table: str
    rounds: int
    runs: int
    only_calls: bool = False

    def goal(self, must, aim):
        """A goal of the table sm90; the portable kernels do not have it."""
        return (None, None) if self.table == "sm80" else (must, aim)


# ---- Times ----


class Time(float):
    """Milliseconds: the median of the rounds, the best of the runs. samples: the rounds of each run."""

    def __new__(cls, call, samples):
        time = super().__new__(cls, min(statistics.median(run) for run in samples))
        time.call, time.samples = call, samples
        return time


def time_once(call):
    first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(SLEEP)
    first.record()
    call()
    last.record()
    last.synchronize()
    return first.elapsed_time(last)


def works(name, call):
    """Runs a call twice, so that nothing is made for the first time later; prints why it cannot run."""
    try:
        for _ in range(2):
            call()
        torch.cuda.synchronize()
        return True
    except Exception as error:
        print(f"    {name}: not run: {(str(error) or repr(error)).splitlines()[0][:120]}", flush=True)
        torch.cuda.empty_cache()
        return False


def milliseconds(calls, setting):
    """The Time of each call by name. Each round has the calls in random order. Calls that fail are left out."""
    if setting.only_calls:
        return {name: Time(call, [[1.0]]) for name, call in calls.items()}
    names = [name for name, call in calls.items() if works(name, call)]
    round_ms = sum(time_once(calls[name]) for name in names)
    rounds = min(setting.rounds, max(3, int(RUN_MS / max(round_ms, 1e-3))))
    samples = {name: [[] for _ in range(setting.runs)] for name in names}
    for run in range(setting.runs):
        for _ in range(rounds):
            for name in random.sample(names, len(names)):
                samples[name][run].append(time_once(calls[name]))
    return {name: Time(calls[name], samples[name]) for name in names}


# ---- Tensors and calls ----


def tensors(count, *shape, dtype=torch.bfloat16):
    return [torch.randn(*shape, device=DEVICE, dtype=dtype) for _ in range(count)]


def square(dim, n, dtype=torch.bfloat16):
    """q, k, v and d_o; one sequence at least."""
    return tensors(4, max(1, TOKENS // n), WIDTH // dim, n, dim, dtype=dtype)


def fused(backend, *args, **keywords):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(*args, **keywords)


def forward_and_vjp(attention, q, k, v, d_o):
    """Forward and backward of a function of PyTorch; backward without the time of forward."""
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    saved = {}

    def backward():
        if "o" not in saved:
            saved["o"] = attention(*leaves)
        torch.autograd.grad(saved["o"], leaves, d_o, retain_graph=True)

    return lambda: attention(q, k, v), backward


def peer_calls(q, k, v, d_o, backend, causal=False, **keywords):
    """The same of one of PyTorch's kernels."""

    def attention(*x):
        return fused(backend, *x, is_causal=causal, **keywords)

    return forward_and_vjp(attention, q, k, v, d_o)


def our_calls(q, k, v, d_o, wanted=("dq", "dk", "dv"), **features):
    """Forward and vjp; without the gradients of bias and table, unless they are wanted."""
    f = attngrad.forward(q, k, v, **features)
    return (
        lambda: attngrad.forward(q, k, v, **features),
        lambda: attngrad.vjp(q, k, v, f.o, f.lse, d_o, wanted=wanted, **features),
    )


def second_calls(q, k, v, d_o, **features):
    """jvp and vjp_jvp along a direction of q, k, v and d_o; bias and table have no tangent."""
    t = attngrad.jvp(q, k, v, k, v, q, **features)
    wanted = ("tdq", "tdk", "tdv")
    return {
        "jvp": lambda: attngrad.jvp(q, k, v, k, v, q, **features),
        "vjp_jvp": lambda: attngrad.vjp_jvp(q, k, v, *t, d_o, k, v, q, td_o=q, wanted=wanted, **features),
    }


def named(prefix, pair):
    return {prefix + "forward": pair[0], prefix + "vjp": pair[1]}


def flops(name, pairs_of_a_token, tokens=TOKENS):
    """Of a map on tokens each of which sees so many keys."""
    return PRODUCTS[name] * 2 * tokens * pairs_of_a_token * WIDTH


# ---- Rows ----

NAMES_OF_DTYPES = {torch.bfloat16: "bfloat16", torch.float16: "float16", torch.float32: "float32"}


def at(name, dim, n, causal=False, dtype=torch.bfloat16):
    """The fields by which the tables of docs/gpu.md find a row."""
    return {"map": name, "dim": dim, "n": n, "causal": causal, "dtype": NAMES_OF_DTYPES[dtype]}


def quotient(a, b):
    return a / b if a and b else None


def row(group, case, ours=None, theirs=None, must=None, aim=None, **more):
    """A row of the report. value: our speed over theirs, unless `more` has one. ours, theirs: milliseconds. more: also
    tflops (our rate), flash_ms (PyTorch's FlashAttention), less_is_better, unit (of what is no time on the GPU), and
    the fields of `at`."""
    times = {"ours_ms": ours, "theirs_ms": theirs}
    timed = times | {"flash_ms": more.get("flash_ms")}
    samples = {name: time.samples for name, time in timed.items() if isinstance(time, Time)}
    found = {"row": group, "case": case, **times, "value": quotient(theirs, ours), "must": must, "aim": aim, **more}
    return found | {"samples": samples}


def rate(name, pairs_of_a_token, ms, tokens=TOKENS):
    """TFLOP/s, or None."""
    return flops(name, pairs_of_a_token, tokens) / ms / 1e9 if ms else None
