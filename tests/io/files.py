"""Files of NumPy and of the safetensors package, through the library and back to them: files.py COPY FOLDER

COPY is the program of copy.c. Every array must come back with its bytes, dtype and shape."""
import itertools
import os
import subprocess
import sys

import numpy as np
import safetensors
from numpy.lib import format as npy_format
from safetensors.numpy import load_file, save_file

copy, folder = sys.argv[1:]
passed = failed = 0


def check(holds, what):
    global passed, failed
    passed, failed = passed + bool(holds), failed + (not holds)
    if not holds:
        print("FAIL:", what)


def path(name):
    return os.path.join(folder, name)


def copy_file(source, target):
    """Copies with the library. Returns whether that succeeded."""
    done = subprocess.run([copy, path(source), path(target)], capture_output=True, text=True)
    check(done.returncode == 0, f"{source} to {target}: {done.stderr.strip()}")
    return done.returncode == 0


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


def random_array(shape, dtype):
    values = np.asarray(np.random.default_rng(1).standard_normal(shape)) * 100
    return np.asarray(values > 0 if dtype == "b1" else abs(values) if dtype == "u1" else values).astype(dtype)


def check_npy(array, version, what):
    with open(path("in.npy"), "wb") as file:
        npy_format.write_array(file, array, version=version)
    plain = np.array(array, dtype=array.dtype.newbyteorder("<"), order="C")
    if copy_file("in.npy", "out.npy"):
        check(same(np.load(path("out.npy")), plain), what)
        check(array.ndim == 0 or array.size == 0 or np.load(path("out.npy"), mmap_mode="r").flags.aligned,
              what + ", mapped")
    if copy_file("in.npy", "out.safetensors"):
        check(same(load_file(path("out.safetensors"))["x"], plain), what + " as safetensors")


DTYPES = ["b1", "u1", "i4", "i8", "f2", "f4", "f8"]
SHAPES = [(), (0,), (1,), (7,), (3, 4), (2, 0, 3), (2, 3, 4), (2, 3, 2, 5), (1, 2, 1, 2, 1, 2, 1, 2)]
for dtype, shape, version in itertools.product(DTYPES, SHAPES, [(1, 0), (2, 0), (3, 0)]):
    array = random_array(shape, dtype)
    check_npy(array, version, f"{dtype} {shape} {version}")
    if len(shape) > 1:
        check_npy(np.asfortranarray(array), version, f"{dtype} {shape} {version} in Fortran order")
for dtype, shape in itertools.product(DTYPES[2:], SHAPES):
    array = random_array(shape, dtype).astype(">" + dtype)
    check_npy(array, (1, 0), f"big-endian {dtype} {shape}")
    check_npy(np.asfortranarray(array), (1, 0), f"big-endian {dtype} {shape} in Fortran order")
special = np.array([np.nan, np.inf, -np.inf, -0.0, 5e-324, 1.7976931348623157e308])
check_npy(special, (1, 0), "special numbers")

# ---- safetensors ----

tensors = {f"{dtype} {shape} \u00fc\"\n": random_array(shape, dtype) for dtype in DTYPES for shape in SHAPES}
metadata = {"key": "value", "text": "two\nlines", "\u00fc": "\U0001f600", "": ""}
save_file(tensors, path("in.safetensors"), metadata=metadata)
if copy_file("in.safetensors", "out.safetensors"):
    loaded = load_file(path("out.safetensors"))
    check(loaded.keys() == tensors.keys(), "other names")
    for name, array in tensors.items():
        check(name in loaded and same(loaded[name], array), f"safetensors {name!r}")
    with safetensors.safe_open(path("out.safetensors"), framework="np") as file:
        check(file.metadata() == metadata, f"metadata {file.metadata()}")
save_file({}, path("in.safetensors"))
if copy_file("in.safetensors", "out.safetensors"):
    check(load_file(path("out.safetensors")) == {}, "no tensors")

# bfloat16, which NumPy does not have, as 16-bit numbers.
bits = np.arange(-6, 6, dtype="i2").reshape(3, 4)
if hasattr(safetensors, "TensorSpec"):
    spec = safetensors.TensorSpec(dtype="bfloat16", shape=[3, 4], data_ptr=bits.ctypes.data, data_len=bits.nbytes)
else:
    spec = {"dtype": "bfloat16", "shape": [3, 4], "data": bits.tobytes()}
with open(path("in.safetensors"), "wb") as file:
    file.write(safetensors.serialize({"x": spec}))
if copy_file("in.safetensors", "out.safetensors"):
    with open(path("out.safetensors"), "rb") as file:
        (name, view), = safetensors.deserialize(file.read())
    check(name == "x" and view["dtype"] == "BF16" and list(view["shape"]) == [3, 4], f"bf16: {view}")
    check(bytes(view["data"]) == bits.tobytes(), "bf16: other bytes")

print(f"{passed} checks passed, {failed} failed")
sys.exit(failed != 0)
