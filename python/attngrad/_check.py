"""A problem in its text form, checked on random arrays by the library's own check engine."""

from __future__ import annotations

from . import _core
from ._call import integer
from ._plan import BACKEND_CHOICE, BACKENDS

Place = tuple[int, int, int, int]


class Residual(float):
    """How far a check is from holding exactly: a number, with the `limit` that it must not exceed, the
    `tensor` that has the worst element, and the sequence, head, position and channel of this `worst` element
    (-1 on an axis that the check sums over). The last two are None if there is no such element: the check is
    about a sum of all, or holds exactly."""

    limit: float
    tensor: str | None
    worst: Place | None

    def __new__(cls, residual: float, limit: float, tensor: str | None, worst: Place | None) -> Residual:
        self = super().__new__(cls, residual)
        self.limit, self.tensor, self.worst = limit, tensor, worst
        return self

    @property
    def passed(self) -> bool:
        return self <= self.limit

    def __getnewargs__(self) -> tuple[float, float, str | None, Place | None]:
        return float(self), self.limit, self.tensor, self.worst


def check(
    problem: str, *, seed: int = 0, backend: str | None = None, threads: int = 0
) -> dict[str, Residual]:
    """The residual of each check that applies to the problem, by the check's name, on random arrays:
    `differences ...`, every gradient and tangent against finite differences, and the identities (`adjoint`,
    `symmetry of the Hessian`, `split and merge: ...`), both in float64; `rounding ...`, the error in the
    problem's own dtype. The command `attngrad check` prints the same, and why other checks do not apply.

    >>> import attngrad
    >>> residuals = attngrad.check("h4 kv2 q6 k9 d8 f64 causal softcap=5 sink")
    >>> all(r.passed for r in residuals.values())
    True
    >>> residuals["differences dq"] < 1e-9 and residuals["adjoint"] < 1e-13
    True
    >>> residuals["differences dq"].tensor
    'dq'
    """
    if not isinstance(problem, str):
        raise TypeError(f"problem: {problem!r} is not the text of a problem")
    if not (backend is None or isinstance(backend, str)) or backend not in BACKENDS:
        raise ValueError(f"backend: {backend!r}: must be {BACKEND_CHOICE}")
    seed, threads = integer(seed, "seed"), integer(threads, "threads")
    try:
        results = _core.check(problem, seed=seed, backend=BACKENDS[backend], threads=threads)
    except ValueError as error:
        raise ValueError(str(error)) from None
    return {
        name: Residual(residual, limit, tensor, worst)
        for name, residual, limit, reason, tensor, worst in results
        if reason is None
    }
