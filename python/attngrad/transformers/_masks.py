"""The masks that models carry to their attention.

`make_mask` is what transformers calls to make one. The result is a Mask: a boolean tensor [batch, 1, queries, keys]
without data, which knows how it was described: causal, a window, padding, packed sequences. The attention takes the
features from it, in memory proportional to the length. If a model does something else with it (slices it, joins it
with another), that works on the boolean matrix that it stands for, which is then computed. A model that adds its mask
to scores has attention of its own, to which True and False would mean 1 and 0: that is refused.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map, tree_map_only
from transformers.masking_utils import causal_mask_function, eager_mask, prepare_padding_mask, sdpa_mask
from transformers.utils.import_utils import is_tracing

from ._interface import models_of_config_use_interface
from ._patterns import Pattern, read

# What a model may do with a mask, by the names of PyTorch's ops without the underscore of those in place: what keeps
# truth values; what chooses by them, if the mask is the argument of such a name; what reads only the shape.
_LOGICAL = set(
    "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor __and__ __or__ "
    "__xor__ __iand__ __ior__ __ixor__ any all equal _local_scalar_dense is_same_size".split()
)
_SHAPE = set(
    "alias as_strided cat clone constant_pad_nd copy detach diagonal expand flip gather index index_select _to_copy "
    "lift_fresh narrow permute repeat _reshape_alias roll scatter select slice slice_scatter split split_with_sizes "
    "squeeze stack t transpose tril triu unbind unfold _unsafe_view unsqueeze view".split()
)
_CHOOSING = set(
    "where masked_fill masked_scatter masked_select index index_put _index_put_impl _fused_sdp_choice "
    "_scaled_dot_product_attention_math _scaled_dot_product_flash_attention_for_cpu".split()
)
_CONDITIONS = {"condition", "mask", "indices", "attn_mask"}
_FACTORIES = set(
    "empty_like full_like ones_like zeros_like rand_like randn_like "
    "new_empty new_full new_ones new_zeros new_empty_strided".split()
)


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
    dtype: torch.dtype = torch.float32,
    config=None,
    **_,
) -> Tensor:
    """The mask of one forward pass, by the arguments that transformers gives to all mask functions; attention_mask is
    the one of padding, [batch, keys]."""
    if not models_of_config_use_interface(type(config)):
        raise NotImplementedError(
            f"{type(config).__name__}: its models have attention of their own, which attngrad cannot replace"
        )
    arguments = {
        "batch_size": batch_size,
        "q_length": q_length,
        "kv_length": kv_length,
        "q_offset": q_offset,
        "kv_offset": kv_offset,
        "mask_function": mask_function,
        "attention_mask": attention_mask,
        "use_vmap": use_vmap,
        "device": device,
    }
    if not all(_has_values(x) for x in (q_offset, attention_mask)):
        return eager_mask(**arguments, dtype=dtype)  # minus a large number, to be added to the scores
    arguments["q_offset"] = q_offset = int(q_offset)  # a static cache would change its tensor in place
    build = functools.partial(sdpa_mask, **arguments, allow_is_causal_skip=False)
    padding = prepare_padding_mask(attention_mask, kv_length, kv_offset)
    if padding is not None:
        padding = padding[:, kv_offset : kv_offset + kv_length].bool()
    shape = (batch_size, 1, q_length, kv_length)
    return Mask(shape, device, build, read(mask_function), padding, q_offset - kv_offset)


def _has_values(x) -> bool:
    """Whether Python may look at the numbers: not while a graph is traced, and not if vmap batches them."""
    if is_tracing(x if isinstance(x, Tensor) else None):
        return False
    try:
        return not isinstance(x, Tensor) or x.sum().item() >= 0
    except RuntimeError:  # vmap's
        return False


class Mask(Tensor):
    """True where a query sees a key. `pattern`: its description, if it has one; `padding` [batch, keys]: False for keys
    that nobody sees; `shift`: the position of query 0 minus that of key 0."""

    @staticmethod
    def __new__(cls, shape, device, build, pattern=None, padding=None, shift=0):
        return torch.Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=torch.device(device))

    def __init__(
        self, shape, device, build, pattern: Pattern | None = None, padding: Tensor | None = None, shift: int = 0
    ):
        self._build, self.pattern, self.padding, self.shift = build, pattern, padding, shift

    def __repr__(self) -> str:
        return f"Mask({list(self.shape)}, {self.pattern}, padded={self.padding is not None}, shift={self.shift})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten.detach.default:
            return args[0]
        _check_use(func, args, kwargs)
        args, kwargs = tree_map_only(Mask, lambda x: x.dense, (args, kwargs))
        return tree_map(_as_mask, func(*args, **kwargs))

    @functools.cached_property
    def dense(self) -> Tensor:
        """The boolean matrix of all pairs."""
        return self._build()

    @functools.cached_property
    def visible(self) -> Visible:
        """Computed once for all layers that share this mask."""
        if self.pattern is None:
            return Visible({"attn_mask": self.dense})
        features = self._distance_features()
        if self.pattern.is_packed:
            lists = self._lists_of_sequences()
            if lists is None:
                return Visible({"attn_mask": self.dense})
            features["longest"] = [max(map(operator.sub, ends[1:], ends)) for ends in lists]
            return Visible(features, tuple(torch.tensor(ends, device=self.device) for ends in lists))
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
        if torch.equal(self.padding, torch.arange(self.shape[3], device=lengths.device) < lengths[:, None]):
            return {"kv_lengths": lengths}
        return {"attn_mask": self.padding[:, None, None, :]}

    def _lists_of_sequences(self) -> tuple[list[int], list[int]] | None:
        """The offsets, of queries and of keys, of the sequences that the mask cuts the batch into; None if they cannot
        say what it hides."""
        batch, _, n, n_k = self.shape
        if n != n_k or self.shift != 0 or n == 0:
            return None
        first = self._first_of_sequences(batch, n)
        if first is None:
            return None
        starts = [*first.flatten().nonzero().flatten().tolist(), batch * n]
        if self.padding is None or self.padding.all():
            return starts, starts
        return _without_padding(starts, self.padding.flatten().tolist())

    def _first_of_sequences(self, batch: int, n: int) -> Tensor | None:
        """[batch, n]: True at the first position of each sequence; None if a sequence is not one interval of
        successive positions."""
        p = self.pattern
        given = (t for t in (p.positions, p.sequences, p.chunk_start) if t is not None)
        device = next((t.device for t in given), None)
        positions = torch.arange(n, device=device).expand(batch, n) if p.positions is None else p.positions
        sequences = torch.zeros_like(positions) if p.sequences is None else p.sequences
        is_next = sequences.diff(dim=1) == 0
        if (sequences.diff(dim=1) < 0).any() or not (positions.diff(dim=1)[is_next] == 1).all():
            return None
        first = torch.ones(batch, n, dtype=torch.bool, device=device)
        first[:, 1:] = ~is_next
        if p.chunk is not None:
            chunks = (positions - p.chunk_start[:, None]) // p.chunk
            first[:, 1:] |= chunks.diff(dim=1) != 0
        return first


def _as_mask(x):
    """What is made of a mask and still can be one is a Mask too, without a description."""
    if isinstance(x, Tensor) and x.dtype == torch.bool and x.dim() == 4:
        return Mask(x.shape, x.device, lambda: x)
    return x


def _check_use(func, args: tuple, kwargs: dict) -> None:
    """Refuses an op that computes with a mask, converts it to numbers or changes it in place."""
    name = func._schema.name.removeprefix("aten::")
    name = name if name.endswith("__") else name.rstrip("_")
    if name in _FACTORIES:
        return
    given = dict(zip((a.name for a in func._schema.arguments), args, strict=False)) | kwargs
    values = {key: x for key, x in given.items() if not (name in _CHOOSING and key in _CONDITIONS)}
    as_values = [key for key, x in values.items() if any(isinstance(leaf, Mask) for leaf in tree_leaves(x))]
    written = {a.name for a in func._schema.arguments if a.alias_info and a.alias_info.is_write}
    is_allowed = name in _LOGICAL | _SHAPE | _CHOOSING and written.isdisjoint(as_values)
    if not is_allowed or as_values and not _stays_bool(values):
        raise NotImplementedError(
            f"attention_mask: the model computes with it, by {func}, but it is True where a query sees a key"
        )


def _stays_bool(arguments: dict[str, Any]) -> bool:
    """Whether an op takes masks to a mask: its arguments, but for indices, and its result dtype are not numbers."""
    data = [x for key, x in arguments.items() if key not in ("index", "indices")]
    tensors = [x for x in tree_leaves(data) if isinstance(x, Tensor)]
    filled = arguments.get("value")  # by masked_fill or constant_pad_nd
    is_truth = isinstance(filled, Tensor) or filled in (None, 0, 1)
    return is_truth and arguments.get("dtype") in (None, torch.bool) and all(x.dtype == torch.bool for x in tensors)


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
