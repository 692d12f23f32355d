"""Pages for the tests: calls with every map, the command, and the data of a page that was written."""

import base64
import json
import re
import subprocess
import time
from pathlib import Path

import numpy as np
from browser import COMMAND

import attngrad

RNG = np.random.default_rng(5)


def seed_arrays():
    """A test that calls it first draws the same arrays whichever others run."""
    RNG.bit_generator.state = np.random.default_rng(5).bit_generator.state


def run(*arguments):
    return subprocess.run([COMMAND, "view", *map(str, arguments)], check=True, capture_output=True, text=True)


def save(folder, **inputs):
    """Writes arrays to files; returns the options of the command that name them."""
    options = []
    for name, x in inputs.items():
        np.save(folder / f"{name}.npy", x)
        options += [f"--{name.replace('_', '')}", folder / f"{name}.npy"]
    return options


def arrays(*shape):
    return RNG.standard_normal(shape)


def call(n_q=3, n_k=4, d=3, dv=2, heads=(2,), **features):
    """An explanation with every map."""
    q, k, v = arrays(*heads, n_q, d), arrays(*heads, n_k, d), arrays(*heads, n_k, dv)
    tq, tk, tv = (arrays(*x.shape) for x in (q, k, v))
    d_o, td_o = arrays(*heads, n_q, dv), arrays(*heads, n_q, dv)
    inputs = dict(q=q, k=k, v=v, tq=tq, tk=tk, tv=tv, d_o=d_o, td_o=td_o, **features)
    return inputs, attngrad.explain(**inputs)


def read(path):
    """The page's data, and the arrays of its first head by name and kind."""
    text = Path(path).read_text()
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', text, re.S)[1])
    stored = dict(re.findall(r'<script type="text/plain" id="(a\d+)">(.*?)</script>', text, re.S))
    found = {}
    for variable in data["heads"][0]["variables"]:
        for kind in ("full", "mean", "peak", "window"):
            if kind in variable:
                raw = base64.b64decode(stored[variable[kind]["id"]])
                dtype = {"f32": "<f4", "f64": "<f8", "u8": "u1"}[variable[kind]["type"]]
                found[variable["name"], kind] = np.frombuffer(raw, dtype)
    return data, found


def within(limit, function, rounds=6):
    """Whether the best of five is; there is no need for more of them after one that is. Other tests may run beside this
    one: if none of five is, it waits for a quieter moment and tries again."""
    for n in range(rounds):
        if any(function() < limit for _ in range(5)):
            return True
        time.sleep(2 * n)
    return False
