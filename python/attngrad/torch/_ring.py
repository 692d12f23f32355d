"""ring_attention: attention over sequences that are cut over the ranks of a process group. This file checks the
arguments, lets the ranks agree, and chooses the way; the maps are those of _ring_maps.py, their derivatives those of
_functions.py."""

from __future__ import annotations

import re
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from . import _features, _ops
from ._attention import prepare
from ._functions import attention
from ._peers import Peers, Said, agree, plain_error
from ._ring_way import choose, sizes_of
from ._ring_word import WAYS, Word, lists_of, words_of
from ._shard import Layout, layout_of

_ARGUMENTS = {"query": "q", "key": "k", "value": "v"}  # of scaled_dot_product_attention, whose checks run here
_OPTIONS = {"causal": "is_causal", "dropout": "dropout_p"}
_DEFAULTS = {"causal": False, "align": "top-left", "scale": None, "softcap": None, "dropout": 0.0, "backend": None}
_DEFAULTS |= dict.fromkeys(("q_offset", "k_offset", "batch_offset", "head_offset", "threads"), 0)
_DEFAULTS |= {"save_low": True, "invariant": False}
_LISTS = ("q_lengths", "kv_lengths", "q_packed", "k_packed")
_OFFSETS = ("q_offsets", "k_offsets")
_TENSORS = ("attn_mask", "window", "bias", "bias_table", "buckets", "alibi", "sink", "seed", *_LISTS, *_OFFSETS)
_MAY_DIFFER = ("threads", "save_low")  # options that do not change the problem


@torch.compiler.disable
def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    group: dist.ProcessGroup | None = None,
    way: str = "auto",
    **features,
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention over sequences that are cut over the ranks of a group: q [..., heads, n, d], k and v [..., kv heads, m,
    d] are this rank's shards, as attngrad.torch.shard cuts them, and so is the output. Every rank of the group makes
    the same calls and the same backward passes in the same order. It is differentiable as
    scaled_dot_product_attention is. The gradients of q, k and v are those of the sum of the losses of all ranks; of
    what every rank has whole (bias_table, sink, a bias without query rows or of packed sequences) a rank gets its
    share: the shares add up.

    way         "keys": keys and values travel; "queries": in backward passes queries travel instead; "all_to_all":
                each rank gets whole sequences of some heads; "auto": the way that sends the fewest bytes
    features    keywords of scaled_dot_product_attention, with the same meaning for the whole sequences: attn_mask
                dropout_p is_causal scale align window bias bias_table buckets alibi softcap sink seed q_lengths
                kv_lengths q_packed k_packed q_offset k_offset q_offsets k_offsets batch_offset head_offset backend
                threads save_low invariant return_lse. attn_mask and bias have this rank's query rows, or 1, and all
                keys; those of packed sequences are whole on each rank. Without a seed all ranks take the one that
                rank 0 draws

    A wrong argument raises the same error on every rank, with the number of the rank that has it.
    """
    peers = Peers(group)
    local: _Local | None = None
    said: Said | Exception
    try:
        local = _Local(q, k, v, way, features)
        said = local.said()
    except Exception as error:  # noqa: BLE001: whatever it is, all ranks must learn of it
        said = plain_error(error, _rename(str(error)))
    others: list[_Own] = agree(peers, "ring_attention", said)
    assert local is not None
    o, lse = attention(*local.arguments(peers, others))
    o = local.shape.unfold(o)
    return (o, local.shape.unfold(lse)) if local.return_lse else o


def _rename(message: str) -> str:
    return re.sub(r"\b(query|key|value)\b", lambda match: _ARGUMENTS[match[0]], message)


class _Own(NamedTuple):
    """What the ranks may have different, as each tells it to the others."""

    n_q: int
    n_k: int
    bias: tuple[int, int] | None  # rows and columns
    mask: tuple[int, int] | None
    seed: int | None


def _rows_and_columns(x: Tensor | None) -> tuple[int, int] | None:
    return None if x is None else (x.shape[2], x.shape[3])


class _Local:
    """The arguments of this rank, checked as far as it can check them alone."""

    def __init__(self, q: Tensor, k: Tensor, v: Tensor, way: str, features: dict):
        if way not in ("auto", *WAYS):
            raise ValueError(f"way: {way!r}, must be one of auto, {', '.join(WAYS)}")
        self.way = way
        self.return_lse = _features.flag("return_lse", features.get("return_lse", False))
        options, tensors = self._split(features)
        self.has_seed = tensors["seed"] is not None
        lengths, packed = ([tensors.pop(name) for name in names] for names in (_LISTS[:2], _LISTS[2:]))
        offsets = [tensors.pop(name) for name in _OFFSETS]
        attn_mask = tensors.pop("attn_mask")
        columns = {x.shape[-1] for x in (attn_mask, tensors["bias"]) if isinstance(x, Tensor) and x.dim()} - {1}
        n_k = max(columns, default=None) if packed[0] is None else None
        self.shape, self.common = prepare(
            *(q, k, v, attn_mask, tuple(options.values())),
            enable_gqa=True,
            lengths=lengths,
            packed=packed,
            offsets=offsets,
            n_k=n_k,
            **tensors,
        )
        if options["align"] == "bottom-right" and (options["q_offset"] or options["k_offset"]):
            raise ValueError('align: "bottom-right" does not go with q_offset and k_offset')
        self._check_lists(options)
        self._check_plan()

    @staticmethod
    def _split(features: dict) -> tuple[dict, dict]:
        """Options in the order of _features.OPTIONS, and the other keywords."""
        names = {_OPTIONS.get(name, name): name for name in _features.OPTIONS}
        for name in features:
            if name not in names and name not in _TENSORS and name != "return_lse":
                raise TypeError(f"{name}: ring_attention has no such argument")
        options = {own: features.get(name, _DEFAULTS[own]) for name, own in names.items()}
        return options, {name: features.get(name) for name in _TENSORS}

    def _check_lists(self, options: dict) -> None:
        """Refuses lists of sequences that do not go together: no map of this rank would see the whole lists."""
        batch = self.common[9].numel() - 1 if self.is_packed else self.shape.batch
        for name, x in zip(_LISTS[:2], self.common[7:9], strict=True):
            if self.is_packed and x is not None:
                raise ValueError(f"{name}: does not go with packed sequences")
        for name, x in _features.read(self.common[12]).keywords.items():
            if name not in _OFFSETS:
                continue
            if len(x) != batch:
                raise ValueError(f"{name}: {len(x)} numbers, but there are {batch} sequences")
            if options["align"] == "bottom-right" or options[name.removesuffix("s")]:
                raise ValueError(f'{name}: does not go with {name.removesuffix("s")} and align="bottom-right"')

    def _check_plan(self) -> None:
        """Lets the library refuse what is wrong with the features."""
        q, k, v, bias, table, sink, mask = self.common[:7]
        extras = [None if x is None else x.shape for x in (bias, table, mask, sink)]
        aux = next((x.dtype for x in (bias, table, sink) if x is not None), None)
        n_q, n_k, packed = self.shape.n_q, self.shape.n_k, None
        if self.is_packed:
            n_q, n_k = (_longest(x) for x in self.common[9:11])  # as if there were no other sequence
            packed = (self.common[9].numel() - 1, n_q, n_k)
        shapes = [(*x.shape[:2], n, x.shape[3]) for x, n in zip((q, k, v), (n_q, n_k, n_k), strict=True)]
        _ops.plan_of_shapes(*shapes, q.dtype, aux, *extras, packed, self.common[12], 1, q.get_device() + 1)

    @property
    def is_packed(self) -> bool:
        return self.common[9] is not None

    # ---- What the ranks tell each other ----

    def said(self) -> Said:
        q, k, v, bias, table, sink, mask = self.common[:7]
        same = {
            "way": self.way,
            "return_lse": str(self.return_lse),
            "q": f"{q.dtype} on {q.device.type}, leading axes {list(self.shape.lead)}, {q.shape[1]} heads of size "
            f"{q.shape[3]}",
            "k": f"{k.shape[1]} heads",
            "v": f"{v.shape[1]} heads of size {v.shape[3]}",
        }
        # A rank that records no gradient would have no backward pass, for which the others would wait.
        needs_gradient = any(x is not None and x.requires_grad for x in (q, k, v, bias, table, sink))
        same["requires_grad"] = str(needs_gradient and torch.is_grad_enabled())
        for name, x in (("bias", bias), ("attn_mask", mask)):
            if x is not None:
                same[name] = f"{x.dtype}, {[*x.shape[:2], x.shape[2] if self.is_packed else '.', x.shape[3]]}"
        for name, x in (("bias_table", table), ("sink", sink)):
            if x is not None:
                same[name] = f"{x.dtype}, {list(x.shape)}"
        for name, x in zip(_LISTS, self.common[7:11], strict=True):
            if x is not None:
                same[name] = str(x.tolist())
        for name, value in words_of(self.common[12]).items():
            if name not in _MAY_DIFFER:
                same[_OPTIONS.get(name, name)] = value or "True"
        seed = None if self.common[11] is None else int(self.common[11])
        if self.has_seed:
            same["seed"] = str(seed)
        extents = _rows_and_columns(bias), _rows_and_columns(mask)
        return Said(same, _Own(q.shape[2], k.shape[2], *extents, seed))

    # ---- The arguments of the op, when all is known ----

    def arguments(self, peers: Peers, others: list[_Own]) -> tuple:
        n_q, n_k = layout_of("q", [x.n_q for x in others]), layout_of("k", [x.n_k for x in others])
        self._check_lengths(n_q, n_k)
        rows = "" if self.is_packed else _rows_of_ranks(others, n_k.n)
        features, way = self.common[12], self.way
        if way == "auto":
            sizes = sizes_of(self.common, rows)
            way = choose(sizes, features, n_q, n_k, lists_of(self.common), self.common[5] is not None)
        word = Word(way, n_q.n, n_k.n, rows, peers.group.group_name)
        seed = None if others[0].seed is None else torch.tensor(others[0].seed, device=self.common[0].device)
        return *self.common[:11], seed, f"{features} ring={word}".lstrip()

    def _check_lengths(self, n_q: Layout, n_k: Layout) -> None:
        for name, x, layout in zip(_LISTS, self.common[7:11], (n_q, n_k, n_q, n_k), strict=True):
            if x is not None and name in _LISTS[:2]:
                for length in x.tolist():
                    _features.integer(name, length, 0, layout.n)
            elif x is not None:
                _ops.longest(name, x, layout.n)


def _longest(ends: Tensor) -> int:
    """Rows of the longest of packed sequences. The offsets are checked later, if they are wrong."""
    return int(ends.diff().clamp(min=0).max()) if ends.numel() > 1 else 0


def _rows_of_ranks(others: list[_Own], n_k: int) -> str:
    """Which of bias and mask are cut by query rows, as in Word, if they fit the ranks."""
    bias, mask = [x.bias for x in others], [x.mask for x in others]
    _check_columns("bias", bias, n_k)
    _check_columns("attn_mask", mask, n_k)
    is_by_rows = [_is_by_rows(name, extents, others) for name, extents in (("bias", bias), ("attn_mask", mask))]
    return "b" * is_by_rows[0] + "m" * is_by_rows[1]


def _check_columns(name: str, extents: list[tuple[int, int] | None], n_k: int) -> None:
    for rank, extent in enumerate(extents):
        if extent is not None and extent[1] not in (1, n_k):
            raise ValueError(f"rank {rank}: {name}: {extent[1]} keys, but the ranks have {n_k}")


def _is_by_rows(name: str, extents: list[tuple[int, int] | None], others: list[_Own]) -> bool:
    """Whether a bias or mask is cut by query rows: then every rank must have its own. One row on each rank is no
    different from one row for all of its queries if it has one."""
    rows = [extent[0] for extent in extents if extent is not None]  # of all ranks or of none
    if not rows or (set(rows) == {1} and any(x.n_q != 1 for x in others)):
        return False
    for rank, (own, x) in enumerate(zip(rows, others, strict=True)):
        if own != x.n_q:
            raise ValueError(f"rank {rank}: {name}: {own} query rows, but its q has {x.n_q}; other ranks have cut it")
    return True
