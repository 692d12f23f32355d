"""Times one function, or several that alternate."""

import time

# Rounds of a case in the first sweep over all cases and in each later one. With several sweeps, a disturbance of
# seconds on a shared machine affects only one sweep of a case, not all of its rounds.
FIRST, LATER = 3, 2
WINDOW = 0.05  # seconds that a measurement lasts at least
# Seconds of full load, by the probe, before a round and between functions: a CPU is faster in its first milliseconds
# under load than it can sustain.
SETTLE, BETWEEN = 0.2, 0.05


def seconds_of(run):
    """The mean seconds per call, over calls that take WINDOW seconds or more."""
    calls, start = 0, time.perf_counter()
    while True:
        run()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= WINDOW:
            return elapsed / calls


class Best:
    """The best of all rounds, by name: the highest rate of each probe, the fewest seconds of each function."""

    def __init__(self, library):
        self.library, self.rates, self.seconds, self.rounds = library, {}, {}, 0

    def probe(self, name, isa, kind, threads, settle):
        rate = self.library.probe(isa, kind, threads, settle, WINDOW)
        self.rates[name] = max(self.rates.get(name, 0), rate)

    def time(self, name, run):
        self.seconds[name] = min(self.seconds.get(name, float("inf")), seconds_of(run))


def warm_up(run, seconds):
    """Runs calls that are not timed."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        run()


def alternate(runs, best, rounds):
    """Times functions that alternate; returns the minimum so far of each, in milliseconds. The threads
    of one function may still spin for some milliseconds after it, so short functions are warmed up first and get
    twice as many rounds."""
    short = all(seconds_of(run) < WINDOW / 5 for run in runs.values())
    for _ in range(2 * rounds if short else rounds):
        for name, run in runs.items():
            warm_up(run, 0.01 if short else 0)
            best.time(name, run)
    return {name: 1e3 * seconds for name, seconds in best.seconds.items()}
