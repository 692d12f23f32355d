"""What `attngrad view` alone does; tests/cli/view.sh has what needs no Python."""

import os
import pty
import re
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
from browser import COMMAND
from view_pages import arrays, call, read, run


def test_command_and_python_write_the_same_page(tmp_path):
    inputs, e = call()
    options = []
    for name, x in inputs.items():
        np.save(tmp_path / f"{name}.npy", x)
        options += [f"--{name.replace('_', '')}", tmp_path / f"{name}.npy"]
    run(*options, "--heads", "0", "--sequences", "0", "--out", tmp_path / "command.html")
    e.save_html(tmp_path / "python.html")
    pages = [(tmp_path / name).read_text() for name in ("command.html", "python.html")]
    assert re.sub(r'"facts":\[".*?",', '"facts":[', pages[0]) == pages[1]


def test_not_a_number_in_files(tmp_path):
    q, k, v = arrays(4, 3), arrays(5, 3), arrays(5, 2)
    q[1, 0], v[2, 1] = np.nan, -np.inf
    for name, x in {"q": q, "k": k, "v": v}.items():
        np.save(tmp_path / f"{name}.npy", x)
    options = [part for name in "qkv" for part in (f"--{name}", tmp_path / f"{name}.npy")]
    result = run(*options, "--out", tmp_path / "page.html")
    assert "NaN or infinite, and left out of norms and ranges: Q 1, V 1" in " ".join(result.stdout.split())
    data, found = read(tmp_path / "page.html")
    stats = {x["name"]: x["stats"] for x in data["heads"][0]["variables"]}
    assert stats["Q"]["nan"] == 1 and stats["V"]["infinite"] == 1 and stats["P"]["nan"] == 5
    np.testing.assert_array_equal(found["V", "full"], v.ravel())


@pytest.mark.parametrize("threads", [1, 3])
def test_threads(tmp_path, threads):
    """The option, not the environment, says how many there are."""
    command = [COMMAND, "view", "q700 d32 f32", "--maps", "vjp", "--threads", str(threads), "--out", tmp_path / "page"]
    environment = {**os.environ, "ATTNGRAD_THREADS": "5"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL)
    counts = set()
    while process.poll() is None:
        counts.add(len(list(Path(f"/proc/{process.pid}/task").glob("*"))))
        time.sleep(0.002)
    assert process.returncode == 0 and max(counts) == threads


def watch(*arguments):
    """Runs the command with standard error on a terminal: [(seconds, percent that the bar shows)], and all seconds."""
    terminal, end = pty.openpty()
    start = time.perf_counter()
    process = subprocess.Popen([COMMAND, "view", *map(str, arguments)], stdout=subprocess.DEVNULL, stderr=end)
    os.close(end)
    seen = []
    while True:
        try:
            text = os.read(terminal, 4096)
        except OSError:  # the command has ended
            break
        seen += [(time.perf_counter() - start, int(percent)) for percent in re.findall(rb"(\d+)/100 ", text)]
    assert process.wait() == 0
    os.close(terminal)
    return seen, time.perf_counter() - start


def test_progress_is_that_of_the_whole_work(tmp_path):
    """The moves along the tangent, which follow the maps, included: of 64 queries they are nearly all of it."""
    for keys in (16000, 32000, 64000):  # until it takes long enough for a bar
        seen, seconds = watch(f"q64 k{keys} d8 f32", "--maps", "vjp_jvp", "--out", tmp_path / "page.html")
        if len(seen) >= 2:
            break
    percents = [percent for _, percent in seen]
    assert percents == sorted(percents) and percents[-1] > 50
    assert all(percent < 95 for at, percent in seen if at < 0.7 * seconds), seen
