"""What ncu says about our call of a row of bench/gpu.py: one line. The call runs in a process of its own, gpu.py with
--call, in which nothing is timed. Here are ncu's options and the reading of its table."""

import csv
import io
import re
import subprocess
import sys

from gpu_report import ReportError, label

PIPES = {
    "tensor": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "alu": "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active",
    "fma": "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_active",
    "xu": "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_active",
    "lsu": "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_active",
}
TIME, ISSUE = "gpu__time_duration.sum", "smsp__issue_active.avg.per_cycle_active"
WARPS, REGISTERS = "sm__warps_active.avg.per_cycle_active", "launch__registers_per_thread"
STALL = re.compile(r"smsp__average_warps_issue_stalled_(\w+?)_per_issue_active\.ratio")


def command(script, build, table, row):
    metrics = ",".join([TIME, ISSUE, WARPS, REGISTERS, *PIPES.values()])
    ncu = ["ncu", "--csv", "--page", "raw", "--profile-from-start", "off", "--target-processes", "all"]
    ncu += ["--metrics", metrics, "--section", "WarpStateStats"]
    call = [sys.executable, script, build, "--table", table, "--rows", row["group"], "--call", label(row)]
    return [*ncu, *call]


def number(text):
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return 0.0


def kernels(text):
    """The rows of ncu's table, which begins at the line that names its columns; units are the next line."""
    lines = text.splitlines()
    begin = next((n for n, line in enumerate(lines) if line.startswith('"ID"')), None)
    if begin is None:
        last = next((line for line in reversed(lines) if line.strip()), "nothing")
        raise ReportError(f"ncu printed no table; its last line: {last[:200]}")
    found = list(csv.DictReader(io.StringIO("\n".join(lines[begin:]))))
    return [row for row in found if row["ID"].isdigit()]  # not that of the units, nor ncu's last words


def stalls(kernel):
    """Reasons for which warps wait, with their shares of all that warps did, the largest first. "selected" is a warp
    that issues."""
    found = {m.group(1): number(x) for name, x in kernel.items() if name and x and (m := STALL.fullmatch(name))}
    total = sum(x for name, x in found.items() if "not_issued" not in name) or 1
    shares = {name: x / total for name, x in found.items() if name != "selected" and "not_issued" not in name}
    return sorted(shares.items(), key=lambda pair: -pair[1])


def summary(text):
    """Of the kernel that takes longest."""
    found = kernels(text)
    if not found:
        raise ReportError("ncu saw no kernel")
    longest = max(found, key=lambda kernel: number(kernel[TIME]))
    share = number(longest[TIME]) / (sum(number(kernel[TIME]) for kernel in found) or 1)
    name = longest["Kernel Name"].split("(")[0]
    pipes = ", ".join(f"{pipe} {number(longest.get(metric) or '') / 100:.2f}" for pipe, metric in PIPES.items())
    waits = ", ".join(f"{reason} {x:.2f}" for reason, x in stalls(longest)[:4])
    issue, warps = number(longest[ISSUE]), number(longest.get(WARPS) or "")
    return (
        f"{name}, {share:.2f} of the time of {len(found)} kernels: issue {issue:.2f}; pipes {pipes}; waits {waits}; "
        f"{warps:.1f} warps, {number(longest.get(REGISTERS) or ''):.0f} registers"
    )


def profile(script, build, row):
    """The line."""
    if "unit" in row:
        return f"no kernel to look at: {row['unit']}"
    try:
        done = subprocess.run(command(script, build, row["table"], row), capture_output=True, text=True, timeout=180)
    except FileNotFoundError:
        raise ReportError("ncu is not on this machine: it comes with the CUDA toolkit (Nsight Compute)") from None
    except subprocess.TimeoutExpired:
        return "not finished in 180 s"
    try:
        return summary(done.stdout)
    except ReportError as error:
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return f"{error} {last[:200]}".rstrip()
