"""The closing table: the goals for speed and error, and the worst and the best case of each."""

from cases import FOUR_MAPS

GRADIENTS = ("dq", "dk", "dv")


def of_kind(finished, kind):
    return [case for case in finished if case.kind == kind]


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
    """The ratio of two rates, each relative to the probe of its case, so that the machine's clock cancels."""
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


def causal_rates(finished, dtype):
    plain = {"dtype": dtype, "isa": "auto", "window": 0, "n_q": lambda n: n >= 2048}
    found = pairs_of(
        find(finished, causal=True, **plain),
        find(finished, causal=False, **plain),
        "n_q",
        "n_k",
        "dim",
        "threads",
        "heads",
    )
    return [(rate_ratio(a, name, b, name), a.label) for name in FOUR_MAPS for a, b in found]


def scaling(finished, **wanted):
    """The speedup of several threads divided by that of the probe in the same run."""
    found = pairs_of(
        find(finished, threads=lambda t: t > 1, causal=False, **wanted),
        find(finished, threads=1, causal=False, **wanted),
        "n_q",
        "n_k",
        "dim",
        "heads",
    )
    return [(rate_ratio(a, name, b, name), a.label) for name in FOUR_MAPS for a, b in found]


def window_gain(finished):
    square = {"causal": True, "n_q": 8192, "dim": 64, "threads": 1, "dtype": "f32"}
    found = pairs_of(find(finished, window=256, **square), find(finished, window=0, **square), "heads")
    return [(rate_ratio(a, name, b, name) * b.pairs / a.pairs, a.label) for name in FOUR_MAPS for a, b in found]


def layer_gains(finished, dtype):
    """Speedups over nn.MultiheadAttention with the largest number of threads."""
    max_threads = max((case.threads for case in of_kind(finished, "layer")), default=1)
    return [
        (fastest_peer(case) / case.results["ours"], case.label)
        for case in find(of_kind(finished, "layer"), dtype=dtype, threads=max_threads)
        if fastest_peer(case)
    ]


def fastest_peer(case):
    """Milliseconds of the fastest variant of the peer of a layer or a product; None if there is no peer."""
    peers = ("torch", "onednn")
    return min((ms for name, ms in case.results.items() if name.startswith(peers)), default=None)


def product_gains(finished, dtype):
    return [
        (fastest_peer(case) / case.results["ours"], case.label)
        for case in find(of_kind(finished, "product"), dtype=dtype)
        if fastest_peer(case)
    ]


def error_gains(finished):
    return [
        (case.results[name]["torch"] / case.results[name]["ours"], f"{name} of {case.text}")
        for case in of_kind(finished, "error")
        for name in GRADIENTS
        if name in case.results
    ]


def float32_rows(finished):
    """Rows of the closing table: what, must, aim, unit, and the measured values with the labels of their cases."""
    f32 = {"dtype": "f32", "isa": "auto"}
    one = f32 | {"threads": 1, "causal": False, "n_q": lambda n: n >= 1024, "n_k": lambda n: n <= 8192}
    large = f32 | {"n_q": lambda n: n >= 1024, "dim": lambda d: d <= 128, "window": 0}
    twelve = f32 | {"heads": 12, "n_q": 2048, "dim": 64, "window": 0}
    single = f32 | {"heads": 1, "n_q": 8192, "dim": 64, "window": 0}
    all_threads = {"threads": lambda t: t > 1}
    unfused = f32 | {"n_q": 2048, "dim": 64, "causal": False} | all_threads

    def share(name, dim):
        return f"{name}, 1 thread, D {dim}, of the probe"

    def part(name, **wanted):
        return percents(finished, name, **wanted)

    def gain(ours, theirs, wanted):
        return speedups(finished, ours, theirs, **wanted)

    def against_torch(name, theirs, must, aim):
        for label, threads in ("1 thread", {"threads": 1}), ("all threads", all_threads):
            yield f"{name} against PyTorch, {label}", must, aim, "x", gain([name], theirs, large | threads)

    return [
        (share("forward", 64), 82, 87, "%", part("forward", dim=64, **one)),
        (share("forward", 128), 82, 91, "%", part("forward", dim=128, **one)),
        (share("vjp", 64), 85, 91, "%", part("vjp", dim=64, **one)),
        (share("vjp", 128), 85, 92, "%", part("vjp", dim=128, **one)),
        ("jvp's rate over vjp's", 0.9, 1, "x", rates_against(finished, "jvp", "vjp", **one)),
        ("vjp_jvp's rate over vjp's", 0.9, 1, "x", rates_against(finished, "vjp_jvp", "vjp", **one)),
        ("jvp_jvp's rate over jvp's", 0.85, 1, "x", rates_against(finished, "jvp_jvp", "jvp", **one)),
        ("causal over not, N >= 2048", 0.9, 0.97, "x", causal_rates(finished, "f32")),
        ("all threads over one, of the probe's: 12 heads", 0.95, 0.98, "x", scaling(finished, **twelve)),
        ("all threads over one, of the probe's: 1 head", 0.88, 0.98, "x", scaling(finished, **single)),
        *against_torch("forward", "torch forward", 1.2, 1.4),
        *against_torch("vjp", "torch backward", 1.3, 1.5),
        ("jvp against PyTorch unfused", 6, 7.3, "x", gain(["jvp"], "torch jvp", unfused)),
        (
            "four maps against PyTorch unfused",
            3,
            3.5,
            "x",
            gain(FOUR_MAPS, "torch forward+backward+double", unfused),
        ),
        ("window 256 of 8192 against causal", 10, 12.5, "x", window_gain(finished)),
        ("float64 forward, of the float64 probe", 75, 88, "%", part("forward", dtype="f64")),
        ("float64 vjp, of the float64 probe", 78, 88, "%", part("vjp", dtype="f64")),
        ("AVX2 forward, of the 256-bit probe", 75, 85, "%", part("forward", isa="avx2")),
        ("AVX2 vjp, of the 256-bit probe", 75, 85, "%", part("vjp", isa="avx2")),
    ]


def bfloat16_rows(finished, amx):
    """The same for bf16 attention. Its shares are relative to the AMX probe."""
    bf16 = {"dtype": "bf16", "n_q": lambda n: n >= 1024}
    one = bf16 | {"threads": 1, "causal": False}
    many = bf16 | {"threads": lambda t: t > 1}
    on_amx = [case for case in finished if case.results["on_amx"]]

    def share(name, dim, must, aim):
        found = percents(on_amx, name, dim=dim, **one)
        if not found and percents(finished, name, dim=dim, **one):
            found = "no plan uses AMX" if amx else "no AMX that this process may use"
        return f"bf16 {name}, 1 thread, D {dim}, of the AMX probe", must, aim, "%", found

    return [
        share("forward", 64, 33, 45),
        share("forward", 128, 38, 60),
        share("vjp", 64, 30, 48),
        share("vjp", 128, 33, 55),
        ("bf16 jvp's rate over vjp's", 0.85, 1, "x", rates_against(finished, "jvp", "vjp", **one)),
        ("bf16 vjp_jvp's rate over vjp's", 0.85, 1, "x", rates_against(finished, "vjp_jvp", "vjp", **one)),
        ("bf16 jvp_jvp's rate over jvp's", 0.85, 1, "x", rates_against(finished, "jvp_jvp", "jvp", **one)),
        ("bf16 causal over not, N >= 2048", 0.85, 0.95, "x", causal_rates(finished, "bf16")),
        (
            "bf16 forward against PyTorch, all threads",
            2.5,
            4,
            "x",
            speedups(finished, ["forward"], "torch forward", **many),
        ),
        (
            "bf16 vjp against PyTorch, all threads",
            4,
            8,
            "x",
            speedups(finished, ["vjp"], "torch backward", **many),
        ),
    ]


def layer_rows(finished, no_one_dnn):
    def products(dtype):
        return no_one_dnn or product_gains(finished, dtype)

    return [
        ("small layer f32 against MultiheadAttention", 3, 3.7, "x", layer_gains(finished, "f32")),
        ("small layer bf16 against MultiheadAttention", 4, 8, "x", layer_gains(finished, "bf16")),
        ("layer's products f32 against oneDNN", 0.95, 1.05, "x", products("f32")),
        ("layer's products bf16 against oneDNN", 0.9, 1.05, "x", products("bf16")),
        ("PyTorch's error of bf16 gradients over ours", 1, 2, "x", error_gains(finished)),
    ]


def number(value, unit):
    return f"{value:.1f}%" if unit == "%" else f"{value:.2f} x"


def table_of(about, finished):
    """All rows; a row without measured values has the reason instead."""
    maps = of_kind(finished, "maps")
    table = float32_rows(maps) + bfloat16_rows(maps, about["amx"]) + layer_rows(finished, about["no_onednn"])
    for what, must, aim, unit, found in table:
        if not found and not about["torch"] and ("PyTorch" in what or "Multihead" in what):
            found = "no PyTorch"
        yield what, must, aim, unit, found or "not in this run"


def ratio_table(about, finished):
    """The table as text: the worst and the best case of each row, compared with `must` and `aim`."""
    lines = [f"{'':48} {'must':>8} {'aim':>8} {'worst':>8} {'best':>8}  cases  worst case"]
    for what, must, aim, unit, found in table_of(about, finished):
        wanted = f"{what:48} {number(must, unit):>8} {number(aim, unit):>8}"
        if isinstance(found, str):
            lines.append(f"{wanted} not measured: {found}")
            continue
        worst, best = min(found), max(found)
        missed = "" if worst[0] >= must else "  MISSED"
        lines.append(
            f"{wanted} {number(worst[0], unit):>8} {number(best[0], unit):>8} {len(found):6}  {worst[1]}{missed}"
        )
    return lines


def markdown(about, finished):
    """The same in Markdown."""
    lines = ["| | must | aim | worst | best |", "|---|---|---|---|---|"]
    for what, must, aim, unit, found in table_of(about, finished):
        ends = ("not measured", found) if isinstance(found, str) else (min(found)[0], max(found)[0])
        cells = [x if isinstance(x, str) else number(x, unit) for x in (what, must, aim, *ends)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
