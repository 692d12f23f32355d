"""The benchmark: our four maps and PyTorch's attention, interleaved in one process on the same random arrays,
beside probes of the processor's ceiling. usage: bench.py BUILD [--quick] [--out FOLDER]"""

import argparse
import json
import os
import platform
import sys
import time
from dataclasses import asdict
from pathlib import Path

import cases
import peers
import report
from library import MAPS, PROBE_EXP2, PROBE_F32, PROBE_F64, Arrays, Buffer, Library, Plan

ROUNDS, WINDOW = 5, 0.05
# The processor is faster for its first milliseconds under load than it can stay. A round starts with this
# much of the probe's load; in it maps and probes follow each other, so that the state is that of long load.
SETTLE, BETWEEN = 0.2, 0.1


def seconds_of(run):
    """The mean over calls that fill a window."""
    calls, start = 0, time.perf_counter()
    while True:
        run()
        calls += 1
        elapsed = time.perf_counter() - start
        if elapsed >= WINDOW:
            return elapsed / calls


def prepare(case, library):
    """Runs each map and each of PyTorch's once, in an order that gives each its inputs."""
    plan = Plan(library, case.text, case.threads, case.isa)
    arrays = Arrays("d" if case.dtype == "f64" else "f", case.heads, case.n_q, case.n_k, case.dim)
    bits = sum(MAPS[name][0] for name in case.maps)
    workspace = Buffer(plan.workspace(bits))
    ours = {name: plan.runner(name, arrays, workspace) for name in case.maps}
    theirs = peers.runners(case, arrays)
    if not case.once:
        for run in [*ours.values(), *theirs.values()]:
            run()
    return plan, ours, theirs


def run_round(case, library, isa, ours, theirs, best):
    kind = PROBE_F64 if case.dtype == "f64" else PROBE_F32

    def probe(name, what, threads, settle):
        best[name] = max(best.get(name, 0), library.probe(isa, what, threads, settle, WINDOW))

    def timed(name, run):
        best[name] = min(best.get(name, float("inf")), seconds_of(run))

    probe("probe_one", kind, 1, SETTLE)
    probe("exp2", PROBE_EXP2, case.threads, BETWEEN)
    for name, run in ours.items():
        probe("probe", kind, case.threads, SETTLE if name == "forward" else BETWEEN)
        timed(name, run)
    for name, run in theirs.items():
        timed(name, run)


def run_case(case, library):
    peers.set_threads(case.threads)
    plan, ours, theirs = prepare(case, library)
    best = {}
    for _ in range(1 if case.once else ROUNDS):
        run_round(case, library, plan.isa, ours, theirs, best)
    if case.threads == 1:
        best["probe"] = best["probe_one"] = max(best["probe"], best["probe_one"])
    for name in case.maps:
        bit, flops = MAPS[name]
        rate = flops * case.pairs * case.dim / best[name]
        case.results[name] = {
            "ms": 1e3 * best[name],
            "gflops": 1e-9 * rate,
            "percent_of_probe": 100 * rate / best["probe"],
            "workspace_bytes": plan.workspace(bit),
        }
    for name in theirs:
        case.results[name] = {"ms": 1e3 * best[name]}
    for name in ("probe", "probe_one", "exp2"):
        case.results[name] = 1e-9 * best[name]
    case.results["isa"] = plan.isa
    plan.close()


class Progress:
    """A bar where standard error is a terminal, else a line a case. The time left goes by the cases' work."""

    def __init__(self, all_cases):
        self.count, self.total = len(all_cases), sum(case.work() for case in all_cases)
        self.done, self.finished, self.start = 0.0, 0, time.monotonic()
        self.terminal = sys.stderr.isatty()

    def show(self, label):
        elapsed = time.monotonic() - self.start
        left = elapsed * (self.total - self.done) / self.done if self.done else 0
        clock = f"{int(left) // 60}:{int(left) % 60:02d} left" if self.done else ""
        if self.terminal:
            filled = int(30 * self.done / self.total)
            bar = "=" * filled + ">" * (filled < 30) + " " * (29 - filled)
            print(
                f"\r[{bar}] {self.finished}/{self.count}  {label}  {clock}\033[K",
                end="",
                file=sys.stderr,
                flush=True,
            )
        elif label:
            print(f"{self.finished + 1}/{self.count}  {label}  {clock}", file=sys.stderr, flush=True)

    def step(self, case):
        self.done += case.work()
        self.finished += 1

    def end(self):
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr)


def run_all(all_cases, library):
    """The cases that were finished; fewer than all where the user stops it."""
    progress, finished = Progress(all_cases), []
    try:
        for case in all_cases:
            progress.show(case.label)
            run_case(case, library)
            finished.append(case)
            progress.step(case)
    except KeyboardInterrupt:
        print(f"\nbench: stopped after {len(finished)} of {len(all_cases)} cases", file=sys.stderr)
    progress.end()
    return finished


def write(path, text):
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def main():
    parser = argparse.ArgumentParser(description="Times attngrad's maps beside PyTorch's attention.")
    parser.add_argument("build", help="the folder of a release build")
    parser.add_argument(
        "--quick", action="store_true", help="the cases of the closing table, about two minutes"
    )
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="the folder of the results"
    )
    options = parser.parse_args()
    library = Library(options.build)
    threads = len(os.sched_getaffinity(0))
    about = library.info() | {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "threads": threads,
        "torch": peers.version(),
        "rounds": ROUNDS,
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "mode": "quick" if options.quick else "full",
    }
    if threads == 1:
        print("bench: one processor here: no case with several threads", file=sys.stderr)
    if about["load_before"] > 0.5:
        print(
            f"bench: the load is {about['load_before']:.1f}: other programs will disturb the figures",
            file=sys.stderr,
        )
    start = time.monotonic()
    all_cases = (cases.quick_cases if options.quick else cases.full_cases)(threads)
    finished = run_all(all_cases, library)
    about |= {"seconds": round(time.monotonic() - start), "cases": len(all_cases), "finished": len(finished)}
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / time.strftime("%Y%m%d-%H%M%S")
    write(
        stem.with_suffix(".json"),
        json.dumps({"about": about, "cases": [asdict(case) for case in finished]}, indent=1),
    )
    print(report.text(about, finished))
    for line in report.plot(about, finished, stem) + [f"results: {stem.with_suffix('.json')}"]:
        print(line)


if __name__ == "__main__":
    main()
