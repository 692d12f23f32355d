"""The page that shows a call of attention: what explain returns writes it."""

from __future__ import annotations

import functools
import html
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from . import _core
from ._call import Call, integer

_MAPS = {
    "forward": _core.MAP_FORWARD,
    "vjp": _core.MAP_VJP,
    "jvp": _core.MAP_JVP,
    "vjp_jvp": _core.MAP_VJP_JVP,
}


_MAX_NOTEBOOK = 4_000_000  # bytes of a page
_NOT_COMPUTED = np.zeros(0)


class Explanation(dict[str, np.ndarray]):
    """The variables of one head by their names, and a page that shows them.

    The variables are computed when the first one is read, as they may be [queries, keys] matrices that are too
    large for the memory; the page needs none of them. Both have the numbers that the arrays of the call have then,
    computed in float64.
    """

    __slots__ = ("_compute", "_call", "_batch", "_head")

    def __init__(
        self,
        names: Iterable[str],
        compute: Callable[[], dict[str, np.ndarray]],
        call: Call,
        batch: int,
        head: int,
    ) -> None:
        super().__init__(dict.fromkeys(names, _NOT_COMPUTED))
        self._compute: Callable[[], dict[str, np.ndarray]] | None = compute
        self._call = call
        self._batch = batch
        self._head = head

    def _fill(self) -> None:
        if self._compute is not None:
            values = self._compute()
            dict.update(self, values)
            self._compute = None

    def __iter__(self) -> Iterator[str]:  # dict(e) and {**e} of a class with its own one ask for each value
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)  # a copy has the arrays, not the call

    def save_html(
        self,
        path: str | os.PathLike[str],
        *,
        title: str = "Attention",
        heads: Sequence[int] | None = None,
        sequences: Sequence[int] | None = None,
        maps: Sequence[str] = (),
        rows: tuple[int, int] | None = None,
        keys: tuple[int, int] | None = None,
    ) -> None:
        """Writes one HTML file that shows every variable as heat maps and numbers, with the arithmetic behind each.

        heads, sequences: which to show; None: the one that was explained. An empty list: all if they are small.
        maps: of "forward", "vjp", "jvp" and "vjp_jvp"; by default all that there are inputs for, of a long sequence
        two. rows, keys: of a long sequence, the queries and keys (first, last + 1) to move along the tangent and, if
        not every number fits into the page, to show in full. The file takes the place of an older one when it is complete.
        """
        page = self._page(title, heads, sequences, maps, rows, keys)
        _replace(Path(path), page)

    def _repr_html_(self) -> str:
        page = self._page("Attention", None, None, (), None, None).decode()
        if len(page) > _MAX_NOTEBOOK:  # a notebook would keep it in its file
            return (
                f"<p>The page has {len(page) / 1e6:.0f} MB, too many for a notebook: <code>save_html(path)</code> "
                "writes it to a file.</p>"
            )
        return (
            '<iframe sandbox="allow-scripts" style="width: 100%; height: 860px; border: 0" '
            f'title="attngrad" srcdoc="{html.escape(page)}"></iframe>'
        )

    def _page(
        self,
        title: str,
        heads: Sequence[int] | None,
        sequences: Sequence[int] | None,
        maps: Sequence[str],
        rows: tuple[int, int] | None,
        keys: tuple[int, int] | None,
    ) -> bytes:
        bits = 0
        for name in maps:
            if name not in _MAPS:
                raise ValueError(f"maps: {name!r}: must be one of {', '.join(map(repr, _MAPS))}")
            bits |= _MAPS[name]
        return self._call.problem.plan.view(
            self._call.tensors,
            bits,
            [self._batch] if sequences is None else [integer(b, "sequences") for b in sequences],
            [self._head] if heads is None else [integer(h, "heads") for h in heads],
            _range(rows, "rows"),
            _range(keys, "keys"),
            title,
            [],
            **self._call.keywords,
        )


def _after_filling(name: str) -> Callable[..., Any]:
    method = getattr(dict, name)

    @functools.wraps(method)
    def filled(self: Explanation, *arguments: Any, **keywords: Any) -> Any:
        self._fill()
        return method(self, *arguments, **keywords)

    return filled


# every method of dict that reads or changes a value
for _name in (
    "__getitem__ __setitem__ __delitem__ __eq__ __ne__ __or__ __ror__ __ior__ __repr__ "
    "get values items copy pop popitem setdefault update clear"
).split():
    setattr(Explanation, _name, _after_filling(_name))


def _range(value: tuple[int, int] | None, name: str) -> tuple[int, int]:
    if value is None:
        return 0, 0
    try:
        first, end = value
    except (TypeError, ValueError):
        raise TypeError(f"{name}: {value!r} is not (first, last + 1)") from None
    first, end = integer(first, name), integer(end, name)
    if not 0 <= first < end:
        raise ValueError(f"{name}: ({first}, {end}): must be (first, last + 1), from 0 on")
    return first, end


def _replace(path: Path, content: bytes) -> None:
    """Writes a file such that its path has either the old contents or the new ones."""
    if path.exists() and not path.is_file():
        raise OSError(f"cannot write '{path}': it is {'a directory' if path.is_dir() else 'not a regular file'}")
    with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".attngrad-", suffix=".tmp", delete=False) as file:
        try:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
            mask = os.umask(0)
            os.umask(mask)
            os.chmod(file.name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~mask)
            os.replace(file.name, path)
        except BaseException:
            os.unlink(file.name)
            raise
