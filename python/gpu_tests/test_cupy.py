"""The maps on CuPy's arrays, against the same maps on NumPy's. Without CuPy every test is skipped."""

import functools
import unittest

import attngrad
import numpy as np

try:
    import cupy
except ImportError as error:
    cupy, reason = None, str(error)

rng = np.random.default_rng(11)
LIMITS = {np.float64: 1e-11, np.float32: 1e-5, np.float16: 2e-2}


def needs_cupy(test):
    @functools.wraps(test)
    def run():
        if cupy is None:
            raise unittest.SkipTest(f"CuPy is not here: {reason}")
        test()

    return run


def draw(dtype, *shape):
    return rng.standard_normal(shape).astype(dtype)


def close(got, wanted, dtype):
    """Each result is CuPy's, on the GPU, with the values of NumPy's."""
    for name, x in wanted._asdict().items():
        if x is None:
            continue
        y = getattr(got, name)
        assert type(y) is cupy.ndarray, f"{name}: {type(y)}"
        a, b = cupy.asnumpy(y).astype(np.float64), np.asarray(x, np.float64)
        error = np.abs(a - b).max() / (1 + np.abs(b).max())
        assert error <= LIMITS[dtype], f"{name}: {error}"


def every_map(dtype, to_gpu=None, **features):
    to_gpu = to_gpu or cupy.asarray
    q, tq, sq, d_o = (draw(dtype, 1, 4, 150, 64) for _ in range(4))
    k, v, tk, tv, sk, sv = (draw(dtype, 1, 2, 170, 64) for _ in range(6))
    there = {name: cupy.asarray(x) if isinstance(x, np.ndarray) else x for name, x in features.items()}

    def both(function, *args):
        wanted = function(*args, **features)
        close(function(*map(to_gpu, args), **there), wanted, dtype)
        return wanted

    forward = both(attngrad.forward, q, k, v)
    both(attngrad.vjp, q, k, v, *forward, d_o)
    tangents = both(attngrad.jvp, q, k, v, tq, tk, tv)
    both(attngrad.vjp_jvp, q, k, v, *tangents, d_o, tq, tk, tv)
    smu = attngrad.jvp(q, k, v, sq, sk, sv, **features).mu
    both(attngrad.jvp_jvp, q, k, v, *forward, tangents.mu, smu, tq, tk, tv, sq, sk, sv)


@needs_cupy
def test_maps():
    for dtype in LIMITS:
        every_map(dtype, causal=True)


@needs_cupy
def test_features():
    bias, mask = draw(np.float32, 1, 4, 150, 170), rng.random((1, 1, 150, 170)) < 0.8
    every_map(np.float32, bias=bias, mask=mask, softcap=3.0, dropout=0.2, seed=7)


def between_others(x):
    """Rows with others between them, which are NaN."""
    if x.ndim < 4:
        return cupy.asarray(x)
    wide = cupy.full((*x.shape[:2], 2 * x.shape[2], x.shape[3]), cupy.nan, x.dtype)
    wide[:, :, ::2] = cupy.asarray(x)
    return wide[:, :, ::2]


def heads_last(x):
    """Heads as the last axis in memory."""
    return cupy.asarray(np.swapaxes(x, 1, -1).copy()).swapaxes(1, -1) if x.ndim == 4 else cupy.asarray(x)


@needs_cupy
def test_strides():
    every_map(np.float32, between_others)
    every_map(np.float64, heads_last)


@needs_cupy
def test_streams():
    """The current stream is the call's: what was written on it before is read, what comes after finds the results."""
    x = draw(np.float32, 1, 8, 2048, 64)
    wanted = attngrad.forward(x, x, x).o
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        q = cupy.zeros(x.shape, np.float32)
        for _ in range(50):  # the stream has work to do when the call is made
            q = cupy.asarray(x) + 0 * q
        o = 2 * attngrad.forward(q, q, q).o
    stream.synchronize()
    assert np.abs(cupy.asnumpy(o) / 2 - wanted).max() < 1e-5
