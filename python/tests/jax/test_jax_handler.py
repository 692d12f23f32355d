"""The handler checks each attribute and each buffer before it touches memory: called directly, as a damaged or foreign
program might, it refuses by name. It keeps a bounded number of plans."""

from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attngrad import _core
from attngrad.jax import dot_product_attention, register
from attngrad.jax._types import kind_of

# JAX makes JaxRuntimeError of an error in a compiled program; ValueError if the program has run before.
_REFUSED = (jax.errors.JaxRuntimeError, ValueError)
_SLOTS = {name: number for name, (number, _, _) in _core.xla_slots().items()}
_Q, _K, _V = jnp.ones((2, 3, 4, 5)), jnp.ones((2, 6, 2, 5)), jnp.ones((2, 6, 2, 7))
_OPERANDS = {"q": _Q, "k": _K, "v": _V}
_RESULTS = {
    "o": jax.ShapeDtypeStruct((2, 3, 4, 7), jnp.float64),
    "lse": jax.ShapeDtypeStruct((2, 3, 4), jnp.float64),
    "rows": jax.ShapeDtypeStruct((2, 3, 4, 2), jnp.uint32),
}


def _call(operands=_OPERANDS, results=_RESULTS, **changed):
    """forward with changed attributes; None leaves one out."""
    register()
    names = [*operands, *results]
    attributes = {
        "version": np.int64(_core.XLA_VERSION),
        "map": np.int64(_core.MAP_FORWARD),
        "problem": "f64",
        "slots": np.array([_SLOTS[name] for name in names], np.int64),
        "axes": np.zeros(len(names), np.int64),
        "threads": np.int64(1),
        "backend": np.int64(0),
        "flags": np.int64(0),
    } | changed
    attributes = {name: x for name, x in attributes.items() if x is not None}
    out = jax.ffi.ffi_call("attngrad", list(results.values()))(*operands.values(), **attributes)
    return jax.block_until_ready(out)


def test_right():
    assert float(abs(_call()[0] - 1).max()) < 1e-12


def _with(name, shape, dtype=jnp.float64):
    return {"operands": _OPERANDS | {name: jnp.ones(shape, dtype)}}


def _giving(name, shape, dtype=jnp.float64):
    return {"results": _RESULTS | {name: jax.ShapeDtypeStruct(shape, dtype)}}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"version": None}, "attribute version is missing"),
        ({"version": np.int64(2)}, "version is 2: this attngrad runs programs of version 1 only"),
        ({"version": np.int32(7)}, "attribute version is missing"),
        ({"map": np.int64(3)}, "map is 3"),
        ({"map": np.int64(-1)}, "map is -1"),
        ({"map": np.int64(_core.MAP_VJP)}, "o: map 2 does not write it"),
        ({"problem": None}, "problem is missing"),
        ({"problem": "f64 b3"}, "b"),
        ({"problem": "f64 window=-7,0"}, "window_left is -7"),
        ({"problem": "f64 " + "causal " * 300}, "problem is too long"),
        ({"problem": "f32"}, "q has XLA's dtype 12, must have 11"),
        ({"slots": None}, "slots, axes or maps"),
        ({"slots": np.arange(5)}, "slots, axes or maps"),
        ({"slots": np.array([0, 1, 99, 7, 9, 8])}, "slot 99"),
        ({"slots": np.array([0, 1, 1, 7, 9, 8])}, "k is there twice"),
        ({"axes": np.array([1, 0, 0, 0, 0, 0])}, "slot 0 with axes 1"),
        ({"axes": np.array([1, 0, 0, 0, 0, 0]), "maps": np.array([2])}, "q has 4 axes"),
        ({"maps": np.ones(9, np.int64)}, "slots, axes or maps"),
        ({"maps": np.array([-1])}, r"maps\[0\] is -1"),
        ({"threads": np.int64(-1)}, "threads is -1"),
        ({"threads": np.int64(2**32 + 1)}, "threads is 4294967297"),
        ({"backend": np.int64(9)}, "backend"),
        ({"backend": np.int64(2**32)}, "backend is 4294967296"),
        ({"flags": np.int64(64)}, "flags"),
        ({"flags": np.int64(2**32)}, "flags is 4294967296"),
        ({"flags": np.int64(-1)}, "flags is -1"),
        ({"problem": "f64 alibi=slopes", "slopes": np.ones(3)}, "slopes has 3 numbers, must have 4"),
        ({"problem": "f64 alibi=slopes"}, "slopes"),
        (_with("k", (2, 6, 2)), "k has 3 axes"),
        (_with("k", (2, 6, 2, 4)), r"k has shape \[2, 6, 2, 4\], must have \[2, 6, 2, 5\]"),
        (_with("k", (1, 6, 2, 5)), r"k has shape \[1, 6, 2, 5\], must have \[2, 6, 2, 5\]"),
        (_with("v", (2, 5, 2, 7)), r"v has shape \[2, 5, 2, 7\]"),
        (_with("v", (2, 6, 4, 7)), r"v has shape \[2, 6, 4, 7\]"),
        (_with("k", (2, 6, 2, 5), jnp.float32), "k has XLA's dtype 11, must have 12"),
        (_with("bias", (2, 4, 3, 6)), "bias"),
        ({**_with("bias", (2, 4, 3, 5)), "problem": "f64 bias"}, r"bias has shape .*must have \[2, 4, 3, 6\]"),
        ({**_with("mask", (2, 4, 3, 6)), "problem": "f64 mask"}, "mask has XLA's dtype 12, must have 1"),
        ({**_with("table", (4, 4)), "problem": "f64 table=2"}, r"table has shape \[4, 4\], must have \[4, 5\]"),
        (
            {**_with("table", (4, 5)), "problem": "f64 table=2", "buckets": np.zeros(3, np.int32)},
            "buckets has 3 numbers, must have 5",
        ),
        ({**_with("sink", (3,)), "problem": "f64 sink"}, r"sink has shape \[3\], must have \[4\]"),
        (_with("kv_lengths", (3,), jnp.int32), r"kv_lengths has shape \[3\], must have \[2\]"),
        (_with("kv_lengths", (2,), jnp.int64), "kv_lengths has XLA's dtype 5, must have 4"),
        (_with("offsets", (2,), jnp.int32), r"offsets has shape \[2\], must have \[3\]"),
        (_with("seed", (3,), jnp.uint32), r"seed has shape \[3\], must have \[2\]"),
        (_with("q_packed", (3,), jnp.int32), "longest is missing"),
        (_with("d_o", (2, 3, 4, 7)), "d_o: map 1 does not read it"),
        (_giving("o", (2, 3, 4, 5)), r"o has shape \[2, 3, 4, 5\], must have \[2, 3, 4, 7\]"),
        (_giving("lse", (2, 4, 3)), r"lse has shape \[2, 4, 3\]"),
        (_giving("lse", (2, 3, 4), jnp.float32), "lse has XLA's dtype 11"),
        (_giving("rows", (2, 3, 4, 1), jnp.uint32), "rows has shape"),
        (_giving("rows", (2, 3, 4, 2), jnp.int32), "rows has XLA's dtype 4"),
        ({"results": {"o": _RESULTS["o"], "lse": _RESULTS["lse"]}}, "lse without rows"),
        ({"operands": {"q": _Q, "k": _K}}, "q, k, v or problem is missing"),
    ],
)
def test_refused(changed, message):
    with pytest.raises(jax.errors.JaxRuntimeError, match="attngrad: .*" + message):
        _call(**changed)


def test_jvp_never_writes_into_its_operands():
    """o alone, without rows, is refused; the library would take it for a result otherwise."""
    results = {"to": _RESULTS["o"], "mu": _RESULTS["lse"]}
    operands = _OPERANDS | {"o": jnp.ones((2, 3, 4, 7)), "tq": _Q}
    with pytest.raises(jax.errors.JaxRuntimeError, match="lse"):
        _call(operands, results, map=np.int64(_core.MAP_JVP))


# ---- The buffers of each map ----

_INPUTS = "q k v bias table sink".split()
_KINDS = {
    "q": (2, 3, 4, 5),
    "k": (2, 6, 2, 5),
    "v": (2, 6, 2, 7),
    "bias": (1, 4, 3, 6),
    "table": (4, 5),
    "sink": (4,),
    "o": (2, 3, 4, 7),
    "lse": (2, 3, 4),
    "rows": (2, 3, 4, 2),
}
# map: (operands beside the inputs, results); tX are the tangents of all inputs, and so on
_BUFFERS = {
    "VJP": ("o rows d_o d_lse", "dX"),
    "JVP": ("o rows tX", "to mu"),
    "VJP_JVP": ("o rows d_o d_lse tX to mu td_o td_lse", "tdX"),
    "JVP_JVP": ("o rows tX mu sX smu", "sto nu"),
}


def _named(words):
    return [w.removesuffix("X") + x for w in words.split() for x in (_INPUTS if w.endswith("X") else [""])]


def _type(name):
    shape = _KINDS[kind_of(name)]
    return jax.ShapeDtypeStruct(shape, jnp.uint32 if name == "rows" else jnp.float64)


def _buffers(map):
    """The operands and results of a map on a problem with bias, table and sink."""
    words, results = _BUFFERS[map]
    types = {name: _type(name) for name in [*_INPUTS, *_named(words)]}
    operands = {name: jnp.zeros(t.shape, t.dtype) for name, t in types.items()}
    return operands, {name: _type(name) for name in _named(results)}


def _run(map, operands, results, **changed):
    attributes = {"map": np.int64(getattr(_core, "MAP_" + map)), "problem": "f64 bias=1hqk table=2 sink"}
    return _call(operands, results, **(attributes | changed))


@pytest.mark.parametrize("map", _BUFFERS)
def test_every_buffer_is_checked(map):
    """Each with another size, then, if it is a result, with another dtype."""
    operands, results = _buffers(map)
    assert all(jnp.isfinite(x).all() for x in _run(map, operands, results))
    for name, x in (operands | results).items():
        shape = (*x.shape[:-1], x.shape[-1] + 1)
        with pytest.raises(_REFUSED, match="attngrad: .*has shape"):
            if name in operands:
                _run(map, operands | {name: jnp.zeros(shape, x.dtype)}, results)
            else:
                _run(map, operands, results | {name: jax.ShapeDtypeStruct(shape, x.dtype)})
    for name, x in results.items():
        with pytest.raises(_REFUSED, match=f"attngrad: {name} has XLA's dtype 11, must have 12"):
            _run(map, operands, results | {name: jax.ShapeDtypeStruct(x.shape, jnp.float32)})


@pytest.mark.parametrize(
    ("map", "missing"),
    [
        ("VJP", "o"),
        ("VJP", "rows"),
        ("JVP", "bias"),
        ("VJP_JVP", "o"),
        ("VJP_JVP", "to"),
        ("VJP_JVP", "mu"),
        ("JVP_JVP", "mu"),
        ("JVP_JVP", "smu"),
    ],
)
def test_missing_operands(map, missing):
    operands, results = _buffers(map)
    del operands[missing]
    name = "lse" if missing == "rows" else missing
    with pytest.raises(_REFUSED, match=rf"attngrad: {name}\b"):
        _run(map, operands, results)


def test_mapped_results():
    """A result with a mapped axis must have its size there."""
    operands, results = _buffers("VJP")
    names = [*operands, *results]
    f = {"maps": np.array([3]), "axes": np.array([name == "dq" for name in names], np.int64)}
    for first, message in ((None, "dq has 4 axes"), (2, "dq has 5 axes or other mapped ones")):
        shape = (*(() if first is None else (first,)), *_KINDS["q"])
        with pytest.raises(_REFUSED, match=message):
            _run("VJP", operands, results | {"dq": jax.ShapeDtypeStruct(shape, jnp.float64)}, **f)


def test_packed_lists():
    q, k = jnp.ones((1, 4, 2, 3)), jnp.ones((1, 5, 2, 3))
    ends = {"q_packed": jnp.array([0, 1, 4], jnp.int32), "k_packed": jnp.array([0, 2, 5], jnp.int32)}
    results = {"o": jax.ShapeDtypeStruct(q.shape, q.dtype), "rows": jax.ShapeDtypeStruct((1, 4, 2, 2), jnp.uint32)}
    longest = {"longest": np.array([3, 3])}
    right = {"q": q, "k": k, "v": k, **ends}
    assert bool((_call(right, results, **longest)[0] == 1).all())
    for changed, message in (
        ({"k_packed": ends["k_packed"][:2]}, r"k_packed has shape \[2\], must have \[3\]"),
        ({"k_packed": ends["k_packed"].astype(jnp.int64)}, "k_packed has XLA's dtype 5"),
        ({"k_packed": jnp.array([0, 2, 6], jnp.int32)}, "k_packed"),
        ({"q_packed": jnp.array([0, 4, 1], jnp.int32)}, "q_packed"),
        ({"q_packed": jnp.array([0, 0, 4], jnp.int32)}, "q_packed"),
    ):
        with pytest.raises(_REFUSED, match="attngrad: .*" + message):
            _call(right | changed, results, **longest)
    with pytest.raises(_REFUSED, match="attngrad: .*k_packed"):
        _call({name: x for name, x in right.items() if name != "k_packed"}, results, **longest)


def test_slots_are_as_in_exported_programs():
    """Their numbers are stored there: append, never insert."""
    assert list(_SLOTS.values()) == list(range(len(_SLOTS)))
    assert " ".join(_SLOTS) == (
        "q k v bias table sink mask o rows lse o_low d_o d_lse dq dk dv dbias dtable dsink tq tk tv tbias ttable tsink "
        "to mu to_low td_o td_lse tdq tdk tdv tdbias tdtable tdsink sq sk sv sbias stable ssink smu sto nu q_lengths "
        "kv_lengths q_packed k_packed q_offsets k_offsets offsets seed"
    )


# ---- Plans ----


@pytest.fixture
def bound_plans():
    """A function that bounds the plans that are kept; returns how many there are, and how many were made."""
    before, _, _ = _core.xla_plans(0)
    yield lambda n: _core.xla_plans(n)[1:]
    _core.xla_plans(before)


def _of_length(n):
    """A compiled call on n rows, and its result with a plan that was made for it alone."""
    q = jnp.sin(jnp.arange(n * 6.0)).reshape(1, n, 2, 3)
    f = jax.jit(lambda q: dot_product_attention(q, q + 1, 2 * q, is_causal=True, threads=1)).lower(q).compile()
    return f, q, np.asarray(f(q))


def test_the_least_recently_used_plan_goes(bound_plans):
    calls = [_of_length(n) for n in range(1, 8)]
    assert bound_plans(3)[0] == 0

    def made(i):
        """How many plans a call makes."""
        f, q, want = calls[i]
        before = bound_plans(3)[1]
        assert np.array_equal(f(q).block_until_ready(), want)
        kept, after = bound_plans(3)
        assert kept <= 3
        return after - before

    assert [made(i) for i in (0, 1, 2, 0, 3, 0, 2, 1, 3)] == [1, 1, 1, 0, 1, 0, 0, 1, 1]
    assert [made(i) for i in (4, 5, 6, 0, 1, 2, 3) * 2] == [1] * 14
    assert bound_plans(1)[0] == 1


@pytest.mark.parametrize("max", [0, 1, 2])
def test_no_plan_goes_while_a_thread_uses_it(bound_plans, max):
    calls = [_of_length(n) for n in range(5, 11)]
    _, before = bound_plans(max)

    def work(number):
        for i in range(300):
            f, q, want = calls[(number * i + i) % len(calls)]
            assert np.array_equal(f(q), want)

    with ThreadPoolExecutor(4) as threads:
        for done in [threads.submit(work, number) for number in range(4)]:
            done.result()
    kept, made = bound_plans(max)
    assert kept <= max and made > before + len(calls)
