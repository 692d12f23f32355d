"""The tables and the plot of one run."""


def find(finished, **wanted):
    """The cases whose fields have these values, or satisfy these conditions."""

    def fits(case):
        return all(
            value(getattr(case, name)) if callable(value) else getattr(case, name) == value
            for name, value in wanted.items()
        )

    return [case for case in finished if fits(case)]


def pairs_of(first, second, *same):
    """Cases of two lists that agree in the fields of `same`."""
    return [
        (a, b) for a in first for b in second if all(getattr(a, name) == getattr(b, name) for name in same)
    ]


def percents(finished, name, **wanted):
    return [(case.results[name]["percent_of_probe"], case.label) for case in find(finished, **wanted)]


def rate_ratio(a, name_a, b, name_b):
    """Of two rates, each as a part of its own case's probe, so that the machine's pace cancels."""
    return a.results[name_a]["percent_of_probe"] / b.results[name_b]["percent_of_probe"]


def rates_against(finished, name, other, **wanted):
    return [
        (rate_ratio(case, name, case, other), case.label)
        for case in find(finished, maps=lambda maps: name in maps and other in maps, **wanted)
    ]


def speedups(finished, ours, theirs, **wanted):
    return [
        (case.results[theirs]["ms"] / sum(case.results[name]["ms"] for name in ours), case.label)
        for case in find(finished, **wanted)
        if theirs in case.results
    ]


def causal_rates(finished, name):
    plain = {"dtype": "f32", "isa": "auto", "window": 0, "n_q": lambda n: n >= 2048}
    found = pairs_of(
        find(finished, causal=True, **plain),
        find(finished, causal=False, **plain),
        "n_q",
        "n_k",
        "dim",
        "threads",
        "heads",
    )
    return [(rate_ratio(a, name, b, name), a.label) for a, b in found]


def scaling(finished, name, **wanted):
    """The gain of several threads over the probe's own gain in the same run."""
    found = pairs_of(
        find(finished, threads=lambda t: t > 1, causal=False, **wanted),
        find(finished, threads=1, causal=False, **wanted),
        "n_q",
        "n_k",
        "dim",
        "heads",
    )
    return [(rate_ratio(a, name, b, name), a.label) for a, b in found]


def window_gain(finished, name):
    square = {"causal": True, "n_q": 8192, "dim": 64, "threads": 1}
    found = pairs_of(find(finished, window=256, **square), find(finished, window=0, **square), "heads")
    return [(rate_ratio(a, name, b, name) * b.pairs / a.pairs, a.label) for a, b in found]


def rows(finished):
    """Of the closing table: what, must, aim, unit, and what was measured of it."""
    every = ("forward", "vjp", "jvp", "vjp_jvp")
    one = {
        "threads": 1,
        "causal": False,
        "n_q": lambda n: n >= 1024,
        "n_k": lambda n: n <= 8192,
        "dtype": "f32",
        "isa": "auto",
    }
    large = {"n_q": lambda n: n >= 1024, "dim": lambda d: d <= 128, "window": 0}
    table = []
    for name, must, aims in (("forward", 82, {64: 87, 128: 91}), ("vjp", 85, {64: 91, 128: 92})):
        for dim, aim in aims.items():
            table.append(
                (
                    f"{name}, 1 thread, D {dim}, of the probe",
                    must,
                    aim,
                    "%",
                    percents(finished, name, dim=dim, **one),
                )
            )
    for name in ("jvp", "vjp_jvp"):
        table.append((f"{name}'s rate over vjp's", 0.9, 1, "x", rates_against(finished, name, "vjp", **one)))
    table.append(
        ("causal over not, N >= 2048", 0.9, 0.97, "x", sum((causal_rates(finished, n) for n in every), []))
    )
    twelve = {"heads": 12, "n_q": 2048, "dim": 64, "window": 0}
    single = {"heads": 1, "n_q": 8192, "dim": 64, "window": 0}
    table.append(
        (
            "all threads over one, of the probe's: 12 heads",
            0.95,
            0.98,
            "x",
            sum((scaling(finished, n, **twelve) for n in every), []),
        )
    )
    table.append(
        (
            "all threads over one, of the probe's: 1 head",
            0.88,
            0.98,
            "x",
            sum((scaling(finished, n, **single) for n in every), []),
        )
    )
    table.append(
        ("forward against PyTorch", 1.2, 1.4, "x", speedups(finished, ["forward"], "torch forward", **large))
    )
    table.append(
        ("vjp against PyTorch", 1.3, 1.5, "x", speedups(finished, ["vjp"], "torch backward", **large))
    )
    unfused = {"n_q": 2048, "dim": 64, "causal": False, "threads": lambda t: t > 1}
    table.append(
        ("jvp against PyTorch unfused", 6, 7.3, "x", speedups(finished, ["jvp"], "torch jvp", **unfused))
    )
    table.append(
        (
            "all maps against PyTorch unfused",
            3,
            3.5,
            "x",
            speedups(finished, every, "torch forward+backward+double", **unfused),
        )
    )
    table.append(
        (
            "window 256 of 8192 against causal",
            10,
            12.5,
            "x",
            sum((window_gain(finished, n) for n in every), []),
        )
    )
    for name, must in (("forward", 75), ("vjp", 78)):
        table.append(
            (f"float64 {name}, of the float64 probe", must, 88, "%", percents(finished, name, dtype="f64"))
        )
    for name in ("forward", "vjp"):
        table.append(
            (f"AVX2 {name}, of the 256-bit probe", 75, 85, "%", percents(finished, name, isa="avx2"))
        )
    return table


def number(value, unit):
    return f"{value:.1f}%" if unit == "%" else f"{value:.2f} x"


def ratio_table(finished):
    """The worst and the best case of each row, against what it must and should reach."""
    lines = [f"{'':46} {'must':>8} {'aim':>8} {'worst':>8} {'best':>8}  cases  worst case"]
    for what, must, aim, unit, found in rows(finished):
        goals = f"{what:46} {number(must, unit):>8} {number(aim, unit):>8}"
        if not found:
            lines.append(f"{goals} not measured in this run")
            continue
        worst, best = min(found), max(found)
        missed = "" if worst[0] >= must else "  MISSED"
        lines.append(
            f"{goals} {number(worst[0], unit):>8} {number(best[0], unit):>8} {len(found):6}  "
            f"{worst[1]}{missed}"
        )
    return lines


def case_table(finished):
    lines = [
        f"{'problem':52} {'map':8} {'ms':>10} {'GFLOP/s':>8} {'% probe':>8} {'PyTorch ms':>11} {'ratio':>6}"
    ]
    peers = {"forward": "torch forward", "vjp": "torch backward", "jvp": "torch jvp"}
    for case in finished:
        for name in case.maps:
            ours, theirs = case.results[name], case.results.get(peers.get(name))
            right = f" {theirs['ms']:11.3f} {theirs['ms'] / ours['ms']:6.2f}" if theirs else ""
            label = case.label if name == case.maps[0] else ""
            lines.append(
                f"{label:52} {name:8} {ours['ms']:10.3f} {ours['gflops']:8.1f} "
                f"{ours['percent_of_probe']:8.1f}{right}"
            )
    return lines


def probe_lines(finished):
    def best(name, **wanted):
        found = [case.results[name] for case in find(finished, **wanted)]
        return f"{max(found):.1f}" if found else "not measured"

    f32, f64, many = {"dtype": "f32", "isa": "auto"}, {"dtype": "f64"}, {"threads": lambda t: t > 1}
    return [
        "probes, the best of the run, one thread / all:",
        f"    float32 fma, GFLOP/s  {best('probe_one', **f32)} / {best('probe', **f32, **many)}",
        f"    float64 fma, GFLOP/s  {best('probe_one', **f64)} / {best('probe', **f64, **many)}",
        f"    float32 exp2, G/s     {best('exp2', threads=1, **f32)} / {best('exp2', **f32, **many)}",
    ]


def text(about, finished):
    torch = f"PyTorch {about['torch']}" if about["torch"] else "no PyTorch"
    head = [
        f"attngrad {about['version']}, {about['compiler']}; {torch}; {about['cpu']}, "
        f"{about['threads']} threads",
        f"{about['date']}, {about['mode']}, {about['seconds']} s, best of {about['rounds']} rounds, "
        f"load before it {about['load_before']:.1f}",
    ]
    return "\n".join(
        head
        + [""]
        + case_table(finished)
        + [""]
        + probe_lines(finished)
        + [""]
        + ratio_table(finished)
        + [""]
    )


def plot(about, finished, stem):
    """Writes the plot; the lines to print about it."""
    try:
        import matplotlib
    except ImportError:
        return ["no plot: matplotlib is not installed"]
    matplotlib.use("Agg")
    from matplotlib import pyplot

    dims = sorted({case.dim for case in finished})
    if not dims:
        return ["no plot: no case was finished"]
    figure, axes = pyplot.subplots(2, len(dims), figsize=(5 * len(dims), 8), squeeze=False, sharex=True)
    for column, dim in enumerate(dims):
        square = find(finished, dim=dim, dtype="f32", isa="auto", window=0, n_q=lambda n: 64 < n <= 8192)
        draw_percents(axes[0][column], find(square, threads=1))
        draw_speedups(axes[1][column], square)
        axes[0][column].set_title(f"D {dim}")
    axes[0][0].set_ylabel("% of the FMA probe, one thread")
    axes[1][0].set_ylabel("PyTorch's time / ours")
    figure.suptitle(
        f"attngrad {about['version']} on {about['cpu']}, float32; PyTorch {about['torch']}; {about['date']}"
    )
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix))
    return [f"plot: {stem.with_suffix('.png')}, .svg"]


def draw_lines(axis, name, label, points, style):
    points = sorted(points)
    if points:
        axis.plot([x for x, _ in points], [y for _, y in points], style, label=label, color=name)


def draw_percents(axis, square):
    for color, name in zip(("C0", "C1", "C2", "C3"), ("forward", "vjp", "jvp", "vjp_jvp")):
        for causal, style in ((False, "o-"), (True, "s--")):
            points = [
                (case.n_q, case.results[name]["percent_of_probe"]) for case in find(square, causal=causal)
            ]
            draw_lines(axis, color, name + (" causal" if causal else ""), points, style)
    finish_axis(axis, 0)


def draw_speedups(axis, square):
    for color, ours, theirs in (("C0", "forward", "torch forward"), ("C1", "vjp", "torch backward")):
        for threads, style in zip(sorted({case.threads for case in square}), ("o-", "s--")):
            points = [
                (case.n_q, case.results[theirs]["ms"] / case.results[ours]["ms"])
                for case in find(square, threads=threads, causal=False)
                if theirs in case.results
            ]
            draw_lines(axis, color, f"{ours}, {threads} thread{'s' * (threads > 1)}", points, style)
    axis.axhline(1, color="grey", linewidth=0.8)
    axis.set_xlabel("N")
    finish_axis(axis, 0)


def finish_axis(axis, low):
    axis.set_xscale("log", base=2)
    axis.set_ylim(bottom=low)
    axis.grid(alpha=0.3)
    if axis.get_legend_handles_labels()[0]:
        axis.legend(fontsize=7)
