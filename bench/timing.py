"""Times one function, or several that alternate."""

import time

# Rounds of a case in the first sweep over all cases and in each later one. With several sweeps, a disturbance of
# seconds on a shared machine affects only one sweep of a case, not all of its rounds.
FIRST, LATER, WINDOW = 3, 2, 0.05
# Seconds of the probe's load before a round, and between functions: a processor is faster in its first milliseconds
# under load than it can sustain.
SETTLE, BETWEEN = 0.2, 0.05


def seconds_of(run):
    """The mean seconds per call, over calls that fill a window."""
    calls, start = 0, time.perf_counter()
    while True:
        run()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= WINDOW:
            return elapsed / calls


class Best:
    """The best value measured under each name."""

    def __init__(self, library):
        self.library, self.values, self.rounds = library, {}, 0

    def probe(self, name, isa, kind, threads, settle):
        rate = self.library.probe(isa, kind, threads, settle, WINDOW)
        self.values[name] = max(self.values.get(name, 0), rate)

    def time(self, name, run):
        self.values[name] = min(self.values.get(name, float("inf")), seconds_of(run))


def fill_seconds(run, seconds):
    """Runs calls that are not counted."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        run()


def side_by_side(runs, best, rounds):
    """Times functions that alternate; returns the minimum so far of each, in milliseconds. After a function its threads
    may still wait for work for some milliseconds: so short functions first run calls that are not counted, and get
    more rounds."""
    short = all(seconds_of(run) < WINDOW / 5 for run in runs.values())
    for _ in range(2 * rounds if short else rounds):
        for name, run in runs.items():
            fill_seconds(run, 0.01 if short else 0)
            best.time(name, run)
    return {name: 1e3 * seconds for name, seconds in best.values.items()}
