"""attngrad.jax beside jax.nn.dot_product_attention on two processors: python bench/jax_speed.py [N] [ROUNDS]

Prints tables in Markdown. B1 H8 D64 float32 and N positions (2048), full and causal: the fewest milliseconds of several
rounds in which both alternate, their ratio, and the temporary memory in MiB: the buffers of the compiled programs and,
for attngrad, the workspace that the handler takes beside them. Then what a jitted call costs: one row, whose work is
nothing. The environment needs JAX and the package. XLA takes one thread per processor that it may run on."""

import os
import sys
import time

PROCESSORS = sorted(os.sched_getaffinity(0))[:2]
os.sched_setaffinity(0, PROCESSORS)  # before XLA counts them

import jax  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import numpy as np  # noqa: E402

import attngrad  # noqa: E402
from attngrad import _core, _plan  # noqa: E402
from attngrad.jax import dot_product_attention  # noqa: E402

HEADS, SIZE = 8, 64
# The ratios to jax.nn that are wanted at N = 2048, by (causal, program).
GOALS = {
    (False, "forward"): 3.5,
    (False, "gradient"): 3.5,
    (False, "hvp, vjp of grad"): 5.0,
    (True, "forward"): 5.0,
    (True, "gradient"): 8.0,
}
# The maps that a program runs.
_GRADIENT = _core.MAP_FORWARD | _core.MAP_VJP
_HVP = _GRADIENT | _core.MAP_JVP | _core.MAP_VJP_JVP
MAPS = {
    "forward": _core.MAP_FORWARD,
    "gradient": _GRADIENT,
    "jvp": _core.MAP_FORWARD | _core.MAP_JVP,
    "hvp, jvp of grad": _HVP,
    "hvp, vjp of grad": _HVP,
    "jvp of jvp": _core.MAP_FORWARD | _core.MAP_JVP | _core.MAP_JVP_JVP,
}


def workspace(name, n, causal):
    """MiB that the handler takes while a program runs, outside XLA's buffers: a call at a time."""
    text = f"b1 h{HEADS} kv{HEADS} q{n} k{n} d{SIZE} dv{SIZE} f32{' causal' if causal else ''}"
    return _plan.get(text, threads=len(PROCESSORS)).workspace(MAPS[name]) / 2**20


def programs(attention):
    """Compiled functions of (w, q, k, v, tq, tk, tv), by name; w are the weights of the loss."""
    loss = lambda w: lambda *x: (attention(*x) * w).sum()  # noqa: E731
    gradient = lambda w: jax.grad(loss(w), (0, 1, 2))  # noqa: E731
    functions = {
        "forward": lambda w, *a: attention(*a[:3]),
        "gradient": lambda w, *a: jax.value_and_grad(loss(w), (0, 1, 2))(*a[:3]),
        "jvp": lambda w, *a: jax.jvp(attention, a[:3], a[3:]),
        "hvp, jvp of grad": lambda w, *a: jax.jvp(gradient(w), a[:3], a[3:]),
        "hvp, vjp of grad": lambda w, *a: jax.vjp(gradient(w), *a[:3])[1](a[3:]),
        "jvp of jvp": lambda w, *a: jax.jvp(lambda *x: jax.jvp(attention, x, a[3:])[1], a[:3], a[3:])[1],
    }
    return {name: jax.jit(f) for name, f in functions.items()}


def milliseconds(f, args):
    start = time.perf_counter()
    jax.block_until_ready(f(*args))
    return 1e3 * (time.perf_counter() - start)


def compare(pair, args, rounds):
    """The fewest milliseconds of both, and their temporary memory in MiB."""
    compiled = [f.lower(*args).compile() for f in pair]
    sizes = [f.memory_analysis().temp_size_in_bytes / 2**20 for f in compiled]
    times = [[milliseconds(f, args)] for f in compiled]
    for _ in range(rounds):
        for f, measured in zip(compiled, times, strict=True):
            measured.append(milliseconds(f, args))
    return [min(t[1:]) for t in times], sizes


def print_row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def print_speed(n, rounds, causal):
    columns = "attngrad ms", "jax.nn ms", "ratio", "goal", "attngrad MiB", "jax.nn MiB"
    print_row(f"N{n}{', causal' if causal else ''}", *columns)
    print("|---" + "|---:" * len(columns) + "|")
    rng = np.random.default_rng(0)
    args = [jnp.asarray(rng.standard_normal((1, n, HEADS, SIZE), np.float32)) for _ in range(7)]
    attentions = dot_product_attention, jax.nn.dot_product_attention
    ours, theirs = (programs(lambda *x, f=f: f(*x, is_causal=causal)) for f in attentions)
    for name in ours:
        (a, b), (a_size, b_size) = compare((ours[name], theirs[name]), args, rounds)
        goal = GOALS.get((causal, name), "") if n == 2048 else ""
        memory = f"{a_size:,.1f} + {workspace(name, n, causal):,.1f}"
        print_row(name, f"{a:,.1f}", f"{b:,.1f}", f"{b / a:.2f}", f"{goal}", memory, f"{b_size:,.1f}")
    print()


def overhead(calls=2000, rounds=7):
    """Microseconds of a jitted call on one row, the fewest of several rounds in which both alternate."""
    q = jnp.ones((1, 1, 1, 8), jnp.float32)
    functions = [jax.jit(lambda q, f=f: f(q, q, q)) for f in (dot_product_attention, jax.nn.dot_product_attention)]
    fewest = [float("inf")] * 2
    for _ in range(rounds):
        for i, f in enumerate(functions):
            f(q).block_until_ready()
            start = time.perf_counter()
            for _ in range(calls):
                y = f(q)
            y.block_until_ready()
            fewest[i] = min(fewest[i], 1e6 * (time.perf_counter() - start) / calls)
    return fewest


def print_overhead():
    ours, theirs = overhead()
    print_row("a jitted call of one row", "attngrad us", "jax.nn us", "goal: at most us")
    print("|---" + "|---:" * 3 + "|")
    print_row("forward", f"{ours:.1f}", f"{theirs:.1f}", f"{max(2 * theirs, theirs + 6):.1f}")


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[1:]]
    n, rounds = numbers + [2048, 5][len(numbers) :]
    versions = f"attngrad {attngrad.__version__}, JAX {jax.__version__}"
    print(f"{versions}, {len(PROCESSORS)} threads, B1 H{HEADS} D{SIZE} float32\n")
    for causal in (False, True):
        print_speed(n, rounds, causal)
    print_overhead()
