"""How one function is timed, and several beside each other."""

import time

# All cases are swept over several times, with so many rounds in the first sweep and in each later one: what disturbs a
# shared machine for seconds then meets one sweep of a case and not all of its rounds.
FIRST, LATER, WINDOW = 3, 2, 0.05
# The processor is faster for its first milliseconds under load than it can stay. A round starts with this
# much of the probe's load; in it maps and probes follow each other, so that the state is that of long load.
SETTLE, BETWEEN = 0.2, 0.05


def seconds_of(run):
    """The mean over calls that fill a window."""
    calls, start = 0, time.perf_counter()
    while True:
        run()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= WINDOW:
            return elapsed / calls


class Best:
    """The best of what was measured under each name."""

    def __init__(self, library):
        self.library, self.values, self.rounds = library, {}, 0

    def probe(self, name, isa, kind, threads, settle):
        rate = self.library.probe(isa, kind, threads, settle, WINDOW)
        self.values[name] = max(self.values.get(name, 0), rate)

    def time(self, name, run):
        self.values[name] = min(self.values.get(name, float("inf")), seconds_of(run))


def fill_seconds(run, seconds):
    """Calls that are not counted."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        run()


def side_by_side(runs, best, rounds):
    """The least milliseconds so far of each of some functions, which take turns. The threads of the one before may
    wait for work for some milliseconds more: a turn of a short function begins with calls that are not
    counted, and it has more turns."""
    short = all(seconds_of(run) < WINDOW / 5 for run in runs.values())
    for _ in range(2 * rounds if short else rounds):
        for name, run in runs.items():
            fill_seconds(run, 0.01 if short else 0)
            best.time(name, run)
    return {name: 1e3 * seconds for name, seconds in best.values.items()}
