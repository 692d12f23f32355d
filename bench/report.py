"""The tables of one run, as text."""

import goals
from goals import GRADIENTS, fastest_peer, find, of_kind


def map_table(finished):
    lines = [
        f"{'problem':52} {'map':8} {'ms':>10} {'GFLOP/s':>8} {'% probe':>8} {'PyTorch ms':>11} {'ratio':>6}"
    ]
    peers = {"forward": "torch forward", "vjp": "torch backward", "jvp": "torch jvp"}
    for case in of_kind(finished, "maps"):
        for name in case.maps:
            ours, theirs = case.results[name], case.results.get(peers.get(name))
            right = f" {theirs['ms']:11.3f} {theirs['ms'] / ours['ms']:6.2f}" if theirs else ""
            label = case.label if name == case.maps[0] else ""
            lines.append(
                f"{label:52} {name:8} {ours['ms']:10.3f} {ours['gflops']:8.1f} "
                f"{ours['percent_of_probe']:8.1f}{right}"
            )
    return lines


def layer_table(finished):
    """The table of the small layer and its products; each line names its peer."""
    lines = [
        f"{'layer, forward and backward; product':61} {'ms':>10} {'GFLOP/s':>8} {'peer ms':>11} {'ratio':>6}"
    ]
    names = {"layer": "nn.MultiheadAttention", "product": "oneDNN"}
    for case in finished:
        if case.kind not in names:
            continue
        theirs = fastest_peer(case)
        ours = case.results["ours"]
        rate = f"{case.results['gflops']:8.1f}" if "gflops" in case.results else ""
        right = f" {theirs:11.3f} {theirs / ours:6.2f}  {names[case.kind]}" if theirs else ""
        lines.append(f"{case.label:61} {ours:10.3f} {rate:8}{right}")
    return lines if len(lines) > 1 else []


def error_table(finished):
    """The table of errors: norm of the error divided by the norm of the gradient."""
    lines = [
        f"{'error against float64':52} {'':8} {'ours':>10} {'PyTorch':>10} {'rounding':>10} {'ratio':>6}"
    ]
    for case in of_kind(finished, "error"):
        for name in GRADIENTS:
            if name not in case.results:
                continue
            ours, theirs, smallest = (case.results[name][who] for who in ("ours", "torch", "rounding"))
            label = case.text if name == GRADIENTS[0] else ""
            lines.append(
                f"{label:52} {name:8} {ours:10.6f} {theirs:10.6f} {smallest:10.6f} {theirs / ours:6.2f}"
            )
    return lines if len(lines) > 1 else []


def probe_lines(finished):
    maps = of_kind(finished, "maps")

    def best(name, among=maps, **wanted):
        found = [case.results[name] for case in find(among, **wanted) if name in case.results]
        return f"{max(found):.1f}" if found else "not measured"

    f32, f64, many = {"dtype": "f32", "isa": "auto"}, {"dtype": "f64"}, {"threads": lambda t: t > 1}
    on_amx = [case for case in maps if case.results["on_amx"]]
    return [
        "probes, the best of the run, one thread / all:",
        f"    float32 fma, GFLOP/s  {best('probe_one', **f32)} / {best('probe', **f32, **many)}",
        f"        from the cache    {best('fed', threads=1, **f32)} / {best('fed', **f32, **many)}",
        f"    float64 fma, GFLOP/s  {best('probe_one', **f64)} / {best('probe', **f64, **many)}",
        f"        from the cache    {best('fed', threads=1, **f64)} / {best('fed', **f64, **many)}",
        f"    AMX bf16, GFLOP/s     {best('probe_one', on_amx)} / {best('probe', on_amx, **many)}",
        f"    float32 exp2, G/s     {best('exp2', threads=1, **f32)} / {best('exp2', **f32, **many)}",
    ]


def head(about):
    torch = f"PyTorch {about['torch']} with oneDNN {about['onednn']}" if about["torch"] else "no PyTorch"
    return [
        f"attngrad {about['version']} at {about['commit']}, {about['compiler']}; {torch}; {about['cpu']}, "
        f"{about['threads']} threads",
        f"{about['date']}, {about['mode']}, {about['seconds']} s, best of {about['rounds']} rounds, "
        f"load before it {about['load_before']:.1f}",
    ]


def text(about, finished):
    parts = [
        head(about),
        map_table(finished),
        layer_table(finished),
        error_table(finished),
        probe_lines(finished),
        goals.ratio_table(about, finished),
    ]
    return "\n\n".join("\n".join(part) for part in parts if part) + "\n"
