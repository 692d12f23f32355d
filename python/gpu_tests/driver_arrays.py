"""Arrays on a GPU by the driver alone, with __cuda_array_interface__: for tests that need neither PyTorch nor CuPy. They
work on a real driver and on the fake one of tests/cuda."""

import ctypes

import numpy as np

from attngrad import _device

driver = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    result = getattr(driver, name)(*args)
    assert result == 0, f"{name}: error {result}"


def enter(device=0):
    """Makes the primary context of a GPU current."""
    context = ctypes.c_void_p()
    call("cuInit", 0)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


class DriverArray:
    """Memory of the current context, freed with the object."""

    def __init__(self, shape, dtype, device=0):
        self.shape, self.dtype, self.device, self.stream = tuple(shape), np.dtype(dtype), device, 1
        self.nbytes = int(np.prod(self.shape)) * self.dtype.itemsize
        self.address = ctypes.c_uint64()
        enter(device)
        call("cuMemAlloc_v2", ctypes.byref(self.address), ctypes.c_size_t(max(self.nbytes, 1)))

    def __del__(self):
        driver.cuMemFree_v2(self.address)

    @property
    def __cuda_array_interface__(self):
        typestr = self.dtype.str if self.dtype.kind != "V" else "<V2"
        data = (self.address.value, False)
        return {"shape": self.shape, "typestr": typestr, "data": data, "version": 3, "stream": self.stream}

    def numpy(self):
        a = np.empty(self.shape, self.dtype)
        call("cuMemcpyDtoH_v2", a.ctypes.data_as(ctypes.c_void_p), self.address, ctypes.c_size_t(a.nbytes))
        return a


def to_gpu(a, device=0, kind=DriverArray):
    a = np.ascontiguousarray(a)
    x = kind(a.shape, a.dtype, device)
    call("cuMemcpyHtoD_v2", x.address, a.ctypes.data_as(ctypes.c_void_p), ctypes.c_size_t(a.nbytes))
    return x


def _dtype(code):
    from attngrad import _arrays

    return np.dtype(np.uint8) if code == "u8" else _arrays.dtype_of(code)


_device.LIBRARIES["driver_arrays"] = lambda: _device.Memory(
    lambda shape, code, device: DriverArray(shape, _dtype(code), device),
    lambda shape, code, device: to_gpu(np.zeros(shape, _dtype(code)), device),
    lambda device: 0,
)
