"""What a call from Python costs above the C call: python bench/overhead.py [torch | features]

A small forward and vjp on one thread; with `torch` the same forward by attngrad.torch, with `features` that forward
with tensors beside q, k and v, above the C call without them. The C call is
not timed directly: it is Plan.run on ready views minus Plan.run on an empty batch, which has the overhead of the
binding and no work. Times are processor time of this thread, the minimum of several rounds in which the cases
alternate, so that other load affects all of them alike. With PyTorch ten additions of small tensors are timed beside
each call: by them machines can be compared, and one machine with itself under other load."""

import sys
import time

import numpy as np

import attngrad
from attngrad import _core
from attngrad._call import Call


def fastest(*functions, rounds=60, calls=150):
    """Minimal microseconds per call of each function."""
    times = [[] for _ in functions]
    for _ in range(rounds):
        for function, seconds in zip(functions, times):
            start = time.thread_time()
            for _ in range(calls):
                function()
            seconds.append((time.thread_time() - start) / calls)
    return [1e6 * min(seconds) for seconds in times]


def overhead(call, bare, empty, yardstick=lambda: None):
    """Of a call, given Plan.run on the same arrays (bare) and on an empty batch: call - (bare - empty). And the time of
    the yardstick."""
    call, bare, empty, unit = fastest(call, bare, empty, yardstick)
    return call - bare + empty, unit


def bare_run(map, outputs, arrays, features, **inputs):
    call = Call(*arrays, features)
    call.take(**inputs)
    results = call.make(outputs)
    return lambda: (call.run(map), results)  # results: keeps the arrays alive


def above(microseconds):
    return f"{microseconds:6.1f} microseconds above the C call"


def measure() -> dict[str, str]:
    """What to print, by the name of the case."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((2, 4, 8, 16), dtype=np.float32) for _ in range(3))
    empty_arrays = [x[:0] for x in (q, k, v)]
    plain, with_features = (
        {"threads": 1},
        {"threads": 1, "causal": True, "softcap": 20.0, "window": (4, 0), "kv_lengths": [8, 5]},
    )
    results = {}
    for name, features in (("forward", plain), ("forward with features", with_features)):
        empty_features = features | ({"kv_lengths": []} if "kv_lengths" in features else {})
        microseconds, _ = overhead(
            lambda f=features: attngrad.forward(q, k, v, **f),
            bare_run(_core.MAP_FORWARD, ("o", "lse"), (q, k, v), features),
            bare_run(_core.MAP_FORWARD, ("o", "lse"), empty_arrays, empty_features),
        )
        results[name] = above(microseconds)
    o, lse = attngrad.forward(q, k, v, **plain)
    gradients = ("dq", "dk", "dv")
    microseconds, _ = overhead(
        lambda: attngrad.vjp(q, k, v, o, lse, o, **plain),
        bare_run(_core.MAP_VJP, gradients, (q, k, v), plain, o=o, lse=lse, d_o=o),
        bare_run(_core.MAP_VJP, gradients, empty_arrays, plain, o=o[:0], lse=lse[:0], d_o=o[:0]),
    )
    return results | {"vjp": above(microseconds)}


def measure_torch(cases=None) -> dict[str, str]:
    """Cases: features by name; without any, a plain call."""
    import torch

    from attngrad.torch import scaled_dot_product_attention

    torch.set_num_threads(1)
    q, k, v = torch.randn(3, 2, 4, 8, 16)
    arrays = [x.numpy() for x in (q, k, v)]
    bare = bare_run(_core.MAP_FORWARD, ("o", "lse"), arrays, {"threads": 1})
    empty = bare_run(_core.MAP_FORWARD, ("o", "lse"), [x[:0] for x in arrays], {"threads": 1})
    results = {}
    for case, features in (cases or {"torch": {}}).items():
        for name, recorded in (("nothing recorded", False), ("recorded", True)):
            q.requires_grad_(recorded)
            call = lambda f=features: scaled_dot_product_attention(q, k, v, **f)  # noqa: E731
            microseconds, additions = overhead(call, bare, empty, lambda: [q + k for _ in range(10)])
            times = microseconds / additions
            results[f"{case}, {name}"] = f"{above(microseconds)}, {times:.2f} times ten additions by PyTorch"
    return results


def measure_features() -> dict[str, str]:
    import torch

    return measure_torch(
        {
            "kv_lengths": {"kv_lengths": torch.tensor([8, 5])},
            "attn_mask": {"attn_mask": torch.ones(2, 1, 1, 8, dtype=torch.bool)},
            "sink": {"sink": torch.randn(4)},
        }
    )


MEASURES = {"torch": measure_torch, "features": measure_features}

if __name__ == "__main__":
    for name, text in (MEASURES[sys.argv[1]] if sys.argv[1:] else measure)().items():
        print(f"{name:30}{text}")
