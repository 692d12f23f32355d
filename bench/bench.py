"""The benchmark: our maps and PyTorch's attention, our layer and PyTorch's, our matrix products and
oneDNN's, interleaved in one process on the same random arrays, together with probes of the processor's peak.
usage: bench.py BUILD [--quick | --threads LIST] [--only TEXT] [--sweeps N] [--out FOLDER]"""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path

import cases
import goals
import layer
import maps
import peers
import plot
import report
import scaling
from library import Library
from timing import FIRST, LATER, Best

RUN = {
    "maps": maps.run,
    "error": maps.run_error,
    "layer": layer.run_layer,
    "product": layer.run_product,
}


class Progress:
    """Shows a bar if standard error is a terminal, else a line per case. The time left is estimated."""

    def __init__(self, turns):
        self.count, self.total = len(turns), sum(case.seconds(rounds) for case, rounds in turns)
        self.done, self.finished, self.start = 0.0, 0, time.monotonic()
        self.is_terminal = sys.stderr.isatty()

    def show(self, label):
        elapsed = time.monotonic() - self.start
        left = elapsed * (self.total - self.done) / self.done if self.done else 0
        clock = f"{int(left) // 60}:{int(left) % 60:02d} left" if self.done else ""
        if self.is_terminal:
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

    def step(self, seconds):
        self.done += seconds
        self.finished += 1

    def end(self):
        if self.is_terminal:
            print("\r\033[K", end="", file=sys.stderr)


def turns_of(all_cases, sweeps):
    """A list of (case, rounds): in the first sweep all cases, in later ones all but those that run only once."""
    return [
        (case, LATER if sweep else FIRST)
        for sweep in range(sweeps)
        for case in all_cases
        if sweep == 0 or not case.once
    ]


def run_all(all_cases, library, sweeps):
    """Returns the cases that have results (not all if the user stops the run or a case fails) and the number of
    rounds that all of them had."""
    turns = turns_of(all_cases, sweeps)
    progress, failed = Progress(turns), set()
    best = {case.label: Best(library) for case in all_cases}
    try:
        for case, rounds in turns:
            progress.show(case.label)
            peers.set_threads(case.threads)
            try:
                if case.label not in failed:
                    RUN[case.kind](case, library, best[case.label], rounds)
                    best[case.label].rounds += rounds
            except RuntimeError as error:  # the library refuses, or results do not agree
                failed.add(case.label)
                progress.end()
                print(f"bench: {case.label}: {error}", file=sys.stderr)
            progress.step(case.seconds(rounds))
    except KeyboardInterrupt:
        print(f"\nbench: stopped after {progress.finished} of {progress.count} turns", file=sys.stderr)
    progress.end()
    finished = [case for case in all_cases if case.results and case.label not in failed]
    return finished, min((best[case.label].rounds for case in finished if not case.once), default=1)


def write(path, text):
    """Replaces the file as a whole: no reader sees half of it."""
    new = path.with_suffix(".new")
    new.write_text(text)
    new.replace(path)


def warn_about_machine(about):
    def warn(text):
        print(f"bench: {text}", file=sys.stderr)

    if about["threads"] == 1:
        warn("one processor here: no case with several threads")
    if not about["amx"]:
        warn("no AMX that this process may use: bf16 is compared with the float32 probe")
    if about["no_onednn"]:
        warn(f"no comparison of matrix products: {about['no_onednn']}")
    if about["load_before"] > 0.5:
        warn(f"the load is {about['load_before']:.1f}: other programs will disturb the figures")


def sweeps(text):
    number = int(text)
    if number < 2:
        raise argparse.ArgumentTypeError("five rounds are the least: 2 sweeps or more")
    return number


def chosen_cases(options, threads):
    if options.threads:
        all_cases = scaling.cases_of(options.threads)
    else:
        all_cases = (cases.quick_cases if options.quick else cases.full_cases)(threads)
    chosen = [case for case in all_cases if options.only in case.label]
    if not chosen:
        print(
            f"bench: no case has '{options.only}' in its name; one is '{all_cases[0].label}'", file=sys.stderr
        )
        sys.exit(2)
    return chosen


def mode_of(options):
    return "scaling" if options.threads else "quick" if options.quick else "full"


def save_and_print(about, finished, stem):
    """Writes the results and prints the tables; those of scaling have no goals."""
    write(
        stem.with_suffix(".json"),
        json.dumps({"about": about, "cases": [asdict(case) for case in finished]}, indent=1),
    )
    if about["mode"] == "scaling":
        lines = "\n".join(report.head(about) + [""] + scaling.table(finished))
        write(stem.with_suffix(".md"), f"```\n{lines}\n```\n")
        print(lines + "\n")
        plots = scaling.plot(about, finished, stem)
    else:
        write(stem.with_suffix(".md"), goals.markdown(about, finished))
        print(report.text(about, finished))
        plots = plot.plot(about, finished, stem)
    for line in plots + [f"results: {stem.with_suffix('.json')}, the table also .md"]:
        print(line)


def commit():
    """The commit of the source, with "-dirty" if files differ from it; "unknown" without git."""
    call = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty"]
    try:
        return subprocess.run(call, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def main():
    parser = argparse.ArgumentParser(
        description="Times attngrad's maps, layer and products beside PyTorch's and oneDNN's."
    )
    parser.add_argument("build", help="the folder of a release build")
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--quick", action="store_true", help="the cases of the closing table, four to five minutes"
    )
    which.add_argument(
        "--threads",
        type=scaling.counts,
        metavar="LIST",
        help="how the maps scale: some problems with each of these numbers of threads, such as 1,2,4",
    )
    parser.add_argument("--only", metavar="TEXT", default="", help="the cases whose name has this text in it")
    parser.add_argument(
        "--out", type=Path, default=Path(__file__).parent / "results", help="the folder of the results"
    )
    parser.add_argument(
        "--sweeps", type=sweeps, default=2, help="over all cases: 3 rounds, then 2 more in each (2: five rounds)"
    )
    options = parser.parse_args()
    library = Library(options.build)
    threads = len(os.sched_getaffinity(0))
    all_cases = chosen_cases(options, threads)
    about = library.info() | {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": commit(),
        "threads": threads,
        "torch": peers.version(),
        "amx": library.has_amx(),
        "onednn": layer.one_dnn_version(),
        "no_onednn": layer.why_no_one_dnn(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
        "mode": mode_of(options),
    }
    warn_about_machine(about)
    start = time.monotonic()
    finished, rounds = run_all(all_cases, library, options.sweeps)
    about |= {"rounds": rounds, "seconds": round(time.monotonic() - start)}
    about |= {"cases": len(all_cases), "finished": len(finished)}
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / time.strftime("%Y%m%d-%H%M%S")
    save_and_print(about, finished, stem)
    return 0 if len(finished) == len(all_cases) else 1


if __name__ == "__main__":
    sys.exit(main())
