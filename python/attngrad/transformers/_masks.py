"""The masks that models carry to their attention.

`make_mask` is what transformers calls to make one. The result is a Mask: a boolean tensor [batch, 1, queries, keys]
without data, which knows how it was described: causal, a window, padding, packed sequences. The attention takes the
features from it, in memory proportional to the length. Anything else that a model does with it works on the boolean
matrix that it stands for, which is then computed.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers.masking_utils import causal_mask_function, prepare_padding_mask, sdpa_mask
from transformers.utils.import_utils import is_tracing

from ._patterns import Pattern, read


class Visible(NamedTuple):
    """Which keys a query sees, as keywords of scaled_dot_product_attention. With `packed`, the offsets of queries and
    keys, the rows of the batch are taken one after another as one row."""

    keywords: dict[str, Any]
    packed: tuple[Tensor, Tensor] | None = None


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function=causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **_,
) -> Tensor:
    """The mask of one forward pass, by the arguments that transformers gives to all mask functions; attention_mask is
    the one of padding, [batch, keys]."""
    has_values = all(_has_values(x) for x in (q_offset, attention_mask))
    if has_values:
        q_offset = int(q_offset)  # a static cache would change its tensor in place
    build = functools.partial(
        sdpa_mask,
        batch_size=batch_size,
        q_length=q_length,
        kv_length=kv_length,
        q_offset=q_offset,
        kv_offset=kv_offset,
        mask_function=mask_function,
        attention_mask=attention_mask,
        allow_is_causal_skip=False,
        allow_is_bidirectional_skip=False,
        use_vmap=use_vmap,
        device=device,
    )
    pattern = read(mask_function) if has_values else None
    if pattern is None:
        return build()
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].bool()
    return Mask((batch_size, 1, q_length, kv_length), device, build, pattern, padding, q_offset - kv_offset)


def _has_values(x) -> bool:
    """Whether Python may look at the numbers: not while a graph is traced, and not if vmap batches them."""
    if is_tracing(x if isinstance(x, Tensor) else None):
        return False
    try:
        return not isinstance(x, Tensor) or x.sum().item() >= 0
    except RuntimeError:  # vmap's
        return False


class Mask(Tensor):
    """True where a query sees a key. `shift`: the position of query 0 minus that of key 0; `padding` [batch, keys] is
    False for keys that nobody sees."""

    @staticmethod
    def __new__(cls, shape, device, build, pattern: Pattern, padding: Tensor | None, shift: int):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=torch.device(device))

    def __init__(self, shape, device, build, pattern: Pattern, padding: Tensor | None, shift: int):
        self._build, self.pattern, self.padding, self.shift = build, pattern, padding, shift

    def __repr__(self) -> str:
        return f"Mask({list(self.shape)}, {self.pattern}, padded={self.padding is not None}, shift={self.shift})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return args[0]
        if func._schema.is_mutable:
            raise NotImplementedError(f"attention_mask: the model changes it in place, by {func}")
        args, kwargs = tree_map_only(Mask, lambda x: x.dense, (args, kwargs or {}))
        return func(*args, **kwargs)

    @functools.cached_property
    def dense(self) -> Tensor:
        """The boolean matrix of all pairs."""
        return self._build()

    @functools.cached_property
    def visible(self) -> Visible:
        """Computed once for all layers that share this mask."""
        features = self._distance_features()
        if self.pattern.is_packed:
            packed = self._packed()
            return Visible({"attn_mask": self.dense}) if packed is None else Visible(features, packed)
        if self.shift and features:
            features["q_offset"] = self.shift
        return Visible(features | self._padding_features())

    def _distance_features(self) -> dict[str, Any]:
        features: dict[str, Any] = {"is_causal": True} if self.pattern.causal else {}
        if self.pattern.left is not None or self.pattern.right is not None:
            features["window"] = (self.pattern.left, self.pattern.right)
        return features

    def _padding_features(self) -> dict[str, Any]:
        """Nothing if no key is padding, lengths if it is at the end, else a mask that all queries share: the tiles that
        it hides are skipped as well."""
        if self.padding is None or self.padding.all():
            return {}
        lengths = self.padding.sum(dim=1)
        if torch.equal(self.padding, torch.arange(self.shape[3]) < lengths[:, None]):
            return {"kv_lengths": lengths}
        return {"attn_mask": self.padding[:, None, None, :]}

    def _packed(self) -> tuple[Tensor, Tensor] | None:
        """The offsets of the sequences that the mask cuts the batch into; None if they cannot say what it hides."""
        batch, _, n, n_k = self.shape
        if n != n_k or self.shift != 0 or n == 0:
            return None
        first = self._first_of_sequences(batch, n)
        if first is None:
            return None
        starts = [*first.flatten().nonzero().flatten().tolist(), batch * n]
        if self.padding is None or self.padding.all():
            return (torch.tensor(starts),) * 2
        lists = _without_padding(starts, self.padding.flatten().tolist())
        return None if lists is None else (torch.tensor(lists[0]), torch.tensor(lists[1]))

    def _first_of_sequences(self, batch: int, n: int) -> Tensor | None:
        """[batch, n]: True at the first position of each sequence; None if a sequence is not one interval of
        successive positions."""
        p = self.pattern
        positions = torch.arange(n).expand(batch, n) if p.positions is None else p.positions
        sequences = torch.zeros_like(positions) if p.sequences is None else p.sequences
        is_next = sequences.diff(dim=1) == 0
        if (sequences.diff(dim=1) < 0).any() or not (positions.diff(dim=1)[is_next] == 1).all():
            return None
        first = torch.ones(batch, n, dtype=torch.bool)
        first[:, 1:] = ~is_next
        if p.chunk is not None:
            chunks = (positions - p.chunk_start[:, None]) // p.chunk
            first[:, 1:] |= chunks.diff(dim=1) != 0
        return first


def _without_padding(starts: list[int], is_key: list[bool]) -> tuple[list[int], list[int]] | None:
    """The offsets if some keys are padding: a sequence whose first m keys are none is followed by one without queries
    that takes the others, which therefore nobody sees. None if a sequence has padding before a key."""
    q, k = [0], [0]
    for start, end in zip(starts, starts[1:], strict=False):
        m = sum(is_key[start:end])
        if not all(is_key[start : start + m]):
            return None
        q.append(end)
        k.append(start + m)
        if start + m < end:
            q.append(end)
            k.append(end)
    return q, k
