"""The maps over ranks, on sequences that are cut by attngrad.torch.shard.

    keys        each rank keeps its queries; keys and values (and their tangents) go to the ranks that see them, and
                their gradients come back
    queries     each rank keeps its keys; in vjp and vjp_jvp queries go to the ranks whose keys they see, and their
                gradients come back; the other maps as with keys
    all_to_all  heads instead of positions: _ring_heads.py

In step t rank r works on what rank r - t has, which that rank sends to it directly, so that nothing is sent to a rank
that sees none of it. While a step is computed, the messages of the next one and the gradients of the one before are
under way. Gradients are added in the order of steps: for a given number of ranks the bits are the same each time.

forward and jvp compute each pair of chunks by itself and merge; the other maps know lse, and the shares of the pairs
add up. vjp and vjp_jvp need of o and to only D and tD, a number per row: they are given o = 0, to = 0, d_lse = -D and
td_lse = -tD (docs/math.md, section 10). Partial results of 16-bit tensors are float32 and are rounded once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .. import _core
from . import _ring_heads, _ring_packed
from ._ops import ARRAYS, INPUTS, merge_here, run_here
from ._peers import Exchange, Specs
from ._ring_call import BLOCKS, KEYS, ROWS, SHARED, Call, row_dots, store, with_low
from ._ring_word import join_words, words_of
from ._shard import Chunk, widened

Tensors = dict[str, Tensor]
_OUT = frozenset(("o", "d_o", "td_o"))  # of the dtype of outputs
_BACKWARD = (_core.MAP_VJP, _core.MAP_VJP_JVP)
_MERGED = {_core.MAP_FORWARD: ("o", "lse"), _core.MAP_JVP: ("o", "lse", "to", "mu")}
_SUMMED = "dq dk dv dbias dtable dsink tdq tdk tdv tdbias tdtable tdsink sto nu".split()
_ACCUMULATE = {name: getattr(_core, "ACC_" + name.upper()) for name in _SUMMED}
_NOT_OF_A_PAIR = "ring align q_offset k_offset q_offsets k_offsets save_low".split()  # features of the whole, as words
_TRAVELLERS, _SHARES = 0, 1  # tags of messages


def run(map: int, common: tuple, tensors: dict[str, Tensor | None], flags: int) -> None:
    """Writes the outputs among the tensors. Every rank of the group calls it."""
    with torch._C._AutoDispatchBelowAutograd():
        call = Call(map, common, tensors, flags)
        if call.word.way == "all_to_all":
            _ring_heads.run(call)
        else:
            _Ring(call).run()


class _Ring:
    """Travellers are the tensors that go from their owner to other ranks, shares the gradients that come back."""

    def __init__(self, call: Call):
        self.call, self.places = call, call.places()
        self.peers, self.map = call.peers, call.map
        self.keys_travel = call.word.way == "keys" or call.map not in _BACKWARD
        self.travelling = KEYS if self.keys_travel else ROWS if call.is_packed else ROWS | BLOCKS
        words = {name: x for name, x in words_of(call.common[12]).items() if name not in _NOT_OF_A_PAIR}
        wide = {} if call.wide == call.dtype else {"out": "f32", "grad": "f32"}
        self.features = join_words(words | wide)
        self.rows, self.keys = self._rows(), self._keys()
        self.blocks = {name: call.block(name) for name in sorted(call.read & BLOCKS)}
        self.shared = {name: widened(x) for name, x in call.inputs.items() if name in SHARED}
        self.results = self._results()
        self.begun: set[int] = set()  # chunks of queries that have a result to merge with

    # ---- What this rank has ----

    def _rows(self) -> Tensors:
        call = self.call
        names = {"q", "tq", "sq", "lse", "mu", "smu", "d_o", "td_o"} & call.read
        if self.map in _MERGED:
            names &= {"q", "tq"}
        rows = {name: call.input(name) for name in sorted(names)}
        if self.map == _core.MAP_JVP_JVP:
            rows["o"] = self._whole("o")
        if self.map in _BACKWARD:
            rows["d_lse"] = call.input("d_lse") - row_dots(rows["d_o"], self._whole("o"))
        if self.map == _core.MAP_VJP_JVP:
            rows["td_lse"] = call.input("td_lse") - row_dots(rows["d_o"], self._whole("to"))
            if "td_o" in rows:
                rows["td_lse"] -= row_dots(rows["td_o"], self._whole("o"))
        return rows

    def _whole(self, name: str) -> Tensor:
        return with_low(self.call.inputs[name], self.call.inputs.get(name + "_low"))

    def _keys(self) -> Tensors:
        names = sorted(self.call.read & KEYS)
        if self.call.is_one_direction:
            names = [name for name in names if not name.startswith("s")]
        return {name: self.call.input(name) for name in names}

    def _results(self) -> Tensors:
        """Zeros to add to, or what is merged: the outputs themselves, unless they have 16 bits."""
        outputs, results = self.call.outputs, {}
        for name in _MERGED.get(self.map, outputs):
            if name in outputs:
                x = widened(outputs[name])
            else:
                x = self.call.spec(name, self.call.common[0].shape[2], wide=True).empty(self.call.device)
            results[name] = x.fill_(-torch.inf if name == "lse" else 0)
        return results

    # ---- The steps ----

    def run(self) -> None:
        own = self.keys if self.keys_travel else self.rows
        coming: Exchange | None = None
        returning: Exchange | None = None
        for step in range(self.peers.size):
            ahead = self._send_travellers(own, step + 1) if step + 1 < self.peers.size else None
            owner = self._rank(-step)
            here = own | self.blocks if coming is None else coming.wait().get(owner, {})
            shares = self.results if step == 0 else self._zero_shares(owner)
            for q, k in self._pairs(owner, self.peers.rank):
                self._compute(q, k, here, shares, has_all_columns=self.keys_travel or step == 0)
            if returning is not None:
                self._add(returning.wait())
            returning = self._send_shares(shares, step) if step > 0 else None
            coming = ahead
        if returning is not None:
            self._add(returning.wait())
        for name, x in self.results.items():
            store(self.call.outputs, name, x)

    def _rank(self, distance: int) -> int:
        return (self.peers.rank + distance) % self.peers.size

    def _pairs(self, owner: int, worker: int) -> list[tuple[Chunk, Chunk]]:
        """The pairs of chunks that `worker` computes with the travellers of `owner`."""
        return self.places.pairs(*((worker, owner) if self.keys_travel else (owner, worker)))

    def _send_travellers(self, own: Tensors, step: int) -> Exchange:
        here, to, source = self.peers.rank, self._rank(step), self._rank(-step)
        sent, received = {}, {}
        if self._pairs(here, to):
            sent[to] = own if self.keys_travel else own | self._blocks_for(to)
        if self._pairs(source, here):
            received[source] = self._specs(own, source, here)
        return self.peers.exchange(sent, received, self.call.device, _TRAVELLERS)

    def _specs(self, own: Tensors, owner: int, worker: int) -> Specs:
        """The travellers that `worker` gets from `owner`."""
        call = self.call
        if self.keys_travel:
            return {name: call.spec(name, call.k.length(owner)) for name in own}
        rows, columns = call.q.length(owner), call.k.length(worker)
        specs = {name: call.spec(name, rows) for name in own}
        if call.is_packed:  # every rank has them whole
            return specs
        return specs | {name: call.block_spec(name, rows, columns) for name in self.blocks}

    def _blocks_for(self, worker: int) -> Tensors:
        """The columns of biases and mask that belong to the keys of another rank."""
        chunks = self.call.k.chunks(worker)
        if self.call.is_packed:
            return {}
        return {
            name: x if x.shape[3] == 1 else torch.cat([x[..., chunk.whole] for chunk in chunks], dim=3)
            for name, x in self.blocks.items()
        }

    # ---- Shares ----

    def _share_specs(self, owner: int, worker: int) -> Specs:
        """What `worker` returns to `owner`."""
        call = self.call
        names = sorted(call.wanted[owner] & self.travelling)
        if not self._pairs(owner, worker):
            return {}
        if self.keys_travel:
            return {name: call.spec(name, call.k.length(owner), wide=True) for name in names}
        rows, columns = call.q.length(owner), call.k.length(worker)
        return {
            name: call.block_spec(name, rows, columns, wide=True)
            if name in BLOCKS
            else call.spec(name, rows, wide=True)
            for name in names
        }

    def _zero_shares(self, owner: int) -> Tensors:
        specs = self._share_specs(owner, self.peers.rank)
        return {name: spec.zeros(self.call.device) for name, spec in specs.items()}

    def _send_shares(self, shares: Tensors, step: int) -> Exchange:
        owner, worker = self._rank(-step), self._rank(step)
        specs = self._share_specs(self.peers.rank, worker)
        sent, received = {owner: shares} if shares else {}, {worker: specs} if specs else {}
        return self.peers.exchange(sent, received, self.call.device, _SHARES)

    def _add(self, returned: dict[int, Tensors]) -> None:
        for worker, shares in returned.items():
            for name, x in shares.items():
                total = self.results[name]
                if name not in BLOCKS or total.shape[3] == 1:
                    total += x
                    continue
                for chunk in self.call.k.chunks(worker):
                    total[..., chunk.whole] += x[..., chunk.here]

    # ---- One pair of chunks ----

    def _compute(self, q: Chunk, k: Chunk, here: Tensors, shares: Tensors, has_all_columns: bool) -> None:
        """has_all_columns: biases and mask have those of all keys, not only of this rank's."""
        columns = k.whole if has_all_columns else k.here
        x = self._inputs(q, k, here, columns)
        common = (*(x.pop(name, None) for name in ARRAYS), *self.places.lists(q, k, self.call.device))
        common += (self.call.common[11], self.features)
        if self.map in _MERGED:
            self._merge(common, x, q, k)
        else:
            targets = self._targets(shares, q, k, columns)
            self._accumulate(common, x, targets, q, k)
            self._add_rectangles(targets, q, k)

    def _inputs(self, q: Chunk, k: Chunk, here: Tensors, columns: slice) -> Tensors:
        inputs = {}
        for name, x in (self.rows | self.keys | self.blocks | here).items():
            part = self._part(name, x, q, k, columns)
            inputs[name] = widened(part) if name in _OUT or name in BLOCKS else part
        has_sink = self.places.has_sink(q, k)
        inputs |= {name: x for name, x in self.shared.items() if has_sink or not name.endswith("sink")}
        if self.call.is_one_direction:
            inputs |= {"s" + name: inputs["t" + name] for name in INPUTS if "t" + name in inputs}
        return inputs

    def _part(self, name: str, x: Tensor, q: Chunk, k: Chunk, columns: slice) -> Tensor:
        if name in KEYS:
            return x[:, :, k.here]
        if name in ROWS:
            return x[:, :, q.here]
        if self.call.is_packed:
            return _ring_packed.cut(x, self.places.rectangles(q, k))
        x = x[:, :, q.here] if self.call.is_by_rows(name) else x
        return x if x.shape[3] == 1 else x[..., columns]

    def _targets(self, shares: Tensors, q: Chunk, k: Chunk, columns: slice) -> Tensors:
        """The parts of the sums to which this pair adds: of the shares, and of what stays here."""
        sums = {name: x for name, x in self.results.items() if name not in self.travelling}
        sums |= {name: x for name, x in shares.items() if name in self.travelling}
        has_sink = self.places.has_sink(q, k)
        sums = {name: x for name, x in sums.items() if has_sink or not name.endswith("sink")}
        return {name: self._target(name, x, q, k, columns) for name, x in sums.items()}

    def _target(self, name: str, x: Tensor, q: Chunk, k: Chunk, columns: slice) -> Tensor:
        if name in SHARED:
            return x
        if name in BLOCKS and self.call.is_packed:
            return _ring_packed.empty(x, self.places.rectangles(q, k))
        return self._part(name, x, q, k, columns)

    def _add_rectangles(self, targets: Tensors, q: Chunk, k: Chunk) -> None:
        """The gradients of a bias of packed sequences, which are no parts of the whole ones."""
        for name in targets.keys() & BLOCKS if self.call.is_packed else ():
            _ring_packed.add(self.results[name], targets[name], self.places.rectangles(q, k))

    def _accumulate(self, common: tuple, x: Tensors, targets: Tensors, q: Chunk, k: Chunk) -> None:
        if not targets:
            return
        if self.map in _BACKWARD:
            zeros = torch.zeros((), dtype=self.call.wide, device=self.call.device).expand(x["d_o"].shape)
            x |= {"o": zeros} if self.map == _core.MAP_VJP else {"o": zeros, "to": zeros}
        accumulate = sum(_ACCUMULATE[name] for name in targets)
        run_here(self.map, common, x | targets, accumulate=accumulate, **self.places.keywords(q, k))

    def _merge(self, common: tuple, x: Tensors, q: Chunk, k: Chunk) -> None:
        views = {name: self.results[name][:, :, q.here] for name in _MERGED[self.map]}
        where = self.places.keywords(q, k)
        if q.index not in self.begun:
            self.begun.add(q.index)
            run_here(self.map, common, x | views, **where)
            return
        parts = {name: torch.empty_like(view) for name, view in views.items()}
        run_here(self.map, common, x | parts, **where)
        merge_here(views, parts)
