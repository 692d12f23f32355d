"""The library and the probes through ctypes: only what the benchmark calls, so that our maps and PyTorch's
run in one process on the same arrays. The layer is in layer.py."""

import ctypes
import random
import sys
from array import array
from ctypes import (
    POINTER,
    Structure,
    byref,
    c_char_p,
    c_double,
    c_int,
    c_int32,
    c_int64,
    c_size_t,
    c_uint32,
    c_uint64,
    c_void_p,
)
from pathlib import Path

MAPS = {
    "forward": (1, 4),
    "vjp": (2, 10),
    "jvp": (4, 12),
    "vjp_jvp": (8, 24),
    "jvp_jvp": (16, 20),
}  # bit, flops per pair and channel
ALL_MAPS = sum(bit for bit, _ in MAPS.values())
# As in cli/bench/probe.h.
PROBE_F32, PROBE_F64, PROBE_EXP2, PROBE_AMX, PROBE_FED_F32, PROBE_FED_F64 = range(6)
SIZES = {"f64": 8, "f32": 4, "bf16": 2}


class Problem(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("dtypes", c_int32 * 4),
        ("align", c_int32),
        ("reserved", c_int32),
        ("sizes", c_int64 * 7),
        ("totals", c_int64 * 2),
        ("scale", c_double),
        ("softcap", c_double),
        ("dropout", c_double),
        ("window", c_int64 * 2),
        ("bias_size", c_int64 * 4),
        ("mask_size", c_int64 * 4),
        ("table", c_int64 * 3),
        ("buckets", c_void_p),
        ("slopes", c_void_p),
        ("head_offset", c_int64),
    ]


class Options(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("flags", c_uint32),
        ("backend", c_int32),
        ("isa", c_int32),
        ("threads", c_int32),
        ("reserved", c_int32),
        ("alloc_ctx", c_void_p),
        ("alloc", c_void_p),
        ("release", c_void_p),
    ]


class Tensor(Structure):
    _fields_ = [("data", c_void_p), ("strides", c_int64 * 4)]


TENSORS = (
    "q k v bias mask table sink o lse d_o d_lse dq dk dv dbias dtable dsink tq tk tv tbias ttable tsink "
    "to mu td_o td_lse tdq tdk tdv tdbias tdtable tdsink o_low to_low"
).split()
SECOND_TENSORS = "sq sk sv sbias stable ssink smu sto nu".split()
DEVICE_LISTS = "q_lengths kv_lengths q_packed k_packed q_offsets k_offsets seed".split()


class Args(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("accumulate", c_uint32),
        ("q_offset", c_int64),
        ("k_offset", c_int64),
        ("batch_offset", c_int64),
        ("seed", c_uint64),
        ("q_lengths", c_void_p),
        ("kv_lengths", c_void_p),
        ("q_packed", c_void_p),
        ("k_packed", c_void_p),
        *((name, Tensor) for name in TENSORS),
        ("flags", c_uint32),
        ("reserved2", c_uint32),
        ("q_offsets", c_void_p),
        ("k_offsets", c_void_p),
        *((name, Tensor) for name in SECOND_TENSORS),
        *((name + "_device", c_void_p) for name in DEVICE_LISTS),
    ]


class Info(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("threads", c_int32),
        ("version", ctypes.c_char * 16),
        ("cpu", ctypes.c_char * 64),
        ("isa", ctypes.c_char * 128),
        ("backends", ctypes.c_char * 64),
        ("compiler", ctypes.c_char * 64),
    ]


class PlanInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("backend", c_int32),
        ("isa", c_int32),
        ("threads", c_int32),
        ("tile", c_int64 * 2),
        ("compute_dtype", c_int32),
        ("deterministic", c_int32),
        ("backend_name", ctypes.c_char * 16),
        ("isa_name", ctypes.c_char * 16),
    ]


class BackendInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("backend", c_int32),
        ("name", ctypes.c_char * 16),
    ]


class IsaInfo(Structure):
    _fields_ = [
        ("struct_size", c_uint32),
        ("isa", c_int32),
        ("built_in", c_int32),
        ("available", c_int32),
        ("name", ctypes.c_char * 16),
    ]


class Library:
    def __init__(self, build, probes=True):
        try:
            self.lib = ctypes.CDLL(str(Path(build) / "src" / "libattngrad.so"))
        except OSError as error:
            sys.exit(f"bench: {build} is no folder of a release build: {error}")
        if probes:
            self._open_probes(build)
        self.lib.ag_last_message.restype = c_char_p
        self.lib.ag_plan_describe.restype = c_char_p
        self.lib.ag_plan_describe.argtypes = [c_void_p]
        self.lib.ag_plan_info_get.argtypes = [c_void_p, POINTER(PlanInfo)]
        self.lib.ag_plan_destroy.argtypes = [c_void_p]
        self.lib.ag_plan_workspace.argtypes = [c_void_p, c_uint32, POINTER(c_size_t)]
        for name in MAPS:
            getattr(self.lib, "ag_" + name).argtypes = [c_void_p, POINTER(Args), c_void_p, c_void_p, c_size_t]
        self.isas, self.available = {"auto": 0}, set()
        for index in range(self.lib.ag_backend_count()):
            backend = BackendInfo(struct_size=ctypes.sizeof(BackendInfo))
            self.check(self.lib.ag_backend_info_get(index, byref(backend)))
            self._add_isas(backend.backend)

    def _open_probes(self, build):
        probes = next((Path(build) / "cli").glob("libattngrad_probe.*"), None)
        if probes is None:
            sys.exit(f"bench: {build} has no probes yet: cmake --build {build} --target attngrad_probe")
        self.probes = ctypes.CDLL(str(probes))
        self.probes.probe_rate.restype = c_double
        self.probes.probe_rate.argtypes = [c_char_p, c_int, c_int, c_double, c_double]

    def _add_isas(self, backend):
        for n in range(self.lib.ag_backend_isa_count(backend)):
            isa = IsaInfo(struct_size=ctypes.sizeof(IsaInfo))
            self.check(self.lib.ag_backend_isa(backend, n, byref(isa)))
            self.isas[isa.name.decode()] = isa.isa
            if isa.available:
                self.available.add(isa.name.decode())

    def check(self, status):
        if status != 0:
            raise RuntimeError(self.lib.ag_last_message().decode())

    def probe(self, isa, kind, threads, settle, seconds):
        """Operations per second, measured for `seconds` after `settle` seconds of the same load."""
        return self.probes.probe_rate(isa.encode(), kind, threads, settle, seconds)

    def has_amx(self):
        """Does the CPU have AMX, and may this process use it?"""
        return self.probe("amx", PROBE_AMX, 1, 0, 0.001) > 0

    def info(self):
        info = Info(struct_size=ctypes.sizeof(Info))
        self.check(self.lib.ag_info_get(byref(info)))
        return {name: getattr(info, name).decode() for name in ("version", "cpu", "isa", "compiler")}


class Plan:
    def __init__(self, library, text, threads, isa="auto"):
        self.library = library
        self.plan = c_void_p()
        problem = Problem(struct_size=ctypes.sizeof(Problem))
        options = Options(struct_size=ctypes.sizeof(Options), isa=library.isas[isa], threads=threads)
        library.check(library.lib.ag_problem_parse(text.encode(), byref(problem)))
        library.check(library.lib.ag_plan_create(byref(self.plan), byref(problem), byref(options)))
        info = PlanInfo(struct_size=ctypes.sizeof(PlanInfo))
        library.check(library.lib.ag_plan_info_get(self.plan, byref(info)))
        self.isa = info.isa_name.decode() or "scalar"

    def workspace(self, maps):
        size = c_size_t()
        self.library.check(self.library.lib.ag_plan_workspace(self.plan, maps, byref(size)))
        return size.value

    def runner(self, name, arrays, workspace):
        """A function without arguments that runs one map, and keeps the memory that the map uses."""
        call, check, plan = getattr(self.library.lib, "ag_" + name), self.library.check, self.plan
        pointer = byref(arrays.args)

        def run():
            check(call(plan, pointer, None, workspace.address, workspace.size))

        run.memory = arrays
        return run

    def close(self):
        self.library.lib.ag_plan_destroy(self.plan)


class Buffer:
    """Memory that is aligned to 64 bytes, a cache line."""

    def __init__(self, size):
        self.size = size
        self.bytes = bytearray(size + 64)
        view = (ctypes.c_char * len(self.bytes)).from_buffer(self.bytes)
        self.offset = -ctypes.addressof(view) % 64
        self.address = ctypes.addressof(view) + self.offset
        self.view = view


_pools = {}


def _random_pool(dtype):
    """A million normal random numbers. Those of bf16 are the upper halves of float32 numbers."""
    if dtype not in _pools:
        rng = random.Random(1)
        code = "d" if dtype == "f64" else "f"
        pool = array(code, (rng.gauss(0, 1) for _ in range(1 << 20)))
        if dtype == "bf16":
            upper = 1 if sys.byteorder == "little" else 0
            pool = array("H", pool.tobytes())[upper::2]
        _pools[dtype] = pool
    return _pools[dtype]


def fill(buffer, dtype):
    """Fills a buffer with normal random numbers."""
    pool = _random_pool(dtype)
    source, size = pool.buffer_info()[0], pool.itemsize * len(pool)
    done = 0
    while done < buffer.size:  # from another place each time, so that rows do not repeat
        start = random.randrange(len(pool) // 2) * pool.itemsize
        length = min(size - start, buffer.size - done)
        ctypes.memmove(buffer.address + done, source + start, length)
        done += length


class Arrays:
    """Every tensor of one case, the inputs filled with normal random numbers; smu, which costs no other time, is zero
    instead of jvp's. Interleaved: [N, H, D] in memory, as a
    projection leaves them, instead of [H, N, D]."""

    def __init__(self, dtype, heads, n_q, n_k, dim, interleaved=False):
        self.dtype, self.heads, self.dim, self.interleaved = dtype, heads, dim, interleaved
        self.args = Args(struct_size=ctypes.sizeof(Args))
        self.buffers = {}
        for name in TENSORS + SECOND_TENSORS:
            rows = {"q": n_q, "k": n_k, "v": n_k, "o": n_q}.get(name[-1])
            if name in ("lse", "mu", "smu", "nu"):
                self._add(name, "f64", n_q, 1)
            elif name[:-1].rstrip("_") in ("", "d", "t", "td", "s", "st") and rows is not None:
                self._add(name, dtype, rows, dim)
        for name in "q k v d_o tq tk tv td_o sq sk sv".split():
            fill(self.buffers[name], dtype)

    def _add(self, name, dtype, rows, channels):
        count = self.heads * rows * channels
        self.buffers[name] = Buffer(count * SIZES[dtype])
        head_row = (channels, self.heads * channels) if self.interleaved else (rows * channels, channels)
        strides = (c_int64 * 4)(count, *head_row, 1)
        setattr(self.args, name, Tensor(self.buffers[name].address, strides))
