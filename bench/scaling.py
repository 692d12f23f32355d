"""How the maps scale with the number of threads: the cases, the table and the plot of bench.py --threads LIST."""

import argparse
import os

from cases import EVERY_MAP, Case

PEERS = {"forward": "torch forward", "vjp": "torch backward"}

# Many heads; few heads, whose work has to be split; and short calls, which a few threads run best.
SHAPES = (
    {"heads": 32, "n": 2048, "dim": 64, "dtype": "f32", "maps": ("forward", "vjp")},
    {"heads": 2, "n": 8192, "dim": 64, "dtype": "f32", "maps": EVERY_MAP},
    {
        "heads": 2,
        "n": 16384,
        "dim": 128,
        "dtype": "bf16",
        "causal": True,
        "maps": EVERY_MAP,
    },
    *(
        {"heads": 12, "n": n, "dim": 64, "dtype": dtype, "maps": ("forward", "vjp")}
        for n in (128, 512)
        for dtype in ("f32", "bf16")
    ),
)


def counts(text):
    """The numbers of threads of --threads: "1,2,4"."""
    words, limit = text.split(","), len(os.sched_getaffinity(0))
    if not all(word.isdigit() and int(word) > 0 for word in words):
        raise argparse.ArgumentTypeError(f"'{text}' is not a list of numbers such as 1,2,4")
    if max(map(int, words)) > limit:
        raise argparse.ArgumentTypeError(f"'{text}': {limit} processors are what this process may use")
    return sorted({int(word) for word in words})


def cases_of(numbers):
    """Each shape with each number of threads, next to each other."""
    return [
        Case(shape["heads"], shape["n"], shape["n"], shape["dim"], threads, **rest(shape))
        for shape in SHAPES
        for threads in numbers
    ]


def rest(shape):
    return {name: value for name, value in shape.items() if name not in ("heads", "n", "dim")}


def rows_of(finished):
    """(problem, map, {threads: ms}, {threads: PyTorch's ms}) of every map of every shape."""
    rows = {}
    for case in finished:
        for name in case.maps:
            ours, theirs = rows.setdefault((case.text, name), ({}, {}))
            ours[case.threads] = case.results[name]["ms"]
            if PEERS.get(name) in case.results:
                theirs[case.threads] = case.results[PEERS[name]]["ms"]
    return [(*key, *times) for key, times in rows.items()]


def table(finished):
    """Per row the milliseconds with each number of threads, how many times as fast that is as the fewest threads,
    and how many times as fast as PyTorch with as many."""
    lines = [
        f"{'problem':42} {'map':8} {'threads':>7} {'ms':>10} {'speedup':>8} {'PyTorch ms':>11} {'ratio':>6}"
    ]
    for text, name, ours, theirs in rows_of(finished):
        first = min(ours)
        for threads, ms in sorted(ours.items()):
            label = f"{text:42} {name:8}" if threads == first else " " * 51
            right = f" {theirs[threads]:11.3f} {theirs[threads] / ms:6.2f}" if threads in theirs else ""
            lines.append(f"{label} {threads:7} {ms:10.3f} {ours[first] / ms:8.2f}{right}")
    return lines


def plot(about, finished, stem):
    """Speedup over threads, a panel per problem. Returns the lines to print about it."""
    try:
        import matplotlib
    except ImportError:
        return ["no plot: matplotlib is not installed"]
    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = rows_of(finished)
    texts = list(dict.fromkeys(row[0] for row in rows))
    if not texts:
        return ["no plot: no case was finished"]
    figure, axes = pyplot.subplots(1, len(texts), figsize=(3.6 * len(texts), 4), squeeze=False, sharey=True)
    for axis, text in zip(axes[0], texts):
        draw(axis, [row[1:] for row in rows if row[0] == text])
        axis.set_title(text, fontsize=8)
    axes[0][0].set_ylabel("times as fast as with the fewest threads")
    figure.suptitle(
        f"attngrad {about['version']} on {about['cpu']}; PyTorch {about['torch']} dashed; {about['date']}",
        fontsize=8,
    )
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix))
    return [f"plot: {stem.with_suffix('.png')}, .svg"]


def draw(axis, rows):
    for n, (name, ours, theirs) in enumerate(rows):
        for times, style, label in ((ours, "o-", name), (theirs, "s--", None)):
            if times:
                numbers, first = sorted(times), times[min(times)]
                axis.plot(numbers, [first / times[t] for t in numbers], style, color=f"C{n}", label=label)
    numbers = sorted(rows[0][1])
    axis.plot(numbers, [t / numbers[0] for t in numbers], color="grey", linewidth=0.8)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log", base=2)
    axis.set_xlabel("threads")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=7)
