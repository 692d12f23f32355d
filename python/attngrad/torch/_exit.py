"""Exit of the interpreter while daemon threads run. Python ends a daemon thread when it next asks for the
interpreter's lock; if C++ frames of PyTorch's dispatcher are on its stack, that aborts the process. So the exit
waits for the calls that are under way, and a thread that makes a call later blocks until the process ends.

This must come after the program's own exit handlers, which may wait for those very threads. Handlers run from
the newest to the oldest, so an ordinary handler of ours would run before older ones. But after all have run the
interpreter drops the list of them, and our handler is an object whose __del__ is called then. Until that moment
our ops must stay registered: one of the handlers, weakref's, would remove them from the dispatcher while threads
call them.
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
_last_end: dict[int, float] = {}  # when each thread's last call ended
_blocked: set[int] = set()  # threads that made a call after the exit began
_FOLDER = os.path.dirname(__file__) + os.sep
_never = threading.Event()  # is never set
_GRACE = 0.5  # seconds: a thread whose last call ended within them is expected to make another


class _State:
    closing = False


def enter() -> None:
    if _State.closing and threading.current_thread() is not threading.main_thread():
        _blocked.add(get_ident())
        _never.wait()
    _running.append(None)


def leave() -> None:
    _running.pop()
    _last_end[get_ident()] = time.monotonic()


def _is_inside(frame) -> bool:
    """Whether the stack of this frame has one of ours."""
    while frame is not None:
        if frame.f_code.co_filename.startswith(_FOLDER):
            return True
        frame = frame.f_back
    return False


def _calls_may_follow() -> bool:
    """Whether another thread is in a call that has not reached its map yet, or made one just now and may be
    between two of them, in PyTorch's frames."""
    since = time.monotonic() - _GRACE
    recent = {thread for thread, ended in _last_end.copy().items() if ended > since}
    frames = sys._current_frames()
    others = frames.keys() - _blocked - {get_ident()}
    return any(thread in recent or _is_inside(frames[thread]) for thread in others)


def _close() -> None:
    _State.closing = True
    while _running or _calls_may_follow():
        time.sleep(0.001)


def keep(library) -> None:
    """Takes the library's finalizer out of those that run with the exit handlers."""
    for finalizer in list(weakref.finalize._registry):
        alive = finalizer.peek()
        if alive and alive[0] is library:
            finalizer.atexit = False


def _forked() -> None:
    _running.clear()
    _last_end.clear()


class _AfterHandlers:
    """An exit handler that only the list of handlers refers to. If the list is dropped without having run, as
    in a child process, nothing is done."""

    ran = False

    def __call__(self) -> None:
        self.ran = True

    def __del__(self) -> None:
        if self.ran:
            _close()


atexit.register(_AfterHandlers())
os.register_at_fork(after_in_child=_forked)
