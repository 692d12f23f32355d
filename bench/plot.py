"""The plot of one run: shares of the probe, and PyTorch's times divided by ours, over the sequence length."""

from cases import EVERY_MAP
from goals import find, of_kind


def plot(about, finished, stem):
    """Writes the plot. Returns the lines to print about it."""
    try:
        import matplotlib
    except ImportError:
        return ["no plot: matplotlib is not installed"]
    matplotlib.use("Agg")
    from matplotlib import pyplot

    square = find(
        of_kind(finished, "maps"),
        dtype=lambda dtype: dtype != "f64",
        isa="auto",
        window=0,
        n_q=lambda n: 64 < n <= 8192,
    )
    columns = sorted({(case.dtype, case.dim) for case in square}, key=lambda c: (c[0] != "f32", c[1]))
    if not columns:
        return ["no plot: no case was finished"]
    figure, axes = pyplot.subplots(2, len(columns), figsize=(5 * len(columns), 8), squeeze=False, sharex=True)
    for n, (dtype, dim) in enumerate(columns):
        cases = find(square, dtype=dtype, dim=dim)
        draw_percents(axes[0][n], find(cases, threads=1))
        draw_speedups(axes[1][n], cases)
        axes[0][n].set_title(f"{dtype}, D {dim}")
    axes[0][0].set_ylabel("% of the probe, one thread")
    axes[1][0].set_ylabel("PyTorch's time / ours")
    figure.suptitle(
        f"attngrad {about['version']} on {about['cpu']}; PyTorch {about['torch']}; {about['date']}"
    )
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix))
    return [f"plot: {stem.with_suffix('.png')}, .svg"]


def draw_line(axis, color, label, points, style):
    points = sorted(points)
    if points:
        axis.plot([x for x, _ in points], [y for _, y in points], style, label=label, color=color)


def draw_percents(axis, square):
    for color, name in zip(("C0", "C1", "C2", "C3", "C4"), EVERY_MAP):
        for causal, style in ((False, "o-"), (True, "s--")):
            points = [
                (case.n_q, case.results[name]["percent_of_probe"])
                for case in find(square, causal=causal, maps=lambda maps, name=name: name in maps)
            ]
            draw_line(axis, color, name + (" causal" if causal else ""), points, style)
    finish_axis(axis, 0)


def draw_speedups(axis, square):
    for color, ours, theirs in (("C0", "forward", "torch forward"), ("C1", "vjp", "torch backward")):
        for threads, style in zip(sorted({case.threads for case in square}), ("o-", "s--")):
            points = [
                (case.n_q, case.results[theirs]["ms"] / case.results[ours]["ms"])
                for case in find(square, threads=threads, causal=False)
                if theirs in case.results
            ]
            draw_line(axis, color, f"{ours}, {threads} thread{'s' * (threads > 1)}", points, style)
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("N")
    finish_axis(axis, 0)


def finish_axis(axis, low):
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=low)
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)
