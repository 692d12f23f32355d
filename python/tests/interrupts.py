"""Interrupting a call in another process, for the tests of Ctrl-C."""

import signal
import subprocess
import sys
import time

LIMIT = 0.2  # seconds from the signal to the exception

# A program that is started with SIGINT ignored (a job in the background) passes that on to its children, and Python
# then raises no KeyboardInterrupt: the handler is set again.
_SCRIPT = """
import signal
import time
import numpy as np
import attngrad
signal.signal(signal.SIGINT, signal.default_int_handler)
{setup}
small = np.linspace(-1, 1, 2 * 60 * 16).reshape(2, 60, 16)
want = attngrad.forward(small, small, small).o
for _ in range(3):
    print("begun", flush=True)
    try:
        {call}
        print("ended", flush=True)
    except {exception}:
        print(time.monotonic(), flush=True)
    assert np.array_equal(attngrad.forward(small, small, small).o, want)
"""


def shortest_delay(setup, call, exception="KeyboardInterrupt"):
    """Interrupts the call three times; the least seconds that it took to end: other programs may have the
    processor at the moment of a signal. After each, a small call must give the right result."""
    script = _SCRIPT.format(setup=setup, call=call, exception=exception)
    child = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    delays = []
    try:
        for _ in range(3):
            assert child.stdout.readline() == "begun\n"
            time.sleep(0.4)
            sent = time.monotonic()
            child.send_signal(signal.SIGINT)
            line = child.stdout.readline()
            assert line != "ended\n", "the call was over before the signal"
            delays.append(float(line) - sent)
        assert child.wait(60) == 0
    finally:
        child.kill()
        child.wait()
    return min(delays)
