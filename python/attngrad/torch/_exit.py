"""The end of the interpreter while other threads run. Python ends a daemon thread when it next asks for the
interpreter's lock; with C++ frames of the dispatcher on its stack that aborts the process. So the exit waits
for the calls that are under way, and a thread that calls later waits for the end of the process instead.
"""

from __future__ import annotations

import atexit
import os
import threading
import time

_running: list[None] = []  # one entry for each call under way; append and pop need no lock
_never = threading.Event()
_GRACE = 0.05  # seconds in which a thread comes from the end of one call to the beginning of its next


class _State:
    closing = False


def enter() -> None:
    if _State.closing and threading.current_thread() is not threading.main_thread():
        _never.wait()
    _running.append(None)


def leave() -> None:
    _running.pop()


def _close() -> None:
    _State.closing = True
    if _running:
        while _running:
            time.sleep(0.001)
        time.sleep(_GRACE)


atexit.register(_close)
os.register_at_fork(after_in_child=_running.clear)
