"""Biases and masks of packed sequences in a ring. Every rank has them whole, indexed within the sequence. A pair of
chunks has some queries and keys of each sequence: the map on it takes one rectangle per sequence, and its gradients are
added to the whole."""

from __future__ import annotations

from torch import Tensor

Rectangles = list[tuple[slice, slice]]  # of each sequence its queries and keys in the pair, by index in the sequence


def _length(part: slice) -> int:
    return part.stop - part.start


def _view(x: Tensor, b: int, rows: slice, columns: slice) -> Tensor:
    """The rectangle of sequence b, [heads, rows, columns]; an axis of size 1 is broadcast."""
    x = x[b if x.shape[0] > 1 else 0]
    x = x if x.shape[1] == 1 else x[:, rows]
    return x if x.shape[2] == 1 else x[..., columns]


def empty(x: Tensor, rectangles: Rectangles) -> Tensor:
    """Room for the rectangles of a bias or mask, filled with zeros."""
    longest = [max(map(_length, parts), default=0) for parts in zip(*rectangles, strict=True)]
    sizes = [size if size <= 1 else n for size, n in zip(x.shape[2:], longest, strict=True)]
    return x.new_zeros((len(rectangles), x.shape[1], *sizes))


def cut(x: Tensor, rectangles: Rectangles) -> Tensor:
    parts = empty(x, rectangles)
    for b, place in enumerate(rectangles):
        part = _view(x, b, *place)
        parts[b, :, : part.shape[1], : part.shape[2]] = part
    return parts


def add(total: Tensor, parts: Tensor, rectangles: Rectangles) -> None:
    """The transpose of cut."""
    for b, place in enumerate(rectangles):
        view = _view(total, b, *place)
        view += parts[b, :, : view.shape[1], : view.shape[2]]
