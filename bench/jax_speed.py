"""attngrad.jax beside jax.nn.dot_product_attention on the CPU: python bench/jax_speed.py [N] [ROUNDS]

B1 H8 D64 float32 and N positions (2048), full and causal: the fewest milliseconds of several rounds in which both
alternate, their ratio, and the temporary memory: the buffers of the compiled programs and, for attngrad, the workspace
that the handler takes beside them. Then what a jitted call costs: one row, whose
work is nothing. The environment needs JAX and the package; the number of threads is XLA's, one per processor."""

import os
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np

from attngrad import _core, _plan
from attngrad.jax import dot_product_attention

HEADS, SIZE = 8, 64
# The ratios to jax.nn that issue 28 asks for, by (causal, program).
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
    return _plan.get(text, threads=os.cpu_count()).workspace(MAPS[name]) / 2**20


def programs(attention, w):
    """Compiled functions of (q, k, v, tq, tk, tv), by name."""
    loss = lambda *x: (attention(*x) * w).sum()  # noqa: E731
    gradient = jax.grad(loss, (0, 1, 2))
    functions = {
        "forward": lambda *a: attention(*a[:3]),
        "gradient": lambda *a: jax.value_and_grad(loss, (0, 1, 2))(*a[:3]),
        "jvp": lambda *a: jax.jvp(attention, a[:3], a[3:]),
        "hvp, jvp of grad": lambda *a: jax.jvp(gradient, a[:3], a[3:]),
        "hvp, vjp of grad": lambda *a: jax.vjp(gradient, *a[:3])[1](a[3:]),
        "jvp of jvp": lambda *a: jax.jvp(lambda *x: jax.jvp(attention, x, a[3:])[1], a[:3], a[3:])[1],
    }
    return {name: jax.jit(f) for name, f in functions.items()}


def milliseconds(f, args):
    start = time.perf_counter()
    jax.block_until_ready(f(*args))
    return 1e3 * (time.perf_counter() - start)


def compare(name, pair, args, rounds):
    """The fewest milliseconds of both, and their temporary memory in MiB."""
    compiled = [f.lower(*args).compile() for f in pair]
    sizes = [f.memory_analysis().temp_size_in_bytes / 2**20 for f in compiled]
    times = [[milliseconds(f, args)] for f in compiled]
    for _ in range(rounds):
        for f, seconds in zip(compiled, times, strict=True):
            seconds.append(milliseconds(f, args))
    return [min(t[1:]) for t in times], sizes


def speed(n, rounds):
    rng = np.random.default_rng(0)
    *args, w = (jnp.asarray(rng.standard_normal((1, n, HEADS, SIZE), np.float32)) for _ in range(7))
    for causal in (False, True):
        print(f"B1 H{HEADS} N{n} D{SIZE} float32{', causal' if causal else ''}: ms, ratio, MiB of buffers + workspace")
        attentions = (
            lambda *x: dot_product_attention(*x, is_causal=causal),  # noqa: B023
            lambda *x: jax.nn.dot_product_attention(*x, is_causal=causal),  # noqa: B023
        )
        ours, theirs = (programs(f, w) for f in attentions)
        for name in ours:
            (a, b), sizes = compare(name, (ours[name], theirs[name]), args, rounds)
            goal = GOALS.get((causal, name))
            wanted = f"  goal {goal}" if goal and n == 2048 else ""
            print(
                f"  {name:18}{a:9.1f}   jax.nn {b:9.1f}   {b / a:5.2f} x   "
                f"{sizes[0]:7.1f} + {workspace(name, n, causal):.1f}, jax.nn {sizes[1]:7.1f}{wanted}",
                flush=True,
            )


def overhead(calls=2000, rounds=7):
    """Microseconds of a jitted call on one row, the fewest of several rounds in which both alternate."""
    q = jnp.ones((1, 1, 1, 8), jnp.float32)
    functions = {
        "attngrad": jax.jit(lambda q: dot_product_attention(q, q, q)),
        "jax.nn": jax.jit(lambda q: jax.nn.dot_product_attention(q, q, q)),
    }
    fewest = dict.fromkeys(functions, float("inf"))
    for _ in range(rounds):
        for name, f in functions.items():
            f(q).block_until_ready()
            start = time.perf_counter()
            for _ in range(calls):
                y = f(q)
            y.block_until_ready()
            fewest[name] = min(fewest[name], 1e6 * (time.perf_counter() - start) / calls)
    return fewest


if __name__ == "__main__":
    numbers = [int(x) for x in sys.argv[1:]]
    speed(*(numbers + [2048, 5][len(numbers) :]))
    print("a jitted call of one row:", ", ".join(f"{n} {t:.1f} microseconds" for n, t in overhead().items()))
