"""The CUDA backend beside PyTorch on one GPU, in one run: bench/gpu.py BUILD [--table sm80|sm90] [--rows GROUP,...]

BUILD is a build of the preset gpu (make bench-gpu). Times are of events on the GPU: the median of 15 rounds (fewer if
they would take over 4 s), the best of three runs; the calls that are compared alternate in random order. 16,384
tokens, heads x head size = 2,048, random data, unless a row says otherwise.

Writes BUILD/bench-gpu-TABLE.json and, with matplotlib, a plot; prints a table with the figures that docs/gpu.md has."""

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
NUMBERS = ("ours_ms", "theirs_ms", "flash_ms", "tflops", "value")
COLUMNS = ("row", "case", *NUMBERS, "must", "aim", "verdict")
# The groups whose goals are of a table; both have float32 and the double backward.
OF_PORTABLE = "float32 derivatives32 float64 bfloat16 double bias small host".split()
OF_HOPPER = "lengths d256 gqa packed window derivatives features low sparse float32 double".split()


def load_package(build):
    """attngrad from the sources, with the extension module of the build."""
    sys.path.insert(0, str(ROOT / "python"))
    (core,) = pathlib.Path(build).glob("python/_core*.so")
    spec = importlib.util.spec_from_file_location("attngrad._core", core)
    module = importlib.util.module_from_spec(spec)
    sys.modules["attngrad._core"] = module
    spec.loader.exec_module(module)


def output_of(*command):
    """What a command prints; "" if it cannot run."""
    try:
        return subprocess.run(command, capture_output=True, text=True).stdout.strip()
    except OSError:
        return ""


def describe(table):
    import attngrad
    import torch

    query = "--query-gpu=driver_version,clocks.max.sm,power.limit"
    return {
        "gpu": torch.cuda.get_device_name(),
        "driver, clock, power": output_of("nvidia-smi", query, "--format=csv,noheader").splitlines()[:1],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "attngrad": attngrad.__version__,
        "commit": output_of("git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"),
        "table": table or "auto",
    }


# ---- The report ----


def verdict(row):
    if row["value"] is None:
        return "not measured"
    if row["must"] is None:
        return ""
    sign = -1 if row.get("less_is_better") else 1
    value = sign * row["value"]
    return "aim" if value >= sign * row["aim"] else "must" if value >= sign * row["must"] else "BELOW"


def number(row, name):
    value = row.get(name)
    if value is None:
        return "-"
    return f"{value:.0f}" if name == "tflops" else f"{value:.3f}"


def line(row):
    goals = f"{row['must']} / {row['aim']}" if row["must"] is not None else ""
    cells = [row["row"], row["case"], *(number(row, name) for name in NUMBERS), goals, row["verdict"]]
    return "| " + " | ".join(cells) + " |"


def write(path, about, results):
    """Compact: one line a row, without names."""
    rounded = [[round(x, 4) if isinstance(x, float) else x for x in map(row.get, COLUMNS)] for row in results]
    rows = ",\n".join(json.dumps(row) for row in rounded)
    path.write_text(f'{{"about": {json.dumps(about)},\n"columns": {json.dumps(COLUMNS)},\n"rows": [\n{rows}\n]}}\n')


def plot(results, stem):
    try:
        import matplotlib
    except ImportError:
        print("no plot: matplotlib is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    shown = [r for r in results if r["value"] and r["must"]]
    names = [f"{r['row']}: {r['case']}" for r in shown]
    shares = [r["must"] / r["value"] if r.get("less_is_better") else r["value"] / r["must"] for r in shown]
    figure, axis = pyplot.subplots(figsize=(9, 0.28 * len(shown) + 1.5))
    axis.barh(names, shares)
    axis.axvline(1, color="black", linewidth=1)
    axis.set_xlabel("value / what it must be")
    axis.invert_yaxis()
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix))


# ---- The run ----


def parse():
    parser = argparse.ArgumentParser(description="The CUDA backend beside PyTorch on one GPU")
    parser.add_argument("build", help="a build of the preset gpu")
    parser.add_argument("--table", choices=("sm80", "sm90"), help="the kernels; without it plans choose")
    groups = ",".join(dict.fromkeys(OF_PORTABLE + OF_HOPPER))
    parser.add_argument("--rows", help=f"groups of rows, of {groups}; without it those whose goals are of the table")
    parser.add_argument("--quick", action="store_true", help="one run of 5 rounds")
    options = parser.parse_args()
    default = OF_HOPPER if options.table == "sm90" else OF_PORTABLE
    options.groups = options.rows.split(",") if options.rows else default
    unknown = set(options.groups) - set(OF_PORTABLE + OF_HOPPER)
    if unknown:
        parser.error(f"--rows: {', '.join(sorted(unknown))}: must be of {groups}")
    return options


def rows_of(group, setting):
    """The rows of a group as they come; if it fails, a row that says so, for the other groups are worth their time."""
    import gpu_rows
    import gpu_rows_16bit

    functions = gpu_rows.ROWS | gpu_rows_16bit.ROWS
    try:
        yield from functions[group](setting)
    except Exception as error:
        print(f"    {group}: failed: {error!r}", flush=True)
        yield {"row": group, "case": "failed: " + repr(error)[:100], "value": None, "must": None, "aim": None}


def main():
    options = parse()
    if options.table:
        os.environ["ATTNGRAD_ISA"] = options.table
    load_package(options.build)
    import torch
    from gpu_timing import Setting

    about, results, begin = describe(options.table), [], time.monotonic()
    stem = pathlib.Path(options.build) / f"bench-gpu-{about['table']}"
    setting = Setting(options.build, options.table, *((5, 1) if options.quick else (15, 3)))
    print(about)
    print("| row | case | ours ms | theirs ms | flash ms | TFLOP/s | value | must / aim | |")
    print("|" + "---|" * 9, flush=True)
    for group in options.groups:
        for row in rows_of(group, setting):
            row["verdict"] = verdict(row)
            results.append(row)
            print(line(row), flush=True)
        torch.cuda.empty_cache()
        write(stem.with_suffix(".json"), about, results)
        print(f"    {group}: done after {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    plot(results, stem)
    return 1 if any(r["case"].startswith("failed") for r in results) else 0


if __name__ == "__main__":
    sys.exit(main())
