"""The cache of plans. A plan is made once for a problem and shared by all threads: it never changes, and the
library restarts its threads after a fork. lru_cache holds no lock that a fork could leave locked; if two
threads need the plan of a new problem at once, both may make it, and one of the two is kept."""

from __future__ import annotations

import functools

from . import _core

BACKENDS: dict[str | None, int] = {None: _core.BACKEND_AUTO, **_core.backends()}
BACKEND_CHOICE = " or ".join(map(repr, _core.backends()))  # for messages: "'cpu' or 'reference'"


@functools.lru_cache(maxsize=256)
def get(
    problem: str,
    *,
    backend: int = 0,
    isa: int = 0,
    threads: int = 0,
    flags: int = 0,
    scale: float | None = None,
    buckets: bytes | tuple[int, ...] | None = None,
    alibi_slopes: bytes | tuple[float, ...] | None = None,
    device: int = 0,
) -> _core.Plan:
    """The plan of a problem in its text form; every argument is hashable: together they are the cache's key.
    get.cache_clear() drops all plans; new ones read ATTNGRAD_BACKEND, _ISA and _THREADS again."""
    return _core.plan(
        problem,
        backend=backend,
        isa=isa,
        threads=threads,
        flags=flags,
        scale=scale,
        buckets=buckets,
        alibi_slopes=alibi_slopes,
        device=device,
    )
