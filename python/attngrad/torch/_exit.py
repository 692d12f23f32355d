"""The end of the interpreter while other threads run. Python ends a daemon thread when it next asks for the
interpreter's lock; with C++ frames of the dispatcher on its stack that aborts the process. So the exit waits
for the calls that are under way, and a thread that calls later waits for the end of the process instead.

All this must come after the program's own exit handlers, which may wait for those very threads. Handlers run
from the newest to the oldest, so a handler of ours would run before older ones; but when the last has run the
interpreter drops them all, and with ours an object whose end is that moment. Until then our ops must stay: one
of those handlers, weakref's, would else remove them from PyTorch's dispatcher while threads call them.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import time
import weakref
from threading import get_ident

_running: list[None] = []  # one entry for each call under way; append and pop need no lock
_last: dict[int, float] = {}  # when each thread's last call ended
_parked: set[int] = set()
_FOLDER = os.path.dirname(__file__) + os.sep
_never = threading.Event()
_GRACE = 0.5  # seconds in which a thread that is at work, around our calls, comes to its next


class _State:
    closing = False


def enter() -> None:
    if _State.closing and threading.current_thread() is not threading.main_thread():
        _parked.add(get_ident())
        _never.wait()
    _running.append(None)


def leave() -> None:
    _running.pop()
    _last[get_ident()] = time.monotonic()


def _is_inside(frame) -> bool:
    while frame is not None:
        if frame.f_code.co_filename.startswith(_FOLDER):
            return True
        frame = frame.f_back
    return False


def _on_its_way() -> bool:
    """Whether some other thread stands in a call that has not come to its map yet, or was in one just now and
    may stand between two of them, in PyTorch's frames."""
    since = time.monotonic() - _GRACE
    recent = {thread for thread, ended in _last.copy().items() if ended > since}
    frames = sys._current_frames()
    others = frames.keys() - _parked - {get_ident()}
    return any(thread in recent or _is_inside(frames[thread]) for thread in others)


def _close() -> None:
    _State.closing = True
    while _running or _on_its_way():
        time.sleep(0.001)


def keep(library) -> None:
    """Takes the library's finalizer out of those that run with the exit handlers."""
    for finalizer in list(weakref.finalize._registry):
        alive = finalizer.peek()
        if alive and alive[0] is library:
            finalizer.atexit = False


def _forked() -> None:
    _running.clear()
    _last.clear()


class _Last:
    """Held by the list of exit handlers alone. A list that is cleared without being run, as in a child
    process, means nothing."""

    ran = False

    def __call__(self) -> None:
        self.ran = True

    def __del__(self) -> None:
        if self.ran:
            _close()


atexit.register(_Last())
os.register_at_fork(after_in_child=_forked)
