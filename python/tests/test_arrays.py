"""What is accepted as an array, and the errors for what is not: each names its argument."""

import array
import re
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest

import attngrad

RNG = np.random.default_rng(5)


def draw(*shape, dtype=np.float64):
    return RNG.standard_normal(shape).astype(dtype)


def same(a, b):
    for x, y in zip(a, b, strict=True):
        np.testing.assert_array_equal(x, y)


Q, K, V = draw(2, 4, 6, 8), draw(2, 2, 7, 8), draw(2, 2, 7, 5)
WANT = attngrad.forward(Q, K, V)


# ---- Layouts ----


def reverse(x):
    return np.ascontiguousarray(x[::-1, :, ::-1, ::-1])[::-1, :, ::-1, ::-1]


def misalign(x):
    raw = np.empty(x.nbytes + 1, np.uint8)
    view = np.frombuffer(raw.data, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    view[...] = x
    assert not view.flags.aligned
    return view


def odd_strides(x):
    """Strides that are not multiples of the element size: a field of a packed record."""
    record = np.zeros(x.shape, np.dtype([("pad", "u1"), ("x", x.dtype)]))
    record["x"] = x
    return record["x"]


def read_only(x):
    x = x.copy()
    x.flags.writeable = False
    return x


LAYOUTS = {
    "fortran": np.asfortranarray,
    "heads after positions": lambda x: np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2),
    "negative strides": reverse,
    "every second": lambda x: np.repeat(x, 2, axis=3)[..., ::2],
    "read-only": read_only,
    "misaligned": misalign,
    "odd strides": odd_strides,
    "memoryview": memoryview,
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_layouts_give_the_same_bits(name, backend):
    change = LAYOUTS[name]
    kept = [x.copy() for x in (Q, K, V)]
    given = [change(x) for x in (Q, K, V)]
    same(
        attngrad.forward(*given, causal=True, backend=backend),
        attngrad.forward(Q, K, V, causal=True, backend=backend),
    )
    same(given, kept)


def test_zero_strides():
    one = draw(6, 8)
    wide = np.broadcast_to(one, (3, 4, 6, 8))
    same(attngrad.forward(wide, wide, wide), attngrad.forward(*[wide.copy()] * 3))
    d_o = np.broadcast_to(1.0, wide.shape)
    f = attngrad.forward(wide, wide, wide)
    same(attngrad.vjp(wide, wide, wide, *f, d_o)[:3], attngrad.vjp(*[wide.copy()] * 3, *f, d_o.copy())[:3])


def test_views_are_not_copied():
    """A copy of this view would take a terabyte; there are no queries, so the results are empty."""
    q = np.zeros((2**20, 1, 1, 1), np.float32)
    wide = np.broadcast_to(draw(512, 512).astype(np.float32), (2**20, 1, 512, 512))
    o, lse = attngrad.forward(q[..., :0, :].repeat(512, 3), wide, wide[..., :1])
    assert o.shape == (2**20, 1, 0, 1) and lse.size == 0


# ---- Other arrays ----


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch(dtype):
    torch = pytest.importorskip("torch")
    numpy = [x.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype) for x in (Q, K, V)]
    tensors = [torch.from_numpy(x.astype(np.float64)).to(getattr(torch, dtype)) for x in numpy]
    same(attngrad.forward(*tensors), attngrad.forward(*numpy))
    strided = [t.transpose(1, 2).contiguous().transpose(1, 2) for t in tensors]
    same(attngrad.forward(*strided), attngrad.forward(*numpy))


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
def test_torch_pending_sign(dtype):
    """Tensors whose memory holds the negated values, for each kind of argument."""
    torch = pytest.importorskip("torch")
    q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in (Q, K, V))
    pending = [torch._neg_view(x) for x in (q, k, v)]
    assert all(x.is_neg() for x in pending)
    negative = [-x for x in (q, k, v)]
    want = attngrad.forward(*negative, sink=-v[0, 0, :4, 0])
    same(attngrad.forward(*pending, sink=torch._neg_view(v[0, 0, :4, 0])), want)
    lse = torch.from_numpy(want.lse)
    same(
        attngrad.vjp(*pending, *want, torch._neg_view(q[..., :5]), d_lse=torch._neg_view(lse))[:3],
        attngrad.vjp(*negative, *want, -q[..., :5], d_lse=-lse)[:3],
    )
    if dtype in ("float64", "float32"):
        imaginary = [torch.complex(x, x).conj().imag for x in (q, k, v)]
        assert all(x.is_neg() for x in imaginary)
        same(attngrad.forward(*imaginary), attngrad.forward(*negative))


def test_torch_zeros_without_memory():
    torch = pytest.importorskip("torch")
    zeros = torch._efficientzerotensor(Q.shape, dtype=torch.float64)
    assert zeros._is_zerotensor()
    same(attngrad.forward(zeros, K, V), attngrad.forward(np.zeros_like(Q), K, V))


def test_torch_refused():
    torch = pytest.importorskip("torch")
    q = torch.zeros(4, 8)
    with pytest.raises(TypeError, match="^k: .*grad"):
        attngrad.forward(q, torch.zeros(4, 8, requires_grad=True), q)
    with pytest.raises((TypeError, ValueError), match="^v: .*meta"):
        attngrad.forward(q, q, torch.zeros(4, 8, device="meta"))
    with pytest.raises(TypeError, match="^q: int64: must be float64"):
        attngrad.forward(torch.zeros(4, 8, dtype=torch.int64), q, q)


JAX = """
import jax, ml_dtypes, numpy as np, attngrad
rng = np.random.default_rng(0)
for dtype in (np.float32, np.float16, ml_dtypes.bfloat16):
    arrays = [rng.standard_normal((2, 6, 8)).astype(dtype) for _ in range(3)]
    got = attngrad.forward(*[jax.numpy.asarray(x) for x in arrays])
    assert got.o.dtype == dtype
    for x, y in zip(got, attngrad.forward(*arrays)):
        np.testing.assert_array_equal(x, y)
"""


def test_jax():
    """In a process of its own: other tests fork, which is unsafe after JAX has started its threads."""
    result = subprocess.run([sys.executable, "-c", JAX], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr


class OnlyDLPack:
    def __init__(self, x, device=(1, 0)):
        self.x, self.device = x, device

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.device


def test_dlpack():
    same(attngrad.forward(*[OnlyDLPack(x) for x in (Q, K, V)]), WANT)
    with pytest.raises(ValueError, match="^k: is on .*processor's memory"):
        attngrad.forward(Q, OnlyDLPack(K, (2, 0)), V)


def test_arrays_on_a_gpu():
    """What python/gpu_tests cannot see: a library of arrays that gives no memory, and none of PyTorch's or CuPy's."""
    on_gpu = [OnlyDLPack(x, (2, 0)) for x in (Q, K, V)]
    with pytest.raises(TypeError, match="^q: is on a GPU, and of test_arrays: memory .* from torch or cupy only"):
        attngrad.forward(*on_gpu)
    with pytest.raises(ValueError, match="^backend: 'cuda', but q|^backend: 'cuda': must be"):
        attngrad.forward(Q, K, V, backend="cuda")
    plan = attngrad._core.plan("q5 d4 f32")
    with pytest.raises(ValueError, match="^stream: given, but the plan runs on the processor"):
        plan.run(1, {}, stream=16)
    with pytest.raises(ValueError, match="^workspace: given, but the plan runs on the processor"):
        plan.run(1, {}, workspace=16)


def test_buffers():
    rows = [draw(4, 3) for _ in range(3)]
    arrays = [memoryview(array.array("d", x.ravel())).cast("B").cast("d", shape=[4, 3]) for x in rows]
    same(attngrad.forward(*arrays), attngrad.forward(*rows))


# ---- Errors ----

F = np.float32
ERRORS = [
    ((draw(4, 8), draw(4, 6), draw(4, 6)), {}, ValueError, "k: head size 6, but q has 8"),
    (
        (Q, K, V[:, :, :5]),
        {},
        ValueError,
        "v: shape [2, 2, 5, 5], but k has [2, 2, 7, 8]: they may differ in the last axis only",
    ),
    ((Q, K[:1], V[:1]), {}, ValueError, "k: batch 1, but q has 2"),
    ((Q[:, :3], K, V), {}, ValueError, "k: 2 heads, which do not divide the 3 of q"),
    ((Q, K[0], V), {}, ValueError, "k: shape [2, 7, 8] has 3 axes, must have 4"),
    ((Q[0, 0, 0], K, V), {}, ValueError, "q: shape [8] has 1 axes, must have 2 to 4"),
    ((Q, K.astype(F), V), {}, TypeError, "k: float32, but q is float64"),
    ((Q, K, V.astype(np.float16)), {}, TypeError, "v: float16, but q is float64"),
    ((Q.astype(int), K, V), {}, TypeError, "q: int64: must be float64, float32, float16 or bfloat16"),
    ((Q.astype(complex), K, V), {}, TypeError, "q: complex128: must be"),
    ((Q.astype(object), K, V), {}, TypeError, "q: object: must be"),
    ((Q.astype(">f8"), K, V), {}, TypeError, "q: >f8 has another byte order"),
    ((Q.tolist(), K, V), {}, TypeError, "q: list is not an array"),
    ((None, K, V), {}, TypeError, "q: NoneType is not an array"),
    ((np.ma.array(Q), K, V), {}, TypeError, "q: a masked array"),
    ((Q, K, V), {"casual": True}, TypeError, "unknown keyword 'casual' (did you mean 'causal'?)"),
    ((Q, K, V), {"causal": "yes"}, TypeError, "causal: 'yes' is neither True nor False"),
    ((Q, K, V), {"align": "left"}, ValueError, "align: 'left': must be 'top-left' or 'bottom-right'"),
    ((Q, K, V), {"window": 3}, TypeError, "window: 3 is not (left, right)"),
    ((Q, K, V), {"window": (1, 2, 3)}, TypeError, "window: (1, 2, 3) is not (left, right)"),
    ((Q, K, V), {"window": (-2, 3)}, ValueError, "window: (-2, 3): a side must be"),
    ((Q, K, V), {"window": (2**63, 3)}, ValueError, "window: 9223372036854775808 does not fit"),
    ((Q, K, V), {"window": ("a", 3)}, TypeError, "window: 'a' is not a whole number"),
    ((Q, K, V), {"window": (True, False)}, TypeError, "window: True is not a whole number"),
    ((Q, K, V), {"window": "12"}, TypeError, "window: '1' is not a whole number"),
    ((Q, K, V), {"scale": "big"}, TypeError, "scale: 'big' is not a number"),
    ((Q, K, V), {"scale": np.array("2")}, TypeError, "scale: array('2', dtype='<U1') is not a number"),
    ((Q, K, V), {"scale": np.array([2.0])}, TypeError, "scale: array([2.]) is not a number"),
    ((Q, K, V), {"q_lengths": [True, 2]}, TypeError, "q_lengths: True is not a number"),
    ((Q, K, V), {"kv_lengths": ["1", "2"]}, TypeError, "kv_lengths: <U1: must be whole numbers"),
    ((Q, K, V), {"alibi": [True, 0.5, 0.5, 0.5]}, TypeError, "alibi: True is not a number"),
    ((Q, K, V), {"alibi": ["1"] * 4}, TypeError, "alibi: must be True, or one slope per head"),
    *(
        ((Q, K, V), {name: value}, TypeError, f"{name}: {value!r} is not a {kind}number")
        for names, kind in (
            ("scale softcap dropout", ""),
            ("seed q_offset k_offset batch_offset head_offset threads", "whole "),
        )
        for name in names.split()
        for value in ("2", b"2", True, np.False_, np.array(True))
    ),
    ((Q, K, V), {"scale": float("nan")}, ValueError, "scale: nan is not finite"),
    ((Q, K, V), {"scale": 10**400}, ValueError, "scale: a whole number too large"),
    ((Q, K, V), {"softcap": -1.0}, ValueError, "softcap"),
    ((Q, K, V), {"dropout": 1.0}, ValueError, "dropout"),
    ((Q, K, V), {"seed": -1}, ValueError, "seed: -1: must be from 0"),
    ((Q, K, V), {"seed": 0.5}, TypeError, "seed: 0.5 is not a whole number"),
    ((Q, K, V), {"q_offset": 2**70}, ValueError, "q_offset: 1180591620717411303424 does not fit"),
    ((Q, K, V), {"q_offset": 2**63}, ValueError, "q_offset: 9223372036854775808 does not fit"),
    ((Q, K, V), {"k_offset": 2**62}, ValueError, "k_offset is 4611686018427387904: must be"),
    ((Q, K, V), {"batch_offset": -1}, ValueError, "batch_offset is -1: must be from 0"),
    ((Q, K, V), {"head_offset": 2**63}, ValueError, "head_offset: 9223372036854775808 does not fit"),
    ((Q, K, V), {"q_offset": 1, "align": "bottom-right"}, ValueError, "q_offset"),
    ((Q, K, V), {"threads": -1}, ValueError, "options: threads is -1: must be from 0"),
    ((Q, K, V), {"threads": -(2**40)}, ValueError, "threads: -1099511627776 does not fit"),
    ((Q, K, V), {"align": np.zeros(2)}, ValueError, "align: array([0., 0.]): must be"),
    ((Q, K, V), {"backend": "gpu"}, ValueError, "backend: 'gpu': must be 'cpu' or 'reference'"),
    (
        (Q, K, V),
        {"bias": draw(5, 7)},
        ValueError,
        "bias: shape [5, 7]: each axis must be 1 or that of [2, 4, 6, 7]",
    ),
    ((Q, K, V), {"bias": draw(7)}, ValueError, "bias: shape [7] has 1 axes, must have 2 to 4"),
    ((Q, K, V), {"bias": np.ones((6, 7), bool)}, TypeError, "bias: bool: must be float64"),
    ((Q, K, V), {"bias": draw(6, 7).astype(F)}, TypeError, "bias: float32, must be float64"),
    ((Q, K, V), {"sink": draw(4).astype(F)}, TypeError, "sink: float32, must be float64"),
    ((Q, K, V), {"bias_table": draw(4, 3).astype(F)}, TypeError, "bias_table: float32, must be float64"),
    (
        [x.astype(np.float16) for x in (Q, K, V)],
        {"bias": draw(6, 7)},
        TypeError,
        "bias: float64, must be float16 or float32 beside q of float16",
    ),
    ((Q, K, V), {"mask": draw(6, 7)}, TypeError, "mask: float64: must be bool or uint8"),
    ((Q, K, V), {"mask": np.ones((3, 1, 6, 7), bool)}, ValueError, "mask: shape [3, 1, 6, 7]"),
    ((Q, K, V), {"bias_table": draw(4, 6)}, ValueError, "bias_table: 6 columns"),
    ((Q, K, V), {"bias_table": draw(3, 5)}, ValueError, "bias_table: 3 rows, must be 1 or the 4 heads"),
    ((Q, K, V), {"buckets": [0, 1, 0]}, ValueError, "buckets: given without bias_table"),
    ((Q, K, V), {"buckets": [0, 1], "bias_table": draw(4, 2)}, ValueError, "buckets: has 2 entries"),
    ((Q, K, V), {"buckets": [0, 9, 0], "bias_table": draw(4, 2)}, ValueError, "buckets: 9: must be columns"),
    ((Q, K, V), {"buckets": [0], "bias_table": draw(4, 0)}, ValueError, "bias_table: 0 columns"),
    ((Q, K, V), {"buckets": [0, -1, 0], "bias_table": draw(4, 2)}, ValueError, "buckets: -1 to 0"),
    (
        (Q, K, V),
        {"buckets": [0.5, 1, 0], "bias_table": draw(4, 2)},
        TypeError,
        "buckets: float64: must be whole",
    ),
    ((Q, K, V), {"alibi": [0.5]}, ValueError, "alibi: has 1 slopes, but q has 4 heads"),
    ((Q, K, V), {"alibi": [1.0, 2.0, 3.0, np.nan]}, ValueError, "alibi: a slope is not finite"),
    ((Q, K, V), {"alibi": [[1.0], [2.0, 3.0]]}, ValueError, "alibi: its entries have different lengths"),
    ((Q, K, V), {"alibi": "steep"}, TypeError, "alibi: str is not an array"),
    ((Q, K, V), {"sink": draw(3)}, ValueError, "sink: shape [3], must be [4]"),
    (
        (Q, K, V),
        {"sink": draw(4).astype(F), "bias": draw(6, 7)},
        TypeError,
        "bias: float64, but bias, bias_table",
    ),
    ((Q, K, V), {"kv_lengths": [7]}, ValueError, "kv_lengths: has 1 entries, but the batch is 2"),
    ((Q, K, V), {"kv_lengths": [7, 8]}, ValueError, "kv_lengths[1] is 8: must be from 0 to 7"),
    (
        (Q, K, V),
        {"kv_lengths": np.array([7, 2**64 - 1], np.uint64)},
        ValueError,
        "kv_lengths: 18446744073709551615 does not fit into 64 bits",
    ),
    ((Q, K, V), {"q_lengths": [-1, 6]}, ValueError, "q_lengths[0] is -1"),
    ((Q, K, V), {"q_lengths": [[6, 6]]}, ValueError, "q_lengths: has 2 axes, must have 1"),
    ((Q, K, V), {"q_packed": [0, 2]}, ValueError, "k_packed: missing, but q_packed is given"),
    ((Q[0], K[0], V[0]), {"q_packed": [], "k_packed": []}, ValueError, "q_packed: has no entries"),
    (
        (Q[0], K[0], V[0]),
        {"q_packed": [0, 4], "k_packed": [0, 1, 2]},
        ValueError,
        "k_packed: has 3 entries, but q_packed has 2",
    ),
    (
        (Q[0, :, :4], K[0, :, :4], V[0, :, :4]),
        {"q_packed": [0, 9], "k_packed": [0, 2]},
        ValueError,
        "q_packed: a sequence of 9 rows, but q has 4",
    ),
    (
        (Q[0, :, :4], K[0, :, :4], V[0, :, :4]),
        {"q_packed": [0, 4], "k_packed": [1, 2]},
        ValueError,
        "k_packed[0] is 1: must be 0",
    ),
    (
        (Q, K, V),
        {"q_packed": [0, 2], "k_packed": [0, 2]},
        ValueError,
        "q: shape [2, 4, 6, 8] has 4 axes, must have 3",
    ),
    ((Q, K, V), {"out_dtype": "float16"}, TypeError, "out_dtype: float16, must be float64"),
    ((Q, K, V), {"out_dtype": "int8"}, TypeError, "out_dtype: int8: must be float64"),
    ((draw(2, 600), draw(2, 600), draw(2, 6)), {}, ValueError, "q: head size 600, must be from 1 to 512"),
    ((draw(2, 0), draw(2, 0), draw(2, 6)), {}, ValueError, "q: head size 0, must be from 1 to 512"),
    ((Q, K, draw(2, 2, 7, 513)), {}, ValueError, "v: head size 513, must be from 1 to 512"),
    ((Q, K, V[..., :0]), {}, ValueError, "v: head size 0, must be from 1 to 512"),
    ((Q[:, :0], K, V), {}, ValueError, "q: 0 heads, must have 1"),
    ((np.broadcast_to(0.0, (2**40, 1, 0, 1)),) * 3, {}, ValueError, "q: batch is 1099511627776"),
]


@pytest.mark.parametrize(
    "arrays, keywords, kind, message", ERRORS, ids=[re.sub(r"\W+", "-", e[3]) for e in ERRORS]
)
def test_errors(arrays, keywords, kind, message):
    with pytest.raises(kind, match="^" + re.escape(message)):
        attngrad.forward(*arrays, **keywords)


def test_errors_of_derivatives():
    o, lse = WANT
    with pytest.raises(ValueError, match=re.escape("d_o: shape [2, 4, 6, 8], must be [2, 4, 6, 5]")):
        attngrad.vjp(Q, K, V, o, lse, Q)
    with pytest.raises(TypeError, match="lse: float32, must be float64"):
        attngrad.vjp(Q, K, V, o, lse.astype(F), o)
    with pytest.raises(TypeError, match="d_o: float32, must be float64"):
        attngrad.vjp(Q, K, V, o, lse, o.astype(F))
    with pytest.raises(ValueError, match="tsink: given without sink"):
        attngrad.jvp(Q, K, V, tsink=np.zeros(4))
    with pytest.raises(ValueError, match="ttable: given without bias_table"):
        attngrad.jvp(Q, K, V, ttable=np.zeros((4, 3)))
    with pytest.raises(TypeError, match="tk: list is not an array"):
        attngrad.jvp(Q, K, V, tk=K.tolist())
    with pytest.raises(TypeError, match="^mu: missing"):
        attngrad.vjp_jvp(Q, K, V, o, lse, o, None, o)
    with pytest.raises(ValueError, match="wanted: 'dz'"):
        attngrad.vjp(Q, K, V, o, lse, o, wanted={"dz"})
    with pytest.raises(ValueError, match="^wanted: is empty"):
        attngrad.vjp(Q, K, V, o, lse, o, wanted=())
    with pytest.raises(ValueError, match="^wanted: dbias: there is no such input"):
        attngrad.vjp(Q, K, V, o, lse, o, wanted=["dbias"])
    with pytest.raises(TypeError, match="^wanted: 'dq' is not a collection of names"):
        attngrad.vjp(Q, K, V, o, lse, o, wanted="dq")
    with pytest.raises(TypeError, match="^wanted: 5 is not a collection"):
        attngrad.vjp(Q, K, V, o, lse, o, wanted=5)
    with pytest.raises(TypeError, match="^grad_dtype: float32, must be float64"):
        attngrad.vjp(Q, K, V, o, lse, o, grad_dtype=F)
    with pytest.raises(TypeError, match="^o: float32, must be float64"):
        attngrad.vjp(Q, K, V, o.astype(F), lse, o)
    with pytest.raises(TypeError, match="^o: missing"):
        attngrad.vjp(Q, K, V, None, lse, o)
    with pytest.raises(TypeError, match="^lse: missing"):
        attngrad.vjp(Q, K, V, o, None, o)


def test_errors_of_tools():
    wide = np.ones((3, 600))
    for call, kind, message in (
        (lambda: attngrad.explain(Q, K, V, batch=2), ValueError, "batch is 2: must be from 0 to 1"),
        (lambda: attngrad.explain(Q, K, V, head=2**63), ValueError, "head: 9223372036854775808 does"),
        (lambda: attngrad.explain(Q, K, V, jacobian_row=0.5), TypeError, "jacobian_row: 0.5 is not"),
        (lambda: attngrad.merge(wide, wide[:, 0], wide, wide[:, 0]), ValueError, "o1: head size 600"),
        (lambda: attngrad.merge(wide[:, :0], wide[:, 0], wide, wide[:, 0]), ValueError, "o1: head size 0"),
        (lambda: attngrad.check("q3 d600 f32"), ValueError, "dim_qk is 600"),
        (lambda: attngrad.check("q3 d6 f32 casual"), ValueError, "problem text: 'casual' is no word"),
        (lambda: attngrad.check("q3 d6 f32", threads=-1), ValueError, "options: threads is -1"),
        (lambda: attngrad.check(3), TypeError, "problem: 3 is not"),
        (lambda: attngrad.check("q3 d6 f32", seed=-1), ValueError, "seed: -1: must be from 0"),
    ):
        with pytest.raises(kind, match="^" + message):
            call()


def test_absent_cotangent_is_zero():
    p = attngrad.jvp(Q, K, V, Q)
    zero = np.zeros_like(p.o)
    want = attngrad.vjp(Q, K, V, p.o, p.lse, zero, d_lse=p.lse)
    same(attngrad.vjp(Q, K, V, p.o, p.lse, None, d_lse=p.lse)[:3], want[:3])
    assert not any(x.any() for x in attngrad.vjp(Q, K, V, p.o, p.lse, None)[:3])
    want = attngrad.vjp_jvp(Q, K, V, *p, zero, Q, td_o=p.o)
    same(attngrad.vjp_jvp(Q, K, V, *p, None, Q, td_o=p.o)[:3], want[:3])
    for given in ({"d_lse": p.lse}, {"d_lse": p.lse, "tq": Q}, {"td_o": p.o}):
        got = attngrad.explain(Q, K, V, **given)
        same(got.values(), attngrad.explain(Q, K, V, d_o=zero, **given).values())


def test_numpy_flags():
    same(attngrad.forward(Q, K, V, alibi=np.True_), attngrad.forward(Q, K, V, alibi=True))
    same(attngrad.forward(Q, K, V, alibi=np.False_), WANT)
