"""The maps on arrays with __cuda_array_interface__, against the same maps on NumPy arrays; and what is refused."""

import ctypes
import sys
import types
import unittest
import unittest.mock

import attngrad
import numpy as np
from attngrad import _device
from driver_arrays import DriverArray, to_gpu

rng = np.random.default_rng(5)


def draw(*shape, dtype=np.float64):
    return rng.standard_normal(shape).astype(dtype)


def close(got, wanted, dtype):
    limit = 1e-11 if dtype == np.float64 else 1e-5 if dtype == np.float32 else 2e-2
    for name, x in wanted._asdict().items():
        if x is not None:
            a, b = getattr(got, name).numpy().astype(np.float64), np.asarray(x, np.float64)
            error = np.abs(a - b).max() / (1 + np.abs(b).max())
            assert error <= limit, f"{name}: {error}"


def refuses(kind, words, function, *args, **keywords):
    try:
        function(*args, **keywords)
    except kind as error:
        assert words in str(error), f"{error} does not say {words!r}"
        return
    raise AssertionError(f"not refused: {words}")


def every_map(dtype, **features):
    """All maps on the GPU and on the processor."""
    q, tq, sq = (draw(1, 4, 20, 16, dtype=dtype) for _ in range(3))
    k, v, tk, tv, sk, sv = (draw(1, 2, 24, 16, dtype=dtype) for _ in range(6))
    d_o = draw(1, 4, 20, 16, dtype=dtype)
    on_gpu = {name: to_gpu(x) if isinstance(x, np.ndarray) else x for name, x in features.items()}
    here, there = (q, k, v), tuple(map(to_gpu, (q, k, v)))
    forward = attngrad.forward(*here, **features)
    close(attngrad.forward(*there, **on_gpu), forward, dtype)
    o, lse = map(to_gpu, forward)
    gradients = attngrad.vjp(*here, *forward, d_o, **features)
    close(attngrad.vjp(*there, o, lse, to_gpu(d_o), **on_gpu), gradients, dtype)
    tangents = attngrad.jvp(*here, tq, tk, tv, **features)
    close(attngrad.jvp(*there, *map(to_gpu, (tq, tk, tv)), **on_gpu), tangents, dtype)
    second = attngrad.vjp_jvp(*here, *tangents, d_o, tq, tk, tv, **features)
    on_there = attngrad.vjp_jvp(*there, *map(to_gpu, tangents), *map(to_gpu, (d_o, tq, tk, tv)), **on_gpu)
    close(on_there, second, dtype)
    smu = attngrad.jvp(*here, sq, sk, sv, **features).mu
    t = (forward.o, forward.lse, tangents.mu, smu, tq, tk, tv, sq, sk, sv)
    close(attngrad.jvp_jvp(*there, *map(to_gpu, t), **on_gpu), attngrad.jvp_jvp(*here, *t, **features), dtype)


def test_maps_f64():
    every_map(np.float64, causal=True)


def test_maps_f32():
    every_map(np.float32, causal=True)


def test_maps_f16():
    every_map(np.float16)


def gradients(given, d_o, tangents, outputs, **features):
    """What vjp and vjp_jvp give, as float64 on the host."""
    first = attngrad.vjp(*given, outputs.o, outputs.lse, d_o, **features)
    second = attngrad.vjp_jvp(*given, *outputs, d_o, *tangents, **features)
    both = {**first._asdict(), **second._asdict()}
    return {name: x.numpy().astype(np.float64) for name, x in both.items() if x is not None}


def test_one_kernel_and_two():
    """On Hopper vjp and vjp_jvp in 16 bits have one kernel, whose blocks of keys wait for each other; with invariant=True
    two, whose blocks do not. Only the order of their sums differs."""
    n = 70 if "Fake" in attngrad.info()["devices"] else 2500
    for dim, n_k, features in [
        (64, 2 * n, {}),
        (128, 4 * n, {}),
        (64, n, {"causal": True}),
        (128, 4 * n, {"causal": True, "align": "bottom-right"}),
        (128, n, {"window": (n // 3, 40), "kv_lengths": [n - 9]}),
    ]:
        q, tq, d_o = (to_gpu(draw(1, 2, n, dim, dtype=np.float16)) for _ in range(3))
        k, v, tk, tv = (to_gpu(draw(1, 1, n_k, dim, dtype=np.float16)) for _ in range(4))
        outputs = attngrad.jvp(q, k, v, tq, tk, tv, **features)
        call = ((q, k, v), d_o, (tq, tk, tv), outputs)
        wanted = gradients(*call, invariant=True, **features)
        for name, x in gradients(*call, **features).items():
            error = np.linalg.norm(x - wanted[name]) / np.linalg.norm(wanted[name])
            assert error <= 2**-9, f"{dim} {n_k} {features}: {name}: {error}"


def test_features():
    bias, mask = draw(1, 4, 20, 24, dtype=np.float32), rng.random((1, 1, 20, 24)) < 0.8
    every_map(np.float32, bias=bias, mask=mask, softcap=3.0, sink=draw(4, dtype=np.float32), dropout=0.2, seed=7)
    every_map(np.float64, bias_table=draw(4, 9), alibi=True, kv_lengths=[17])


def test_zero_cotangent_and_wanted():
    q, k, v = (draw(2, 8, 16) for _ in range(3))
    forward = attngrad.forward(q, k, v)
    d_lse = draw(2, 8)
    wanted = attngrad.vjp(q, k, v, *forward, None, d_lse=d_lse, wanted={"dq"})
    there = (*map(to_gpu, (q, k, v)), *map(to_gpu, forward))
    got = attngrad.vjp(*there, None, d_lse=to_gpu(d_lse), wanted={"dq"})
    assert got.dk is None and np.abs(got.dq.numpy() - wanted.dq).max() < 1e-12


def test_merge():
    q, k, v = draw(2, 8, 16), draw(2, 10, 16), draw(2, 10, 16)
    parts = [attngrad.forward(q, k[:, s], v[:, s]) for s in (slice(0, 4), slice(4, 10))]
    wanted = attngrad.merge(*parts[0], *parts[1])
    close(attngrad.merge(*map(to_gpu, parts[0]), *map(to_gpu, parts[1])), wanted, np.float64)


def test_refused():
    x, here = to_gpu(draw(2, 8, 16)), draw(2, 8, 16)
    refuses(ValueError, "k: is in the processor's memory, but other arrays are on GPU 0", attngrad.forward, x, here, x)
    refuses(ValueError, "k: is on a GPU, must be in the processor's memory", attngrad.forward, here, x, here)
    refuses(ValueError, "backend: 'cpu', but q is on a GPU", attngrad.forward, x, x, x, backend="cpu")
    refuses(ValueError, "backend: 'cuda', but q is in the processor's memory", attngrad.forward, *[here] * 3, backend="cuda")
    refuses(ValueError, "bias: is in the processor's memory", attngrad.forward, x, x, x, bias=draw(2, 8, 8))
    refuses(ValueError, "q: is on GPU 0, must be in the processor's memory", attngrad.explain, x, x, x)
    other = to_gpu(draw(2, 8, 16))
    other.stream = 0x5000
    refuses(ValueError, "v: is written on stream 0x5000", attngrad.forward, x, x, other)


class OnHost(DriverArray):
    """An array that says that it is on a GPU, and is in the processor's memory."""

    __module__ = "driver_arrays"

    def __init__(self, a):
        self.a, self.shape, self.dtype, self.device, self.stream = a, a.shape, a.dtype, 0, 1
        self.address = ctypes.c_uint64(a.ctypes.data)

    def __del__(self):
        pass


def test_host_memory():
    """The library asks the driver about every pointer: nothing is launched, nothing written."""
    x, here = to_gpu(draw(2, 8, 16)), draw(2, 8, 16)
    kept = here.copy()
    refuses(ValueError, "is host memory: the plan takes memory of cuda device 0", attngrad.forward, x, OnHost(here), x)
    refuses(ValueError, "is host memory", attngrad.forward, x, x, x, bias=OnHost(draw(2, 8, 8)))
    f = attngrad.forward(x, x, x)
    refuses(ValueError, "lse at 0x", attngrad.vjp, x, x, x, f.o, OnHost(draw(2, 8)), x)
    assert np.array_equal(here, kept)
    assert np.isfinite(attngrad.forward(x, x, x).o.numpy()).all()


# ---- DLPack ----


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = [("tensor", _device._DLTensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


class ByDLPack:
    """An array of a library that has DLPack alone."""

    def __init__(self, x, code, bits):
        self.x, self.kind, self.streams = x, _device._DLDataType(code, bits, 1), []

    def __dlpack_device__(self):
        return 2, self.x.device

    def __dlpack__(self, stream=None):
        self.streams.append(stream)
        self.shape = (ctypes.c_int64 * len(self.x.shape))(*self.x.shape)
        self.managed = _Managed()
        tensor = self.managed.tensor
        tensor.data, tensor.device_type, tensor.device_id = self.x.address.value, 2, self.x.device
        tensor.ndim, tensor.dtype, tensor.shape = len(self.x.shape), self.kind, self.shape
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self.managed), b"dltensor", None)


def test_dlpack():
    q, k, v = (draw(2, 8, 16, dtype=np.float32) for _ in range(3))
    mask = rng.random((2, 8, 8)) < 0.7
    wanted = attngrad.forward(q, k, v, mask=mask)
    there = ByDLPack(to_gpu(k), 2, 32), ByDLPack(to_gpu(v), 2, 32)
    got = attngrad.forward(to_gpu(q), *there, mask=ByDLPack(to_gpu(mask), 6, 8))
    close(got, wanted, np.float32)
    assert there[0].streams == [1], "the stream of the call is the legacy default one, which DLPack calls 1"
    strange = ByDLPack(to_gpu(k), 5, 64)  # complex numbers
    refuses(TypeError, "k: DLPack's type 5 of 64 bits", attngrad.forward, to_gpu(q), strange, there[1])


# ---- Libraries ----


def test_memory_of_cupy():
    """What is asked of CuPy, with a module that answers as it does: CuPy itself may not be here."""
    asked = []

    class ndarray(DriverArray):
        __module__ = "cupy"

    class Device:
        def __init__(self, number):
            self.number = number

        def __enter__(self):
            asked.append(self.number)

        def __exit__(self, *_):
            pass

    def empty(shape, dtype):
        return ndarray(shape, dtype, asked[-1])

    def zeros(shape, dtype):
        return to_gpu(np.zeros(shape, dtype), asked[-1], ndarray)

    stream = types.SimpleNamespace(ptr=0)
    cuda = types.SimpleNamespace(Device=Device, get_current_stream=lambda device: stream)
    cupy = types.SimpleNamespace(cuda=cuda, empty=empty, zeros=zeros)
    a = draw(2, 8, 16)
    x = to_gpu(a, 0, ndarray)
    with unittest.mock.patch.dict(sys.modules, {"cupy": cupy}):
        f = attngrad.forward(x, x, x)
        g = attngrad.vjp(x, x, x, *f, None, d_lse=f.lse)
    assert type(f.o) is ndarray and set(asked) == {0}
    wanted = attngrad.forward(a, a, a)
    close(f, wanted, np.float64)
    close(g, attngrad.vjp(a, a, a, *wanted, None, d_lse=wanted.lse), np.float64)


class Foreign(DriverArray):
    """An array of a library that gives no memory."""


def test_library_without_memory():
    Foreign.__module__ = "foreign"
    x = Foreign((2, 8, 16), np.float32)
    refuses(TypeError, "q: is on a GPU, and of foreign", attngrad.forward, x, x, x)


def test_two_gpus():
    if attngrad.info()["devices"].count("sm") < 2:
        raise unittest.SkipTest("one GPU: arrays of two are not tested")
    x, y = to_gpu(draw(2, 8, 16), 0), to_gpu(draw(2, 8, 16), 1)
    refuses(ValueError, "k: is on GPU 1, but other arrays are on GPU 0", attngrad.forward, x, y, x)
    o = attngrad.forward(y, y, y).o
    assert o.device == 1


def test_info():
    assert "sm" in attngrad.info()["devices"]
