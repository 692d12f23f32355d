"""The benchmark of bench/: a run of one small case, its files, its refusals; and the closing table's rules on made-up
results. usage: bench_run.py BUILD"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import goals  # noqa: E402
import scaling  # noqa: E402
from cases import EVERY_MAP, Case, ProductCase, full_cases, quick_cases  # noqa: E402

failures = []


def check(holds, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: {what}")


def bench(build, *options):
    call = [sys.executable, "-B", str(BENCH / "bench.py"), build, *options]
    return subprocess.run(call, capture_output=True, text=True)


def test_one_case(build):
    name = "h12 q128 k128 d64 f32, 1 thread"
    with tempfile.TemporaryDirectory() as folder:
        done = bench(build, "--only", name, "--out", folder)
        check(done.returncode == 0, f"a run of one case ends well: {done.stderr}")
        files = {path.suffix for path in Path(folder).iterdir()}
        check(files >= {".json", ".md"}, f"its files: {files}")
        if failures:
            return
        found = json.loads(next(Path(folder).glob("*.json")).read_text())
    case, about = found["cases"][0], found["about"]
    check(len(found["cases"]) == about["finished"] == about["cases"] == 1, "one case, finished")
    check(about["rounds"] >= 5, "five rounds or more")
    for name in EVERY_MAP:
        result = case["results"][name]
        check(result["ms"] > 0 and 0 < result["percent_of_probe"] < 120, f"a time and a share of {name}: {result}")
    check("must" in done.stdout and "not measured: not in this run" in done.stdout, "the table names what it lacks")


def test_refusals(build):
    done = bench(build, "--only", "no such case")
    check(done.returncode == 2 and done.stderr.count("\n") == 1, f"no such case: one line: {done.stderr}")
    done = bench("/nonexistent")
    check(done.returncode != 0 and "is no folder of a release build" in done.stderr, "no such build")
    done = bench(build, "--sweeps", "1")
    check(done.returncode == 2 and "five rounds are the least" in done.stderr, "too few sweeps")


def test_scaling(build):
    name = "h12 q128 k128 d64 f32, 1 thread"
    with tempfile.TemporaryDirectory() as folder:
        done = bench(build, "--threads", "1", "--only", name, "--out", folder)
        check(done.returncode == 0, f"a run of the scaling of one case ends well: {done.stderr}")
        check("speedup" in done.stdout and "    1.00" in done.stdout, f"its table: {done.stdout}")
    for text, why in ("1,x", "is not a list"), ("0", "is not a list"), ("1,100000", "processors are what"):
        done = bench(build, "--threads", text)
        check(done.returncode == 2 and why in done.stderr, f"--threads {text}: {done.stderr}")


def test_scaling_table():
    found = [made_up(80, threads=1), made_up(80, threads=4)]
    found[0].results["forward"]["ms"] = 3.0
    lines = [line.split() for line in scaling.table(found)]
    check(lines[1][-6:] == ["forward", "1", "3.000", "1.00", "2.000", "0.67"], f"one thread: {lines[1]}")
    check(lines[2] == ["4", "1.000", "3.00", "2.000", "2.00"], f"four threads, three times as fast: {lines[2]}")


def made_up(percent, **fields):
    """A case in which each map takes that share of the probe, and PyTorch twice the time."""
    case = Case(**({"heads": 12, "n_q": 2048, "n_k": 2048, "dim": 64, "threads": 1} | fields))
    case.results = {name: {"percent_of_probe": percent, "ms": 1.0} for name in case.maps}
    case.results |= {"on_amx": False, "torch forward": {"ms": 2.0}, "torch backward": {"ms": 1.1}}
    return case


def rows_of(finished):
    about = {"amx": False, "no_onednn": "", "torch": "2.5"}
    return {what: (must, found) for what, must, _, _, found in goals.table_of(about, finished)}, "\n".join(
        goals.ratio_table(about, finished)
    )


def test_table():
    window = {"heads": 1, "n_q": 8192, "n_k": 8192, "causal": True}
    product = ProductCase(4096, 1024, 1024, "f32", 2)
    product.results = {"ours": 2.0, "onednn": 1.0, "onednn transposed": 1.9}
    finished = [made_up(83), made_up(81, n_q=4096, n_k=4096), made_up(41.5, threads=2), made_up(83, causal=True)]
    finished += [made_up(80, **window), made_up(40, window=256, **window), product]
    rows, text = rows_of(finished)

    def found(what):
        return [round(value, 3) for value, _ in rows[what][1]]

    check(found("forward, 1 thread, D 64, of the probe") == [83, 81], "shares of one thread alone")
    line = next(line for line in text.splitlines() if line.startswith("forward, 1 thread, D 64"))
    check("81.0%" in line and "83.0%" in line and line.endswith("MISSED"), f"worst, best, and a miss: {line}")
    check(found("all threads over one, of the probe's: 12 heads") == [0.5] * 4, "half of the probe's scaling")
    check(found("causal over not, N >= 2048") == [1.0] * 4, "causal compared with the same size")
    finished[0].results["jvp_jvp"]["percent_of_probe"] = 72.6
    rows, _ = rows_of(finished)
    check(found("jvp_jvp's rate over jvp's") == [0.875, 1.0], "jvp_jvp compared with jvp")
    check(found("forward against PyTorch, 1 thread")[0] == 2.0, "PyTorch's time over ours")
    check(found("vjp against PyTorch, all threads") == [1.1], "the row of all threads")
    pairs = 8192 * 8193 / 2, 257 * 8192 - 256 * 257 / 2
    wanted = round(0.5 * pairs[0] / pairs[1], 3)
    check(found("window 256 of 8192 against causal") == [wanted] * 4, "time of a window: rates times pairs")
    check(found("layer's products f32 against oneDNN") == [0.5], "the fastest way of oneDNN counts")
    check(rows["float64 vjp, of the float64 probe"][1] == "not in this run", "what was not run says so")


def test_cases():
    for cases_of, limit in (quick_cases, 5), (full_cases, 30):
        for threads in 1, 2:
            cases = cases_of(threads)
            seconds = sum(case.seconds(3) + (0 if case.once else case.seconds(2)) for case in cases)
            check(seconds < 60 * limit, f"{cases_of.__name__} of {threads} threads: {seconds:.0f} s by estimate")
            check(len({case.label for case in cases}) == len(cases), "no case occurs twice")


test_cases()
test_table()
test_refusals(sys.argv[1])
test_one_case(sys.argv[1])
test_scaling_table()
test_scaling(sys.argv[1])
print(f"{len(failures)} checks failed" if failures else "all checks passed")
sys.exit(bool(failures))
