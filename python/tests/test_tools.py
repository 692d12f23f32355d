"""merge, explain, check, and the binding underneath."""

import ctypes
import math
import pickle
import re
from pathlib import Path

import formulas
import numpy as np
import pytest
from trials import DTYPES, Trial

import attngrad
from attngrad import _core

RNG = np.random.default_rng(11)


# ---- merge ----


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("shape", [(6, 4), (3, 6, 4), (2, 3, 6, 4)])
def test_merge(shape, dtype):
    q, k, v, tq, tk, tv = (RNG.standard_normal(shape).astype(DTYPES[dtype]) for _ in range(6))
    full = attngrad.jvp(q, k, v, tq, tk, tv)
    rows = lambda x, part: x[..., part, :]  # noqa: E731
    parts = [
        attngrad.jvp(q, rows(k, s), rows(v, s), tq, rows(tk, s), rows(tv, s))
        for s in (slice(0, 2), slice(2, None))
    ]
    (o1, l1, t1, m1), (o2, l2, t2, m2) = parts
    both = attngrad.merge(o1, l1, o2, l2, to1=t1, mu1=m1, to2=t2, mu2=m2)
    tolerance = {"f64": 1e-13, "f32": 2e-6, "f16": 4e-3, "bf16": 3e-2}[dtype]
    for name, x in both._asdict().items():
        want = np.asarray(getattr(full, name), np.float64)
        assert np.linalg.norm(np.asarray(x, np.float64) - want) <= tolerance * np.linalg.norm(want), name
    without = attngrad.merge(o1, l1, o2, l2)
    np.testing.assert_array_equal(without.o, both.o)
    assert without.to is without.mu is None


def test_merge_errors():
    o, lse = np.zeros((3, 4)), np.zeros(3)
    with pytest.raises(ValueError, match=re.escape("lse2: shape [2], must be [3]")):
        attngrad.merge(o, lse, o, lse[:2])
    with pytest.raises(TypeError, match="o2: float32, must be float64"):
        attngrad.merge(o, lse, o.astype(np.float32), lse)
    with pytest.raises(ValueError, match="mu1: missing, but to1 is given"):
        attngrad.merge(o, lse, o, lse, to1=o)
    assert attngrad.merge(o[:0], lse[:0], o[:0], lse[:0]).o.shape == (0, 4)


# ---- explain ----


def test_explain_jvp_jvp():
    """sto and nu follow from the variables, and stP is the difference of tP along s."""
    trial = Trial((2, 4, 5, 6), (2, 2, 7, 6), (2, 2, 7, 3), softcap=2.0, sink=(4,), bias=(1, 4, 5, 7), causal=True)
    x, f, t, s, truth = trial.x, trial.features, trial.t, trial.s, trial.truth()
    tangents, place = {"t" + n: y for n, y in t.items()}, {"batch": 1, "head": 2}
    e = attngrad.explain(**x, **tangents, **{"s" + n: y for n, y in s.items()}, **place, **f)
    v, tv, sv = (y["v"][1, 1] for y in (x, t, s))
    np.testing.assert_allclose(e["stP"] @ v + e["tP"] @ sv + e["sP"] @ tv, truth["sto"][1, 2], atol=1e-13)
    np.testing.assert_allclose(e["nu"], truth["nu"][1, 2], atol=1e-13)
    step, ends = 1e-5, []
    for sign in (1, -1):
        moved = {n: y + sign * step * s[n] for n, y in x.items()}
        features = f | {n: f[n] + sign * step * s[n] for n in ("bias", "sink")}
        ends.append(attngrad.explain(**moved, **tangents, **place, **features)["tP"])
    np.testing.assert_allclose(e["stP"], (ends[0] - ends[1]) / (2 * step), atol=1e-8)


def test_explain():
    trial = Trial(
        (2, 4, 5, 6),
        (2, 2, 7, 6),
        (2, 2, 7, 3),
        softcap=2.0,
        sink=(4,),
        dropout=0.3,
        seed=4,
        mask=(2, 1, 5, 7),
    )
    x, f, cot, truth = trial.x, trial.features, trial.cot, trial.truth()
    tangents = {"t" + n: t for n, t in trial.t.items()}
    e = attngrad.explain(
        **x,
        d_o=cot["d_o"],
        d_lse=cot["d_lse"],
        td_o=cot["td_o"],
        td_lse=cot["td_lse"],
        **tangents,
        batch=1,
        head=2,
        jacobian_row=3,
        **f,
    )
    v = x["v"][1, 1]
    np.testing.assert_allclose(e["R"] @ v, truth["o"][1, 2], atol=1e-14)
    np.testing.assert_allclose(e["L"], truth["lse"][1, 2], atol=1e-14)
    np.testing.assert_allclose(e["mu"], truth["mu"][1, 2], atol=1e-13)
    np.testing.assert_allclose(6**-0.5 * e["dZ"] @ x["k"][1, 1], truth["dq"][1, 2], atol=1e-14)
    np.testing.assert_allclose(
        6**-0.5 * (e["tdZ"] @ x["k"][1, 1] + e["dZ"] @ trial.t["k"][1, 1]), truth["tdq"][1, 2], atol=1e-13
    )
    np.testing.assert_allclose(e["P"].sum(1) + e["Ps"], 1, atol=1e-14)
    np.testing.assert_allclose(e["J"], np.diag(e["P"][3]) - np.outer(e["P"][3], e["P"][3]), atol=1e-15)
    assert set(attngrad.explain(**x, **f)) == set("Z B S P M R phi1 L Ps".split())
    assert "dS" in attngrad.explain(**x, d_o=cot["d_o"], **f) and "tP" in attngrad.explain(
        **x, tq=trial.t["q"], **f
    )
    with pytest.raises(ValueError, match="^head is 4: must be from 0"):
        attngrad.explain(**x, head=4, **f)
    with pytest.raises(ValueError, match="^d_o, d_lse, td_o, td_lse: no map has"):
        attngrad.explain(**x, d_o=cot["d_o"], sq=trial.t["q"], **f)
    for name in ("batch", "head", "jacobian_row"):
        with pytest.raises(TypeError, match=f"^{name}: True is not a whole number"):
            attngrad.explain(**x, **{name: True}, **f)


# ---- check ----

PROBLEMS = [
    "q5 d4 f32",
    "b2 h4 kv2 q7 k9 d8 dv3 bf16 causal align=bottom-right softcap=3 sink bias=1hqk mask=b11k "
    "table=3,5,shared dropout=.3 window=4,2 alibi=slopes",
    "b3 h2 q6 k5 d4 f64 packed=12,11 alibi",
    "h2 q4 d4 f64 table=2",
    "q3 k1 d4 f64",
    "q3 k0 d4 f32 sink",
    "b0 q3 d2 f64",
]


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_check(problem, backend):
    for seed in range(3):
        residuals = attngrad.check(problem, seed=seed, backend=backend)
        assert {"differences to", "differences dq", "differences tdv", "adjoint"} <= set(residuals)
        assert "symmetry of the Hessian" in residuals
        assert ("rounding dq" in residuals) == (backend == "cpu" or " f64" not in problem)
        for name, r in residuals.items():
            assert r.passed and 0 <= r <= r.limit, (name, r)
            assert (r.tensor is None) == (r.worst is None), name


def test_check_names_the_worst_element():
    """Its index lies within its tensor; and the residuals depend on the seed alone."""
    once = attngrad.check("b2 h4 kv2 q7 k9 d8 dv3 f32 causal", seed=5)
    shapes = {"q": (2, 4, 7, 8), "k": (2, 2, 9, 8), "v": (2, 2, 9, 3), "o": (2, 4, 7, 3)}
    for name, r in once.items():
        letter = r.tensor[-1] if r.tensor else None
        if letter in shapes:
            assert all(-1 <= i < n for i, n in zip(r.worst, shapes[letter])), (name, r.tensor, r.worst)
    assert once["rounding dv"].tensor == "dv" and once["rounding to"].tensor == "to"
    assert once["sum of dK over keys"].worst[2] == -1 and once["adjoint"].worst is None
    assert once == attngrad.check("b2 h4 kv2 q7 k9 d8 dv3 f32 causal", seed=5)
    assert once != attngrad.check("b2 h4 kv2 q7 k9 d8 dv3 f32 causal", seed=6)


def test_residual():
    """A number with its limit; NaN has not passed. It can be pickled."""
    r = attngrad.Residual(2e-3, 1e-3, "dq", (0, 1, 2, 3))
    assert r == 2e-3 and not r.passed and r.tensor == "dq"
    assert not attngrad.Residual(math.nan, 1.0, None, None).passed
    copy = pickle.loads(pickle.dumps(r))
    assert (copy, copy.limit, copy.tensor, copy.worst) == (2e-3, 1e-3, "dq", (0, 1, 2, 3))


def test_check_refuses():
    with pytest.raises(ValueError, match="needs d"):
        attngrad.check("q5")
    with pytest.raises(ValueError, match="cusal"):
        attngrad.check("q5 d4 f32 cusal")
    with pytest.raises(ValueError, match="backend: 'gpu': must be"):
        attngrad.check("q5 d4 f32", backend="gpu")
    with pytest.raises(TypeError, match="threads: 'two' is not a whole number"):
        attngrad.check("q5 d4 f32", threads="two")
    with pytest.raises(TypeError, match="seed: True is not a whole number"):
        attngrad.check("q5 d4 f32", seed=True)
    with pytest.raises(ValueError, match=r"backend: \['cpu'\]: must be"):
        attngrad.check("q5 d4 f32", backend=["cpu"])


# ---- _core ----


def test_every_tensor_has_its_name():
    """The library refuses a misaligned address by the name of the tensor that received it."""
    names = "q k v bias table sink o lse d_o d_lse dq dk dv dbias dtable dsink tq tk tv tbias ttable tsink to"
    names = (names + " mu td_o td_lse tdq tdk tdv tdbias tdtable tdsink o_low to_low").split()
    plan = _core.plan("q1 d1 bf16 bias mask table=1 sink")
    x = np.zeros(64 * len(names))
    views = {n: (x.ctypes.data + 512 * i, (0, 0, 0, 8)) for i, n in enumerate(names)}
    for name in names:
        with pytest.raises(TypeError, match=f"^{name} is 1, not"):
            plan.run(_core.MAP_FORWARD, {name: 1})
        misaligned = {name: (views[name][0] + 1, views[name][1])}
        refused = set()
        for map in (_core.MAP_FORWARD, _core.MAP_VJP, _core.MAP_JVP, _core.MAP_VJP_JVP):
            try:
                plan.run(map, views | misaligned | {"mask": (x.ctypes.data + 500, (0, 0, 0, 0))})
            except ValueError as error:
                refused.add(error.field)
        assert refused == {name}
    with pytest.raises(ValueError, match="mask is NULL"):
        plan.run(_core.MAP_FORWARD, views | {"mask": None})


def test_accumulate():
    """out = round(out + result), by the bit of each output."""
    q = RNG.standard_normal((3, 4))
    o, lse = attngrad.forward(q, q, q)
    more = np.ones((3, 4))
    tensor = lambda x: (x.__array_struct__, (0, 0, 4, 1))  # noqa: E731
    plan = _core.plan("q3 d4 f64")
    plan.run(
        _core.MAP_FORWARD,
        {"q": tensor(q), "k": tensor(q), "v": tensor(q), "o": tensor(more)},
        accumulate=_core.ACC_O,
    )
    np.testing.assert_allclose(more, 1 + o, rtol=1e-15)


def test_exceptions():
    for kind, field, text, options in (
        (ValueError, "text", "q5", {}),
        (ValueError, "kv_heads", "h3 kv2 q5 d4 f32", {}),
        (ValueError, "options.threads", "q5 d4 f32", {"threads": -1}),
        (NotImplementedError, "options.backend", "q5 d4 f32", {"backend": 3}),
    ):
        with pytest.raises(kind) as caught:
            _core.plan(text, **options)
        assert caught.value.field == field
    with pytest.raises(TypeError, match="cannot create"):
        _core.Plan()
    plan = _core.plan("q5 d4 f32")
    with pytest.raises(ValueError, match="map is 3"):
        plan.run(3, {})
    with pytest.raises(ValueError, match="none called 'x'"):
        plan.run(1, {"x": None})
    with pytest.raises(TypeError, match="neither int nor __array_struct__"):
        plan.run(1, {"q": ("here", (0, 0, 0, 0))})
    with pytest.raises(ValueError, match="q is NULL"):
        plan.run(1, {})
    assert (
        plan.workspace(_core.MAP_VJP) > 0
        and plan.problem() == "b1 h1 q5 k5 d4 f32"
        and plan.describe().startswith(plan.info()["backend"])
    )


def test_plan_info():
    info = _core.plan("q5 d4 f32", backend=_core.backends()["cpu"], threads=3).info()
    assert info["backend"] == "cpu" and info["threads"] == 3 and info["compute_dtype"] == "f32"
    assert info["deterministic"] is True and min(info["tile"]) > 0
    assert info["isa"] in [isa["name"] for isa in _core.isas(_core.backends()["cpu"]) if isa["available"]]
    reference = _core.plan("q5 d4 f32", backend=_core.backends()["reference"]).info()
    assert (reference["backend"], reference["isa"], reference["tile"]) == ("reference", "", (0, 0))


def test_backends_are_the_library_s():
    numbers = _core.backends()
    assert " ".join(numbers) == _core.info()["backends"] and attngrad._plan.BACKENDS == {None: 0} | numbers
    for name, number in numbers.items():
        if name == "cuda" and not _core.info()["devices"]:
            with pytest.raises(RuntimeError, match="^cuda: "):
                _core.plan("q5 d4 f32", backend=number)
        else:
            assert _core.plan("q5 d4 f32", backend=number).info()["backend"] == name


def test_every_isa_of_the_library_is_a_constant():
    isas = [isa for backend in _core.backends().values() for isa in _core.isas(backend)]
    constants = {f"ISA_{isa['name'].upper()}": isa["isa"] for isa in isas} | {"ISA_AUTO": 0}
    constants |= {"ISA_SM80": 6, "ISA_SM90": 7}  # also of a build without the backend cuda
    assert {name: getattr(_core, name) for name in dir(_core) if name.startswith("ISA_")} == constants
    stub = Path(_core.__file__).with_name("_core.pyi").read_text()
    assert set(re.findall(r"^(ISA_\w+): ", stub, re.M)) == set(constants)
    assert _core.isas(_core.backends()["reference"]) == []
    for isa in isas:
        if isa["available"]:
            plan = _core.plan("h2 q70 k90 d64 bf16", isa=isa["isa"])
            assert plan.info()["isa"] == isa["name"]
        else:
            with pytest.raises(NotImplementedError, match=isa["name"]):
                _core.plan("h2 q70 k90 d64 bf16", isa=isa["isa"])


def test_lists():
    plan = _core.plan("b2 q0 d4 f32")
    good = np.array([0, 0])
    plan.run(1, {}, q_lengths=good, kv_lengths=good.ctypes.data)
    with pytest.raises(TypeError, match="q_lengths: must be one axis of int64"):
        plan.run(1, {}, q_lengths=good.astype(np.int32))
    with pytest.raises(TypeError, match="q_lengths: must be one axis of int64"):
        plan.run(1, {}, q_lengths=good.astype(np.float64))
    with pytest.raises(ValueError, match="kv_lengths: has 1 entries instead of 2"):
        plan.run(1, {}, kv_lengths=good[:1])
    with pytest.raises(TypeError, match="neither an address nor"):
        plan.run(1, {}, q_lengths=[0, 0])


def test_the_library_is_hidden():
    """Two libraries in one process, this and a shared one, must not mix their symbols."""
    library = ctypes.CDLL(_core.__file__)
    assert library.PyInit__core
    with pytest.raises(AttributeError):
        library.ag_version


def test_philox():
    """The known answer of Philox 4x32-10 to zeros: the tests' own generator is the published one."""
    words = formulas.philox([np.zeros(1, np.uint64)] * 4, 0)
    assert [int(w[0]) for w in words] == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
