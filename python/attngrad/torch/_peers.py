"""Messages between the ranks of a process group: what every rank says, gathered, and tensors packed into one buffer per
destination. Knows no attention. A tensor of the caller is never a buffer: it is copied into a message."""

from __future__ import annotations

import math
import pickle
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

_CALLS = ("ring_attention", "forward", "vjp", "jvp", "vjp_jvp", "jvp_jvp", "unshard", "gradient of unshard")
_ALIGNMENT = 64  # bytes; every tensor of a message begins at a multiple


class Spec(NamedTuple):
    """A tensor of a message, as sender and receiver know it."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def zeros(self, device: torch.device) -> Tensor:
        return torch.zeros(self.shape, dtype=self.dtype, device=device)


Specs = dict[str, Spec]


def message_bytes(specs: Specs) -> int:
    return sum(-(-spec.bytes // _ALIGNMENT) * _ALIGNMENT for spec in specs.values())


def _views(buffer: Tensor, specs: Specs) -> dict[str, Tensor]:
    """The tensors of a message."""
    views, at = {}, 0
    for name, spec in specs.items():
        views[name] = buffer[at : at + spec.bytes].view(spec.dtype).view(spec.shape)
        at += -(-spec.bytes // _ALIGNMENT) * _ALIGNMENT
    return views


def _pack(tensors: Mapping[str, Tensor], device: torch.device) -> Tensor:
    """The tensors as one message."""
    specs = {name: Spec(tuple(x.shape), x.dtype) for name, x in tensors.items()}
    buffer = torch.empty(message_bytes(specs), dtype=torch.uint8, device=device)
    for name, view in _views(buffer, specs).items():
        view.copy_(tensors[name])
    return buffer


class Exchange:
    """Messages under way. `wait` returns the tensors that have come, by rank, on a device."""

    def __init__(
        self, works: list, sent: list[Tensor], received: dict[int, tuple[Tensor, Specs]], device: torch.device
    ):
        self._works, self._sent, self._received, self._device = works, sent, received, device

    def wait(self) -> dict[int, dict[str, Tensor]]:
        for work in self._works:
            work.wait()
        self._works, self._sent = [], []
        return {rank: _views(buffer.to(self._device), specs) for rank, (buffer, specs) in self._received.items()}


class Peers:
    """The ranks of a group."""

    def __init__(self, group: dist.ProcessGroup | None):
        if not dist.is_available() or not dist.is_initialized():
            raise RuntimeError("group: call torch.distributed.init_process_group first")
        self.group = dist.group.WORLD if group is None else group
        self.rank, self.size = dist.get_rank(self.group), dist.get_world_size(self.group)
        if self.rank < 0:
            raise ValueError("group: this process is not in it")

    @property
    def device(self) -> torch.device:
        """Where numbers are sent from: the CPU's memory, unless the group's backend has another device only."""
        devices = self.group._device_types
        cpu = torch.device("cpu")
        if cpu in devices:
            return cpu
        return torch.device(devices[0].type, torch.cuda.current_device())

    def _message_device(self, device: torch.device) -> torch.device:
        """Where messages between tensors of a device are: there, unless the backend sends from the CPU's memory only,
        as gloo does."""
        if device.type == "cpu" or torch.device(device.type) not in self.group._device_types:
            return self.device
        return self.device if self.group._get_backend(device).name() == "gloo" else device

    def announce(self, call: str, *numbers: int) -> list[tuple[int, ...]]:
        """Says to all ranks what this one is about to do, with four numbers at most, and returns theirs. Every
        exchange begins so: ranks that do different things find out instead of waiting for each other."""
        sent = [_CALLS.index(call), *numbers, *[0] * (4 - len(numbers))]
        said = self._gather(sent, torch.int64)
        for rank, (other, *_) in enumerate(said):
            if other != sent[0]:
                raise RuntimeError(
                    f"rank {self.rank} runs {call}, rank {rank} {_CALLS[other]}: every rank of a group must make "
                    "the same calls and the same backward passes in the same order"
                )
        return [tuple(rest[: len(numbers)]) for _, *rest in said]

    def gather_objects(self, call: str, x: Any) -> list[Any]:
        """What each rank gave, in the order of ranks."""
        pickled = pickle.dumps(x)
        lengths = [length for (length,) in self.announce(call, len(pickled))]
        gathered = self._gather(pickled.ljust(max(lengths)), torch.uint8)
        return [pickle.loads(bytes(x)) for x in gathered]  # which ignores what follows the object

    def _gather(self, numbers: Sequence[int], dtype: torch.dtype) -> list[list[int]]:
        """As many numbers of each rank. No transform of torch.func may see this: new tensors would belong to it."""
        with temporarily_clear_interpreter_stack():
            own = torch.tensor(list(numbers), dtype=dtype, device=self.device)
            gathered = [torch.empty_like(own) for _ in range(self.size)]
            dist.all_gather(gathered, own, group=self.group)
            return [x.tolist() for x in gathered]

    def exchange(
        self,
        sent: Mapping[int, Mapping[str, Tensor]],
        received: Mapping[int, Specs],
        device: torch.device,
        tag: int = 0,
    ) -> Exchange:
        """Starts to send the named tensors of a device to each rank, and to receive what the specs say. Every rank
        calls it as often and in the same order: a backend without tags matches messages by that."""
        place = self._message_device(device)
        buffers = {rank: _pack(tensors, device).to(place) for rank, tensors in sent.items()}
        incoming = {
            rank: (torch.empty(message_bytes(specs), dtype=torch.uint8, device=place), specs)
            for rank, specs in received.items()
        }
        operations = [(dist.irecv, buffer, rank) for rank, (buffer, _) in incoming.items()]
        operations += [(dist.isend, buffer, rank) for rank, buffer in buffers.items()]
        batch = [
            dist.P2POp(operation, buffer, dist.get_global_rank(self.group, rank), self.group, tag)
            for operation, buffer, rank in operations
            if buffer.numel() > 0
        ]
        works = dist.batch_isend_irecv(batch) if batch else []
        return Exchange(works, list(buffers.values()), incoming, device)


class Said(NamedTuple):
    """What a rank says before the first message: by the name of an argument what must be the same everywhere, and
    whatever else the others need."""

    same: dict[str, str]
    own: Any


def agree(peers: Peers, call: str, said: Said | Exception) -> list[Any]:
    """`own` of each rank that makes this call. If a rank found an error, or if ranks differ, every rank raises the same
    exception, which names rank and argument."""
    gathered = peers.gather_objects(call, said)
    for rank, theirs in enumerate(gathered):
        if isinstance(theirs, Exception):
            raise type(theirs)(f"rank {rank}: {theirs}")
    first = gathered[0].same
    for rank, theirs in enumerate(gathered):
        for name in (*first, *theirs.same):
            mine, expected = theirs.same.get(name, "absent"), first.get(name, "absent")
            if mine != expected:
                raise ValueError(f"rank {rank}: {name}: {mine}, but rank 0 has {expected}")
    return [theirs.own for theirs in gathered]


def plain_error(error: Exception, message: str) -> Exception:
    """An exception of that kind that every rank can unpickle."""
    kinds = (NotImplementedError, TypeError, ValueError)
    return next((kind for kind in kinds if isinstance(error, kind)), RuntimeError)(message)
