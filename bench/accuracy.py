"""How exact the 16-bit maps are: errors of every output over 216 settings, divided by the error of the exact result
rounded once, next to PyTorch's fused attention and its unfused formula on the same inputs.
usage: accuracy.py BUILD [--quick] [--only TEXT] [--draw N] [--isa NAME] [--out FOLDER]

Exact is our float64 result on the same rounded inputs. Errors are relative, in Frobenius norms; those of lse and mu are
the largest absolute ones. "low": vjp and vjp_jvp are given what rounding took from o and to (o_low, to_low). Exits with status 1 if a
limit is broken."""

import argparse
import ctypes
import itertools
import json
import sys
import time
from ctypes import byref, c_int64
from pathlib import Path

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from library import MAPS, Args, Buffer, Library, Plan, Tensor

DTYPES = {"f16": torch.float16, "bf16": torch.bfloat16, "f64": torch.float64}
OUTPUTS = ("o", "lse", "dq", "dk", "dv", "to", "mu", "tdq", "tdk", "tdv")
STATISTICS = ("lse", "mu")
LIKE = {"o": "q", "to": "q", "q": "q", "k": "k", "v": "v"}  # whose shape an output has, without its d or td

# With the low halves: limits of the ratios, on AMX, where weights have 16 bits, and elsewhere. Without them the limit is
# PEER_LIMIT times the error of PyTorch's fused attention.
LIMITS = {
    "amx": {"o": 1.55, "dq": 1.75, "dk": 1.75, "dv": 1.60},
    "other": {"o": 1.10, "dq": 1.10, "dk": 1.10, "dv": 1.10},
}
MAX_LSE_ERROR = 1e-4
PEER_LIMIT = 1.05


def settings(quick):
    lengths = (64, 128, 512) if quick else (64, 128, 256, 512, 1024, 2048)
    dims = (64,) if quick else (32, 64, 128)
    return itertools.product(lengths, dims, (0.1, 1, 6), (False, True), (False, True))


def name_of(setting):
    length, dim, factor, near, causal = setting
    return f"N {length} D {dim} q x {factor}{' dO near O' if near else ''}{' causal' if causal else ''}"


class Maps:
    """Our four maps on tensors of one dtype and instruction set."""

    def __init__(self, library, dtype, isa, shape, causal):
        batch, heads, length, dim = shape
        text = f"b{batch} h{heads} q{length} k{length} d{dim} {dtype}{' causal' if causal else ''}"
        self.library, self.dtype = library, DTYPES[dtype]
        self.plan = Plan(library, text, 0, isa)

    def call(self, name, tensors):
        args = Args(struct_size=ctypes.sizeof(Args))
        for field, x in tensors.items():
            setattr(args, field, Tensor(x.data_ptr(), (c_int64 * 4)(*x.stride())))
        workspace = Buffer(self.plan.workspace(MAPS[name][0]))
        function = getattr(self.library.lib, "ag_" + name)
        self.library.check(function(self.plan.plan, byref(args), None, workspace.address, workspace.size))

    def outputs(self, inputs, *names):
        def empty(name):
            if name in STATISTICS:
                return torch.empty(*inputs["q"].shape[:3], 1, dtype=torch.float64)
            like = LIKE[name.removesuffix("_low").removeprefix("t").removeprefix("d") or "to"]
            return torch.empty(inputs[like].shape, dtype=self.dtype)

        return {name: empty(name) for name in names}

    def run(self, inputs, low):
        """Every output of the four maps."""
        inputs = {name: x.to(self.dtype) for name, x in inputs.items()}
        primal = {name: inputs[name] for name in ("q", "k", "v")}
        tangents = {name: inputs[name] for name in ("tq", "tk", "tv")}
        cotangents = {name: inputs[name] for name in ("d_o", "td_o")}
        forward = self.outputs(inputs, "o", "lse", *(("o_low",) if low else ()))
        self.call("forward", primal | forward)
        vjp = self.outputs(inputs, "dq", "dk", "dv")
        self.call("vjp", primal | {"d_o": inputs["d_o"]} | forward | vjp)
        jvp = self.outputs(inputs, "o", "lse", "to", "mu", *(("o_low", "to_low") if low else ()))
        self.call("jvp", primal | tangents | jvp)
        vjp_jvp = self.outputs(inputs, "tdq", "tdk", "tdv")
        self.call("vjp_jvp", primal | tangents | cotangents | jvp | vjp_jvp)
        self.plan.close()
        return {name: x for name, x in (jvp | forward | vjp | vjp_jvp).items() if name in OUTPUTS}


def make_inputs(library, dtype, setting, draw):
    """Random inputs in the dtype; near: dO is O and 5% of noise."""
    length, dim, factor, near, causal = setting
    generator = torch.Generator().manual_seed(length + dim + draw)
    shape = (1, max(2, 2048 // length), length, dim)
    names = ("q", "k", "v", "d_o", "tq", "tk", "tv", "td_o")
    inputs = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name in names}
    inputs["q"] *= factor
    inputs = {name: x.to(DTYPES[dtype]) for name, x in inputs.items()}
    exact = Maps(library, "f64", "auto", shape, causal).run(inputs, False)
    if near:
        noise = 0.05 * exact["o"].std() * inputs["d_o"].double()
        inputs["d_o"] = (exact["o"] + noise).to(DTYPES[dtype])
        exact = Maps(library, "f64", "auto", shape, causal).run(inputs, False)
    return inputs, exact


def peer(inputs, causal, backend):
    q, k, v = (inputs[name].detach().requires_grad_() for name in "qkv")
    with sdpa_kernel([backend]):
        o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        gradients = torch.autograd.grad(o, (q, k, v), inputs["d_o"])
    return {"o": o.detach(), **dict(zip(("dq", "dk", "dv"), gradients))}


def relative_error(x, exact):
    return ((x.double() - exact).norm() / exact.norm()).item()


def ratios(results, exact, dtype):
    """Of each output: its error over that of the exact result rounded once; of lse and mu the error itself."""
    found = {}
    for name, x in results.items():
        if name in STATISTICS:
            seen = exact[name].isfinite()
            found[name] = (x - exact[name])[seen].abs().max().item()
        else:
            rounded = exact[name].to(DTYPES[dtype])
            found[name] = relative_error(x, exact[name]) / relative_error(rounded, exact[name])
    return found


def instruction_sets(library, dtype, wanted):
    """The wanted one, all, or AMX, which multiplies bfloat16, and the fastest vectors: those differ in arithmetic."""
    known = ("amx", "avx512", "avx2", "neon", "scalar")
    usable = [isa for isa in known if isa in library.available and (isa != "amx" or dtype == "bf16")]
    if wanted:
        return [isa for isa in usable if wanted in (isa, "all")]
    return usable[: 2 if usable[0] == "amx" else 1]


def measure(library, dtype, setting, draw, isa_wanted):
    """Yields (who, ratios) for one setting."""
    inputs, exact = make_inputs(library, dtype, setting, draw)
    shape, causal = inputs["q"].shape, setting[4]
    for isa in instruction_sets(library, dtype, isa_wanted):
        for low in (True, False):
            results = Maps(library, dtype, isa, shape, causal).run(inputs, low)
            yield isa + (" low" if low else ""), ratios(results, exact, dtype)
    for who, backend in (("PyTorch flash", SDPBackend.FLASH_ATTENTION), ("PyTorch unfused", SDPBackend.MATH)):
        yield who, ratios(peer(inputs, causal, backend), exact, dtype)


def run_all(library, chosen, draw, isa=None):
    """{(dtype, who): {setting: ratios}}"""
    found, start = {}, time.monotonic()
    for n, (dtype, setting) in enumerate(chosen):
        left = (time.monotonic() - start) / n * (len(chosen) - n) if n else 0
        print(f"\r{n}/{len(chosen)}  {dtype} {name_of(setting)}  {left:.0f} s left\033[K", end="", file=sys.stderr)
        for who, values in measure(library, dtype, setting, draw, isa):
            found.setdefault((dtype, who), {})[name_of(setting)] = values
    print("\r\033[K", end="", file=sys.stderr)
    return found


def worst(by_setting, name):
    return max((values[name], setting) for setting, values in by_setting.items() if name in values)


def table(found):
    """Lines of a table: median and worst ratio of each output, and where the worst one is."""
    lines = ["| dtype | who | output | median | worst | at |", "|---|---|---|---|---|---|"]
    for (dtype, who), by_setting in found.items():
        for name in OUTPUTS:
            values = sorted(v[name] for v in by_setting.values() if name in v)
            if values:
                value, at = worst(by_setting, name)
                lines.append(f"| {dtype} | {who} | {name} | {values[len(values) // 2]:.3g} | {value:.3g} | {at} |")
    return lines


def against_peer(found, dtype, who, name):
    """The worst ratio of our error to that of PyTorch's fused attention in the same setting."""
    ours, theirs = found[dtype, who], found[dtype, "PyTorch flash"]
    return max((ours[setting][name] / theirs[setting][name], setting) for setting in ours)


def goals(found):
    """Yields (text, worst value, limit, setting)."""
    for dtype, who in found:
        if who.startswith("PyTorch"):
            continue
        isa, _, low = who.partition(" ")
        value, at = worst(found[dtype, who], "lse")
        yield f"{dtype} {who} lse", value, MAX_LSE_ERROR, at
        for name, limit in LIMITS["amx" if isa == "amx" else "other"].items():
            if low:
                value, at = worst(found[dtype, who], name)
                yield f"{dtype} {who} {name}", value, limit, at
            else:
                value, at = against_peer(found, dtype, who, name)
                yield f"{dtype} {who} {name} over PyTorch flash", value, PEER_LIMIT, at


def goal_lines(found):
    lines = ["| worst of all settings | value | limit | | at |", "|---|---|---|---|---|"]
    for text, value, limit, at in goals(found):
        verdict = "met" if value <= limit else "missed"
        lines.append(f"| {text} | {value:.3g} | {limit:.3g} | {verdict} | {at} |")
    return lines


def plot(found, stem):
    """One panel per dtype and output: the ratios of each setting, sorted, one line for each of us and of PyTorch."""
    try:
        import matplotlib
    except ImportError:
        return "no plot: matplotlib is not installed"
    matplotlib.use("Agg")
    from matplotlib import pyplot

    dtypes = sorted({dtype for dtype, _ in found})
    names = ("o", "dq", "dk", "dv", "to", "tdq", "tdk", "tdv")
    figure, axes = pyplot.subplots(
        len(dtypes), len(names), figsize=(3 * len(names), 3.2 * len(dtypes)), squeeze=False, sharey=True
    )
    for row, dtype in zip(axes, dtypes):
        for axis, name in zip(row, names):
            for (of, who), by_setting in found.items():
                values = sorted(v[name] for v in by_setting.values() if name in v)
                if of == dtype and values:
                    axis.plot(values, label=who)
            axis.set_title(f"{dtype} {name}")
            axis.set_xlabel("settings, sorted")
            axis.grid(alpha=0.3)
        row[0].set_ylabel("error / error of rounding once")
        row[0].legend(fontsize="small")
    figure.tight_layout()
    for suffix in (".png", ".svg"):
        figure.savefig(stem.with_suffix(suffix))
    return f"plot: {stem.with_suffix('.png')}, .svg"


def main():
    parser = argparse.ArgumentParser(prog="accuracy.py", description=__doc__.split("usage:")[0])
    parser.add_argument("build", metavar="BUILD", help="folder of a release build")
    parser.add_argument("--quick", action="store_true", help="36 settings instead of 216")
    parser.add_argument("--only", default="", metavar="TEXT", help='settings whose name contains this: "bf16 N 64"')
    parser.add_argument("--draw", default=0, type=int, metavar="N", help="added to the seed of the random inputs")
    parser.add_argument("--isa", metavar="NAME", help="avx2, scalar, ... or all, instead of AMX and the fastest vectors")
    parser.add_argument("--out", default=Path(__file__).parent / "results", type=Path, metavar="FOLDER")
    options = parser.parse_args()
    library = Library(options.build, probes=False)
    if options.isa and options.isa not in library.available | {"all"}:
        sys.exit(f"accuracy: no instruction set {options.isa!r} here, only {', '.join(library.available)}")
    chosen = [
        (dtype, setting)
        for dtype in ("bf16", "f16")
        for setting in settings(options.quick)
        if options.only in f"{dtype} {name_of(setting)}"
    ]
    if not chosen:
        sys.exit(f"accuracy: no setting contains {options.only!r}")
    found = run_all(library, chosen, options.draw, options.isa)
    options.out.mkdir(parents=True, exist_ok=True)
    stem = options.out / time.strftime("accuracy-%Y%m%d-%H%M%S")
    about = f"attngrad {library.info()['version']} on {library.info()['cpu']}, PyTorch {torch.__version__}"
    lines = [about, "", *table(found), "", *goal_lines(found)]
    stem.with_suffix(".md").write_text("\n".join(lines) + "\n")
    results = {f"{dtype} {who}": by_setting for (dtype, who), by_setting in found.items()}
    stem.with_suffix(".json").write_text(json.dumps({"about": about, "errors": results}, indent=1) + "\n")
    print("\n".join(lines))
    print(plot(found, stem))
    print(f"written: {stem.with_suffix('.md')}, .json")
    if any(value > limit for _, value, limit, _ in goals(found)):
        sys.exit("accuracy: a limit is broken")


if __name__ == "__main__":
    main()
