"""How a problem lies on the ranks of a group, as one word of the features; which chunks see each other; and where a
pair of chunks stands in the whole sequence."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from typing import NamedTuple

import torch
from torch import Tensor

from ._ring_packed import Rectangles
from ._shard import Chunk, Layout

WAYS = ("all_to_all", "keys", "queries")


class Word(NamedTuple):
    """ring=way,n_q,n_k,rows,group: lengths of the whole sequences; rows says which of bias and mask are cut by query
    rows: "b", "m", "bm" or ""."""

    way: str
    n_q: int
    n_k: int
    rows: str
    group: str  # the name of the process group

    def __str__(self) -> str:
        return ",".join(map(str, self))


def read_word(text: str) -> Word:
    way, n_q, n_k, rows, group = text.split(",", 4)
    return Word(way, int(n_q), int(n_k), rows, group)


def words_of(features: str) -> dict[str, str]:
    """The features by name; the value of a flag is empty."""
    return {name: value for name, _, value in (word.partition("=") for word in features.split())}


def join_words(words: dict[str, str]) -> str:
    return " ".join(f"{name}={value}" if value else name for name, value in words.items())


class Lists(NamedTuple):
    """Lengths of the sequences of the batch, or where packed sequences begin and end; None: not given."""

    q_lengths: tuple[int, ...] | None = None
    kv_lengths: tuple[int, ...] | None = None
    q_packed: tuple[int, ...] | None = None
    k_packed: tuple[int, ...] | None = None


def lists_of(common: tuple) -> Lists:
    """Those among the arguments of the op."""
    return Lists(*(None if x is None else tuple(x.tolist()) for x in common[7:11]))


class _Span(NamedTuple):
    """The queries or the keys of one sequence."""

    begin: int  # its first row, of those of all packed sequences
    length: int
    position: int  # of its first row
    is_packed: bool

    def part(self, chunk: Chunk) -> tuple[int, int]:
        """The position of its first row in a chunk, and how many of its rows lie there. A padded sequence that ends
        before the chunk has rows in it, past its end."""
        rows = self.rows(chunk)
        first = rows.start if self.is_packed else chunk.start
        return self.position + first, rows.stop - rows.start

    def rows(self, chunk: Chunk) -> slice:
        """Those of its rows that lie in a chunk."""
        low = min(max(self.begin, chunk.start), chunk.stop)
        high = min(max(self.begin + self.length, low), chunk.stop)
        return slice(low - self.begin, high - self.begin)


class Places:
    """Positions, lengths and visibility."""

    def __init__(self, features: str, q: Layout, k: Layout, lists: Lists, sink: bool):
        words = words_of(features)
        self.q, self.k, self._lists, self._sink = q, k, lists, sink
        left, right = (int(side) for side in words.get("window", "-1,-1").split(","))
        if "causal" in words:
            right = 0
        self._left, self._right = left, right
        self._sequences = self._spans(words)
        self._kinds = set(self._sequences)
        self._pairs: dict[tuple[int, int], list[tuple[Chunk, Chunk]]] = {}

    def _spans(self, words: dict[str, str]) -> list[tuple[_Span, _Span]]:
        lists = self._lists
        offsets = [_numbers(words.get(name)) for name in ("q_offsets", "k_offsets")]
        if lists.q_packed is not None:
            batch = len(lists.q_packed) - 1
        else:
            batch = max((len(x) for x in (lists.q_lengths, lists.kv_lengths, *offsets) if x), default=1)
        q_positions, k_positions = (
            of_each or [int(words.get(name, 0))] * batch
            for of_each, name in zip(offsets, ("q_offset", "k_offset"), strict=True)
        )
        q_spans = _spans(self.q.n, lists.q_lengths, lists.q_packed, q_positions)
        spans = list(zip(q_spans, _spans(self.k.n, lists.kv_lengths, lists.k_packed, k_positions), strict=True))
        if words.get("align") != "bottom-right":
            return spans
        return [(q._replace(position=q.position + k.length - q.length), k) for q, k in spans]

    def _sees(self, q: Chunk, k: Chunk, q_span: _Span, k_span: _Span) -> bool:
        (q_first, q_rows), (k_first, k_rows) = q_span.part(q), k_span.part(k)
        if q_rows == 0 or k_rows == 0:
            return False
        if self._right >= 0 and k_first > q_first + q_rows - 1 + self._right:
            return False
        return self._left < 0 or k_first + k_rows - 1 >= q_first - self._left

    def has_sink(self, q: Chunk, k: Chunk) -> bool:
        """The sink belongs to one chunk of keys for each of queries: that of the same index."""
        return self._sink and q.index == k.index

    def is_computed(self, q: Chunk, k: Chunk) -> bool:
        """Whether some query of the one chunk sees a key of the other, or the sink."""
        if q.length == 0:
            return False
        return self.has_sink(q, k) or any(self._sees(q, k, *spans) for spans in self._spans_in(q, k))

    def _spans_in(self, q: Chunk, k: Chunk) -> Iterable[tuple[_Span, _Span]]:
        """Of packed sequences those that have rows in both chunks, and perhaps empty ones; otherwise all."""
        lists = self._lists
        if lists.q_packed is None or lists.k_packed is None:
            return self._kinds
        (q_first, q_end), (k_first, k_end) = _between(lists.q_packed, q), _between(lists.k_packed, k)
        return self._sequences[max(q_first, k_first) : min(q_end, k_end)]

    def pairs(self, q_rank: int, k_rank: int) -> list[tuple[Chunk, Chunk]]:
        """Those of the queries of one rank and the keys of another that are computed."""
        if (q_rank, k_rank) not in self._pairs:
            self._pairs[q_rank, k_rank] = [
                (q, k)
                for q in self.q.chunks(q_rank)
                for k in self.k.chunks(k_rank)
                if self.is_computed(q, k)
            ]
        return self._pairs[q_rank, k_rank]

    def keywords(self, q: Chunk, k: Chunk) -> dict[str, int | array]:
        """The positions of the first query and the first key of each sequence in the pair."""
        q_offsets = [span.part(q)[0] for span, _ in self._sequences]
        k_offsets = [span.part(k)[0] for _, span in self._sequences]
        if len(set(q_offsets)) == len(set(k_offsets)) == 1:
            return {"q_offset": q_offsets[0], "k_offset": k_offsets[0]}
        return {"q_offsets": array("q", q_offsets), "k_offsets": array("q", k_offsets)}

    def rectangles(self, q: Chunk, k: Chunk) -> Rectangles:
        """The queries and keys of each sequence in the pair."""
        return [(q_span.rows(q), k_span.rows(k)) for q_span, k_span in self._sequences]

    def lists(self, q: Chunk, k: Chunk, device: torch.device) -> list[Tensor | None]:
        """q_lengths, kv_lengths, q_packed and k_packed of the pair."""
        return [
            None if whole is None else _inside(chunk, torch.tensor(whole, dtype=torch.int64, device=device))
            for whole, chunk in zip(self._lists, (q, k, q, k), strict=True)
        ]


def _numbers(text: str | None) -> list[int]:
    return [int(x) for x in text.split(",") if x] if text else []


def _spans(
    n: int, lengths: tuple[int, ...] | None, packed: tuple[int, ...] | None, positions: list[int]
) -> list[_Span]:
    """`positions` of the first row of each sequence, n: rows of each without lengths."""
    if packed is not None:
        rows = zip(packed, packed[1:], positions, strict=False)
        return [_Span(begin, end - begin, position, True) for begin, end, position in rows]
    return [_Span(0, *pair, False) for pair in zip(lengths or [n] * len(positions), positions, strict=True)]


def _between(packed: tuple[int, ...], chunk: Chunk) -> tuple[int, int]:
    """The first of the packed sequences with rows in a chunk, and the one after the last."""
    return max(bisect_right(packed, chunk.start) - 1, 0), bisect_left(packed, chunk.stop)


def _inside(chunk: Chunk, whole: Tensor) -> Tensor:
    """How many of the rows before these ends lie in a chunk."""
    return whole.sub(chunk.start).clamp(0, chunk.length)
