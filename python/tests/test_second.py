"""jvp given o and lse, and jvp_jvp: differences, symmetry, dtypes, parts of the keys, errors. test_maps.py compares
jvp_jvp with the formulas."""

import numpy as np
import pytest
from trials import DTYPES, FLOOR, Trial

import attngrad

Q, K, V = (2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 5)
FEATURES = {
    "none": {},
    "all": {
        "bias": (1, 4, 7, 9),
        "bias_table": (4, 5),
        "sink": (4,),
        "mask": (2, 1, 1, 9),
        "softcap": 2.0,
        "dropout": 0.25,
        "seed": 7,
        "causal": True,
        "q_offsets": [2, 0],
    },
}


def named(letter, direction):
    return {letter + name: x for name, x in direction.items()}


def jvp_along(trial, direction, **more):
    return attngrad.jvp(*trial.x.values(), **named("t", direction), **trial.features | more)


def second(trial, t, s, **more):
    """jvp_jvp along t and s, with what it needs of jvp."""
    p, mu = jvp_along(trial, t, **more), jvp_along(trial, s, **more).mu
    f = trial.features | more
    return attngrad.jvp_jvp(*trial.x.values(), p.o, p.lse, p.mu, mu, **named("t", t), **named("s", s), **f)


def distance(x, y):
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    return np.linalg.norm(x - y) / np.linalg.norm(y)


# ---- jvp_jvp ----


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("features", FEATURES)
def test_differences_of_jvp(features, backend):
    trial = Trial(Q, K, V, **FEATURES[features])
    step, ends = 1e-5, []
    for sign in (1, -1):
        at = Trial(Q, K, V, **FEATURES[features])
        for name, x in trial.s.items():
            where = at.x if name in at.x else at.features
            key = "bias_table" if name == "table" else name
            where[key] = where[key] + sign * step * x
        ends.append(jvp_along(at, trial.t, backend=backend))
    got = second(trial, trial.t, trial.s, backend=backend)
    assert distance(got.sto, (ends[0].to - ends[1].to) / (2 * step)) < 1e-8
    assert distance(got.nu, (ends[0].mu - ends[1].mu) / (2 * step)) < 1e-8


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_symmetry(dtype, backend):
    trial = Trial(Q, K, V, dtype, **FEATURES["all"])
    one, other = (second(trial, *d, backend=backend) for d in ((trial.t, trial.s), (trial.s, trial.t)))
    assert one.sto.dtype == DTYPES[dtype] and one.nu.dtype == np.float64
    assert distance(one.sto, other.sto) <= 2 * FLOOR[dtype]
    assert distance(one.nu, other.nu) <= 2 * FLOOR[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_one_direction_twice(dtype):
    """The same arrays as both directions, which takes fewer products, against equal arrays elsewhere in memory."""
    trial = Trial((2, 4, 70, 16), (2, 2, 90, 16), (2, 2, 90, 16), dtype, softcap=3.0)
    got, want = (second(trial, trial.t, s) for s in (trial.t, {n: x.copy() for n, x in trial.t.items()}))
    assert distance(got.sto, want.sto) <= FLOOR[dtype] and distance(got.nu, want.nu) <= FLOOR[dtype]


def test_absent_tangents_are_zero():
    trial = Trial(Q, K, V, bias=(4, 7, 9), sink=(4,))
    some = {"q": trial.t["q"], "sink": trial.t["sink"]}
    zeros = {n: np.zeros_like(x) for n, x in trial.s.items()}
    got, want = second(trial, some, trial.s), second(trial, zeros | some, trial.s)
    assert distance(got.sto, want.sto) < 1e-14 and distance(got.nu, want.nu) < 1e-14
    nothing = second(trial, {}, trial.s)
    assert not nothing.sto.any() and not nothing.nu.any()


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_wide_output_and_low_half(dtype):
    """A float32 o gives a float32 sto; a low half of o makes sto more exact."""
    trial = Trial((2, 3, 64, 32), (2, 3, 64, 32), (2, 3, 64, 32), dtype)
    trial.x["v"] = (trial.x["v"].astype(np.float32) + 4).astype(DTYPES[dtype])  # so that nu o is large
    qkv, t, s = trial.x.values(), trial.t, trial.s
    truth = trial.truth()
    f = attngrad.forward(*qkv, low=True, backend="reference")
    wide = attngrad.forward(*qkv, out_dtype=np.float32, backend="reference")
    mus = (jvp_along(trial, d, backend="reference").mu for d in (t, s))
    more = named("t", t) | named("s", s) | dict(zip(("mu", "smu"), mus, strict=True)) | {"backend": "reference"}
    plain = attngrad.jvp_jvp(*qkv, f.o, f.lse, **more)
    low = attngrad.jvp_jvp(*qkv, f.o, f.lse, o_low=f.o_low, **more)
    exact = attngrad.jvp_jvp(*qkv, wide.o, wide.lse, **more)
    assert plain.sto.dtype == low.sto.dtype == DTYPES[dtype] and exact.sto.dtype == np.float32
    assert distance(low.sto, truth["sto"]) < 0.9 * distance(plain.sto, truth["sto"])
    assert distance(exact.sto, truth["sto"]) < 1e-5


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 4), (2, 3, 6, 4)])
def test_merge(shape, dtype):
    """Two parts of the keys, each by itself, merged."""
    trial = Trial(shape, shape, shape, dtype)
    p, so = jvp_along(trial, trial.t), jvp_along(trial, trial.s)
    want = p._asdict() | {"so": so.to, "smu": so.mu} | second(trial, trial.t, trial.s)._asdict()
    parts = {}
    for number, keys in (("1", slice(0, 2)), ("2", slice(2, None))):
        part = Trial(shape, shape, shape, dtype)
        for arrays in (part.x, part.t, part.s):
            arrays |= {name: arrays[name][..., keys, :] for name in "kv"}
        p, so = jvp_along(part, part.t), jvp_along(part, part.s)
        results = p._asdict() | {"so": so.to, "smu": so.mu} | second(part, part.t, part.s)._asdict()
        parts |= {name + number: x for name, x in results.items()}
    both = attngrad.merge(**parts)
    tolerance = {"f64": 1e-13, "f32": 4e-6, "f16": 8e-3, "bf16": 6e-2}[dtype]
    assert both._fields == (*want, "o_low", "to_low") and both.o_low is both.to_low is None
    for name, x in want.items():
        assert distance(getattr(both, name), x) <= tolerance, name


def test_parts_add_up():
    """Given o, lse, mu and smu of all keys, the results on parts of the keys add up."""
    trial = Trial((3, 6, 4), (3, 6, 4), (3, 6, 4))
    p, smu = jvp_along(trial, trial.t), jvp_along(trial, trial.s).mu
    total, want = [0, 0], second(trial, trial.t, trial.s)
    for keys in (slice(0, 2), slice(2, None)):
        cut = [{n: x if n == "q" else x[:, keys] for n, x in d.items()} for d in (trial.x, trial.t, trial.s)]
        x, t, s = cut
        part = attngrad.jvp_jvp(*x.values(), p.o, p.lse, p.mu, smu, **named("t", t), **named("s", s))
        total = [a + b for a, b in zip(total, part, strict=True)]
    assert distance(total[0], want.sto) < 1e-13 and distance(total[1], want.nu) < 1e-13


# ---- jvp given o and lse ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("features", FEATURES)
def test_jvp_given(features, backend, dtype):
    trial = Trial(Q, K, V, dtype, **FEATURES[features])
    f = attngrad.forward(*trial.x.values(), **trial.features, backend=backend)
    got = jvp_along(trial, trial.t, o=f.o, lse=f.lse, backend=backend)
    assert got.o is f.o and got.lse is f.lse and got.to.dtype == DTYPES[dtype]
    truth = trial.truth()
    for name in ("to", "mu"):
        plain = getattr(jvp_along(trial, trial.t, backend=backend), name)
        limit = max(2 * distance(plain, truth[name]), 2 * FLOOR[dtype])
        assert distance(getattr(got, name), truth[name]) <= limit, name


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_jvp_given_low_halves(dtype):
    trial = Trial(Q, K, V, dtype)
    f = attngrad.forward(*trial.x.values(), low=True)
    got = jvp_along(trial, trial.t, o=f.o, lse=f.lse, o_low=f.o_low, low=True)
    assert got.o is f.o and got.o_low is f.o_low
    scale = 2.0**-11 if dtype == "f16" else 1.0
    exact = got.to.astype(np.float64) + scale * got.to_low.astype(np.float64)
    truth = trial.truth()["to"]
    assert distance(exact, truth) < 0.5 * distance(got.to, truth)
    without = jvp_along(trial, trial.t, o=f.o, lse=f.lse, o_low=f.o_low)
    assert without._fields == ("o", "lse", "to", "mu")
    np.testing.assert_array_equal(without.to, got.to)


# ---- Errors ----

X = np.random.default_rng(5).standard_normal((3, 4))
HALF, ROW = X.astype(np.float16), X[:, 0]
ONLY = "but only 16-bit outputs have a low half"


def jvp_jvp(**changes):
    arguments = {"q": X, "k": X, "v": X, "o": X, "lse": ROW, "mu": ROW, "smu": ROW, "tq": X, "sq": X}
    return attngrad.jvp_jvp(**arguments | changes)


ERRORS = [
    (jvp_jvp, {"o": None}, TypeError, "o: missing: this map needs it"),
    (jvp_jvp, {"lse": None}, TypeError, "lse: missing: this map needs it"),
    (jvp_jvp, {"mu": None}, TypeError, "mu: missing: this map needs it"),
    (jvp_jvp, {"smu": None}, TypeError, "smu: missing: this map needs it"),
    (jvp_jvp, {"smu": ROW[:2]}, ValueError, r"smu: shape \[2\], must be \[3\]"),
    (jvp_jvp, {"smu": ROW.astype(np.float32)}, TypeError, "smu: float32, must be float64"),
    (jvp_jvp, {"sq": X[:2]}, ValueError, r"sq: shape \[2, 4\], must be \[3, 4\]"),
    (jvp_jvp, {"sk": HALF}, TypeError, "sk: float16, must be float64"),
    (jvp_jvp, {"sv": "x"}, TypeError, "sv: str is not an array"),
    (jvp_jvp, {"sbias": X}, ValueError, "sbias: given without bias"),
    (jvp_jvp, {"stable": X}, ValueError, "stable: given without bias_table"),
    (jvp_jvp, {"ssink": ROW}, ValueError, "ssink: given without sink"),
    (jvp_jvp, {"o_low": X}, ValueError, f"o_low: o is float64, {ONLY}"),
    (jvp_jvp, {"o": HALF}, TypeError, "o: float16, must be float64 beside q of float64"),
    (jvp_jvp, {"td_o": X}, TypeError, "unknown keyword 'td_o'"),
    (jvp_jvp, {"q_offsets": [0, 1]}, ValueError, "q_offsets: has 2 entries, but the batch is 1"),
    (jvp_jvp, {"k_offsets": [0.5]}, TypeError, "k_offsets: float64: must be whole numbers"),
    (jvp_jvp, {"k_offsets": 1}, TypeError, "k_offsets: int is not an array"),
    (jvp_jvp, {"q_offsets": [1], "q_offset": 2}, ValueError, "q_offset"),
    (jvp_jvp, {"k_offsets": [2**62]}, ValueError, r"k_offsets\[0\] is 4611686018427387904: must be"),
    (jvp_jvp, {"q_offsets": [1], "align": "bottom-right"}, ValueError, "q_offsets"),
    (attngrad.jvp, {"o": X}, ValueError, "lse: missing, but o is given"),
    (attngrad.jvp, {"lse": ROW}, ValueError, "o: missing, but lse is given"),
    (attngrad.jvp, {"o_low": X}, ValueError, "o: missing, but o_low is given"),
    (attngrad.jvp, {"o": X[:2], "lse": ROW}, ValueError, r"o: shape \[2, 4\], must be \[3, 4\]"),
    (attngrad.jvp, {"o": HALF, "lse": ROW}, TypeError, "o: float16, must be float64 beside q of float64"),
    (attngrad.jvp, {"o": X, "lse": X}, ValueError, r"lse: shape \[3, 4\], must be \[3\]"),
    (attngrad.jvp, {"o": X, "lse": ROW, "o_low": X}, ValueError, f"o_low: o is float64, {ONLY}"),
    (
        attngrad.jvp,
        {"o": X, "lse": ROW, "out_dtype": "float32"},
        TypeError,
        "out_dtype: float32, but o is float64",
    ),
]


@pytest.mark.parametrize("number", range(len(ERRORS)))
def test_errors(number):
    function, changes, kind, message = ERRORS[number]
    arguments = {} if function is jvp_jvp else {"q": X, "k": X, "v": X, "tq": X}
    with pytest.raises(kind, match="^" + message) as error:
        function(**arguments | changes)
    assert "\n" not in str(error.value)


def test_errors_of_low_halves_and_merge():
    f = attngrad.forward(HALF, HALF, HALF, low=True)
    with pytest.raises(ValueError, match="^o_low: missing, but o is given and low is True"):
        attngrad.jvp(HALF, HALF, HALF, HALF, o=f.o, lse=f.lse, low=True)
    with pytest.raises(TypeError, match="^o_low: float64, must be float16"):
        attngrad.jvp(HALF, HALF, HALF, HALF, o=f.o, lse=f.lse, o_low=X)
    tangents = {"to1": X, "mu1": ROW, "to2": X, "mu2": ROW}
    with pytest.raises(ValueError, match="^smu1: missing, but so1 is given"):
        attngrad.merge(X, ROW, X, ROW, **tangents, so1=X)
    all_second = {name + n: ROW if name in ("smu", "nu") else X for n in "12" for name in ("so", "smu", "sto", "nu")}
    with pytest.raises(ValueError, match="^to1: missing, but so1 is given"):
        attngrad.merge(X, ROW, X, ROW, **all_second)
    with pytest.raises(ValueError, match=r"^nu2: shape \[2\], must be \[3\]"):
        attngrad.merge(X, ROW, X, ROW, **tangents, **all_second | {"nu2": ROW[:2]})
