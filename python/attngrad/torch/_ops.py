"""The five maps as dispatcher ops: torch.ops.attngrad.forward, vjp, jvp, vjp_jvp and jvp_jvp, on four axes
[batch, head, position, channel], with kernels for tensors of the CPU, of NVIDIA GPUs and without data. forward_low is
forward that also writes o_low, the low half of a 16-bit o: what rounding took from it. jvp that is given o_low
writes to_low, the low half of to; otherwise its to_low is an empty tensor.

All begin with the same thirteen arguments (COMMON). Gradients come as six tensors in the order q k v bias
table sink; `wanted` has a bit for each, and one that is not wanted comes as an empty tensor. These ops know
nothing of derivatives: _functions.py makes them differentiable.
"""

from __future__ import annotations

import functools
import os
from array import array

import torch
from torch import Tensor

from .. import _core, _plan
from . import _exit, _features

_core.use_openmp()  # PyTorch's threads, which would compete with others

COMMON = (
    "Tensor q, Tensor k, Tensor v, Tensor? bias, Tensor? table, Tensor? sink, Tensor? mask, "
    "Tensor? q_lengths, Tensor? kv_lengths, Tensor? q_packed, Tensor? k_packed, Tensor? seed, str features"
)
N_COMMON = 13
INPUTS = ("q", "k", "v", "bias", "table", "sink")
ARRAYS = (*INPUTS, "mask")
_LISTS = ("q_lengths", "kv_lengths", "q_packed", "k_packed")
_TANGENTS, _SECOND = (", ".join(f"Tensor? {prefix}{name}" for name in INPUTS) for prefix in "ts")
_RESULTS = "Tensor o, Tensor lse, Tensor? o_low"
_SIX = "(" + ", ".join(["Tensor"] * 6) + ")"
SCHEMAS = {
    "forward": f"({COMMON}) -> (Tensor o, Tensor lse)",
    "forward_low": f"({COMMON}) -> (Tensor o, Tensor lse, Tensor o_low)",
    "vjp": f"({COMMON}, {_RESULTS}, Tensor? d_o, Tensor? d_lse, int wanted) -> {_SIX}",
    "jvp": f"({COMMON}, {_RESULTS}, {_TANGENTS}) -> (Tensor to, Tensor mu, Tensor to_low)",
    "vjp_jvp": f"({COMMON}, {_RESULTS}, Tensor? d_o, Tensor? d_lse, {_TANGENTS}, Tensor to, "
    f"Tensor mu, Tensor? to_low, Tensor? td_o, Tensor? td_lse, int wanted) -> {_SIX}",
    "jvp_jvp": f"({COMMON}, {_RESULTS}, {_TANGENTS}, Tensor mu, {_SECOND}, Tensor smu) -> (Tensor sto, Tensor nu)",
}

DTYPES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}

library = torch.library.Library("attngrad", "DEF")
for _name, _schema in SCHEMAS.items():
    library.define(_name + _schema)
_exit.keep(library)


# ---- The problem ----


def _pattern(name: str, shape: tuple[int, ...], full: tuple[int, ...]) -> str:
    """The word of a bias or mask: a letter for an axis of full size, 1 for one that is broadcast."""
    letters = []
    for size, full_size, letter in zip(shape, full, "bhqk", strict=True):
        if size not in (1, full_size):
            raise ValueError(f"{name}: shape {list(shape)}, but the weights have {list(full)}")
        letters.append(letter if size == full_size else "1")
    return f"{name}={''.join(letters)}"


def _text(q, k, v, dtype, aux, bias, table, mask, sink, packed, buckets, words) -> str:
    """The problem's text, from shapes."""
    batch, n_q, n_k = packed if packed is not None else (q[0], q[2], k[2])
    text = [f"b{batch} h{q[1]} kv{k[1]} q{n_q} k{n_k} d{q[3]} dv{v[3]} {DTYPES[dtype]}"]
    full = (batch, q[1], n_q, n_k)
    if aux is not None and aux != dtype:
        text.append(f"aux={DTYPES[aux]}")
    if bias is not None:
        text.append(_pattern("bias", bias, full))
    if mask is not None:
        text.append(_pattern("mask", mask, full))
    if table is not None:
        radius = ((buckets or table[1]) - 1) // 2
        text.append(f"table={radius},{table[1]}" + (",shared" if table[0] == 1 and q[1] != 1 else ""))
    if sink is not None:
        text.append("sink")
    if packed is not None:
        text.append(f"packed={q[2]},{k[2]}")
    return " ".join([*text, words])


def _threads() -> int:
    """PyTorch's number, unless the environment gives one to the library itself."""
    return 0 if "ATTNGRAD_THREADS" in os.environ else min(torch.get_num_threads(), _features.MAX_THREADS)


def longest(name: str, offsets: Tensor, rows: int) -> int:
    """The rows of the longest of packed sequences, whose offsets are checked."""
    if offsets.is_cuda and torch.cuda.is_current_stream_capturing():
        raise RuntimeError(f"{name}: cannot be read while a CUDA graph is captured: say longest=(queries, keys)")
    ends = offsets.tolist()
    if ends[0] != 0 or ends != sorted(ends) or ends[-1] > rows:
        raise ValueError(f"{name}: {ends}, must begin with 0, not decrease, and end within {rows} rows")
    return max((end - start for start, end in zip(ends, ends[1:], strict=False)), default=0)


def _longest_of_packed(common: tuple) -> tuple[int, int]:
    """Queries and keys of the longest of packed sequences: as the caller says, else read from the offsets. On a GPU
    what the caller says is not compared with the offsets, so that the call does not wait."""
    said = _features.read(common[12]).longest
    if said is not None and common[0].is_cuda:
        return said
    q, k, q_packed, k_packed = *common[:2], *common[9:11]
    found = longest("q_packed", q_packed, q.shape[2]), longest("k_packed", k_packed, k.shape[2])
    if said is not None and (found[0] > said[0] or found[1] > said[1]):
        raise ValueError(f"longest: {said}, but the longest sequences have {found} queries and keys")
    return said or found


def _plan_of(common: tuple):
    q, k, v, bias, table, sink, mask, _, _, q_packed, _, _, features = common
    packed = None if q_packed is None else (q_packed.numel() - 1, *_longest_of_packed(common))
    aux = bias if bias is not None else table if table is not None else sink
    return plan_of_shapes(
        q.shape,
        k.shape,
        v.shape,
        q.dtype,
        None if aux is None else aux.dtype,
        None if bias is None else bias.shape,
        None if table is None else table.shape,
        None if mask is None else mask.shape,
        None if sink is None else sink.shape,
        packed,
        features,
        _threads() if q.is_cpu else 0,
        q.get_device() + 1,  # 0: the CPU
    )


@functools.lru_cache(maxsize=1024)
def plan_of_shapes(q, k, v, dtype, aux, bias, table, mask, sink, packed, features, threads, device=0):
    """The plan of these shapes and dtypes; packed: number of sequences, most queries and most keys of one, or None;
    threads: their number unless the features have one; device: 0 is the CPU, n GPU n - 1."""
    f = _features.read(features)
    cuda = _core.BACKEND_CUDA
    if device == 0 and f.backend == cuda:
        raise ValueError("backend: 'cuda', but query is on the CPU")
    if device > 0 and f.backend not in (_core.BACKEND_AUTO, cuda):
        raise ValueError(f"backend: runs on the CPU, but query is on cuda:{device - 1}")
    n_buckets = None if f.buckets is None else len(f.buckets) // 4  # int32
    return _plan.get(
        _text(q, k, v, dtype, aux, bias, table, mask, sink, packed, n_buckets, f.words),
        backend=cuda if device > 0 else f.backend,
        device=device,
        buckets=f.buckets,
        alibi_slopes=f.slopes,
        threads=f.threads or threads,
        flags=f.flags,
    )


# ---- The call ----

# Plans whose calls were captured in a CUDA graph, which reads their tables at each replay: they are never dropped.
_captured: set[_core.Plan] = set()


def _run(map: int, common: tuple, tensors: dict[str, Tensor | None], flags: int = 0) -> None:
    """One map, on this process or over the ranks of a process group."""
    if _features.read(common[12]).ring is None:
        run_here(map, common, tensors, flags)
        return
    from . import _ring_maps  # which is built on this file

    _ring_maps.run(map, common, tensors, flags)


def run_here(
    map: int, common: tuple, tensors: dict[str, Tensor | None], flags: int = 0, **more: int | array
) -> None:
    """One map on this process; `more` are keywords of Plan.run beside those of the features."""
    tensors |= zip(ARRAYS, common[:7], strict=True)
    f = _features.read(common[12])
    keywords = f.keywords
    q_lengths, kv_lengths, q_packed, k_packed, seed = common[7:12]
    q, plan = common[0], _plan_of(common)
    if q.is_cuda:
        if f.has_tables and torch.cuda.is_current_stream_capturing():
            _captured.add(plan)
        workspace = torch.empty(plan.workspace(map), dtype=torch.uint8, device=q.device)
        stream = torch.cuda.current_stream(q.device).cuda_stream
        keywords = {"flags": flags, "workspace": workspace.data_ptr(), "stream": stream} | keywords
        keywords |= _device_keywords(common) | more
    elif flags or more or not q_lengths is kv_lengths is q_packed is k_packed is seed is None:
        keywords = {"flags": flags} | keywords | _call_keywords(common) | more
    _exit.enter()
    try:
        plan.run(map, tensors, **keywords)
    finally:
        _exit.leave()


def _device_keywords(common: tuple) -> dict[str, int]:
    """The addresses of lengths, offsets and seed in the GPU's memory: replays of a graph read them anew."""
    named = zip((*_LISTS, "seed"), common[7:12], strict=True)
    return {name + "_device": x.data_ptr() for name, x in named if x is not None}


def _call_keywords(common: tuple) -> dict[str, int]:
    """The addresses of lengths and offsets, and the seed."""
    addresses = {name: x.data_ptr() for name, x in zip(_LISTS, common[7:11], strict=True) if x is not None}
    return addresses if common[11] is None else addresses | {"seed": int(common[11])}


def merge_here(results: dict[str, Tensor], parts: dict[str, Tensor]) -> None:
    """Merges results over two disjoint sets of keys into the first: o and lse, or these with to and mu."""
    o = results["o"]
    batch, heads, n, channels = o.shape
    backend = _core.BACKEND_CUDA if o.is_cuda else _core.BACKEND_AUTO
    text = f"b{batch} h{heads} q{n} k0 d{channels} {DTYPES[o.dtype]}"
    plan = _plan.get(text, backend=backend, device=o.get_device() + 1)
    first = {name + "1": x for name, x in results.items()}
    stream = torch.cuda.current_stream(o.device).cuda_stream if o.is_cuda else 0
    plan.merge(results | first | {name + "2": x for name, x in parts.items()}, stream=stream)


def _output(q: Tensor, v: Tensor) -> Tensor:
    """Memory for o, with its axes in the order of q's, so that a caller who transposed q can transpose o back
    without a copy."""
    if v.shape[3] == q.shape[3] and q.is_contiguous():
        return torch.empty_like(q, memory_format=torch.contiguous_format)
    shape = (*q.shape[:3], v.shape[3])
    strides = q.stride()
    if strides[0] >= strides[1] >= strides[2] or 0 in strides[:3]:
        return q.new_empty(shape)
    order = sorted(range(3), key=strides.__getitem__, reverse=True)
    o = q.new_empty([shape[i] for i in (*order, 3)])
    return o.permute([order.index(i) for i in range(3)] + [3])


def _outputs(q: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Memory for o and lse, to and mu, or sto and nu."""
    batch, heads, n_q, _ = q.shape
    return _output(q, v), q.new_empty((batch, heads, n_q), dtype=torch.float64)


def _outputs_low(q: Tensor, v: Tensor, low: bool = True) -> tuple[Tensor, Tensor, Tensor]:
    """The same, and memory for the low half; empty without `low`."""
    return *_outputs(q, v), _output(q, v) if low else no_low(q)


def no_low(q: Tensor) -> Tensor:
    """The empty tensor that stands for a low half that was not computed."""
    return q.new_empty(0)


def low_or_none(low: Tensor) -> Tensor | None:
    """A low half as an argument of the next map: None if it was not computed."""
    return low if low.dim() == 4 else None


def _gradients(common: tuple, wanted: int) -> tuple[Tensor, ...]:
    q = common[0]
    return tuple(
        x.new_empty(x.shape) if wanted >> i & 1 else q.new_empty(0) for i, x in enumerate(common[:6])
    )


def _named(prefix: str, gradients: tuple[Tensor, ...], wanted: int) -> dict[str, Tensor]:
    return {prefix + name: gradients[i] for i, name in enumerate(INPUTS) if wanted >> i & 1}


def _tangents(tangents: tuple, prefix: str = "t") -> dict[str, Tensor | None]:
    return {prefix + name: x for name, x in zip(INPUTS, tangents, strict=True)}


def _cotangents(o: Tensor, d_o: Tensor | None, d_lse: Tensor | None) -> dict[str, Tensor | None]:
    """d_o and d_lse; for an absent d_o zeros of o's shape: one element, broadcast by zero strides."""
    return {"d_o": o.new_zeros(()).expand(o.shape) if d_o is None else d_o, "d_lse": d_lse}


def _forward(*common):
    o, lse = _outputs(common[0], common[2])
    _run(_core.MAP_FORWARD, common, {"o": o, "lse": lse})
    return o, lse


def _forward_low(*common):
    o, lse, o_low = _outputs_low(common[0], common[2])
    _run(_core.MAP_FORWARD, common, {"o": o, "lse": lse, "o_low": o_low})
    return o, lse, o_low


def _vjp(*args):
    common, (o, lse, o_low, d_o, d_lse, wanted) = args[:N_COMMON], args[N_COMMON:]
    gradients = _gradients(common, wanted)
    inputs = _cotangents(o, d_o, d_lse) | {"o": o, "lse": lse, "o_low": o_low}
    _run(_core.MAP_VJP, common, inputs | _named("d", gradients, wanted))
    return gradients


def _given(o: Tensor, lse: Tensor, o_low: Tensor | None) -> tuple[dict[str, Tensor | None], int]:
    """What jvp is given instead of computing it again, and its flags. A 16-bit o without its low half is not given:
    to would carry its rounding error."""
    if o.dtype in (torch.float16, torch.bfloat16) and o_low is None:
        return {}, 0
    return {"o": o, "lse": lse, "o_low": o_low}, _core.GIVEN_O


def _jvp(*args):
    common, (o, lse, o_low), tangents = args[:N_COMMON], args[N_COMMON : N_COMMON + 3], args[N_COMMON + 3 :]
    to, mu, to_low = _outputs_low(common[0], common[2], o_low is not None)
    given, flags = _given(o, lse, o_low)
    outputs = {"to": to, "mu": mu, "to_low": low_or_none(to_low)}
    _run(_core.MAP_JVP, common, _tangents(tangents) | given | outputs, flags)
    return to, mu, to_low


def _vjp_jvp(*args):
    common, (o, lse, o_low, d_o, d_lse) = args[:N_COMMON], args[N_COMMON : N_COMMON + 5]
    tangents, (to, mu, to_low, td_o, td_lse, wanted) = args[N_COMMON + 5 : -6], args[-6:]
    gradients = _gradients(common, wanted)
    inputs = _cotangents(o, d_o, d_lse) | {"o": o, "lse": lse, "o_low": o_low}
    inputs |= {"to": to, "mu": mu, "to_low": to_low, "td_o": td_o, "td_lse": td_lse}
    _run(_core.MAP_VJP_JVP, common, inputs | _tangents(tangents) | _named("td", gradients, wanted))
    return gradients


def _are_equal(x: Tensor | None, y: Tensor | None) -> bool:
    """On a GPU only if they are the same memory: a comparison of values would wait for it."""
    if x is None or y is None:
        return x is y
    same = x.data_ptr() == y.data_ptr() and x.shape == y.shape and x.stride() == y.stride()
    return same or (x.is_cpu and torch.equal(x, y))


def _jvp_jvp(*args):
    common, (o, lse, o_low) = args[:N_COMMON], args[N_COMMON : N_COMMON + 3]
    t, mu, s, smu = args[N_COMMON + 3 : -8], args[-8], args[-7:-1], args[-1]
    # Along the same arrays twice the map takes 6 products instead of 10. A model computes the directions of
    # attention's inputs once per level of forward mode, so that they are equal without being the same.
    if all(_are_equal(x, y) for x, y in zip(t, s, strict=True)):
        s = t
    sto, nu = _outputs(common[0], common[2])
    inputs = {"o": o, "lse": lse, "o_low": o_low, "mu": mu, "smu": smu} | _tangents(t) | _tangents(s, "s")
    _run(_core.MAP_JVP_JVP, common, inputs | {"sto": sto, "nu": nu})
    return sto, nu


KERNELS = {
    "forward": _forward,
    "forward_low": _forward_low,
    "vjp": _vjp,
    "jvp": _jvp,
    "vjp_jvp": _vjp_jvp,
    "jvp_jvp": _jvp_jvp,
}


def _fake(name: str):
    if name in ("forward", "jvp_jvp"):
        return lambda *args: _outputs(args[0], args[2])
    if name == "forward_low":
        return lambda *args: _outputs_low(args[0], args[2])
    if name == "jvp":
        return lambda *args: _outputs_low(args[0], args[2], args[N_COMMON + 2] is not None)
    return lambda *args: _gradients(args[:N_COMMON], args[-1])


for _name, _kernel in KERNELS.items():
    library.impl(_name, _kernel, "CPU")
    library.impl(_name, _kernel, "CUDA")
    torch.library.register_fake("attngrad::" + _name, _fake(_name), lib=library)
