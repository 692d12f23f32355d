"""scaled_dot_product_attention: PyTorch's own signature over the five maps. This file turns what PyTorch
allows (any number of leading axes, broadcasting, masks of three kinds, autocast) into the thirteen arguments
of the ops."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from . import _features, _plain
from ._functions import attention, attention_directly

_FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
_MAX_DIM = 512
_NO_EXTRAS = (None,) * 9  # the op's arguments between value and features
_CONSTANTS = frozenset(
    (bool, int, float, str, type(None))
)  # equal values of one of these types mean the same
_SIDES = frozenset((int, type(None)))


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    align: str = "top-left",
    window: Sequence[int | None] | None = None,
    bias: Tensor | None = None,
    bias_table: Tensor | None = None,
    buckets: Sequence[int] | None = None,
    alibi: bool | Sequence[float] | None = None,
    softcap: float | None = None,
    sink: Tensor | None = None,
    seed: int | Tensor | None = None,
    q_lengths: Tensor | Sequence[int] | None = None,
    kv_lengths: Tensor | Sequence[int] | None = None,
    q_packed: Tensor | Sequence[int] | None = None,
    k_packed: Tensor | Sequence[int] | None = None,
    longest: Sequence[int] | None = None,
    q_offset: int = 0,
    k_offset: int = 0,
    q_offsets: Sequence[int] | None = None,
    k_offsets: Sequence[int] | None = None,
    batch_offset: int = 0,
    head_offset: int = 0,
    backend: str | None = None,
    threads: int = 0,
    save_low: bool = True,
    invariant: bool = False,
    return_lse: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention as torch.nn.functional.scaled_dot_product_attention computes it, differentiable in every mode
    to the second order, in memory proportional to the sequence.

    The first eight arguments mean what they mean there: query [..., heads, n, d], key [..., heads, m, d],
    value [..., heads, m, dv]; a boolean attn_mask is True where a pair may attend, a float one is added to
    the scores and has a gradient; is_causal is aligned top-left; dropout draws its seed from PyTorch's
    generator.

    align        "bottom-right": the last query is at the last key, for causal, window, alibi, bias_table
    window       (left, right): a query sees this many keys before and after it; None or -1: all
    bias         a float tensor that is added to the scores, in addition to a boolean attn_mask
    bias_table   [heads, 2R + 1], [1, 2R + 1] or [2R + 1]: added by the distance of key and query, clipped
                 to -R .. R; with buckets, 2R + 1 column indices, distance t has column buckets[t + R]
    alibi        True, or a slope for each head
    softcap      c: scores become c tanh(score / c)
    sink         [heads]: one extra logit per head: it joins the softmax denominator and has no value row
    seed         dropout's seed, instead of one from PyTorch's generator
    q_lengths, kv_lengths    one for each sequence, of the shape of the leading axes without heads
    q_packed, k_packed       offsets of sequences packed one after another in query and key [heads, total, d]
    longest      (queries, keys) of the longest of packed sequences, or more: on a GPU the call then neither reads the
                 offsets nor waits for them, and can be captured; rows of a longer sequence after these are undefined
    q_offset, k_offset       positions of the first query and the first key
    q_offsets, k_offsets     the same for each sequence, instead of these; constants of a graph
    batch_offset, head_offset    indices of the first sequence and the first head, for dropout
    backend      "cpu" or "reference" for tensors of the CPU; None: the environment's, or the best. Tensors of an NVIDIA
                 GPU run there, on the current stream
    threads      0: as many as torch.get_num_threads() says, or ATTNGRAD_THREADS
    save_low     float16 and bfloat16, if a gradient is recorded or forward mode is nested: the derivatives also
                 get what rounding took from the output, so that they do not carry that error; it takes one more
                 tensor of the output's size and dtype. False: without
    invariant    True: the bits of a sequence and kv head, and those of its derivatives, depend neither on the
                 others of the call nor on padding; gradients that are sums over them do
    return_lse   also return the logarithm of each row's sum of exponentials, [..., heads, n], float64,
                 differentiable like the output

    >>> q, k, v = torch.randn(3, 2, 4, 8, 16, requires_grad=True)
    >>> o = scaled_dot_product_attention(q, k, v, is_causal=True)
    >>> o.shape
    torch.Size([2, 4, 8, 16])
    """
    options = (is_causal, align, scale, softcap, dropout_p, q_offset, k_offset, batch_offset, head_offset)
    options += (backend, threads, save_low, invariant)
    if (
        not torch.compiler.is_compiling()
        and attn_mask is bias is bias_table is buckets is alibi is sink is seed is None
        and q_lengths is kv_lengths is q_packed is k_packed is longest is q_offsets is k_offsets is None
        and (features := _features_if_simple(query, key, value, enable_gqa, window, options)) is not None
    ):
        o, lse = attention_directly(query, key, value, *_NO_EXTRAS, features)
        return (o, lse) if _features.flag("return_lse", return_lse) else o
    shape, common = prepare(
        *(query, key, value, attn_mask, options),
        enable_gqa=enable_gqa,
        window=window,
        bias=bias,
        bias_table=bias_table,
        buckets=buckets,
        alibi=alibi,
        sink=sink,
        seed=seed,
        lengths=(q_lengths, kv_lengths),
        packed=(q_packed, k_packed),
        longest=longest,
        offsets=(q_offsets, k_offsets),
    )
    o, lse = attention(*common)
    o = shape.unfold(o)
    return (o, shape.unfold(lse)) if _features.flag("return_lse", return_lse) else o


def prepare(
    query,
    key,
    value,
    attn_mask,
    options,
    *,
    enable_gqa,
    window,
    bias,
    bias_table,
    buckets,
    alibi,
    sink,
    seed,
    lengths,
    packed=(None, None),
    longest=None,
    offsets=(None, None),
    n_k=None,
) -> tuple[_Shape, tuple]:
    """The shape, and the arguments of the op, all checked. n_k: the keys of a bias or mask, if key is a shard."""
    query, key, value = _autocast(query, key, value)
    _check_inputs(query, key, value)
    _check_extras(query, attn_mask=attn_mask, bias=bias, bias_table=bias_table, sink=sink)
    mask, bias, bias_name = _split_mask(attn_mask, bias)
    bias, table, sink = _one_dtype(query, bias, bias_table, sink, bias_name)
    shape = _Shape(query, key, value, _features.flag("enable_gqa", enable_gqa), n_k)
    table = _table(table, shape.heads, buckets)
    packed = _both_packed(*packed, shape)
    is_packed = packed[0] is not None
    named = dict(zip(_features.OPTIONS, options, strict=True))
    features = _features.write(
        **named,
        window=window,
        alibi=_slopes(alibi, shape.heads),
        buckets=_buckets(buckets, table),
        q_offsets=offsets[0],
        k_offsets=offsets[1],
        longest=_longest(longest, is_packed, shape),
    )
    return shape, (
        shape.fold(query, shape.heads),
        shape.fold(shape.grouped(key), shape.kv_heads),
        shape.fold(shape.grouped(value), shape.kv_heads),
        shape.fold_bias(bias_name, bias, is_packed),
        table,
        _sink(sink, shape.heads),
        shape.fold_bias("attn_mask", mask, is_packed),
        shape.lengths("q_lengths", lengths[0]),
        shape.lengths("kv_lengths", lengths[1]),
        *packed,
        _seed(seed, query) if named["dropout"] > 0 or seed is not None else None,
        features,
    )


# ---- Simple calls ----


def _features_if_simple(query, key, value, enable_gqa, window, options) -> str | None:
    """The features of a call that is plain, and whose three tensors the op can take as they are; None for other calls.
    All checks are made once for these shapes, dtypes and options; later calls only look up the result."""
    if (
        _plain.is_thread()
        and _plain.is_tensor(query)
        and _plain.is_tensor(key)
        and _plain.is_tensor(value)
        and _CONSTANTS.issuperset(map(type, options))
        and type(enable_gqa) is bool
        and (window is None or (type(window) is tuple and _SIDES.issuperset(map(type, window))))
    ):
        if not query.device == key.device == value.device:
            return None
        return _checked_features(
            *(query.shape, key.shape, value.shape),
            *(query.dtype, key.dtype, value.dtype),
            *(enable_gqa, window, *options),
        )
    return None


@functools.lru_cache(maxsize=1024, typed=True)
def _checked_features(q, k, v, q_dtype, k_dtype, v_dtype, enable_gqa, window, *options) -> str | None:
    """The same by shapes and dtypes. typed: is_causal=1 is refused, though 1 == True."""
    is_simple = (
        len(q) == len(k) == len(v) == 4
        and q_dtype == k_dtype == v_dtype
        and q_dtype in _FLOATS
        and q[0] == k[0]
        and q[3] == k[3]
        and k[:3] == v[:3]
        and k[1] >= 1
        and (q[1] % k[1] == 0 if enable_gqa else q[1] == k[1])
        and all(1 <= size <= _MAX_DIM for size in (q[3], v[3]))
    )
    named = dict(zip(_features.OPTIONS, options, strict=True))
    return _features.write(window=window, **named) if is_simple and named["dropout"] == 0 else None


# ---- Checks ----


def _split_mask(attn_mask: Tensor | None, bias: Tensor | None) -> tuple[Tensor | None, Tensor | None, str]:
    """The boolean mask, the float one, and the name of the argument that has the float one."""
    if attn_mask is None or attn_mask.dtype == torch.bool:
        return attn_mask, bias, "bias"
    if bias is not None:
        raise ValueError("bias: attn_mask is a float tensor, which is a bias already; add the two")
    return None, attn_mask, "attn_mask"


def _check_device(name: str, x: Tensor, query: Tensor) -> None:
    if x.device != query.device:
        raise ValueError(f"{name}: device {x.device}, but query is on {query.device}")


def _check_strided(name: str, x) -> None:
    if isinstance(x, torch.fx.Proxy):
        raise TypeError(
            f"{name}: a Proxy of torch.fx.symbolic_trace, which cannot look into this function: "
            "torch.fx.wrap('scaled_dot_product_attention') in the file that calls it makes it one node"
        )
    if not isinstance(x, Tensor):
        raise TypeError(f"{name}: {type(x).__name__}, must be a Tensor")
    if x.is_nested or x.layout != torch.strided:
        raise TypeError(f"{name}: a nested or sparse tensor, must be a strided one")


def _check_extras(query: Tensor, **named) -> None:
    for name, x in named.items():
        if x is not None:
            _check_strided(name, x)
            _check_device(name, x, query)


def _check_inputs(query: Tensor, key: Tensor, value: Tensor) -> None:
    for name, x in (("query", query), ("key", key), ("value", value)):
        _check_strided(name, x)
        if x.dtype not in _FLOATS:
            raise TypeError(f"{name}: dtype {x.dtype}, must be float64, float32, float16 or bfloat16")
        if x.dtype != query.dtype:
            raise TypeError(f"{name}: dtype {x.dtype}, but query has {query.dtype}")
        if x.device.type not in ("cpu", "cuda", "meta"):
            raise ValueError(f"{name}: device {x.device}, must be the CPU or an NVIDIA GPU")
        _check_device(name, x, query)
        if x.dim() < 2:
            raise ValueError(f"{name}: {x.dim()} axes, must have at least 2")
        if not 1 <= x.shape[-1] <= _MAX_DIM:
            raise ValueError(f"{name}: head size {x.shape[-1]}, must be from 1 to {_MAX_DIM}")
        if x.dim() > 2 and x.shape[-3] == 0:
            raise ValueError(f"{name}: 0 heads, must have at least 1")
    if key.shape[-1] != query.shape[-1]:
        raise ValueError(f"key: head size {key.shape[-1]}, but query has {query.shape[-1]}")
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(f"value: {value.shape[-2]} positions, but key has {key.shape[-2]}")


def _one_dtype(query: Tensor, bias, table, sink, bias_name: str) -> list[Tensor | None]:
    """Bias, table and sink in one dtype: the query's, or float32 if one of them is."""
    named = [(bias_name, bias), ("bias_table", table), ("sink", sink)]
    if torch.is_autocast_enabled(_autocast_device(query)):
        named = [(name, x.to(query.dtype) if _is_half(x) else x) for name, x in named]
    dtype = query.dtype
    for name, x in named:
        if x is not None and x.dtype not in (query.dtype, torch.float32):
            allowed = "bool (a mask), float32" if name == "attn_mask" else "float32"
            raise TypeError(f"{name}: dtype {x.dtype}, must be {allowed} or query's {query.dtype}")
        if x is not None and x.dtype != query.dtype:
            dtype = torch.promote_types(query.dtype, torch.float32)
    return [None if x is None else x.to(dtype) for _, x in named]


def _is_half(x) -> bool:
    return isinstance(x, Tensor) and x.dtype in (torch.float16, torch.bfloat16)


def _autocast_device(query) -> str:
    """The kind of device whose autocast applies: anything but a GPU counts as the CPU."""
    return "cuda" if isinstance(query, Tensor) and query.device.type == "cuda" else "cpu"


def _autocast(*tensors: Tensor) -> list[Tensor]:
    """As PyTorch's own attention under autocast: every float but float64 becomes autocast's dtype."""
    device = _autocast_device(tensors[0])
    if not torch.is_autocast_enabled(device):
        return list(tensors)
    dtype = torch.get_autocast_dtype(device)
    lower = [_is_half(x) or (isinstance(x, Tensor) and x.dtype == torch.float32) for x in tensors]
    return [x.to(dtype) if low else x for x, low in zip(tensors, lower, strict=True)]


# ---- Shapes ----


def _broadcast(what: str, *shapes: Sequence[int]) -> tuple[int, ...]:
    if all(shape == shapes[0] for shape in shapes):
        return tuple(shapes[0])
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        texts = ", ".join(str(list(shape)) for shape in shapes)
        raise ValueError(f"query, key, value: {what} {texts} do not broadcast") from None


class _Shape:
    """The leading axes, folded into one batch axis. What is broadcast over them gets zero strides instead of
    copies if possible."""

    def __init__(self, query: Tensor, key: Tensor, value: Tensor, enable_gqa: bool, n_k: int | None = None):
        self.is_2d = max(query.dim(), key.dim(), value.dim()) == 2
        lead, heads = [], []
        for x in (query, key, value):
            lead.append(tuple(x.shape[:-3]))
            heads.append(x.shape[-3] if x.dim() > 2 else 1)
        self.lead = _broadcast("leading axes", *lead)
        self.n_q, self.device = query.shape[-2], query.device
        self.n_k = key.shape[-2] if n_k is None else n_k
        if enable_gqa:
            self._set_groups(*heads)
        else:
            self.heads = _broadcast("heads", *([x] for x in heads))[0]
            self.kv_heads = heads[1] if heads[1] == heads[2] else self.heads

    def _set_groups(self, q: int, k: int, v: int) -> None:
        for name, heads in (("key", k), ("value", v)):
            if heads == 0 or q % heads != 0:
                raise ValueError(f"{name}: {heads} heads, which do not divide query's {q}")
        self.heads, self.kv_heads = q, k if k == v else q

    def grouped(self, x: Tensor) -> Tensor:
        """Key or value with kv_heads heads, or with one, which `fold` broadcasts. Heads are repeated only if the
        other of the two has more."""
        heads = x.shape[-3] if x.dim() > 2 else 1
        if heads in (1, self.kv_heads):
            return x
        return x.repeat_interleave(self.kv_heads // heads, dim=-3)

    @property
    def batch(self) -> int:
        batch = 1
        for size in self.lead:
            batch *= size
        return batch

    def fold(self, x: Tensor, heads: int) -> Tensor:
        if x.dim() == 2:
            x = x.unsqueeze(0)
        shape = (*self.lead, heads, *x.shape[-2:])
        x = x if tuple(x.shape) == shape else x.expand(shape)
        return x if x.dim() == 4 else x.reshape(self.batch, *shape[-3:])

    def fold_bias(self, name: str, x: Tensor | None, is_packed: bool) -> Tensor | None:
        """[1|B, 1|H, 1|Nq, 1|Nk]; packed sequences have sizes of their own, which the op checks."""
        if x is None:
            return None
        if is_packed:
            if x.dim() > 4:
                raise ValueError(f"{name}: {x.dim()} axes, must have at most 4 beside packed sequences")
            return x[(None,) * (4 - x.dim())]
        full = (*self.lead, self.heads, self.n_q, self.n_k)
        if x.dim() > len(full) or any(
            size not in (1, full_size)
            for size, full_size in zip(x.shape, full[len(full) - x.dim() :], strict=True)
        ):
            raise ValueError(f"{name}: shape {list(x.shape)} does not broadcast to the weights' {list(full)}")
        x = x[(None,) * (len(full) - x.dim())]
        if all(size == 1 for size in x.shape[:-3]):
            return x.reshape(1, *x.shape[-3:])
        return x.expand(*self.lead, *x.shape[-3:]).reshape(self.batch, *x.shape[-3:])

    def lengths(self, name: str, x) -> Tensor | None:
        x = _integers(name, x, self.device)
        if x is None:
            return None
        try:
            return x.expand(self.lead).reshape(self.batch).contiguous()
        except RuntimeError:
            raise ValueError(f"{name}: shape {list(x.shape)}, must be {list(self.lead)}") from None

    def unfold(self, x: Tensor) -> Tensor:
        if len(self.lead) != 1:
            x = x.reshape(*self.lead, *x.shape[1:])
        return x.squeeze(0) if self.is_2d else x


def _integers(name: str, x, device: torch.device) -> Tensor | None:
    if x is None:
        return None
    if not isinstance(x, Tensor):
        numbers = [_features.integer(name, i) for i in _features.as_list(name, x)]
        if device.type == "cuda" and not torch.compiler.is_compiling() and torch.cuda.is_current_stream_capturing():
            raise RuntimeError(f"{name}: a list, while a CUDA graph is captured: give a tensor on the GPU")
        x = torch.tensor(numbers, dtype=torch.int64, device=device)
    if x.dtype not in (torch.int64, torch.int32):
        raise TypeError(f"{name}: dtype {x.dtype}, must be int64 or int32")
    if x.device != device:
        raise ValueError(f"{name}: device {x.device}, but query is on {device}")
    return x.to(torch.int64)


def _packed(name: str, x, shape: _Shape) -> Tensor | None:
    x = _integers(name, x, shape.device)
    if x is None:
        return None
    if shape.lead:
        raise ValueError(
            f"{name}: packed sequences are [heads, total, d], but there are leading axes {shape.lead}"
        )
    if x.dim() != 1 or x.numel() == 0:
        raise ValueError(f"{name}: shape {list(x.shape)}, must be [sequences + 1]")
    return x.contiguous()


def _both_packed(q_packed, k_packed, shape: _Shape) -> tuple[Tensor | None, Tensor | None]:
    q, k = _packed("q_packed", q_packed, shape), _packed("k_packed", k_packed, shape)
    if (q is None) != (k is None):
        raise ValueError("q_packed, k_packed: give both or none")
    if q is not None and q.shape != k.shape:
        raise ValueError(f"k_packed: {k.numel()} offsets, but q_packed has {q.numel()}")
    return q, k


def _longest(longest, is_packed: bool, shape: _Shape) -> list[int] | None:
    if longest is None:
        return None
    if not is_packed:
        raise ValueError("longest: given without q_packed and k_packed")
    numbers = _features.as_list("longest", longest)
    if len(numbers) != 2:
        raise ValueError(f"longest: {len(numbers)} numbers, must be (queries, keys)")
    rows = (shape.n_q, shape.n_k)
    return [_features.integer("longest", x, 0, n) for x, n in zip(numbers, rows, strict=True)]


# ---- Features ----


def _table(table: Tensor | None, heads: int, buckets) -> Tensor | None:
    if table is None:
        return None
    if table.dim() == 1:
        table = table.unsqueeze(0)
    if table.dim() != 2 or table.shape[1] == 0 or table.shape[0] not in (1, heads):
        raise ValueError(f"bias_table: shape {list(table.shape)}, must be [{heads}, n] or [1, n]")
    if buckets is None and table.shape[1] % 2 == 0:
        raise ValueError(f"bias_table: {table.shape[1]} columns, must be 2R + 1 without buckets")
    return table


def _buckets(buckets, table: Tensor | None) -> list[int] | None:
    if buckets is None:
        return None
    if table is None:
        raise ValueError("buckets: given without bias_table")
    columns = table.shape[-1]
    buckets = [_features.integer("buckets", x, 0, columns - 1) for x in _features.as_list("buckets", buckets)]
    if len(buckets) % 2 == 0:
        raise ValueError(f"buckets: {len(buckets)} numbers, must be 2R + 1")
    return buckets


def _sink(sink: Tensor | None, heads: int) -> Tensor | None:
    if sink is not None and tuple(sink.shape) != (heads,):
        raise ValueError(f"sink: shape {list(sink.shape)}, must be [{heads}]")
    return sink


def _slopes(alibi, heads: int):
    if alibi is None or isinstance(alibi, bool):
        return alibi
    slopes = [_features.number("alibi", x) for x in _features.as_list("alibi", alibi)]
    if len(slopes) != heads:
        raise ValueError(f"alibi: {len(slopes)} slopes, but there are {heads} heads")
    return slopes


def _seed(seed: int | Tensor | None, query: Tensor) -> Tensor:
    """A tensor, so that a compiled graph draws it anew at every run."""
    if seed is None:
        return torch.randint(2**63 - 1, (), dtype=torch.int64, device=query.device)
    if isinstance(seed, Tensor):
        if seed.dtype != torch.int64 or seed.dim() != 0:
            raise TypeError(f"seed: {seed.dtype} of shape {list(seed.shape)}, must be one int64")
        _check_device("seed", seed, query)
        return seed
    number = _features.integer("seed", seed, 0)
    return torch.full((), number, dtype=torch.int64, device=query.device)  # which a CUDA graph can capture
