"""bench/gpu.py without a GPU: the tables, the merging and the refusals of results that are made up here, the reading of
ncu's table, and the rows of every group on stand-ins for PyTorch and the package. usage: bench_gpu.py"""

import contextlib
import io
import itertools
import json
import subprocess
import sys
import tempfile
import types
from pathlib import Path
from unittest import mock

BENCH = Path(__file__).parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import gpu  # noqa: E402
import gpu_groups  # noqa: E402
import gpu_profile  # noqa: E402
from gpu_report import ReportError, verdict  # noqa: E402

failures = []
ABOUT = {
    "gpu": "NVIDIA H200",
    "driver": "1.2",
    "torch": "2.11",
    "cuda": "13.0",
    "cudnn": 91000,
    "commit": "abc1234",
    "date": "2000-01-01 00:00 UTC",
    "rounds": 15,
    "runs": 3,
}


def check(holds, what):
    if not holds:
        failures.append(what)
        print(f"FAILED: {what}")


def call(*options):
    """The program with these options, in this process."""
    out, err = io.StringIO(), io.StringIO()
    argv = mock.patch.object(sys, "argv", ["gpu.py", *options])
    with argv, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            status = gpu.main()
        except SystemExit as stop:
            status = stop.code
    return types.SimpleNamespace(returncode=status, stdout=out.getvalue(), stderr=err.getvalue())


def row(group, case, value, must, aim, **more):
    fields = {"row": group, "case": case, "table": "sm90", "group": group, "value": value, "must": must, "aim": aim}
    return fields | {"ours_ms": 1.0, "theirs_ms": value, "samples": {"ours_ms": [[1.0, 1.5]]}} | more


def length(dim, n, value, must, name="forward", causal=False):
    place = {"map": name, "dim": dim, "n": n, "causal": causal, "dtype": "bfloat16", "tflops": 400.4}
    return row("lengths", f"{name} D{dim} N{n}{' causal' * causal} over cuDNN's", value, must, must + 0.1, **place)


def feature(dim, name, value, must):
    place = {"map": "forward", "dim": dim, "n": 4096, "feature": name, "dtype": "bfloat16"}
    return row("features", f"forward D{dim} N4096 {name}", value, must, must + 0.1, **place)


ROWS = [
    length(64, 512, 0.91, 0.93),
    length(64, 2048, 1.02, 0.97),
    length(64, 512, 0.8, 0.82, "vjp", True),
    length(128, 512, 0.934, 0.93),
    feature(128, "softcap", 0.61, 0.6),
    feature(64, "softcap", 0.538, 0.54),
    row("sparse", "forward: time", 0.3, 0.25, 0.16, less_is_better=True),
    row("host", "C forward", 6.96, 8, 5, less_is_better=True, unit="us"),
    row("packed", "forward", None, None, None),
    row("small", "one query", None, 0.6, 1.0, ours_ms=None, samples={}),
    row("window", "failed: RuntimeError()", None, None, None, ours_ms=None, samples={}),
]


def written(folder, name, rows, **about):
    path = Path(folder) / name
    path.write_text(json.dumps({"about": ABOUT | about, "rows": rows}))
    return str(path)


# ---- Tables ----


def test_markdown(folder):
    done = call("--markdown", written(folder, "all.json", ROWS))
    check(done.returncode == 0, f"tables are printed: {done.stderr}")
    for line in (
        "| N | forward | must / aim | vjp, causal | must / aim |",
        "| 512 | **0.91** (400) | 0.93 / 1.03 | **0.80** (400) | 0.82 / 0.92 |",
        "| 2,048 | 1.02 (400) | 0.97 / 1.07 |  |  |",
        "| 512 | 0.93 (400) | 0.93 / 1.03 |",
        "| feature | D 128 | must / aim | D 64 | must / aim |",
        "| softcap | 0.61 | 0.6 / 0.7 | **0.538** | 0.54 / 0.64 |",
        "| sparse | forward: time | 1.000 | 0.300 |  | **0.30** | 0.25 / 0.16 |",
        "| host | C forward | 1.000 | 6.960 |  | 6.96 | 8 / 5 |",
        "| packed | forward | 1.000 |  |  | - |  |",
        "Below their musts: 4 of 9 rows that have one; not measured: 2.",
        "| sm90 | small: one query | not measured | 0.6 / 1 |",
        "| sm90 | window: failed: RuntimeError() | not measured |  |",
        "| sm90 | lengths: forward D64 N512 over cuDNN's | **0.91** | 0.93 / 1.03 |",
    ):
        check(line in done.stdout.splitlines(), f"a line of the tables: {line}\n{done.stdout}")
    for words in "NVIDIA H200", "driver 1.2", "CUDA 13.0", "cuDNN 91000", "commit abc1234", "the best of 3 runs":
        check(words in done.stdout.splitlines()[0], f"the first line says {words}: {done.stdout.splitlines()[0]}")
    missed = call("--below", str(Path(folder) / "all.json")).stdout.splitlines()
    check(len(missed) == 6 and '"features: forward D64 N4096 softcap"' in missed[2], f"rows to profile: {missed}")
    unknown = "not measured: --table sm90 --rows small: small: one query"
    check(missed[4] == unknown, f"rows without a value: {missed[4]}")


def test_verdicts():
    for value, must, aim, less, word in (
        (0.96, 0.97, 1.05, False, "BELOW"),
        (0.97, 0.97, 1.05, False, "must"),
        (1.05, 0.97, 1.05, False, "aim"),
        (0.26, 0.25, 0.16, True, "BELOW"),
        (0.2, 0.25, 0.16, True, "must"),
        (None, 0.25, 0.16, True, "not measured"),
        (0.1, None, None, False, ""),
    ):
        found = verdict({"value": value, "must": must, "aim": aim, "less_is_better": less})
        check(found == word, f"{value} of {must} / {aim}: {found}")


def test_plot(folder):
    picture = Path(folder) / "plot.svg"
    done = call("--plot", str(picture), written(folder, "plot.json", ROWS))
    check(done.returncode == 0 and f"plot: {picture}" in done.stdout, f"a plot: {done.stderr}")
    text = picture.read_text()
    check(text.count("<circle") == 4 and text.count("D 64") == text.count("D 128") == 1, "its points and panels")
    done = call("--plot", str(picture), written(folder, "none.json", ROWS[4:]))
    check("no plot: no row was compared with cuDNN" in done.stdout, f"nothing to plot: {done.stdout}")


# ---- Files ----


def test_merge(folder):
    one = written(folder, "one.json", ROWS[:4])
    again = length(64, 512, 0.99, 0.93)
    other = written(folder, "other.json", [again, *ROWS[4:]], date="2000-01-01 00:10 UTC")
    target = str(Path(folder) / "merged.json")
    done = call("--merge", target, one, other)
    check(done.returncode == 0, f"two files are merged: {done.stderr}")
    check("that of" in done.stderr and "other.json counts" in done.stderr, f"a row of both is named: {done.stderr}")
    merged = json.loads(Path(target).read_text())
    check(len(merged["rows"]) == len(ROWS), f"each row once: {len(merged['rows'])}")
    check(merged["rows"][0]["value"] == 0.99 and "samples" in merged["rows"][0], "the last counts, with its samples")
    check(merged["about"]["date"] == "2000-01-01 00:00 UTC to 2000-01-01 00:10 UTC", "both dates")
    check(call("--markdown", target).returncode == 0, "tables of the merged file")
    call("--merge", target, one, other, "--medians")
    small = json.loads(Path(target).read_text())
    check(small["rows"][0]["value"] == 0.99 and "samples" not in small["rows"][0], "medians alone")
    for name, value in (("commit", "def5678"), ("driver", "9"), ("cudnn", 1), ("rounds", 5)):
        strange = written(folder, "strange.json", ROWS[4:], **{name: value})
        one_line(call("--merge", target, one, strange), f"strange.json: {name} is {value}, in ")


def one_line(done, words):
    check(done.returncode == 1 and done.stderr.count("\n") == 1 and words in done.stderr, f"{words}: {done.stderr}")
    check(done.stdout == "", f"{words}: nothing else is printed: {done.stdout}")


def test_broken_files(folder):
    whole = Path(written(folder, "whole.json", ROWS)).read_text()
    broken = Path(folder) / "broken.json"

    def refused(text, words):
        broken.write_text(text)
        for options in (["--markdown", str(broken)], ["--merge", str(Path(folder) / "never.json"), str(broken)]):
            one_line(call(*options), words)

    refused(whole[: len(whole) // 2], "broken.json: not a whole JSON file: ")
    refused("", "broken.json: not a whole JSON file: ")
    refused("[1, 2]", "broken.json: no results of bench/gpu.py")
    refused(json.dumps({"about": ABOUT, "rows": []}), "broken.json: no results of bench/gpu.py")
    nameless = {name: x for name, x in ABOUT.items() if name != "commit"}
    refused(json.dumps({"about": nameless, "rows": ROWS}), "what it was measured on: commit missing")
    refused(json.dumps({"about": ABOUT, "rows": [ROWS[0], {"row": "x"}]}), "row 2 has no case")
    refused(json.dumps({"about": ABOUT, "rows": [ROWS[0] | {"value": "fast"}]}), "value is not a number")
    refused(json.dumps({"about": ABOUT, "rows": [ROWS[0] | {"aim": None}]}), "must and aim, one without the other")
    one_line(call("--markdown", f"{folder}/nowhere.json"), "nowhere.json: No such file or directory")
    check(not (Path(folder) / "never.json").exists(), "a refused file is not written")


def test_refusals(folder):
    done = call(folder, "--rows", "lengths,widths")
    check(done.returncode == 2 and "--rows: widths: no such group" in done.stderr, f"no such group: {done.stderr}")
    done = call()
    check(done.returncode == 2 and "no folder of a build given" in done.stderr, f"no build: {done.stderr}")
    one_line(call(folder, "--commit", "abc1234"), "is no build of the preset gpu")
    one_line(call(folder, "--profile", "lengths: x"), "--profile of one row needs its --table")


# ---- ncu ----

NCU = """==PROF== Connected
"ID","Kernel Name","gpu__time_duration.sum","smsp__issue_active.avg.per_cycle_active",\
"sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",\
"smsp__average_warps_issue_stalled_wait_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio",\
"smsp__average_warps_issue_stalled_selected_per_issue_active.ratio","launch__registers_per_thread"
"","","ns","inst/cycle","%","inst","inst","inst","register/thread"
"0","statistics(agi_cuda_part)","1,000","0.10","0","1","0","1","32"
"1","hopper_dq(agi_cuda_part)","3,000","0.45","61.5","2.0","1.0","1.0","240"
==WARNING== last words
"""


def test_profile():
    words = gpu_profile.summary(NCU)
    for found in ("hopper_dq, 0.75 of the time of 2 kernels", "issue 0.45", "tensor 0.61", "wait 0.50, barrier 0.25"):
        check(found in words, f"ncu's table says {found}: {words}")
    check("selected" not in words and "240 registers" in words, f"a warp that issues does not wait: {words}")
    try:
        gpu_profile.summary("==ERROR== no permission\n")
        check(False, "no table of ncu is refused")
    except ReportError as error:
        check("==ERROR== no permission" in str(error), f"with ncu's last line: {error}")


# ---- The rows, on stand-ins ----


def stand_ins():
    torch, package = mock.MagicMock(), mock.MagicMock()
    torch.rand.return_value.__lt__.return_value = mock.MagicMock()  # a mask
    package.jvp.return_value.__iter__.side_effect = lambda: iter([None] * 4)
    package.forward.return_value.__iter__.side_effect = lambda: iter([None] * 2)
    names = ("torch", "torch.nn", "torch.nn.functional", "torch.nn.attention", "torch.nn.attention.varlen")
    modules = dict.fromkeys(names, torch) | {"attngrad": package, "attngrad.torch": package}
    return mock.patch.dict(sys.modules, modules)


def rows_of(table):
    """Every row of a table, untimed."""
    from gpu_timing import Setting

    setting = Setting("nowhere", table, 15, 3, only_calls=True)
    with contextlib.redirect_stdout(sys.stderr):
        return [row for group in gpu_groups.of_table(table) for row in gpu.rows_of(group, setting)]


def goals_of(rows, case):
    return next(((row["must"], row["aim"]) for row in rows if row["case"] == case), "no such row")


def test_rows():
    with stand_ins():
        rows = {table: rows_of(table) for table in gpu_groups.BOTH}
    for table, found in rows.items():
        check(not [row for row in found if row["case"].startswith("failed")], f"{table}: no group fails")
        names = [f"{row['row']}: {row['case']}" for row in found]
        check(len(names) == len(set(names)), f"{table}: no row occurs twice")
        groups = {row["group"] for row in found}
        check(groups >= set(gpu_groups.of_table(table)) - {"host"}, f"{table}: every group has rows: {sorted(groups)}")
    hopper, portable = rows["sm90"], rows["sm80"]
    for case, goals in (
        ("forward D64 N2048 over cuDNN's", (0.92, 1.0)),
        ("forward D128 N32768 causal over cuDNN's", (0.97, 1.05)),
        ("vjp D128 N16384 over cuDNN's", (0.92, 1.05)),
        ("vjp D256 N2048 causal over cuDNN's", (1.05, 1.3)),
        ("forward D256 N8192 over cuDNN's", (0.97, 1.05)),
        ("forward D64 N4096 ALiBi", (0.765, 0.837)),
        ("vjp D64 N4096 dropout", (0.558, 0.612)),
        ("rate of vjp_jvp over vjp's D128 N8192", (0.85, 1.0)),
        ("vjp_jvp D128 N4096 softcap", (None, None)),
    ):
        check(goals_of(hopper, case) == goals, f"{case}: {goals_of(hopper, case)}, not {goals}")
    check(goals_of(portable, "forward D128 N2048 causal over cuDNN's") == (0.42, 0.5), "goals of the portable kernels")
    check(all(row["ours_ms"].call for row in hopper if "unit" not in row), "a call of ours in each row")


def test_rows_without_a_peer():
    """Where cuDNN does not run: a row with a must keeps it, without a value; one without is over FlashAttention."""
    with stand_ins():
        import gpu_rows_16bit
        from gpu_timing import Setting

        setting = Setting("nowhere", "sm90", 15, 3)
        times = {"forward": 2.0, "vjp": 4.0, "flash forward": 3.0, "flash vjp": 5.0}
        place = {"dim": 64, "n": 512, "causal": False}
        goals = {"forward": (0.9, 1.0), "vjp": (None, None)}
        with mock.patch.object(gpu_rows_16bit, "milliseconds", return_value=times):
            forward, vjp = gpu_rows_16bit.peer_rows("lengths", "D64 N512", {}, goals, place, setting)
    found = forward["case"], forward["value"], forward["must"], forward["aim"], forward["flash_ms"]
    check(found == ("forward D64 N512 over cuDNN's", None, 0.9, 1.0, 3.0), f"the must stays: {found}")
    check(verdict(forward) == "not measured", f"what is said of it: {verdict(forward)}")
    found = vjp["case"], vjp["value"], vjp["must"]
    check(found == ("vjp D64 N512 over FlashAttention's", 1.25, None), f"no must, over FlashAttention: {found}")


def test_host(folder):
    """gpu_host's times; if it fails, what it says."""
    program = Path(folder) / "gpu_host"
    with stand_ins():
        import gpu_rows

        def says(script):
            program.write_text(f"#!/bin/sh\n{script}\n")
            program.chmod(0o755)
            out = io.StringIO()
            with contextlib.redirect_stdout(out):
                return gpu_rows.host_in_c(str(program)), out.getvalue()

        times, words = says('echo "b1: forward 7.5 us, vjp 15.25 us"')
        check((times, words) == ({"C forward": 7.5, "C vjp": 15.25}, ""), f"its times: {times} {words}")
        times, words = says("echo no device of that number >&2; exit 1")
        check(times == {} and "status 1: no device of that number" in words, f"its message: {times} {words}")
        times, words = says("exit 0")
        check(times == {} and "it printed nothing" in words, f"nothing is printed: {times} {words}")
        program.unlink()
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            times = gpu_rows.host_in_c(str(program))
        check(times == {} and "host: not run: " in out.getvalue(), f"no program: {out.getvalue()}")


def test_times():
    """The median of the rounds, the best of the runs; every round has each call."""
    with stand_ins():
        import gpu_timing

        setting = gpu_timing.Setting("nowhere", "sm90", 15, 3)
        clock, order = itertools.count(), []

        def took(name):
            order.append(name)
            return 2.0 + next(clock) / 1000 if name == "ours" else 1000.0

        quick = {"ours": "ours"}
        with mock.patch.object(gpu_timing, "works", return_value=True):
            with mock.patch.object(gpu_timing, "time_once", side_effect=took):
                ours = gpu_timing.milliseconds(quick, setting)["ours"]
                both = gpu_timing.milliseconds(quick | {"theirs": "theirs"}, setting)
    check(abs(ours - 2.008) < 1e-9, f"the median of the first run, which is the fastest: {ours}")
    check([len(run) for run in ours.samples] == [15] * 3, "three runs of 15 rounds")
    check([len(run) for run in both["ours"].samples] == [7] * 3, "a run of 8 s at most")
    pairs = [tuple(order[n : n + 2]) for n in range(46, len(order), 2)]
    check({frozenset(pair) for pair in pairs} == {frozenset(("ours", "theirs"))}, "each round has both calls")
    check(len(set(pairs[1:])) == 2, "in random order")


def test_program():
    done = subprocess.run([sys.executable, "-B", str(BENCH / "gpu.py"), "--list"], capture_output=True, text=True)
    check(done.returncode == 0 and "--table sm80 --rows float32," in done.stdout, f"the program itself: {done.stderr}")


def test_groups():
    for table in gpu_groups.BOTH:
        parts = gpu_groups.commands(table)
        check(sum(parts, []) == gpu_groups.of_table(table), f"{table}: the commands have each group once, in order")
        seconds = [gpu_groups.START + sum(gpu_groups.SECONDS[name] for name in part) for part in parts]
        check(max(seconds) < 600, f"{table}: commands of under ten minutes: {seconds}")


with tempfile.TemporaryDirectory() as folder:
    for test in (test_markdown, test_plot, test_merge, test_broken_files, test_refusals, test_host):
        test(folder)
for test in (test_verdicts, test_profile, test_rows, test_rows_without_a_peer, test_times, test_groups, test_program):
    test()
print(f"{len(failures)} checks failed" if failures else "all checks passed")
sys.exit(bool(failures))
