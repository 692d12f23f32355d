"""Who has which positions of a sequence, and functions that cut and join tensors so.

The layout is zig-zag: N positions are cut into 2P chunks, chunk c being [floor(c N / 2P), floor((c + 1) N / 2P)), and
rank r of P has chunks r and 2P - 1 - r, in this order. So a causal mask leaves every rank the same work. N may be any
number: chunks differ by one position at most, and some are empty if there are more of them than positions.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import Function

from ._peers import Peers, Said, Spec, agree, plain_error

HALVES = (torch.float16, torch.bfloat16)


def widened(x: Tensor) -> Tensor:
    """float32 of 16 bits; other tensors as they are."""
    return x.float() if x.dtype in HALVES else x


class Chunk(NamedTuple):
    index: int  # of 2P
    start: int  # position in the sequence
    stop: int
    at: int  # where it begins in the memory of its rank

    @property
    def length(self) -> int:
        return self.stop - self.start

    @property
    def here(self) -> slice:
        """In the memory of its rank."""
        return slice(self.at, self.at + self.length)

    @property
    def whole(self) -> slice:
        """In the sequence."""
        return slice(self.start, self.stop)


class Layout(NamedTuple):
    n: int
    size: int

    def _bound(self, c: int) -> int:
        return c * self.n // (2 * self.size)

    def chunks(self, rank: int) -> tuple[Chunk, Chunk]:
        a, b = rank, 2 * self.size - 1 - rank
        first = Chunk(a, self._bound(a), self._bound(a + 1), 0)
        return first, Chunk(b, self._bound(b), self._bound(b + 1), first.length)

    def length(self, rank: int) -> int:
        return sum(chunk.length for chunk in self.chunks(rank))


def layout_of(name: str, lengths: list[int]) -> Layout:
    """The layout in which the ranks have these numbers of positions; another one is refused."""
    layout = Layout(sum(lengths), len(lengths))
    for rank, length in enumerate(lengths):
        if length != layout.length(rank):
            raise ValueError(
                f"rank {rank}: {name}: {length} positions, but attngrad.torch.shard gives it {layout.length(rank)} "
                f"of the {layout.n} that the ranks have together ({', '.join(map(str, lengths))})"
            )
    return layout


def _checked_dim(x, dim) -> int:
    """The axis counted from the last one."""
    if not isinstance(x, Tensor):
        raise TypeError(f"x: {type(x).__name__}, must be a Tensor")
    if isinstance(dim, bool) or not isinstance(dim, int) or not -x.dim() <= dim < x.dim():
        raise ValueError(f"dim: {dim!r}, must be an axis of x, which has {x.dim()}")
    return dim - x.dim() if dim >= 0 else dim


def shard(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -2) -> Tensor:
    """This rank's positions of a whole tensor, which every rank has, along the axis dim; a new tensor. No message is
    sent."""
    peers, dim = Peers(group), _checked_dim(x, dim)
    chunks = Layout(x.shape[dim], peers.size).chunks(peers.rank)
    return torch.cat([x.narrow(dim, chunk.start, chunk.length) for chunk in chunks], dim)


def unshard(x: Tensor, group: dist.ProcessGroup | None = None, dim: int = -2) -> Tensor:
    """The whole tensor on every rank, from what `shard` gave to each. All ranks of the group call it. Its gradient is
    the sum over the ranks, in their order, of the gradients with respect to the whole tensor of each."""
    peers = Peers(group)
    try:
        dim = _checked_dim(x, dim)
        others = [*x.shape[:dim], *x.shape[x.dim() + dim + 1 :]]
        said: Said | Exception = Said({"x": f"{x.dtype}, other axes {others}", "dim": str(dim)}, x.shape[dim])
    except (TypeError, ValueError) as error:
        said = plain_error(error, str(error))
    layout = layout_of("x", agree(peers, "unshard", said))
    return _Join.apply(x, dim, layout, peers)


class _Join(Function):
    """(shard, dim, layout, peers) -> the whole; linear."""

    @staticmethod
    def forward(x, dim, layout, peers):
        peers.announce("unshard")
        x = x.movedim(dim, 0)
        others = [rank for rank in range(peers.size) if rank != peers.rank]
        specs = {rank: {"x": Spec((layout.length(rank), *x.shape[1:]), x.dtype)} for rank in others}
        parts = peers.exchange({rank: {"x": x} for rank in others}, specs, x.device).wait() | {peers.rank: {"x": x}}
        whole = x.new_empty((layout.n, *x.shape[1:]))
        for rank, part in parts.items():
            for chunk in layout.chunks(rank):
                whole[chunk.whole] = part["x"][chunk.here]
        return whole.movedim(0, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.rest = inputs[1:]

    @staticmethod
    def backward(ctx, d_whole):
        return _SplitSum.apply(d_whole, *ctx.rest), None, None, None

    @staticmethod
    def jvp(ctx, tangent, *_):
        return _Join.apply(tangent, *ctx.rest)

    @staticmethod
    def vmap(info, in_dims, x, *rest):
        return _Join.apply(x.movedim(in_dims[0], 0), *rest), 0


class _SplitSum(Function):
    """(whole, dim, layout, peers) -> this rank's positions of the sum over the ranks; linear, _Join's transpose."""

    @staticmethod
    def forward(whole, dim, layout, peers):
        peers.announce("gradient of unshard")
        whole = whole.movedim(dim, 0)
        ranks = range(peers.size)
        shards = [torch.cat([whole[chunk.whole] for chunk in layout.chunks(rank)]) for rank in ranks]
        own = shards[peers.rank]
        others = [rank for rank in ranks if rank != peers.rank]
        spec = {"x": Spec(tuple(own.shape), own.dtype)}
        sent = {rank: {"x": shards[rank]} for rank in others}
        parts = peers.exchange(sent, dict.fromkeys(others, spec), own.device).wait()
        parts[peers.rank] = {"x": own}
        total = torch.zeros_like(widened(own))
        for rank in ranks:
            total += parts[rank]["x"]
        return total.to(own.dtype).movedim(0, dim)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.rest = inputs[1:]

    @staticmethod
    def backward(ctx, d_shard):
        return _Join.apply(d_shard, *ctx.rest), None, None, None

    @staticmethod
    def jvp(ctx, tangent, *_):
        return _SplitSum.apply(tangent, *ctx.rest)

    @staticmethod
    def vmap(info, in_dims, whole, *rest):
        return _SplitSum.apply(whole.movedim(in_dims[0], 0), *rest), 0
