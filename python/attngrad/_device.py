"""Arrays in the memory of an NVIDIA GPU: anything with __cuda_array_interface__ or with DLPack, such as those of CuPy,
PyTorch, JAX. Memory for results and workspace comes from the library of a call's first array, which is PyTorch or CuPy,
and so does the stream. Knows no attention."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from . import _arrays
from ._arrays import DeviceArray

_CUDA = 2  # DLPack's device type kDLCUDA; kDLCUDAManaged is 13
_CUDA_MANAGED = 13
_LEGACY = 1  # what the interfaces call the legacy default stream; 0 in CUDA itself


class Memory(NamedTuple):
    """How a library of arrays gives memory on a device."""

    empty: Callable[[tuple[int, ...], str, int], Any]  # (shape, f64 f32 f16 bf16 or u8, device)
    zeros: Callable[[tuple[int, ...], str, int], Any]
    stream: Callable[[int], int]  # the current one of a device


def _torch() -> Memory:
    torch = sys.modules["torch"]
    dtypes = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    dtypes["u8"] = torch.uint8
    return Memory(
        lambda shape, code, device: torch.empty(shape, dtype=dtypes[code], device=f"cuda:{device}"),
        lambda shape, code, device: torch.zeros(shape, dtype=dtypes[code], device=f"cuda:{device}"),
        lambda device: torch.cuda.current_stream(device).cuda_stream,
    )


def _cupy() -> Memory:
    cupy = sys.modules["cupy"]

    def on(device: int, make: Callable[..., Any], shape: tuple[int, ...], code: str) -> Any:
        with cupy.cuda.Device(device):
            return make(shape, np.uint8 if code == "u8" else _arrays.dtype_of(code))

    return Memory(
        lambda shape, code, device: on(device, cupy.empty, shape, code),
        lambda shape, code, device: on(device, cupy.zeros, shape, code),
        lambda device: cupy.cuda.get_current_stream(device).ptr,
    )


# By the first part of the name of the module that the type of q is defined in.
LIBRARIES: dict[str, Callable[[], Memory]] = {"torch": _torch, "cupy": _cupy}


def memory_of(x: Any, name: str) -> Memory:
    """That of the library of x."""
    library = type(x).__module__.partition(".")[0]
    if library not in LIBRARIES:
        known = " or ".join(LIBRARIES)
        raise TypeError(f"{name}: is on a GPU, and of {library}: memory for the results comes from {known} only")
    return LIBRARIES[library]()


def device_of(x: Any) -> int | None:
    """The number of the GPU whose memory x is in; None: x is in the processor's memory, or no array."""
    if type(x) is np.ndarray:
        return None
    if hasattr(x, "__dlpack_device__"):
        kind, number = x.__dlpack_device__()
        return int(number) if int(kind) in (_CUDA, _CUDA_MANAGED) else None
    if hasattr(x, "__cuda_array_interface__"):
        return _device_of_address(x.__cuda_array_interface__["data"][0])
    return None


def _device_of_address(address: int) -> int:
    """Asks the driver. An address of no memory is said to be on GPU 0, and refused by the library."""
    pointer_device = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    number = ctypes.c_int(0)
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ValueError(f"an array on a GPU, but there is no CUDA driver: {error}") from None
    driver.cuPointerGetAttributes(
        ctypes.c_uint(1),
        (ctypes.c_int * 1)(pointer_device),
        (ctypes.c_void_p * 1)(ctypes.addressof(number)),
        ctypes.c_uint64(address),
    )
    return max(number.value, 0)


# ---- Reading ----


def read(x: Any, name: str, device: int, stream: int) -> DeviceArray:
    """The memory of x, which is on that GPU, for use on the stream."""
    if hasattr(x, "data_ptr"):
        return _read_torch(x, device)
    if hasattr(x, "__cuda_array_interface__"):
        return _read_interface(x, name, device)
    return _read_dlpack(x, name, device, stream)


def _dense(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides = []
    for size in reversed(shape):
        strides.append(itemsize)
        itemsize *= max(size, 1)
    return tuple(reversed(strides))


def _read_torch(x: Any, device: int) -> DeviceArray:
    x = _arrays.resolved(x).detach()
    name = str(x.dtype).removeprefix("torch.")
    dtype = _arrays.dtype_of("bf16") if name == "bfloat16" else np.dtype(name)
    strides = tuple(stride * dtype.itemsize for stride in x.stride())
    return DeviceArray(x.data_ptr(), tuple(x.shape), strides, dtype, device, None, x)


def _read_interface(x: Any, name: str, device: int) -> DeviceArray:
    entry = x.__cuda_array_interface__
    if entry.get("mask") is not None:
        raise TypeError(f"{name}: a masked array; give its data, and the mask as mask=")
    shape, dtype = tuple(entry["shape"]), np.dtype(entry["typestr"])
    if dtype.kind == "V" and "bfloat16" in str(getattr(x, "dtype", "")):  # the interface has no word for it
        dtype = _arrays.dtype_of("bf16")
    strides = entry.get("strides") or _dense(shape, dtype.itemsize)
    return DeviceArray(entry["data"][0], shape, tuple(strides), dtype, device, entry.get("stream"), x)


class _DLDataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _DLTensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int),
        ("device_id", ctypes.c_int),
        ("ndim", ctypes.c_int),
        ("dtype", _DLDataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


_DL_KINDS = {0: "i", 1: "u", 2: "f", 6: "b"}
_DL_BFLOAT = 4


def _dl_dtype(of: _DLDataType, name: str) -> np.dtype:
    if of.lanes == 1 and of.code == _DL_BFLOAT and of.bits == 16:
        return _arrays.dtype_of("bf16")
    if of.lanes != 1 or of.code not in _DL_KINDS:
        raise TypeError(f"{name}: DLPack's type {of.code} of {of.bits} bits and {of.lanes} lanes")
    return np.dtype(bool) if of.code == 6 else np.dtype(f"{_DL_KINDS[of.code]}{of.bits // 8}")


def _read_dlpack(x: Any, name: str, device: int, stream: int) -> DeviceArray:
    """The capsule is not consumed but kept, so that its own destructor gives the memory back."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = x.__dlpack__(stream=stream or _LEGACY)
    tensor = _DLTensor.from_address(pointer(capsule, b"dltensor"))
    dtype = _dl_dtype(tensor.dtype, name)
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = _dense(shape, dtype.itemsize)
    if tensor.strides:
        strides = tuple(stride * dtype.itemsize for stride in tensor.strides[: tensor.ndim])
    address = (tensor.data or 0) + tensor.byte_offset
    return DeviceArray(address, shape, strides, dtype, device, None, (x, capsule))


# ---- A call ----


class Place:
    """Where a call runs: on the GPU of its first array, with memory and stream of that array's library."""

    __slots__ = ("device", "memory", "stream", "owners")

    def __init__(self, first: Any, name: str, device: int) -> None:
        self.device, self.memory = device, memory_of(first, name)
        self.stream = self.memory.stream(device)
        self.owners: list[Any] = []  # of memory that the call uses

    def array(self, x: Any, name: str) -> DeviceArray:
        """x, which must be on the same GPU. An array whose producer names another stream is refused: its values may not
        be there yet."""
        if type(x) is DeviceArray:
            return x
        device = device_of(x)
        if device is None:
            raise ValueError(f"{name}: is in the processor's memory, but other arrays are on GPU {self.device}")
        if device != self.device:
            raise ValueError(f"{name}: is on GPU {device}, but other arrays are on GPU {self.device}")
        a = read(x, name, device, self.stream)
        if a.stream is not None and a.stream != (self.stream or _LEGACY):
            raise ValueError(f"{name}: is written on stream {a.stream:#x}, but the current one is {self.stream:#x}")
        self.owners.append(a.owner)
        return a

    def float_array(self, x: Any, name: str) -> tuple[DeviceArray, str]:
        a = self.array(x, name)
        return a, _arrays.code_of(a.dtype, name)

    def empty(self, shape: tuple[int, ...], code: str) -> tuple[Any, int]:
        """New memory: the library's array, and its address."""
        x = self.memory.empty(shape, code, self.device)
        return x, read(x, "result", self.device, self.stream).address

    def zeros(self, shape: tuple[int, ...], code: str) -> DeviceArray:
        """One element, broadcast by zero strides."""
        x = self.memory.zeros((1,), code, self.device)
        self.owners.append(x)
        return read(x, "zeros", self.device, self.stream)._replace(shape=shape, strides=(0,) * len(shape))

    def workspace(self, plan: Any, map: int) -> dict[str, int]:
        """The keywords of Plan.run that say where it runs."""
        memory, address = self.empty((plan.workspace(map),), "u8")
        self.owners.append(memory)
        return {"workspace": address, "stream": self.stream}


def place_of(x: Any, name: str) -> Place | None:
    """The place of a call whose first array is x; None: the processor."""
    device = device_of(x)
    return None if device is None else Place(x, name, device)


def float_code(x: Any, name: str) -> str:
    """The dtype of an array anywhere."""
    device = device_of(x)
    if device is None:
        return _arrays.float_array(x, name)[1]
    return _arrays.code_of(read(x, name, device, _LEGACY).dtype, name)
