"""Where the time of one map goes: python3 bench/hotspots.py BUILD PROBLEM MAP [SECONDS]

BUILD is the folder of a release build; the problem is plain, as "h12 q2048 k2048 d64 f32 causal". The map runs on one
thread under Linux's perf, and the shares of our functions are printed; an inlined function counts for its caller."""

import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from library import ALL_MAPS, MAPS, Arrays, Buffer, Library, Plan

MIN_PERCENT = 0.5  # functions with less are not printed


def size_of(text, letter, otherwise=None):
    """The number after a letter in the text of a problem: q2048."""
    found = re.search(rf"\b{letter}(\d+)\b", text)
    return int(found[1]) if found else otherwise


def run(build, text, name, seconds):
    """Runs the map for some seconds, after one run of the maps whose outputs it reads."""
    library = Library(build)
    plan = Plan(library, text, 1)
    n_q, dtype = size_of(text, "q"), re.search(r"\b(f64|f32|bf16)\b", text)
    if n_q is None or dtype is None:
        sys.exit(f"hotspots: '{text}' names no queries or none of f64, f32, bf16")
    arrays = Arrays(dtype[1], size_of(text, "h", 1), n_q, size_of(text, "k", n_q), size_of(text, "d"))
    workspace = Buffer(plan.workspace(ALL_MAPS))
    plan.runner("forward", arrays, workspace)()
    if name in ("vjp_jvp", "jvp_jvp"):
        plan.runner("jvp", arrays, workspace)()
    call, end = plan.runner(name, arrays, workspace), time.monotonic() + seconds
    while time.monotonic() < end:
        call()


def shares(record):
    """Percent of the samples inside the library, by function."""
    report = ["perf", "report", "-q", "-i", record, "--no-children", "--sort", "dso,symbol"]
    lines = subprocess.run(report, capture_output=True, text=True, check=True).stdout.splitlines()
    found = [re.match(r"\s*([\d.]+)%\s+(libattngrad\S*)\s+\[\S\]\s+(\S+)", line) for line in lines]
    ours = [(float(m[1]), m[3]) for m in found if m]
    total = sum(part for part, _ in ours)
    if total == 0:
        raise RuntimeError("perf has no samples of the library")
    return [(100 * part / total, name) for part, name in ours]


def main():
    if len(sys.argv) not in (4, 5) or sys.argv[3] not in MAPS:
        sys.exit(f"usage: python3 bench/hotspots.py BUILD PROBLEM {'|'.join(MAPS)} [SECONDS]")
    if shutil.which("perf") is None:
        sys.exit("hotspots: no perf here (Debian's package linux-perf)")
    with tempfile.TemporaryDirectory() as folder:
        record = str(Path(folder) / "samples")
        call = [sys.executable, __file__, "--run", *sys.argv[1:4], sys.argv[4] if len(sys.argv) == 5 else "5"]
        done = subprocess.run(["perf", "record", "-q", "-F", "1999", "-o", record, "--", *call])
        if done.returncode != 0:
            sys.exit(done.returncode)
        for part, name in shares(record):
            if part >= MIN_PERCENT:
                print(f"{part:5.1f}%  {name}")


if __name__ == "__main__":
    try:
        if sys.argv[1:2] == ["--run"]:
            run(*sys.argv[2:5], float(sys.argv[5]))
        else:
            main()
    # The problem is refused, SECONDS is not a number, or perf fails.
    except (RuntimeError, ValueError, subprocess.CalledProcessError) as error:
        sys.exit(f"hotspots: {error}")
