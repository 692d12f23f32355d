"""The extension module: attngrad.h on addresses. It cannot check that an address is valid."""

from collections.abc import Sequence
from typing import Any, Final, TypedDict

from typing_extensions import Buffer

# A PyTorch tensor, or (address, strides in elements of the four axes); an array's __array_struct__ stands for its
# address.
Tensor = tuple[int | Any, tuple[int, int, int, int]] | Any
# int64 values: their address, or a buffer of them.
List = int | Buffer

MAP_FORWARD: Final[int]
MAP_VJP: Final[int]
MAP_JVP: Final[int]
MAP_VJP_JVP: Final[int]
MAP_JVP_JVP: Final[int]
GIVEN_O: Final[int]
ACC_O: Final[int]
ACC_LSE: Final[int]
ACC_TO: Final[int]
ACC_MU: Final[int]
ACC_DQ: Final[int]
ACC_DK: Final[int]
ACC_DV: Final[int]
ACC_DBIAS: Final[int]
ACC_DTABLE: Final[int]
ACC_DSINK: Final[int]
ACC_TDQ: Final[int]
ACC_TDK: Final[int]
ACC_TDV: Final[int]
ACC_TDBIAS: Final[int]
ACC_TDTABLE: Final[int]
ACC_TDSINK: Final[int]
ACC_STO: Final[int]
ACC_NU: Final[int]
BACKEND_AUTO: Final[int]
BACKEND_CUDA: Final[int]
ISA_AUTO: Final[int]
ISA_SCALAR: Final[int]
ISA_AVX2: Final[int]
ISA_AVX512: Final[int]
ISA_AMX: Final[int]
ISA_NEON: Final[int]
ISA_SM80: Final[int]
ISA_SM90: Final[int]
ROUND_INTERMEDIATES: Final[int]
INVARIANT: Final[int]
XLA_VERSION: Final[int]

class Isa(TypedDict):
    isa: int
    name: str
    built_in: bool
    available: bool

class PlanInfo(TypedDict):
    backend: str
    isa: str
    threads: int
    tile: tuple[int, int]
    compute_dtype: str
    deterministic: bool

class Plan:
    def run(
        self,
        map: int,
        tensors: dict[str, Tensor | None],
        /,
        *,
        accumulate: int = 0,
        flags: int = 0,
        q_offset: int = 0,
        k_offset: int = 0,
        batch_offset: int = 0,
        seed: int = 0,
        q_lengths: List | None = None,
        kv_lengths: List | None = None,
        q_packed: List | None = None,
        k_packed: List | None = None,
        q_offsets: List | None = None,
        k_offsets: List | None = None,
        q_lengths_device: int | None = None,
        kv_lengths_device: int | None = None,
        q_packed_device: int | None = None,
        k_packed_device: int | None = None,
        q_offsets_device: int | None = None,
        k_offsets_device: int | None = None,
        seed_device: int | None = None,
        workspace: int | None = None,
        stream: int | None = None,
    ) -> None: ...
    def merge(self, tensors: dict[str, Tensor | None], /, *, stream: int = 0) -> None: ...
    def trace(
        self,
        map: int,
        tensors: dict[str, Tensor | None],
        arrays: dict[str, int],
        batch: int,
        head: int,
        jacobian_row: int = 0,
        /,
        *,
        accumulate: int = 0,
        flags: int = 0,
        q_offset: int = 0,
        k_offset: int = 0,
        batch_offset: int = 0,
        seed: int = 0,
        q_lengths: List | None = None,
        kv_lengths: List | None = None,
        q_packed: List | None = None,
        k_packed: List | None = None,
        q_offsets: List | None = None,
        k_offsets: List | None = None,
    ) -> None: ...
    def view(
        self,
        tensors: dict[str, Tensor | None],
        maps: int,
        sequences: Sequence[int],
        heads: Sequence[int],
        rows: tuple[int, int],
        keys: tuple[int, int],
        title: str,
        facts: Sequence[str],
        /,
        *,
        accumulate: int = 0,
        flags: int = 0,
        q_offset: int = 0,
        k_offset: int = 0,
        batch_offset: int = 0,
        seed: int = 0,
        q_lengths: List | None = None,
        kv_lengths: List | None = None,
        q_packed: List | None = None,
        k_packed: List | None = None,
        q_offsets: List | None = None,
        k_offsets: List | None = None,
    ) -> bytes: ...
    def workspace(self, maps: int, /) -> int: ...
    def describe(self) -> str: ...
    def info(self) -> PlanInfo: ...
    def problem(self) -> str: ...

def plan(
    problem: str,
    *,
    backend: int = 0,
    isa: int = 0,
    threads: int = 0,
    flags: int = 0,
    scale: float | None = None,
    buckets: Buffer | Sequence[int] | None = None,
    alibi_slopes: Buffer | Sequence[float] | None = None,
    device: int = 0,
) -> Plan: ...
def check(
    problem: str, *, seed: int = 0, backend: int = 0, threads: int = 0
) -> list[tuple[str, float, float, str | None, str | None, tuple[int, int, int, int] | None]]: ...
def info() -> dict[str, str | int]: ...
def backends() -> dict[str, int]: ...
def isas(backend: int, /) -> list[Isa]: ...
def xla_handler() -> Any: ...
def xla_slots() -> dict[str, tuple[int, int, int]]: ...
def xla_plans(max: int, /) -> tuple[int, int, int]: ...
def use_openmp() -> bool: ...
def version() -> str: ...
