"""One map over the ranks of a group: what its tensors are, which of them each rank has, and the dtype of partial
results. Ranks agree here that they run the same map."""

from __future__ import annotations

import zlib

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from .. import _core
from . import _features
from ._ops import ARRAYS, INPUTS
from ._peers import Peers, Spec
from ._ring_word import Places, Word, lists_of, read_word
from ._shard import HALVES, Layout, widened

# By what a tensor is cut: query rows; keys; query rows, with all keys (unless they are broadcast, or the sequences are
# packed); nothing.
_STATS = frozenset("lse d_lse mu td_lse smu nu".split())
ROWS = _STATS | frozenset("q o o_low d_o tq to to_low td_o sq dq tdq sto".split())
KEYS = frozenset("k v tk tv sk sv dk dv tdk tdv".split())
BLOCKS = frozenset("bias mask tbias sbias dbias tdbias".split())
SHARED = frozenset("table sink ttable tsink stable ssink dtable dsink tdtable tdsink".split())
_NAMES = sorted(ROWS | KEYS | BLOCKS | SHARED)  # each has a bit of an int64
OUTPUTS = {
    _core.MAP_FORWARD: frozenset(("o", "lse", "o_low")),
    _core.MAP_VJP: frozenset("d" + name for name in INPUTS),
    _core.MAP_JVP: frozenset(("to", "mu", "to_low")),
    _core.MAP_VJP_JVP: frozenset("td" + name for name in INPUTS),
    _core.MAP_JVP_JVP: frozenset(("sto", "nu")),
}
_MAP_NAMES = {
    _core.MAP_FORWARD: "forward",
    _core.MAP_VJP: "vjp",
    _core.MAP_JVP: "jvp",
    _core.MAP_VJP_JVP: "vjp_jvp",
    _core.MAP_JVP_JVP: "jvp_jvp",
}


class Call:
    """A map of this rank's shard: `inputs` and `outputs` by name, without those that are absent here; `read` has the
    names of the inputs that some rank has, `wanted` those of the outputs of each rank."""

    def __init__(self, map: int, common: tuple, tensors: dict[str, Tensor | None], flags: int):
        self.map, self.common, self.flags = map, common, flags
        self.word: Word = read_word(_features.read(common[12]).ring or "")
        self.peers = Peers(_resolve_process_group(self.word.group))
        named = tensors | dict(zip(ARRAYS, common[:7], strict=True))
        present = {name: x for name, x in named.items() if x is not None}
        self.outputs = {name: x for name, x in present.items() if name in OUTPUTS[map]}
        self.inputs = {name: x for name, x in present.items() if name not in OUTPUTS[map]}
        self.dtype, self.device = common[0].dtype, common[0].device
        self.wide = torch.float32 if self.dtype in HALVES else self.dtype
        self._agree()
        self.q, self.k = (Layout(n, self.peers.size) for n in (self.word.n_q, self.word.n_k))

    def _agree(self) -> None:
        """Exchanges which tensors are present."""
        names = self.inputs.keys() | self.outputs.keys()
        bits = sum(1 << i for i, name in enumerate(_NAMES) if name in names)
        problem = zlib.crc32(repr((self.word, *(tuple(x.shape[:2]) for x in self.common[:2]))).encode())
        call = _MAP_NAMES[self.map]
        gathered = self.peers.announce(call, problem, bits, self._has_one_direction(), self.flags)
        for rank, (other, *_) in enumerate(gathered):
            if other != problem:
                raise RuntimeError(f"rank {self.peers.rank} and rank {rank} run {call} of different problems")
        has = [{name for i, name in enumerate(_NAMES) if bits >> i & 1} for _, bits, *_ in gathered]
        self.wanted = [names & OUTPUTS[self.map] for names in has]
        self.read = set().union(*has) - OUTPUTS[self.map]
        self.is_one_direction = all(flag for *_, flag, _ in gathered)
        if any(flags != self.flags for *_, flags in gathered):  # jvp, and not every rank gives o
            self.flags = 0
            self.read -= {"o", "lse", "o_low"}
            self.inputs = {name: x for name, x in self.inputs.items() if name not in ("o", "lse", "o_low")}

    def _has_one_direction(self) -> bool:
        """jvp_jvp: whether s is t, which saves products."""
        return self.map == _core.MAP_JVP_JVP and all(
            self.inputs.get("s" + name) is self.inputs.get("t" + name) for name in INPUTS
        )

    def input(self, name: str) -> Tensor:
        """Rows or keys, or zeros if only other ranks have them."""
        if name in self.inputs:
            return self.inputs[name]
        return self.spec(name, self.common[1 if name in KEYS else 0].shape[2]).zeros(self.device)

    @property
    def is_packed(self) -> bool:
        return self.common[9] is not None

    def block(self, name: str) -> Tensor:
        """The same for a bias, mask or a tensor of its shape."""
        if name in self.inputs:
            return self.inputs[name]
        if self.is_packed:
            return torch.zeros_like(self.common[3])  # a tangent of the bias
        return self.block_spec(name, self.common[0].shape[2], self.word.n_k).zeros(self.device)

    def places(self) -> Places:
        return Places(self.common[12], self.q, self.k, lists_of(self.common), self.common[5] is not None)

    def is_by_rows(self, name: str) -> bool:
        """Whether a bias or mask, or a tensor of its shape, is cut by query rows."""
        return ("m" if name == "mask" else "b") in self.word.rows

    def spec(self, name: str, n: int, wide: bool = False) -> Spec:
        """A tensor of n rows or keys."""
        q, k, v = self.common[:3]
        if name in _STATS:
            return Spec((q.shape[0], q.shape[1], n), torch.float64)
        heads = (k if name in KEYS else q).shape[1]
        channels = (v if name.endswith(("v", "o", "low")) else q).shape[3]
        return Spec((q.shape[0], heads, n, channels), self.wide if wide else self.dtype)

    def block_spec(self, name: str, rows: int, columns: int, wide: bool = False) -> Spec:
        """A bias, mask or a tensor of its shape with these sizes where it is not broadcast."""
        x = self.common[6 if name == "mask" else 3]
        b, h, _, n_k = x.shape
        shape = (b, h, rows if self.is_by_rows(name) else 1, 1 if n_k == 1 else columns)
        return Spec(shape, torch.float32 if wide and x.dtype in HALVES else x.dtype)


# ---- 16 bits ----


def _low_scale(dtype: torch.dtype) -> float:
    """A low half of float16 is stored times 2^11."""
    return 2.0**11 if dtype == torch.float16 else 1.0


def with_low(x: Tensor, low: Tensor | None) -> Tensor:
    """The number that x and its low half stand for."""
    return widened(x) if low is None else x.float() + low.float() / _low_scale(x.dtype)


def store(outputs: dict[str, Tensor], name: str, x: Tensor) -> None:
    """Writes a wide result into the output of this name, and what rounding takes from it into the low half. Does
    nothing if there is no such output or it is x itself."""
    output, low = outputs.get(name), outputs.get(name + "_low")
    if output is None or output is x:
        return
    output.copy_(x)
    if low is not None:
        low.copy_((x - output.float()) * _low_scale(output.dtype))


def row_dots(x: Tensor, y: Tensor) -> Tensor:
    """[batch, head, position] in float64; one head at a time, as float64 copies of all would take much memory."""
    heads = [(x[:, h].double() * y[:, h].double()).sum(dim=-1) for h in range(x.shape[1])]
    return torch.stack(heads, dim=1)
