"""The maps over ranks by heads: one exchange turns shards of the sequence into shards of the heads, each rank runs the
map on the whole sequence of its heads, and one exchange turns the results back.

Rank r of P has kv heads [floor(r Hk / P), floor((r + 1) Hk / P)) with their groups of query heads; if there are more
ranks than kv heads, some have none and only take part in the exchanges. As each group is computed at one place and in
one call, invariant=True gives the bits of one process.
"""

from __future__ import annotations

import functools
import math

import torch
from torch import Tensor

from ._ops import ARRAYS, INPUTS, run_here
from ._peers import Spec, Specs
from ._ring_call import BLOCKS, KEYS, ROWS, SHARED, Call
from ._ring_word import join_words, words_of
from ._shard import Layout, widened

Tensors = dict[str, Tensor]


def run(call: Call) -> None:
    heads = _Heads(call)
    inputs = heads.gather()
    results = heads.compute(inputs) if heads.count(call.peers.rank) else {}
    heads.scatter(results)


class _Heads:
    def __init__(self, call: Call):
        self.call, self.peers = call, call.peers
        self.n_kv = call.common[1].shape[1]
        self.group = call.common[0].shape[1] // self.n_kv
        skipped = frozenset(("sq", "sk", "sv", "sbias") if call.is_one_direction else ())
        self.rows_in = sorted(name for name in call.read - skipped if self._is_sharded(name))
        self.outputs = sorted(set().union(*call.wanted))
        self.others = [rank for rank in range(self.peers.size) if rank != self.peers.rank]
        # A 16-bit gradient of a bias that all heads share is summed over the ranks: in float32.
        bias = call.common[3]
        self.sums_bias = bias is not None and bias.shape[1] == 1 and not BLOCKS.isdisjoint(self.outputs)

    def _is_sharded(self, name: str) -> bool:
        return name in ROWS or name in KEYS or (name in BLOCKS and self.call.is_by_rows(name))

    # ---- Which heads, which positions ----

    def _kv(self, rank: int) -> tuple[int, int]:
        return rank * self.n_kv // self.peers.size, (rank + 1) * self.n_kv // self.peers.size

    def count(self, rank: int) -> int:
        start, stop = self._kv(rank)
        return stop - start

    def _of(self, name: str, rank: int, size: int) -> slice:
        """The heads of a rank on an axis of this size: the axis of a bias, mask or table may be shared by all heads."""
        start, stop = self._kv(rank)
        if name in KEYS:
            return slice(start, stop)
        return slice(0, 1) if size == 1 else slice(start * self.group, stop * self.group)

    def _layout(self, name: str) -> Layout:
        return self.call.k if name in KEYS else self.call.q

    def _spec(self, name: str, n: int, worker: int) -> Spec:
        """n rows or keys in the heads of `worker`."""
        if name in BLOCKS:
            wide = self.sums_bias and name in self.outputs
            spec = self.call.block_spec(name, n, self.call.word.n_k, wide)
        else:
            spec = self.call.spec(name, n)
        batch, size, *rest = spec.shape
        heads = self._of(name, worker, size)
        return Spec((batch, heads.stop - heads.start, *rest), spec.dtype)

    def _specs(self, names: list[str], owner: int, worker: int) -> Specs:
        """The rows and keys of `owner` in the heads of `worker`."""
        return {name: self._spec(name, self._layout(name).length(owner), worker) for name in names}

    # ---- From positions to heads and back ----

    def _input(self, name: str) -> Tensor:
        return self.call.block(name) if name in BLOCKS else self.call.input(name)

    def gather(self) -> Tensors:
        """The whole sequences of this rank's heads."""
        here = self.peers.rank
        tensors = {name: self._input(name) for name in self.rows_in}
        parts = {
            rank: {name: x[:, self._of(name, rank, x.shape[1])] for name, x in tensors.items()}
            for rank in range(self.peers.size)
            if self.count(rank)
        }
        own = parts.pop(here, None)
        received = {rank: self._specs(self.rows_in, rank, here) for rank in self.others} if own else {}
        found = self.peers.exchange(parts, received, self.call.device).wait()
        return self._joined(found | {here: own}) if own else {}

    def _joined(self, parts: dict[int, Tensors]) -> Tensors:
        whole = {}
        for name, x in parts[self.peers.rank].items():
            layout = self._layout(name)
            whole[name] = x.new_empty((*x.shape[:2], layout.n, *x.shape[3:]))
            for rank, part in parts.items():
                for chunk in layout.chunks(rank):
                    whole[name][:, :, chunk.whole] = part[name][:, :, chunk.here]
        return whole

    def scatter(self, results: Tensors) -> None:
        """Writes the outputs of this rank from the results of all."""
        here = self.peers.rank
        names = [name for name in self.outputs if self._is_sharded(name)]
        workers = [rank for rank in range(self.peers.size) if self.count(rank)]
        parts = {rank: self._shards(names, results, rank) for rank in range(self.peers.size)} if results else {}
        own = parts.pop(here, None)
        received = {rank: self._specs(names, here, rank) for rank in workers if rank != here}
        found = self.peers.exchange(parts, received, self.call.device).wait() | ({here: own} if own is not None else {})
        for name, output in self.call.outputs.items():
            if name in names:
                self._assemble(name, output, [(rank, found[rank][name]) for rank in workers])
            else:
                self._assemble(name, output, [(here, results[name])] if results else [])

    def _shards(self, names: list[str], results: Tensors, rank: int) -> Tensors:
        return {
            name: torch.cat([results[name][:, :, chunk.whole] for chunk in self._layout(name).chunks(rank)], dim=2)
            for name in names
        }

    def _assemble(self, name: str, output: Tensor, parts: list[tuple[int, Tensor]]) -> None:
        """The heads of each rank at their place; what all heads share is summed in the order of ranks."""
        axis = 0 if name in SHARED else 1
        if name not in KEYS and output.shape[axis] == 1 and parts:
            output.copy_(functools.reduce(torch.add, (widened(part) for _, part in parts)))
            return
        output.zero_()
        for rank, part in parts:
            heads = self._of(name, rank, output.shape[axis])
            output.narrow(axis, heads.start, heads.stop - heads.start).copy_(part)

    # ---- The map ----

    def compute(self, inputs: Tensors) -> Tensors:
        call = self.call
        x = inputs | {name: self._local(name, y) for name, y in call.inputs.items() if name not in inputs}
        if call.is_one_direction:
            x |= {"s" + name: x["t" + name] for name in INPUTS if "t" + name in x}
        if self.sums_bias:
            x |= {name: widened(y) for name, y in x.items() if name in SHARED or name in BLOCKS}
        results = {name: self._empty(name, x) for name in self.outputs}
        common = (*(x.pop(name, None) for name in ARRAYS), *call.common[7:12], self._features())
        run_here(call.map, common, x | results, call.flags)
        return results

    def _local(self, name: str, x: Tensor) -> Tensor:
        """This rank's heads of a tensor that every rank has whole."""
        axis = 0 if name in SHARED else 1
        heads = self._of(name, self.peers.rank, x.shape[axis])
        return x.narrow(axis, heads.start, heads.stop - heads.start)

    def _empty(self, name: str, x: Tensors) -> Tensor:
        if name in SHARED or name in BLOCKS:
            return torch.empty_like(x[name.removeprefix("t").removeprefix("d")])  # of the input's shape
        return self._spec(name, self._layout(name).n, self.peers.rank).empty(self.call.device)

    def _features(self) -> str:
        """Those of one process, for these heads."""
        words = words_of(self.call.common[12])
        words.pop("ring")
        size = self.call.common[0].shape[1]
        heads = self._of("q", self.peers.rank, size)
        words["head_offset"] = str(int(words.get("head_offset", 0)) + heads.start)
        if "alibi" in words:
            words.pop("alibi")
            words["slopes"] = ",".join(repr(default_slope(h, size)) for h in range(size))
        if "slopes" in words:
            words["slopes"] = ",".join(words["slopes"].split(",")[heads])
        return join_words({name: value for name, value in words.items() if (name, value) != ("head_offset", "0")})


def default_slope(h: int, heads: int) -> float:
    """ALiBi's own slope of head h: 2^(-8(h + 1) / H); if H is no power of two, the slopes of the largest power of two n
    below it, then every other slope of 2n."""
    n = 1 << (heads.bit_length() - 1)
    return math.exp2(-8 * (h + 1) / n) if h < n else math.exp2(-4 * (2 * (h - n) + 1) / n)
