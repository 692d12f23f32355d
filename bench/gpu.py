"""The CUDA backend beside PyTorch on one GPU: bench/gpu.py BUILD [--table sm80|sm90] [--rows GROUP,...] measures.

BUILD is a build of the preset gpu (make bench-gpu). Times are of events on the GPU: the median of 15 rounds (fewer if
they would take over 8 s), the best of three runs; the calls that are compared alternate in random order. 16,384
tokens, heads x head size = 2,048, random data, unless a row says otherwise. It prints a row as it comes and writes
BUILD/bench-gpu-TABLE.json, or FILE of --out, after each group.

    bench/gpu.py BUILD --all                               both tables, all rows, one file, its tables
    bench/gpu.py --list                                    groups, their seconds, commands of under ten minutes
    bench/gpu.py --merge ALL.json ONE.json OTHER.json      one file of several; --medians leaves the samples out
    bench/gpu.py --markdown FILE.json                      the tables of docs/gpu.md
    bench/gpu.py --plot PLOT.svg FILE.json                 our speed over cuDNN's, over N
    bench/gpu.py --below FILE.json                         the rows that miss their musts, or were not measured
    bench/gpu.py BUILD --profile FILE.json                 what ncu says of each of them: a line a row
    bench/gpu.py BUILD --table sm90 --rows GROUP --profile "ROW"    of one row, named as --below prints it

Those without BUILD need nothing but Python."""

import argparse
import datetime
import importlib.util
import os
import pathlib
import subprocess
import sys
import time

import gpu_groups
import gpu_plot
import gpu_profile
import gpu_tables
from gpu_report import UNMEASURED, ReportError, below, label, medians, merge, read, unmeasured, verdict, write

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBERS = ("ours_ms", "theirs_ms", "flash_ms", "tflops", "value")


def load_package(build):
    """attngrad from the sources, with the extension module of the build."""
    sys.path.insert(0, str(ROOT / "python"))
    found = list(pathlib.Path(build).glob("python/_core*.so"))
    if len(found) != 1:
        raise ReportError(f"{build}: is no build of the preset gpu: it has {len(found)} files python/_core*.so")
    spec = importlib.util.spec_from_file_location("attngrad._core", found[0])
    module = importlib.util.module_from_spec(spec)
    sys.modules["attngrad._core"] = module
    spec.loader.exec_module(module)


def output_of(*command):
    """What a command prints; "" if it cannot run or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def commit_of(options):
    """As given, else git's, with "-dirty" if files differ from it."""
    commit = options.commit or output_of("git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=7")
    if not commit:
        raise ReportError("the commit is not known here, as git has none: give it by --commit")
    return commit


def nvidia_smi(query):
    return (output_of("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader").splitlines() or ["not known"])[0]


def describe(options, commit):
    import attngrad
    import torch

    rounds, runs = rounds_and_runs(options)
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver": nvidia_smi("driver_version"),
        "clock and power": nvidia_smi("clocks.max.sm,power.limit"),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "attngrad": attngrad.__version__,
        "commit": commit,
        "date": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC"),
        "rounds": rounds,
        "runs": runs,
    }


# ---- What is printed ----


def number(row, name):
    value = row.get(name)
    if value is None:
        return "-"
    return f"{value:.0f}" if name == "tflops" else f"{value:.3f}"


def line(row):
    goals = f"{row['must']} / {row['aim']}" if row["must"] is not None else ""
    cells = [row["row"], row["case"], *(number(row, name) for name in NUMBERS), goals, verdict(row)]
    return "| " + " | ".join(cells) + " |"


def progress(group, done, groups, seconds):
    left = sum(gpu_groups.SECONDS[name] for name in groups[done:])
    print(f"    {group}: done after {seconds:.0f} s; about {left} s left", file=sys.stderr, flush=True)


# ---- Options ----


def parse():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, usage=argparse.SUPPRESS
    )
    parser.add_argument("build", nargs="?", help="a build of the preset gpu")
    parser.add_argument("--table", choices=gpu_groups.BOTH, help="the kernels; without it the fastest on this GPU")
    parser.add_argument("--rows", help="groups of rows, with commas; without it all of the table; --list names them")
    parser.add_argument("--all", action="store_true", help="every row of both tables, in one file")
    parser.add_argument("--quick", action="store_true", help="one run of 5 rounds")
    parser.add_argument("--out", metavar="FILE", help="the results, else BUILD/bench-gpu-TABLE.json")
    parser.add_argument("--commit", help="of the sources, where there is no git")
    parser.add_argument("--medians", action="store_true", help="with --merge: without the samples")
    parser.add_argument("--profile", metavar="FILE|ROW", help="ncu over the rows below their musts, or over one row")
    parser.add_argument("--call", help=argparse.SUPPRESS)  # of --profile: our call of one row, alone
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--merge", nargs="+", metavar="FILE", help="the file to write, then those to read")
    parser.add_argument("--markdown", metavar="FILE")
    parser.add_argument("--plot", nargs=2, metavar=("PLOT", "FILE"))
    parser.add_argument("--below", metavar="FILE")
    options = parser.parse_args()
    unknown = [name for name in (options.rows or "").split(",") if name and name not in gpu_groups.NAMES]
    if unknown:
        parser.error(f"--rows: {', '.join(unknown)}: no such group; --list names them")
    if options.merge and len(options.merge) < 2:
        parser.error("--merge: the file to write, then at least one to read")
    if options.all and (options.table or options.rows):
        parser.error("--all: it has both tables and all rows")
    of_files = options.list or options.merge or options.markdown or options.plot or options.below
    if not options.build and not of_files:
        parser.error("no folder of a build given")
    return options


def rounds_and_runs(options):
    return (5, 1) if options.quick else (15, 3)


# ---- Without a GPU ----


def merge_files(target, paths, without_samples):
    report, notes = merge([(path, read(path)) for path in paths])
    report = medians(report) if without_samples else report
    write(target, report["about"], report["rows"])
    for note in notes:
        print(note, file=sys.stderr)


def use_files(options):
    """Whether there was something of that kind to do."""
    if options.list:
        print("\n".join(gpu_groups.listing()))
    elif options.merge:
        merge_files(options.merge[0], options.merge[1:], options.medians)
    elif options.markdown:
        print("\n".join(gpu_tables.markdown(read(options.markdown))))
    elif options.plot:
        print(gpu_plot.write(read(options.plot[1]), options.plot[0]))
    elif options.below:
        rows = read(options.below)["rows"]
        for row in below(rows):
            print(f"--table {row['table']} --rows {row['group']} --profile \"{label(row)}\"")
        for row in unmeasured(rows):
            print(f"{UNMEASURED}: --table {row['table']} --rows {row['group']}: {label(row)}")
    else:
        return False
    return True


# ---- The run ----


def rows_of(group, setting):
    """The rows of a group as they come; if it fails, a row that says so, for the other groups are worth their time."""
    import gpu_rows
    import gpu_rows_16bit
    import gpu_rows_features

    functions = gpu_rows.ROWS | gpu_rows_16bit.ROWS | gpu_rows_features.ROWS
    about = {"table": setting.table, "group": group}
    try:
        for row in functions[group](setting):
            yield row | about
    except Exception as error:
        print(f"    {group}: failed: {error!r}", flush=True)
        failed = {"row": group, "case": "failed: " + repr(error)[:100], "value": None, "must": None, "aim": None}
        yield failed | about


def setting_of(options, only_calls=False):
    """Decides which kernels plans take. PyTorch and the package are loaded."""
    import torch
    from gpu_timing import Setting

    table = options.table or ("sm90" if torch.cuda.get_device_capability() == (9, 0) else "sm80")
    os.environ["ATTNGRAD_ISA"] = table
    return Setting(options.build, table, *rounds_and_runs(options), only_calls)


def groups_of(options, table):
    return options.rows.split(",") if options.rows else gpu_groups.of_table(table)


def measure(options):
    commit = commit_of(options)
    load_package(options.build)
    import torch

    setting, about, results, begin = setting_of(options), describe(options, commit), [], time.monotonic()
    groups = groups_of(options, setting.table)
    target = options.out or f"{options.build}/bench-gpu-{setting.table}.json"
    print(about)
    print(f"table {setting.table}; about {sum(gpu_groups.SECONDS[name] for name in groups)} s on an H200")
    print("| row | case | ours ms | theirs ms | flash ms | TFLOP/s | value | must / aim | |")
    print("|" + "---|" * 9, flush=True)
    for done, group in enumerate(groups, 1):
        for row in rows_of(group, setting):
            results.append(row)
            print(line(row), flush=True)
        torch.cuda.empty_cache()
        write(target, about, results)
        progress(group, done, groups, time.monotonic() - begin)
    print(gpu_plot.write({"about": about, "rows": results}, pathlib.Path(target).with_suffix(".svg")))
    print(f"{len(below(results))} rows below their musts, {len(unmeasured(results))} {UNMEASURED}; results: {target}")
    return 1 if any(row["case"].startswith("failed") for row in results) else 0


def measure_all(options):
    """Each part in a process of its own, as one process has one table; then one file of all parts, and its tables."""
    parts, failed, commit = [], False, commit_of(options)
    for table in reversed(gpu_groups.BOTH):
        for n, groups in enumerate(gpu_groups.commands(table), 1):
            parts.append(f"{options.build}/bench-gpu-{table}-{n}.json")
            pathlib.Path(parts[-1]).unlink(missing_ok=True)  # of an earlier run
            call = [sys.executable, __file__, options.build, "--table", table, "--rows", ",".join(groups)]
            call += ["--out", parts[-1], "--commit", commit] + ["--quick"] * options.quick
            failed = subprocess.run(call).returncode != 0 or failed
    target = options.out or f"{options.build}/bench-gpu.json"
    merge_files(target, parts, without_samples=False)
    print(gpu_plot.write(read(target), pathlib.Path(target).with_suffix(".svg")))
    print("\n".join(gpu_tables.markdown(read(target))))
    return 1 if failed else 0


def one_call(options):
    """Our call of one row, once, where ncu begins to look."""
    load_package(options.build)
    import torch

    setting = setting_of(options, only_calls=True)
    for row in rows_of(options.rows, setting):
        call = getattr(row.get("ours_ms"), "call", None)
        if label(row) == options.call and call:
            call()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStart()
            call()
            torch.cuda.synchronize()
            torch.cuda.cudart().cudaProfilerStop()
            return 0
    raise ReportError(f"{options.call}: no such row with a call of ours in {options.rows}")


def profile_rows(options):
    """The rows of a file that are below their musts, or one row that is named."""
    if options.profile.endswith(".json"):
        rows = below(read(options.profile)["rows"])
    else:
        if not options.rows or "," in options.rows or not options.table:
            raise ReportError("--profile of one row needs its --table and its group in --rows, as --below prints them")
        group, _, case = options.profile.partition(": ")
        rows = [{"row": group, "case": case, "group": options.rows, "table": options.table, "ours_ms": None}]
    for row in rows:
        print(f"{row['table']} {label(row)}: {gpu_profile.profile(__file__, options.build, row)}", flush=True)
    return 0


def run():
    options = parse()
    if use_files(options):
        return 0
    ways = ((options.call, one_call), (options.profile, profile_rows), (options.all, measure_all), (True, measure))
    return next(way for asked, way in ways if asked)(options)


def main():
    try:
        return run()
    except ReportError as error:
        print(f"bench/gpu.py: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
