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
from view_pages import arrays, call, read, run, save


def test_command_and_python_write_the_same_page(tmp_path):
    inputs, e = call()
    run(*save(tmp_path, **inputs), "--heads", "0", "--sequences", "0", "--out", tmp_path / "command.html")
    e.save_html(tmp_path / "python.html")
    pages = [(tmp_path / name).read_text() for name in ("command.html", "python.html")]
    assert re.sub(r'"facts":\[".*?",', '"facts":[', pages[0]) == pages[1]


def test_not_a_number_in_files(tmp_path):
    q, k, v = arrays(4, 3), arrays(5, 3), arrays(5, 2)
    q[1, 0], v[2, 1] = np.nan, -np.inf
    result = run(*save(tmp_path, q=q, k=k, v=v), "--out", tmp_path / "page.html")
    assert "NaN or infinite, and left out of norms and ranges: Q 1, V 1" in " ".join(result.stdout.split())
    data, found = read(tmp_path / "page.html")
    stats = {x["name"]: x["stats"] for x in data["heads"][0]["variables"]}
    assert stats["Q"]["nan"] == 1 and stats["V"]["infinite"] == 1 and stats["P"]["nan"] == 5
    np.testing.assert_array_equal(found["V", "full"], v.ravel())


def test_notes_name_or_count_every_variable(tmp_path):
    """A line has the first of many variables with NaN, and how many more there are."""
    inputs, _ = call(n_q=30, n_k=40)
    inputs["q"][:, :, 0] = np.nan
    run(*save(tmp_path, **inputs), "--out", tmp_path / "page.html")
    data, _ = read(tmp_path / "page.html")
    (note,) = (note for note in data["notes"] if note.startswith("NaN or infinite"))
    names, more = re.fullmatch(r"[^:]*: (.*) and (\d+) more\.", note).groups()
    stats = [{v["name"]: v["stats"] for v in head["variables"]} for head in data["heads"]]
    counts = {name: sum(s[name]["nan"] + s[name]["infinite"] for s in stats) for name in stats[0]}
    want = [f"{name} {count}" for name, count in counts.items() if count]
    listed = names.split(", ")
    assert len(stats) == 2 and "in all heads together" in note and len(listed) > 8
    assert listed == want[: len(listed)] and int(more) == len(want) - len(listed)


def test_facts_are_words(tmp_path):
    """Sizes and features of the problem, without the words of its text form."""
    cases = {
        "b2 h4 kv2 q24 d8 f32 causal window=8,0 softcap=3 dropout=0.25 sink alibi mask=11qk": [
            "2 sequences of 24 queries and 24 keys",
            "4 heads of Q and 2 of K and V, of 8 channels",
            "float32",
            "causal",
            "window of 8 keys before a query and 0 keys after it",
            "softcap 3",
            "mask per query and key",
            "ALiBi",
            "sink",
        ],
        "q3 k1 d2 dv1 bf16 out=f32 bias=1111 table=4 scale=0.3 align=bottom-right window=-1,1 head_offset=2": [
            "3 queries and 1 key",
            "1 head of 2 channels, 1 in V, the first is head 2 of its layer",
            "bfloat16, outputs float32",
            "window of all keys before a query and 1 key after it",
            "the last query is at the last key",
            "scale 0.3",
            "bias, the same for all pairs",
            "bias per distance up to 4, 9 numbers per head",
        ],
    }
    for problem, want in cases.items():
        run(problem, "--out", tmp_path / "page.html")
        seed, *facts = read(tmp_path / "page.html")[0]["facts"]
        if "dropout" in problem:
            assert re.fullmatch(r"dropout 0\.25, seed \d+", facts.pop())
        assert (seed, facts) == ("seed 1", want)


@pytest.mark.parametrize("lengths", [[10, 900], [900, 10], [950, 760]])
def test_every_pooled_sequence_has_a_note(tmp_path, lengths):
    x = arrays(2, 1, 950, 2)
    options = save(tmp_path, q=x, k=x, v=x)
    np.save(tmp_path / "lengths.npy", np.array(lengths))
    options += ["--q-lengths", tmp_path / "lengths.npy", "--kv-lengths", tmp_path / "lengths.npy"]
    run(*options, "--sequences", "0,1", "--maps", "forward", "--out", tmp_path / "page.html")
    data, _ = read(tmp_path / "page.html")
    notes = [note for note in data["notes"] if "too large" in note]
    for n, head in enumerate(data["heads"]):
        which = f"The matrices of sequence {n}"
        has = [note for note in notes if note.startswith(f"{which} are too large")]
        assert len(has) == ("pool" in head)
        if has:
            pool, (first, end) = head["pool"], head["window"]["queries"]
            assert f"stands for {pool['queries']} queries and {pool['keys']} keys" in has[0]
            assert f"Queries {first} to {end - 1} and" in has[0]
    assert sum("pool" in head for head in data["heads"]) == sum(length > 10 for length in lengths)
    assert len(notes) == len({length for length in lengths if length > 10})


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
