"""From anything with DLPack or the buffer protocol to NumPy arrays, and from those to what _core takes: an
address and the strides of four axes. Knows no attention. Memory is copied only if its elements are
misaligned, or if PyTorch keeps a negation of them pending; every error names the argument."""

from __future__ import annotations

import functools
import sys
from typing import Any, NamedTuple

import numpy as np

CPU_DEVICES = (1, 3)  # DLPack's device types kDLCPU and kDLCUDAHost, pinned memory

# Kinds of arrays. MAIN: q, k, v, o; ROWS: lse, mu; PACKED, PACKED_ROWS: these of packed sequences; LAST: bias, mask.
MAIN, ROWS, PACKED, PACKED_ROWS, LAST, TABLE, SINK = range(7)

# (kind, number of axes): which axis is [batch, head, position, channel]; None: absent, stride 0.
_AXES = {
    (MAIN, 2): (None, None, 0, 1),
    (MAIN, 3): (None, 0, 1, 2),
    (MAIN, 4): (0, 1, 2, 3),
    (ROWS, 1): (None, None, 0, None),
    (ROWS, 2): (None, 0, 1, None),
    (ROWS, 3): (0, 1, 2, None),
    (PACKED, 3): (None, 1, 0, 2),
    (PACKED_ROWS, 2): (None, 1, 0, None),
    (LAST, 2): (None, None, 0, 1),
    (LAST, 3): (None, 0, 1, 2),
    (LAST, 4): (0, 1, 2, 3),
    (TABLE, 1): (None, None, None, 0),
    (TABLE, 2): (None, 0, None, 1),
    (SINK, 1): (None, 0, None, None),
}

class DeviceArray(NamedTuple):
    """What a call needs of an array in a GPU's memory (_device.py); strides are in bytes, as NumPy's."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: np.dtype
    device: int
    stream: int | None  # on which its producer works; None: it does not say
    owner: Any  # keeps the memory alive

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    @property
    def size(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def view(self, dtype: Any) -> DeviceArray:
        """The same bytes as another dtype of the same size."""
        assert np.dtype(dtype).itemsize == self.itemsize
        return self._replace(dtype=np.dtype(dtype))


_codes = {np.dtype(np.float64): "f64", np.dtype(np.float32): "f32", np.dtype(np.float16): "f16"}
_dtypes = {code: dtype for dtype, code in _codes.items()}


def _bfloat16() -> np.dtype:
    try:
        import ml_dtypes
    except ImportError:
        raise TypeError("bfloat16 arrays need the package ml_dtypes") from None
    dtype = np.dtype(ml_dtypes.bfloat16)
    _codes[dtype] = "bf16"
    _dtypes["bf16"] = dtype
    return dtype


def dtype_of(code: str) -> np.dtype:
    """The NumPy dtype of f64, f32, f16 or bf16."""
    return _dtypes[code] if code in _dtypes else _bfloat16()


def code_of(dtype: Any, name: str) -> str:
    """f64, f32, f16 or bf16; anything else is refused."""
    code = _codes.get(dtype)
    if code is not None:
        return code
    try:
        dtype = np.dtype(dtype)
    except TypeError:
        raise TypeError(f"{name}: {dtype!r} is not a dtype") from None
    if dtype.name == "bfloat16" and dtype == _bfloat16():
        return "bf16"
    if dtype.newbyteorder("=") in _codes and not dtype.isnative:
        raise TypeError(f"{name}: {dtype.str} has another byte order than this machine")
    if dtype in _codes:
        return _codes[dtype]
    raise TypeError(f"{name}: {dtype}: must be float64, float32, float16 or bfloat16")


def resolved(x: Any) -> Any:
    """x with its values in memory: a PyTorch tensor may have a negation or conjugation pending, or be zeros
    without memory, and DLPack ignores that."""
    if hasattr(x, "_is_zerotensor") and x._is_zerotensor():
        return x.new_zeros(x.shape)
    for pending, resolve in (("is_neg", "resolve_neg"), ("is_conj", "resolve_conj")):
        if hasattr(x, resolve) and getattr(x, pending)():
            x = getattr(x, resolve)()
    return x


def _from_dlpack(x: Any, name: str) -> np.ndarray:
    try:
        x = resolved(x)
        if x.__dlpack_device__()[0] not in CPU_DEVICES:
            raise ValueError(
                f"is on {getattr(x, 'device', 'another device')}, must be in the processor's memory"
            )
        if str(getattr(x, "dtype", "")).endswith("bfloat16"):  # NumPy's own DLPack has none
            if type(x).__module__.partition(".")[0] == "torch":
                return np.from_dlpack(x.view(sys.modules["torch"].int16)).view(_bfloat16())
            return np.asarray(x)
        return np.from_dlpack(x)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    except (BufferError, RuntimeError, TypeError) as error:
        raise TypeError(f"{name}: {error}") from None


def as_array(x: Any, name: str) -> np.ndarray:
    """The array that x is, or the NumPy array over the memory of x."""
    if type(x) is np.ndarray or type(x) is DeviceArray:
        return x
    if isinstance(x, np.ma.MaskedArray):
        raise TypeError(f"{name}: a masked array; give its data, and the mask as mask=")
    if isinstance(x, np.ndarray):
        return np.asarray(x)
    if hasattr(x, "__dlpack__") and hasattr(x, "__dlpack_device__"):
        return _from_dlpack(x, name)
    if hasattr(x, "__cuda_array_interface__"):
        raise ValueError(f"{name}: is on a GPU, must be in the processor's memory")
    try:
        return np.asarray(memoryview(x))
    except TypeError:
        pass
    except ValueError as error:
        raise TypeError(f"{name}: {error}") from None
    if hasattr(x, "__array_interface__") or hasattr(x, "__array__"):
        return np.asarray(x)
    raise TypeError(f"{name}: {type(x).__name__} is not an array: no DLPack, no buffer")


def check_wider(name: str, code: str, narrow: str) -> None:
    """16-bit problems may have results and biases of float32; otherwise there is one dtype."""
    allowed = [narrow, "f32"] if narrow in ("f16", "bf16") else [narrow]
    if code not in allowed:
        words = " or ".join(str(dtype_of(c)) for c in allowed)
        raise TypeError(f"{name}: {dtype_of(code)}, must be {words} beside q of {dtype_of(narrow)}")


def check_has_low(name: str, dtype: np.dtype, of: str) -> None:
    """Refuses the argument `name` if the output `of` is wider than 16 bits."""
    if dtype.itemsize != 2:
        raise ValueError(f"{name}: {of} is {dtype}, but only 16-bit outputs have a low half")


def float_array(x: Any, name: str) -> tuple[np.ndarray, str]:
    a = x if type(x) is np.ndarray else as_array(x, name)
    return a, _codes.get(a.dtype) or code_of(a.dtype, name)


def mask_array(x: Any, name: str) -> np.ndarray:
    a = as_array(x, name)
    if a.dtype != np.bool_ and a.dtype != np.uint8:
        raise TypeError(
            f"{name}: {a.dtype}: must be bool or uint8, where not zero attends; floats go into bias="
        )
    return a.view(np.uint8)


def list_array(x: Any, name: str) -> np.ndarray:
    """x if it is an array, or the array of the numbers of a list or tuple."""
    if not isinstance(x, (list, tuple)):
        return as_array(x, name)
    for entry in x:
        if isinstance(entry, (bool, np.bool_)):  # NumPy would make 1 of True beside numbers
            raise TypeError(f"{name}: {entry!r} is not a number")
    try:
        return np.asarray(x)
    except ValueError:
        raise ValueError(f"{name}: its entries have different lengths") from None


def int_array(x: Any, name: str) -> np.ndarray:
    """One axis of int64, from an array or a sequence of whole numbers."""
    a = list_array(x, name)
    if a.size == 0 and isinstance(x, (list, tuple)):
        a = a.astype(np.int64)
    if a.ndim != 1:
        raise ValueError(f"{name}: has {a.ndim} axes, must have 1")
    if a.dtype.kind not in "iu":
        raise TypeError(f"{name}: {a.dtype}: must be whole numbers")
    if a.dtype.kind == "u" and a.size and int(a.max()) >= 2**63:
        raise ValueError(f"{name}: {a.max()} does not fit into 64 bits with a sign")
    return np.ascontiguousarray(a, np.int64)


@functools.lru_cache(maxsize=4096)
def _element_strides(strides: tuple[int, ...], itemsize: int, kind: int) -> tuple[int, int, int, int] | None:
    """The strides of the four axes in elements; None if one is not a multiple of the element size."""
    if any(stride % itemsize for stride in strides):
        return None
    b, h, i, c = (0 if axis is None else strides[axis] // itemsize for axis in _AXES[kind, len(strides)])
    return b, h, i, c


def device_view(a: Any, kind: int, name: str) -> tuple[int, tuple[int, int, int, int]]:
    """A tensor of _core in a GPU's memory; a is a DeviceArray. What keeps the memory alive is for the caller."""
    strides = _element_strides(a.strides, a.itemsize, kind)
    if strides is None or a.address % a.itemsize:
        raise ValueError(f"{name}: its elements are not aligned")
    return a.address, strides


def view(a: np.ndarray, kind: int) -> tuple[Any, tuple[int, int, int, int]]:
    """A tensor of _core, which keeps the memory alive."""
    strides = _element_strides(a.strides, a.itemsize, kind)
    if strides is None or not a.flags.aligned:
        a = a.copy()
        strides = _element_strides(a.strides, a.itemsize, kind)
        assert strides is not None
    return a.__array_struct__, strides
