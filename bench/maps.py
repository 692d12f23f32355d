"""Times the maps of one problem, PyTorch's maps and the probes; measures the error of the bf16 gradients."""

import peers
from library import MAPS, PROBE_AMX, PROBE_EXP2, PROBE_F32, PROBE_F64, PROBE_FED_F32, PROBE_FED_F64
from library import Arrays, Buffer, Plan
from timing import BETWEEN, SETTLE


def prepare(case, library):
    """Makes the functions to be timed, and runs each once, in an order in which each finds its inputs."""
    plan = Plan(library, case.text, case.threads, case.isa)
    arrays = Arrays(case.dtype, case.heads, case.n_q, case.n_k, case.dim)
    bits = sum(MAPS[name][0] for name in case.maps)
    workspace = Buffer(plan.workspace(bits))
    ours = {name: plan.runner(name, arrays, workspace) for name in case.maps}
    theirs = peers.runners(case, arrays)
    if not case.once:
        for run in [*ours.values(), *theirs.values()]:
            run()
    return plan, ours, theirs


def probe_of(case, isa):
    """The probe of the unit that computes the products: AMX for bf16 only."""
    if case.dtype == "bf16" and isa == "amx":
        return PROBE_AMX
    return PROBE_F64 if case.dtype == "f64" else PROBE_F32


# The same with factors that are loaded from the L1 cache.
FED = {PROBE_F32: PROBE_FED_F32, PROBE_F64: PROBE_FED_F64}


def run_round(case, isa, kind, ours, theirs, best):
    best.probe("exp2", isa, PROBE_EXP2, case.threads, SETTLE)
    if case.threads > 1:
        best.probe("probe_one", isa, kind, 1, SETTLE)
    for name, run in ours.items():
        best.probe("probe", isa, kind, case.threads, SETTLE if name == "forward" else BETWEEN)
        best.time(name, run)
    for name, run in theirs.items():
        best.time(name, run)
    if kind in FED:
        best.probe("fed", isa, FED[kind], case.threads, BETWEEN)


def run(case, library, best, rounds):
    plan, ours, theirs = prepare(case, library)
    kind, rates, seconds = probe_of(case, plan.isa), best.rates, best.seconds
    for _ in range(1 if case.once else rounds):
        run_round(case, plan.isa, kind, ours, theirs, best)
    if case.threads == 1:
        rates["probe_one"] = rates["probe"]
    for name in case.maps:
        bit, flops = MAPS[name]
        rate = flops * case.pairs * case.dim / seconds[name]
        case.results[name] = {
            "ms": 1e3 * seconds[name],
            "gflops": 1e-9 * rate,
            "percent_of_probe": 100 * rate / rates["probe"],
            "workspace_bytes": plan.workspace(bit),
        }
    for name in theirs:
        case.results[name] = {"ms": 1e3 * seconds[name]}
    for name in ("probe", "probe_one", "exp2", "fed") if kind in FED else ("probe", "probe_one", "exp2"):
        case.results[name] = 1e-9 * rates[name]
    case.results["isa"] = plan.isa
    case.results["on_amx"] = kind == PROBE_AMX
    plan.close()


def run_error(case, library, _best, _rounds):
    """Errors of dQ, dK and dV relative to the norm of the true gradient: ours and PyTorch's from the same bf16
    inputs, and the smallest possible one, that of rounding the true gradient."""
    if not peers.torch:
        return
    plan = Plan(library, case.text, case.threads)
    arrays = Arrays("bf16", case.heads, case.length, case.length, case.dim)
    workspace = Buffer(plan.workspace(MAPS["forward"][0] | MAPS["vjp"][0]))
    for name in ("forward", "vjp"):
        plan.runner(name, arrays, workspace)()
    plan.close()
    true = peers.true_gradients(case, arrays)
    found = {
        "ours": peers.tensors(arrays, "dq", "dk", "dv"),
        "torch": peers.fused_gradients(case, arrays),
        "rounding": [x.bfloat16() for x in true],
    }
    for n, name in enumerate(("dq", "dk", "dv")):
        case.results[name] = {
            who: float((gradients[n].double() - true[n]).norm() / true[n].norm())
            for who, gradients in found.items()
        }
