"""What a mask function of transformers means.

transformers describes a mask by a function of (batch, head, query, key), built from a few functions of its
masking_utils: causal, sliding window, chunks, packed sequences and their intersection. `read` recognises these by their
code and takes their parameters from their closures. A function that it does not recognise has no pattern; the caller
then evaluates it for each pair. So that a release in which one of them means something else changes no result, each is
compared once with the formula of its pattern and ignored if they differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from transformers import masking_utils


@dataclass(frozen=True)
class Pattern:
    """Query q sees key k if each condition that is not None holds; `positions` turns indices into positions first, in
    all conditions but that of `sequences`."""

    causal: bool | None = None  # k <= q
    left: int | None = None  # k >= q - left
    right: int | None = None  # k <= q + right
    chunk: int | None = None  # q and k, counted from chunk_start[batch], are in the same chunk of this size
    chunk_start: Tensor | None = None
    sequences: Tensor | None = None  # [batch, n]: the number of the sequence is the same
    positions: Tensor | None = None  # [batch, n]

    def sees(self, b: Tensor, q: Tensor, k: Tensor) -> Tensor:
        """Whether the queries see the keys; the three tensors broadcast."""
        seen = torch.ones((), dtype=torch.bool)
        if self.sequences is not None:
            seen = seen & (self.sequences[b, q] == self.sequences[b, k])
        if self.positions is not None:
            q, k = self.positions[b, q], self.positions[b, k]
        if self.causal:
            seen = seen & (k <= q)
        if self.left is not None:
            seen = seen & (k >= q - self.left)
        if self.right is not None:
            seen = seen & (k <= q + self.right)
        if self.chunk is not None:
            start = self.chunk_start[b]
            seen = seen & ((k - start) // self.chunk == (q - start) // self.chunk)
        return seen

    @property
    def is_packed(self) -> bool:
        """Whether the mask cuts the batch into sequences that do not see each other."""
        return self.sequences is not None or self.chunk is not None


class Unknown(Exception):
    """A mask function that has no pattern."""


def read(function: Callable) -> Pattern | None:
    """The pattern of a mask function, or None."""
    try:
        return _read(function, _readers())
    except Unknown:
        return None


def _read(function: Callable, readers: dict) -> Pattern:
    code = getattr(function, "__code__", None)
    if code not in readers:
        raise Unknown
    cells = (cell.cell_contents for cell in function.__closure__ or ())
    try:
        return readers[code](dict(zip(code.co_freevars, cells, strict=True)), readers)
    except KeyError:  # a closure with other names than those of the releases that we know
        raise Unknown from None


def _both(x: Pattern, y: Pattern) -> Pattern:
    """The pattern of pairs that both x and y see."""
    if (x.positions is None) != (y.positions is None):
        other = x if x.positions is None else y
        if replace(other, sequences=None) != Pattern():  # its conditions are on indices, the others on positions
            raise Unknown
    values: dict[str, Any] = {}
    for field in fields(Pattern):
        pair = [v for v in (getattr(x, field.name), getattr(y, field.name)) if v is not None]
        if len(pair) == 2 and field.name in ("left", "right"):
            pair = [min(pair)]
        if len(pair) == 2 and pair[0] is not pair[1]:
            raise Unknown
        values[field.name] = pair[0] if pair else None
    return Pattern(**values)


def _read_and(closure: dict, readers: dict) -> Pattern:
    return functools.reduce(_both, (_read(f, readers) for f in closure["mask_functions"]), Pattern())


def _read_remap(closure: dict, readers: dict) -> Pattern:
    inner = _read(closure["mask_function"], readers)
    if inner.sequences is not None or inner.positions is not None:
        raise Unknown
    return replace(inner, positions=closure["position_ids"])


def _read_chunks(closure: dict, _) -> Pattern:
    return Pattern(chunk=closure["chunk_size"], chunk_start=closure["left_padding"])


def _examples() -> list[tuple[Callable, Callable]]:
    """Each function of masking_utils that has a pattern, with example parameters, and the reader of its closure. A
    release may lack some."""
    causal = masking_utils.causal_mask_function
    start, positions = torch.tensor([0, 2]), torch.tensor([[0, 1, 2, 3, 4, 5, 0, 1, 2], [4, 5, 0, 1, 2, 3, 4, 5, 6]])
    sequences = torch.tensor([[0, 0, 0, 0, 0, 0, 1, 1, 1], [0, 0, 1, 1, 1, 1, 1, 1, 1]])
    known = [
        ("sliding_window_overlay", (3,), lambda c, _: Pattern(left=c["sliding_window"] - 1)),
        (
            "sliding_window_bidirectional_overlay",
            (3,),
            lambda c, _: Pattern(left=c["sliding_window"], right=c["sliding_window"]),
        ),
        ("chunked_overlay", (3, start), _read_chunks),
        ("packed_sequence_mask_function", (sequences,), lambda c, _: Pattern(sequences=c["packed_sequence_mask"])),
        ("and_masks", (causal, causal), _read_and),
        ("remap_positions_for_packed_sequence", (causal, positions), _read_remap),
    ]
    examples = [(causal, lambda _, __: Pattern(causal=True))]
    examples += [
        (getattr(masking_utils, name)(*parameters), reader)
        for name, parameters, reader in known
        if hasattr(masking_utils, name)
    ]
    if hasattr(masking_utils, "bidirectional_mask_function"):
        examples.append((masking_utils.bidirectional_mask_function, lambda _, __: Pattern()))
    return examples


@functools.cache
def _readers() -> dict:
    """The readers by the code of the functions that they read, for those whose meaning is the pattern's."""
    examples = _examples()
    readers = {function.__code__: reader for function, reader in examples}
    agreeing = {}
    for function, reader in examples:
        if _agree(function, readers):
            agreeing[function.__code__] = reader
    return agreeing


def _agree(function: Callable, readers: dict) -> bool:
    batch, n = torch.arange(2)[:, None, None, None], torch.arange(9)
    q, k = n[None, None, :, None], n[None, None, None, :]
    try:
        pattern = _read(function, readers)
    except Unknown:
        return False
    shape = (2, 1, 9, 9)
    seen = function(batch, torch.zeros(1, 1, 1, 1, dtype=torch.int64), q, k)
    return torch.equal(seen.expand(shape), pattern.sees(batch, q, k).expand(shape))
