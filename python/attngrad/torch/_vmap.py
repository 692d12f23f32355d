"""vmap over the maps. The mapped axis is folded into the batch, so that one call is enough, if each element of
the axis then has results of its own; otherwise the map runs once for each element.

The role of an argument says what its first axis is: the batch ("batch"), the batch or 1 ("bias", "mask"),
something else ("shared" by the batch). None: not a tensor.
"""

from __future__ import annotations

import torch

from ._features import read

_INPUTS = ["batch", "batch", "batch", "bias", "shared", "shared"]
_COMMON = [*_INPUTS, "mask", "batch", "batch", "shared", "shared", "shared", None]
_RESULTS = ["batch"] * 3  # o, lse and o_low, or to, mu and to_low
_COTANGENTS = ["batch"] * 2
ATTENTION = [*_COMMON, None]
VJP = [*_COMMON, *_RESULTS, *_COTANGENTS, None]
JVP = [*_COMMON, *_RESULTS, *_INPUTS]
VJP_JVP = [*_COMMON, *_RESULTS, *_COTANGENTS, *_INPUTS, *_RESULTS, *_COTANGENTS, None]
JVP_JVP = [*_COMMON, *_RESULTS, *_INPUTS, "batch", *_INPUTS, "batch"]


def run(function, roles, info, in_dims, args):
    """The outputs of function.apply for all elements of the mapped axis, and their out_dims."""
    size = info.batch_size
    args = [x if dim is None else x.movedim(dim, 0) for x, dim in zip(args, in_dims, strict=True)]
    mapped = [dim is not None for dim in in_dims]
    wanted = args[-1] if roles is VJP or roles is VJP_JVP else 0
    folded = _fold(roles, size, mapped, args, wanted)
    if folded is None:
        return _loop(function, size, mapped, args)
    outputs = function.apply(*folded)
    batch = args[0].shape[1] if mapped[0] else args[0].shape[0]
    split = [x.unflatten(0, (size, batch)) if x.dim() > 1 else x for x in outputs]
    return tuple(split), tuple(0 if x.dim() > 1 else None for x in outputs)


def _fold(roles, size, mapped, args, wanted):
    """The arguments of the one call, or None if it takes one call per element."""
    batch = args[0].shape[1] if mapped[0] else args[0].shape[0]
    is_packed = args[9] is not None or args[10] is not None
    features = read(args[12])
    if (
        is_packed
        or "q_offsets" in features.keywords  # of the sequences of one element
        or "k_offsets" in features.keywords
        or wanted >> 4  # gradients of table or sink: sums over the batch
        or features.dropout
        or any(m for m, role in zip(mapped, roles, strict=True) if role == "shared")
    ):
        return None
    folds = {
        "bias": bool(wanted >> 3 & 1)
        or any(m for m, role in zip(mapped, roles, strict=True) if role == "bias"),
        "mask": mapped[6],
        "batch": True,
    }
    folded = []
    for x, role, is_mapped in zip(args, roles, mapped, strict=True):
        if x is None or not folds.get(role):
            if role in ("bias", "mask") and x is not None and x.shape[0] != 1:
                return None  # of the batch's size: it would have to be copied for each element
            folded.append(x)
            continue
        if not is_mapped:
            x = x.unsqueeze(0).expand(size, *x.shape)
        if x.shape[1] != batch:
            return None
        folded.append(x.flatten(0, 1))
    return folded


def _loop(function, size, mapped, args):
    rows = [
        function.apply(*(x[i] if is_mapped else x for x, is_mapped in zip(args, mapped, strict=True)))
        for i in range(size)
    ]
    return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * len(rows[0])
