"""The low halves o_low and to_low on arrays: what they are, that the maps use them, and their errors."""

import numpy as np
import pytest
from trials import DTYPES, Trial

import attngrad

SHAPE = (2, 3, 256, 32)
HALVES = ("f16", "bf16")
BITS = {"f16": 2.0**-11, "bf16": 2.0**-8}  # of half a unit in the last place, relative to the number
SCALE = {"f16": 2.0**-11, "bf16": 1.0}


def hard_trial(dtype):
    """Peaked rows, and d_o near o: there the error of o does not average out in the gradients. With a tangent of v
    alone that of to does not either, and no error of the weights' tangents hides it."""
    trial = Trial(SHAPE, SHAPE, SHAPE, dtype, causal=True)
    trial.x["q"] = (6 * trial.x["q"].astype(np.float32)).astype(DTYPES[dtype])
    trial.cot = {"d_o": None, "td_o": None, "d_lse": np.zeros(SHAPE[:3]), "td_lse": np.zeros(SHAPE[:3])}
    o = attngrad.forward(*trial.x.values(), causal=True).o.astype(np.float32)
    trial.cot["d_o"] = (o + 0.05 * trial.rng.standard_normal(SHAPE)).astype(DTYPES[dtype])
    trial.cot["td_o"] = trial.draw(SHAPE)
    trial.t["q"] = trial.t["k"] = np.zeros(SHAPE, DTYPES[dtype])
    return trial, trial.truth()


def error(x, truth):
    return np.linalg.norm(x.astype(np.float64) - truth) / np.linalg.norm(truth)


def sum_of(x, low, dtype):
    return x.astype(np.float64) + SCALE[dtype] * low.astype(np.float64)


@pytest.mark.parametrize("dtype", HALVES)
def test_gradients_are_closer_to_the_truth(dtype):
    trial, truth = hard_trial(dtype)
    qkv, d_o, t = trial.x.values(), trial.cot["d_o"], trial.t.values()
    f = attngrad.forward(*qkv, causal=True, low=True)
    p = attngrad.jvp(*qkv, *t, causal=True, low=True)
    assert f._fields == ("o", "lse", "o_low") and p._fields == ("o", "lse", "to", "mu", "o_low", "to_low")
    for a, b in zip(f[:2], attngrad.forward(*qkv, causal=True), strict=True):
        np.testing.assert_array_equal(a, b)
    low, none = {"o_low": f.o_low}, {}
    g, plain = (attngrad.vjp(*qkv, f.o, f.lse, d_o, causal=True, **more) for more in (low, none))
    for name in ("dq", "dk"):
        assert error(getattr(g, name), truth[name]) < 0.7 * error(getattr(plain, name), truth[name]), name
    np.testing.assert_array_equal(g.dv, plain.dv)
    low = {"o_low": p.o_low, "to_low": p.to_low}
    more = {"td_o": trial.cot["td_o"], "causal": True}
    h, plain = (attngrad.vjp_jvp(*qkv, *p[:4], d_o, *t, **more, **halves) for halves in (low, none))
    for name in ("tdq", "tdk"):
        assert error(getattr(h, name), truth[name]) < 0.7 * error(getattr(plain, name), truth[name]), name


@pytest.mark.parametrize("dtype", HALVES)
def test_what_rounding_took(dtype):
    """On the reference, whose o has no other error."""
    trial = Trial((2, 20, 8), (2, 24, 8), (2, 24, 8), dtype)
    p = attngrad.jvp(*trial.x.values(), *trial.t.values(), low=True, backend="reference")
    truth = trial.truth()
    for x, low, want in ((p.o, p.o_low, truth["o"]), (p.to, p.to_low, truth["to"])):
        assert error(sum_of(x, low, dtype), want) < BITS[dtype] ** 2 < 0.1 * error(x, want)


@pytest.mark.parametrize("dtype", HALVES)
def test_merge(dtype):
    shape = (2, 3, 16, 8)
    q, k, v, tq = (np.random.default_rng(3).standard_normal((4, *shape))).astype(DTYPES[dtype])
    full = attngrad.jvp(*(x.astype(np.float64) for x in (q, k, v, tq)))
    a, b = (attngrad.jvp(q, k[:, :, s], v[:, :, s], tq, low=True) for s in (slice(0, 5), slice(5, None)))
    tangents = {"to1": a.to, "mu1": a.mu, "to2": b.to, "mu2": b.mu}
    low = {"o_low1": a.o_low, "o_low2": b.o_low}
    plain = attngrad.merge(a.o, a.lse, b.o, b.lse, **tangents)
    both = attngrad.merge(a.o, a.lse, b.o, b.lse, **tangents, **low, to_low1=a.to_low, to_low2=b.to_low)
    for x, low_half, alone, want in (
        (both.o, both.o_low, plain.o, full.o),
        (both.to, both.to_low, plain.to, full.to),
    ):
        assert error(sum_of(x, low_half, dtype), want) < 0.3 * error(alone, want)
    without = attngrad.merge(a.o, a.lse, b.o, b.lse, **low)
    np.testing.assert_array_equal(without.o_low, both.o_low)
    assert without.to is without.mu is without.to_low is None


def test_errors():
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 4))
    half, single = x.astype(np.float16), x.astype(np.float32)
    o, lse, o_low = attngrad.forward(half, half, half, low=True)
    wide, wide_lse = attngrad.forward(single, single, single)
    p = attngrad.jvp(half, half, half, half)
    only = "but only 16-bit outputs have a low half"
    for call, kind, message in (
        (lambda: attngrad.forward(single, single, single, low=True), ValueError, f"low: o is float32, {only}"),
        (
            lambda: attngrad.jvp(half, half, half, out_dtype=np.float32, low=True),
            ValueError,
            f"low: o is float32, {only}",
        ),
        (lambda: attngrad.forward(half, half, half, low=1), TypeError, "low: 1 is neither True nor False"),
        (
            lambda: attngrad.vjp(single, single, single, wide, wide_lse, wide, o_low=o_low),
            ValueError,
            f"o_low: o is float32, {only}",
        ),
        (
            lambda: attngrad.vjp(half, half, half, o, lse, o, o_low=o_low[:2]),
            ValueError,
            r"o_low: shape \[2, 4\], must be \[3, 4\]",
        ),
        (
            lambda: attngrad.vjp_jvp(half, half, half, *p, o, half, o_low=o_low, to_low=single),
            TypeError,
            "to_low: float32, must be float16",
        ),
        (
            lambda: attngrad.merge(wide, wide_lse, wide, wide_lse, o_low2=o_low),
            ValueError,
            f"o_low2: o1 is float32, {only}",
        ),
        (lambda: attngrad.merge(o, lse, o, lse, to_low1=o), ValueError, "to_low1: given without to1"),
        (lambda: attngrad.merge(o, lse, o, lse, o_low1=single), TypeError, "o_low1: float32, must be float16"),
    ):
        with pytest.raises(kind, match="^" + message):
            call()
