"""The way that sends the fewest bytes, counted over all ranks for one forward and one vjp."""

from __future__ import annotations

import functools
from typing import NamedTuple

from torch import Tensor

from ._ring_word import WAYS, Lists, Places
from ._shard import Layout


class Sizes(NamedTuple):
    """All that bytes depend on beside who sees whom."""

    batch: int
    heads: int
    kv_heads: int
    dk: int
    dv: int
    item: int  # bytes of an element
    wide: int  # bytes of an element of a partial result
    bias_row: int  # bytes of one query row with all keys of a bias that is cut by rows; otherwise 0
    mask_row: int  # the same for a mask


def sizes_of(common: tuple, rows: str) -> Sizes:
    """`rows` as in Word."""
    q, k, v, bias, _, _, mask = common[:7]
    batch, heads, _, dk = q.shape
    bias_row = _row_bytes(bias) if "b" in rows else 0
    mask_row = _row_bytes(mask) if "m" in rows else 0
    item = q.dtype.itemsize
    return Sizes(batch, heads, k.shape[1], dk, v.shape[3], item, max(item, 4), bias_row, mask_row)


def _row_bytes(x: Tensor) -> int:
    return x.shape[0] * x.shape[1] * x.shape[3] * x.dtype.itemsize


@functools.lru_cache(maxsize=256)
def choose(
    sizes: Sizes,
    features: str,
    q: Layout,
    k: Layout,
    lists: Lists,
    sink: bool,
) -> str:
    """all_to_all is left out if the ranks do not divide the kv heads: some would have more work than others."""
    places = Places(features, q, k, lists, sink)
    ways = WAYS if sizes.kv_heads % q.size == 0 else WAYS[1:]
    return min(ways, key=lambda way: bytes_sent(way, sizes, places))


def bytes_sent(way: str, sizes: Sizes, places: Places) -> int:
    if way == "all_to_all":
        return _all_to_all(sizes, places)
    forward = _keys(sizes, places, sizes.item)
    if way == "keys":
        return forward + _keys(sizes, places, sizes.item + sizes.wide)
    return forward + _queries(sizes, places)


def _positions(layout: Layout, is_needed) -> int:
    """Positions that are sent: those of each rank once for each other rank that needs them."""
    ranks = range(layout.size)
    return sum(layout.length(a) for a in ranks for b in ranks if a != b and is_needed(a, b))


def _keys(sizes: Sizes, places: Places, item: int) -> int:
    """K and V, with this many bytes per element: vjp also sends their gradients back."""
    n = _positions(places.k, lambda owner, worker: places.pairs(worker, owner))
    return n * sizes.batch * sizes.kv_heads * (sizes.dk + sizes.dv) * item


def _queries(sizes: Sizes, places: Places) -> int:
    """vjp: q, dO, lse and D there, dQ back; of a bias the columns of the other rank, and their gradient."""
    row = sizes.batch * sizes.heads * ((sizes.dk + sizes.dv) * sizes.item + 16 + sizes.dk * sizes.wide)
    blocks = (2 * sizes.bias_row + sizes.mask_row) // places.q.size
    return _positions(places.q, places.pairs) * (row + blocks)


def _all_to_all(sizes: Sizes, places: Places) -> int:
    """forward: q k v there, o lse back; vjp: q k v o dO lse there, dQ dK dV back."""
    channels = 3 * (sizes.dk + sizes.dv) * sizes.item
    query = sizes.batch * sizes.heads * (channels + 16) + 3 * sizes.bias_row + 2 * sizes.mask_row
    key = sizes.batch * sizes.kv_heads * channels
    return (places.q.n * query + places.k.n * key) * (places.q.size - 1) // places.q.size
