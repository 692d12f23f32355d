"""The ranks of the tests of ring_attention: processes with gloo, started once, which run functions of this file on the
first of them, as many as a test asks for, and compare with one process."""

from __future__ import annotations

import functools
import multiprocessing
import random
import time
import traceback
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.autograd import forward_ad
from torch.func import grad, jvp
from torch.utils.checkpoint import checkpoint

from attngrad.torch import (
    _features,
    _peers,
    _ring_way,
    _ring_word,
    _shard,
    ring_attention,
    scaled_dot_product_attention,
    shard,
    unshard,
)

F64 = torch.float64
RANKS = 4
TIMEOUT = 120


class Pool:
    """run(function, size, ...) calls the function of this file with (group, ...) on `size` ranks and returns what each
    returned. timeout: seconds after which the process group gives up."""

    def __init__(self, folder, ranks=RANKS, timeout=TIMEOUT):
        context = multiprocessing.get_context("forkserver")  # imports PyTorch once, and starts no thread
        context.set_forkserver_preload(["attngrad.torch"])
        self.pipes, self.processes = [], []
        for rank in range(ranks):
            ours, theirs = context.Pipe()
            options = {"init_method": f"file://{folder}/store", "rank": rank, "world_size": ranks}
            options["timeout"] = timedelta(seconds=timeout)
            process = context.Process(target=_serve, args=(theirs, options), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def start(self, function, size, *args, **keywords):
        for pipe in self.pipes[:size]:
            pipe.send((function.__name__, size, args, keywords))

    def answer(self, rank, seconds=TIMEOUT):
        """What a rank returned."""
        assert self.pipes[rank].poll(seconds), f"rank {rank} did not answer in {seconds} s"
        is_right, answer = self.pipes[rank].recv()
        assert is_right, f"rank {rank}:\n{answer}"
        return answer

    def run(self, function, size, *args, **keywords):
        self.start(function, size, *args, **keywords)
        return [self.answer(rank) for rank in range(size)]

    def close(self):
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe, options):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", **options)
    sizes = range(1, options["world_size"] + 1)
    groups = {size: dist.new_group(range(size), timeout=options["timeout"]) for size in sizes}
    while True:
        name, size, args, keywords = pipe.recv()
        torch.manual_seed(1)
        try:
            pipe.send((True, globals()[name](groups[size], *args, **keywords)))
        except Exception:  # the parent reports it
            pipe.send((False, traceback.format_exc()))


# ---- Cases ----


@dataclass
class Case:
    """Tensors and features of a whole problem. `rows` are tensors by name that are cut by query rows on axis -2,
    `shared` those that every rank has whole."""

    n_q: int = 21
    n_k: int = 21
    heads: int = 4
    kv_heads: int = 4
    keywords: dict = field(default_factory=dict)
    rows: dict = field(default_factory=dict)
    shared: dict = field(default_factory=dict)
    batch: int = 2  # 0: there is no such axis, as with packed sequences
    dk: int = 6
    dv: int = 5


def mask(n_q, n_k):
    generator = torch.Generator().manual_seed(3)
    drawn = torch.rand(2, 1, n_q, n_k, generator=generator) > 0.4
    drawn[..., :1] = True
    return drawn


_ALL = {"is_causal": True, "window": (9, -1), "softcap": 2.0, "alibi": True, "dropout_p": 0.2, "seed": 5}
_ENDS = [0, 1, 9, 9, 10, 24]  # of packed sequences
CASES = {
    "plain": Case(),
    "cross": Case(11, 29, 4, 1),
    "causal": Case(kv_heads=2, keywords={"is_causal": True}),
    "bottom_right": Case(9, 21, keywords={"is_causal": True, "align": "bottom-right"}),
    "window": Case(kv_heads=2, keywords={"window": (2, 1), "scale": 0.3}),
    "window_and_sink": Case(keywords={"window": (1, 0)}, shared={"sink": (4,)}),
    "sees_nothing": Case(9, 30, keywords={"window": (0, 3), "q_offset": 28}),
    "slopes": Case(keywords={"alibi": [0.5, 0.1, 0.2, 0.7], "q_offset": 3, "k_offset": 1}),
    "alibi_of_six": Case(heads=6, kv_heads=3, keywords={"alibi": True, "is_causal": True}),
    "buckets": Case(keywords={"buckets": [0, 1, 1, 2, 0]}, shared={"bias_table": (1, 3)}),
    "float_mask": Case(14, 9, kv_heads=2, rows={"attn_mask": (14, 9)}),
    "bias_of_heads": Case(rows={"bias": (2, 4, 21, 1)}, keywords={"attn_mask": mask(21, 21)}),
    "bias_of_keys": Case(shared={"bias": (4, 1, 21)}, keywords={"is_causal": True}),
    "dropout": Case(kv_heads=2, keywords={"dropout_p": 0.4, "seed": 11, "batch_offset": 3, "head_offset": 2}),
    "lengths": Case(13, 17, keywords={"q_lengths": [13, 4], "kv_lengths": [2, 17]}),
    "lengths_bottom_right": Case(
        13,
        17,
        keywords={"q_lengths": [2, 11], "kv_lengths": [7, 17], "is_causal": True, "align": "bottom-right"},
    ),
    "offsets": Case(
        13,
        17,
        kv_heads=2,
        keywords={"q_offsets": [3, -1], "k_offsets": [0, 2], "is_causal": True, "dropout_p": 0.3, "seed": 4},
    ),
    "q_offsets": Case(13, 17, keywords={"q_offsets": [9, 1], "window": (4, 2), "kv_lengths": [17, 5]}),
    "packed": Case(24, 24, 4, 2, {"q_packed": _ENDS, "k_packed": _ENDS, "is_causal": True}, batch=0),
    "packed_bottom_right": Case(
        19,
        23,
        keywords={"q_packed": [0, 4, 4, 17], "k_packed": [0, 9, 12, 23], "is_causal": True, "align": "bottom-right"},
        batch=0,
    ),
    "packed_all": Case(
        *(25, 22, 4, 2),
        _ALL | {"q_packed": [0, 13, 25], "k_packed": [0, 8, 22], "q_offsets": [2, 0], "k_offsets": [1, 3]},
        shared={"bias_table": (4, 5), "sink": (4,)},
        batch=0,
    ),
    "packed_bias": Case(
        *(24, 22, 4, 2),
        {"q_packed": _ENDS, "k_packed": [0, 2, 8, 9, 16, 21], "is_causal": True, "attn_mask": mask(14, 7)[:1]},
        shared={"bias": (5, 4, 14, 7)},
        batch=0,
    ),
    "packed_bias_of_keys": Case(
        *(24, 24, 4, 2),
        {"q_packed": _ENDS, "k_packed": _ENDS, "attn_mask": mask(14, 1)[:1]},
        shared={"bias": (4, 1, 14), "sink": (4,)},
        batch=0,
    ),
    "all": Case(19, 23, 4, 2, _ALL, {"bias": (1, 4, 19, 23)}, {"bias_table": (4, 5), "sink": (4,)}, batch=1),
}


def random_case(seed):
    """Any mixture of features."""
    rng = random.Random(seed)
    some = lambda *values: rng.choice((None, *values))  # noqa: E731
    n_q, n_k = (rng.choice((rng.randint(1, 8), rng.randint(9, 30))) for _ in range(2))
    kv_heads = rng.randint(1, 4)
    heads = kv_heads * rng.randint(1, 3)
    case = Case(n_q, n_k, heads, kv_heads, batch=rng.randint(1, 2), dk=rng.randint(1, 9), dv=rng.randint(1, 9))
    lengths = lambda n: some([rng.randint(0, n) for _ in range(case.batch)])  # noqa: E731
    drawn = {
        "is_causal": rng.random() < 0.5,
        "align": rng.choice(("top-left", "bottom-right")),
        "window": some((rng.randint(-1, 9), rng.randint(-1, 9))),
        "scale": some(0.4),
        "softcap": some(2.0),
        "alibi": some(True, [rng.random() for _ in range(heads)]),
        "q_lengths": lengths(n_q),
        "kv_lengths": lengths(n_k),
        "batch_offset": rng.randint(0, 3),
        **rng.choice(({}, {"dropout_p": 0.3, "seed": seed})),
    }
    case.keywords = {name: value for name, value in drawn.items() if value is not None}
    if drawn["align"] == "top-left":
        case.keywords |= {"q_offset": rng.randint(-5, 9), "k_offset": rng.randint(-5, 9)}
    extent = lambda: tuple(rng.choice((1, n)) for n in (case.batch, heads, n_q, n_k))  # noqa: E731
    if rng.random() < 0.5:
        generator = torch.Generator().manual_seed(seed)
        case.keywords["attn_mask"] = torch.rand(extent(), generator=generator) > 0.3
    if rng.random() < 0.5:
        shape = extent()
        (case.rows if shape[2] == n_q else case.shared)["bias"] = shape
    if rng.random() < 0.4:
        case.shared["bias_table"] = (rng.choice((1, heads)), 5)
    if rng.random() < 0.4:
        case.shared["sink"] = (heads,)
    kind = rng.choice(("padded", "padded", "packed", "offsets"))
    return {"padded": lambda: case, "packed": lambda: _packed(case, rng), "offsets": lambda: _moved(case, rng)}[kind]()


def _packed(case, rng):
    """The case without a batch, but with packed sequences; a bias or mask has the sizes of the longest."""
    sequences, longest = rng.randint(1, 5), []
    has_bias, has_mask = "bias" in case.rows | case.shared, "attn_mask" in case.keywords
    for name in ("bias", "attn_mask", "q_lengths", "kv_lengths"):
        for named in (case.keywords, case.rows, case.shared):
            named.pop(name, None)
    for name, n in (("q_packed", case.n_q), ("k_packed", case.n_k)):
        ends = case.keywords[name] = [0, *sorted(rng.randint(0, n) for _ in range(sequences))]
        longest.append(max(end - start for start, end in zip(ends, ends[1:], strict=False)))
    extent = lambda: tuple(rng.choice((1, n)) for n in (sequences, case.heads, *longest))  # noqa: E731
    if has_bias:
        case.shared["bias"] = extent()
    if has_mask:
        case.keywords["attn_mask"] = torch.rand(extent(), generator=torch.Generator().manual_seed(sequences)) > 0.3
    case.batch = 0
    return case


def _moved(case, rng):
    """The case with positions of each sequence."""
    if case.keywords["align"] == "top-left":
        for name in rng.choice((("q_offset",), ("k_offset",), ("q_offset", "k_offset"))):
            del case.keywords[name]
            case.keywords[name + "s"] = [rng.randint(-5, 9) for _ in range(case.batch)]
    return case


class Problem:
    """A case as one process has it and as this rank has it: inputs, tangents, second tangents, cotangents."""

    def __init__(self, case: Case, group, dtype=F64):
        self.case, self.group = case, group
        lead, h, hk = (case.batch,) if case.batch else (), case.heads, case.kv_heads
        self.axis = len(lead) + 1  # of positions in o and lse
        shapes = {"q": (*lead, h, case.n_q, case.dk), "k": (*lead, hk, case.n_k, case.dk)}
        shapes["v"] = (*lead, hk, case.n_k, case.dv)
        shapes |= case.rows | case.shared
        self.names = list(shapes)
        draw = lambda shape: torch.randn(shape, dtype=F64).to(dtype)  # noqa: E731
        self.x, self.t, self.s = (tuple(map(draw, shapes.values())) for _ in range(3))
        self.w, self.w_lse = draw((*lead, h, case.n_q, case.dv)), torch.randn(*lead, h, case.n_q, dtype=F64)

    def cut(self, values):
        """This rank's part of tensors in the order of the names."""
        pairs = zip(self.names, values, strict=True)
        return tuple(x.clone() if name in self.case.shared else self.shard(x) for name, x in pairs)

    def shard(self, x):
        return shard(x, self.group)

    def whole_function(self):
        return _Function(self, scaled_dot_product_attention, self.case.keywords, self.w, self.w_lse, enable_gqa=True)

    def ring_function(self, way, **more):
        keywords = dict(self.case.keywords) | more
        mask = keywords.get("attn_mask")
        if mask is not None and mask.shape[-2] == self.case.n_q and self.case.batch:
            keywords["attn_mask"] = self.shard(mask)
        w_lse = shard(self.w_lse, self.group, dim=self.axis)
        return _Function(self, ring_attention, keywords, self.shard(self.w), w_lse, group=self.group, way=way)


class _Function:
    """Attention as a function of its tensors, and a loss that is not linear in its outputs."""

    def __init__(self, problem, attention, keywords, w, w_lse, **more):
        self.problem, self.attention, self.keywords, self.more = problem, attention, keywords, more
        self.w, self.w_lse = w, w_lse

    def __call__(self, q, k, v, *rest):
        named = dict(zip(self.problem.names[3:], rest, strict=True))
        return self.attention(q, k, v, **named, **self.keywords, **self.more, return_lse=True)

    def loss(self, *x):
        o, lse = self(*x)
        lse = lse.masked_fill(lse.isinf(), 0)
        return (o.sin() * self.w).sum() + (lse.cos() * self.w_lse).sum()


def first_order(function, x, t):
    """o, lse, gradients, and jvp by both interfaces."""
    x = tuple(y.detach().requires_grad_() for y in x)
    o, lse = function(*x)
    gradients = torch.autograd.grad(function.loss(*x), x)
    to, mu = jvp(function, x, t)[1]
    with forward_ad.dual_level():
        dual = function(*(forward_ad.make_dual(*pair) for pair in zip(x, t, strict=True)))[0]
        to_dual = forward_ad.unpack_dual(dual).tangent
    rows = {"o": o, "lse": lse, "to": to, "mu": mu, "to_dual": to_dual}
    return {name: y.detach() for name, y in rows.items()}, {"gradient": gradients}


def second_order(function, x, t, s, every=True):
    """Hessian times t by double backward and forward over reverse, and forward over forward; with `every` in all other
    ways too."""
    arguments = tuple(range(len(x)))
    x = tuple(y.detach().requires_grad_() for y in x)
    gradients = torch.autograd.grad(function.loss(*x), x, create_graph=True)
    dot = sum((g * u).sum() for g, u in zip(gradients, t, strict=True))
    products = {"double": torch.autograd.grad(dot, x)}
    products["forward_reverse"] = jvp(grad(function.loss, arguments), x, t)[1]
    sto, nu = jvp(lambda *y: jvp(function, y, t)[1], x, s)[1]
    rows = {"sto": sto, "nu": nu}
    if every:
        products["reverse_forward"] = grad(lambda *y: jvp(function.loss, y, t)[1], arguments)(*x)
        products["hvp"] = torch.autograd.functional.hvp(lambda *y: function.loss(*y), x, t)[1]
        rows["stto"] = jvp(lambda *y: jvp(function, y, t)[1], x, t)[1][0]
    return {name: y.detach() for name, y in rows.items()}, products


def _error(found, expected, whole):
    """Relative to the norm of the whole tensor, which may be 0 but for rounding; infinite values must be the same."""
    infinite = expected.isinf()
    assert found.shape == expected.shape and torch.equal(found[infinite], expected[infinite])
    norm = whole[whole.isfinite()].norm().item()
    return (found[~infinite] - expected[~infinite]).norm().item() / max(norm, 0.1)


def errors(problem, mine, expected):
    """Of results by rows and of tuples of gradients, all of this rank; shares are summed over the ranks."""
    (rows, tuples), (all_rows, all_tuples) = mine, expected
    found = {}
    for name, x in rows.items():
        whole = all_rows[name]
        found[name] = _error(x, shard(whole, problem.group, dim=problem.axis), whole)
    for what, gradients in tuples.items():
        for name, x, whole in zip(problem.names, gradients, all_tuples[what], strict=True):
            part = whole
            if name in problem.case.shared:
                x = x.clone()
                dist.all_reduce(x, group=problem.group)
            else:
                part = problem.shard(whole)
            found[f"{what} {name}"] = _error(x, part, whole)
    return found


def against_one_process(group, name, ways, order, **changes):
    """The largest error by way, and what has it. name: of a case, or the number of a random one."""
    case = Case(**vars(CASES[name]) | changes) if isinstance(name, str) else random_case(name)
    problem = Problem(case, group)
    every = functools.partial(second_order, every=name in ("causal", "all"))
    run = first_order if order == 1 else every
    directions = (problem.t,) if order == 1 else (problem.t, problem.s)
    expected = run(problem.whole_function(), problem.x, *directions)
    worst = {}
    for way in ways:
        mine = run(problem.ring_function(way), problem.cut(problem.x), *map(problem.cut, directions))
        found = errors(problem, mine, expected)
        largest = max(found, key=lambda name: found[name])
        worst[way] = (found[largest], largest)
    return worst


# ---- More than one call ----


def same_bits(group, way, dtype):
    """Whether the tensors stay as they are while maps run one after another on them, and whether these give the same
    bits the second time, on two threads."""
    problem = Problem(CASES["all"], group, dtype)
    function = problem.ring_function(way)
    values = [problem.cut(y) for y in (problem.x, problem.t, problem.s)]
    before = [[y.clone() for y in tensors] for tensors in values]
    runs = []
    for threads in (1, 2):
        torch.set_num_threads(threads)
        rows, tuples = first_order(function, *values[:2])
        more_rows, more_tuples = second_order(function, *values)
        runs.append([*rows.values(), *more_rows.values()])
        runs[-1] += [y for tensors in (*tuples.values(), *more_tuples.values()) for y in tensors]
    torch.set_num_threads(1)
    kept = all(
        torch.equal(y, z) for old, new in zip(before, values, strict=True) for y, z in zip(old, new, strict=True)
    )
    bits = lambda y: y.contiguous().view(torch.uint8)  # noqa: E731
    equal = all(torch.equal(bits(y), bits(z)) for run in runs[1:] for y, z in zip(runs[0], run, strict=True))
    return kept, equal


def invariant_bits(group):
    """Whether all_to_all with invariant=True has the bits of one process in all that is not a sum over heads."""
    keywords = {"is_causal": True, "softcap": 2.0, "invariant": True}
    case = Case(kv_heads=2, keywords=keywords, rows={"bias": (2, 4, 21, 21)})
    problem = Problem(case, group, torch.float32)
    expected = first_order(problem.whole_function(), problem.x, problem.t)
    found = first_order(problem.ring_function("all_to_all"), problem.cut(problem.x), problem.cut(problem.t))
    more = second_order(problem.whole_function(), problem.x, problem.t, problem.s)
    cut = map(problem.cut, (problem.x, problem.t, problem.s))
    found_more = second_order(problem.ring_function("all_to_all"), *cut)
    pairs = [(found[0][name], shard(y, group, dim=2)) for name, y in expected[0].items()]
    pairs += [(found_more[0][name], shard(y, group, dim=2)) for name, y in more[0].items()]
    for mine, wholes in ((found[1], expected[1]), (found_more[1], more[1])):
        for name, gradients in wholes.items():
            pairs += zip(mine[name], problem.cut(gradients), strict=True)
    return all(torch.equal(y, z) for y, z in pairs)


def low_errors(group, way, dtype, save_low):
    """Errors of o, of gradients and of products with the Hessian in 16 bits, by name: of the ring and of one process.
    The cotangent is close to the output, so that the rounding error of o counts."""
    keywords = {"is_causal": True, "save_low": save_low}
    shared = {"bias_table": (4, 5), "sink": (4,)}
    case = Case(48, 48, 4, 2, keywords, {"bias": (1, 1, 48, 48)}, shared, batch=1, dk=16, dv=16)
    problem = Problem(case, group, dtype)
    whole, wide = problem.whole_function(), [y.double() for y in problem.x]
    w = whole(*wide)[0].to(dtype)

    def run(function, x, t, w):
        x = tuple(y.detach().requires_grad_() for y in x)
        o = function(*x)[0]
        gradients = torch.autograd.grad(o, x, w, create_graph=True)
        dot = sum((g * u).sum() for g, u in zip(gradients, t, strict=True))
        products = torch.autograd.grad(dot, x)
        found = {f"d{name}": g.detach() for name, g in zip(problem.names, gradients, strict=True)}
        return {"o": o.detach()} | found | {f"td{name}": h for name, h in zip(problem.names, products, strict=True)}

    exact = run(whole, wide, [u.double() for u in problem.t], w.double())
    single = run(whole, problem.x, problem.t, w)
    ring = run(problem.ring_function(way), problem.cut(problem.x), problem.cut(problem.t), problem.shard(w))
    errors = {}
    for name, truth in exact.items():
        x = ring[name].double()
        if name.endswith(tuple(shared)):
            dist.all_reduce(x, group=group)
        else:
            x = unshard(x, group)
        errors[name] = tuple(((y.double() - truth).norm() / truth.norm()).item() for y in (x, single[name]))
    return errors


def wanted_by_some(group, way):
    """Gradients if ranks want different ones, and one has no cotangent of o."""
    problem = Problem(Case(kv_heads=2, keywords={"is_causal": True}), group)
    x = tuple(y.requires_grad_() for y in problem.x)
    o, lse = problem.whole_function()(*x)
    rank = dist.get_rank(group)
    last = dist.get_world_size(group) - 1
    owners = unshard(torch.full((problem.shard(o).shape[2],), rank), group, dim=0)
    mask = (owners != last).to(F64)
    expected = torch.autograd.grad((o * problem.w * mask[:, None]).sum() + (lse * problem.w_lse).sum(), x)
    cut = problem.cut(problem.x)
    wanted = [i for i in range(3) if i != rank]
    inputs = [y.detach().requires_grad_(i in wanted) for i, y in enumerate(cut)]
    mine, my_lse = problem.ring_function(way)(*inputs)
    loss = (my_lse * shard(problem.w_lse, group, dim=2)).sum()
    if rank != last:
        loss = loss + (mine * problem.shard(problem.w)).sum()
    found = torch.autograd.grad(loss, [inputs[i] for i in wanted])
    return max(_error(y, problem.shard(expected[i]), expected[i]) for y, i in zip(found, wanted, strict=True))


def under_vmap(group, way):
    """vmap of the gradient against one call per element."""
    problem = Problem(Case(9, 9, kv_heads=2, keywords={"is_causal": True}), group)
    function = problem.ring_function(way)
    q, k, v = problem.cut(problem.x)
    many = torch.stack([q, 2 * q, q - 1])
    gradient = grad(function.loss, (0, 1))
    together = torch.func.vmap(gradient, (0, None, None))(many, k, v)
    alone = [gradient(one, k, v) for one in many]
    return max(_error(y[i], z, z) for i, pair in enumerate(alone) for y, z in zip(together, pair, strict=True))


def drawn_seed(group):
    """The error of dropout without a seed, against one process that draws the seed of rank 0."""
    torch.manual_seed(100 + dist.get_rank(group))
    x = torch.randn(1, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    cut = shard(x, group)
    o = unshard(ring_attention(cut, cut, cut, group, dropout_p=0.5), group)
    torch.manual_seed(100)
    return _error(o, expected := scaled_dot_product_attention(x, x, x, dropout_p=0.5), expected)


def unsharded(group):
    """unshard's values and derivatives, and shard of a tensor that requires a gradient."""
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    whole = torch.randn(3, 11, 2, dtype=F64)
    weights = torch.randn(size, 3, 11, 2, dtype=F64)
    x = shard(whole, group, dim=1).requires_grad_()
    y = unshard(x, group, dim=1)
    (g,) = torch.autograd.grad((y.square() * weights[rank]).sum(), x, create_graph=True)
    expected = shard(2 * whole * weights.sum(0), group, dim=1)
    (second,) = torch.autograd.grad(g.sum(), x)
    tangent = jvp(lambda z: unshard(z, group, dim=1), (x,), (2 * x,))[1]
    z = whole.clone().requires_grad_()
    (back,) = torch.autograd.grad(shard(z, group, dim=-2).sum(), z)
    dist.all_reduce(back, group=group)
    return [
        torch.equal(y, whole),
        torch.allclose(g, expected),
        torch.allclose(second, shard(2 * weights.sum(0), group, dim=1)),
        torch.equal(tangent, 2 * whole),
        torch.equal(back, torch.ones_like(back)),
    ]


# ---- Messages ----


def bytes_of(group, way, keywords, kv_heads):
    """Bytes that this rank sends in forward and vjp, and those of all ranks by the count of "auto"."""
    case = Case(64, 64, 4, kv_heads, keywords, batch=1, dk=32, dv=16)
    problem = Problem(case, group, torch.float32)
    sent, original = [], _peers.Peers.exchange

    def exchange(self, messages, *rest):
        sent.extend(x.numel() * x.element_size() for message in messages.values() for x in message.values())
        return original(self, messages, *rest)

    function = problem.ring_function(way)
    x = [y.requires_grad_() for y in problem.cut(problem.x)]
    _peers.Peers.exchange = exchange
    try:
        o = function(*x)[0]
        torch.autograd.grad((o * function.w).sum(), x)
    finally:
        _peers.Peers.exchange = original
    features = o.grad_fn.features
    word = _ring_word.read_word(_features.read(features).ring)
    layouts = [_shard.Layout(n, dist.get_world_size(group)) for n in (word.n_q, word.n_k)]
    sizes = _ring_way.sizes_of((*x, None, None, None, None), word.rows)
    places = _ring_word.Places(features, *layouts, _ring_word.Lists(), False)
    return sum(sent), _ring_way.bytes_sent(way, sizes, places)


def chosen_way(group, keywords, kv_heads):
    """The way of "auto"."""
    problem = Problem(Case(64, 64, 8, kv_heads, keywords, batch=1, dk=32, dv=32), group)
    x = [y.requires_grad_() for y in problem.cut(problem.x)]
    node = problem.ring_function("auto")(*x)[0].grad_fn
    return _ring_word.read_word(_features.read(node.features).ring).way


# ---- Errors ----


def message_of(group, rank, changes):
    """What ring_attention raises if one rank, or each if it is None, has other arguments."""
    keywords = {"is_causal": True, "bias_table": torch.zeros(4, 5), "sink": torch.zeros(4)}
    q, k, v = (torch.zeros(2, 4, 12, 6), torch.zeros(2, 2, 12, 6), torch.zeros(2, 2, 12, 6))
    keywords |= dict(zip("qkv", (shard(x, group) for x in (q, k, v)), strict=True))
    if rank in (None, dist.get_rank(group)):
        keywords |= changes
    try:
        ring_attention(group=group, **keywords)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def message_of_rows(group, rank, name, way):
    """What ring_attention raises if a bias or mask is cut by query rows, but has one row on one rank."""
    q, x = torch.zeros(1, 4, 12, 6), torch.zeros(1, 4, 12, 12)
    cut = shard(q, group)
    x = x.bool() if name == "attn_mask" else x
    mine = x[:, :, :1] if dist.get_rank(group) == rank else shard(x, group)
    try:
        ring_attention(cut, cut, cut, group, way, **{name: mine})
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def message_of_packed(group, changes):
    """What ring_attention raises with packed sequences and these arguments on every rank."""
    x = shard(torch.zeros(2, 12, 4), group)
    try:
        ring_attention(x, x, x, group, "keys", **{"q_packed": [0, 5, 12], "k_packed": [0, 5, 12]} | changes)
    except (TypeError, ValueError, RuntimeError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def message_of_unshard(group, rank, shape, dim):
    mine = dist.get_rank(group) == rank
    try:
        unshard(torch.zeros(shape if mine else (2, 3)), group, dim if mine else -2)
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def different_calls(group):
    """Rank 0 runs a backward pass while the others run a jvp, and likewise another call."""
    q = torch.zeros(1, 2, 3, 4, requires_grad=True)
    attend = lambda q: ring_attention(q, q, q, group, way="keys")  # noqa: E731
    o = attend(q)
    messages = []
    for other in (lambda: jvp(attend, (q,), (q,)), lambda: attend(q)):
        try:
            if dist.get_rank(group) == 0:
                torch.autograd.grad(o.sum(), q, retain_graph=True)
            else:
                other()
        except RuntimeError as error:
            messages.append(str(error))
    return messages


# ---- PyTorch's own ways to call ----


def shapes_and_modes(group):
    """Errors with other numbers of axes, a batch of keys that is broadcast, checkpointing, inference mode."""
    found = {}
    for name, q_lead, k_lead in (("flat", (), ()), ("three", (2,), (1,)), ("five", (3, 2, 4), (3, 1, 2))):
        q, k = (torch.randn(*lead, 13, 8, dtype=F64, requires_grad=True) for lead in (q_lead, k_lead))
        mine = [shard(x.detach(), group).requires_grad_() for x in (q, k)]
        o = scaled_dot_product_attention(q, k, k, is_causal=True, enable_gqa=True)
        ring = checkpoint(lambda q, k: ring_attention(q, k, k, group, is_causal=True), *mine, use_reentrant=False)
        found[name] = _error(ring, shard(o, group), o)
        expected = torch.autograd.grad(o.square().sum(), (q, k))
        gradients = torch.autograd.grad(ring.square().sum(), mine)
        for what, x, y in zip("qk", gradients, expected, strict=True):
            found[f"{name} d{what}"] = _error(x, shard(y, group), y)
    with torch.inference_mode():
        found["inference"] = _error(ring_attention(mine[0], mine[1], mine[1], group, is_causal=True), ring, ring)
    return found


def views_and_modes(group, way):
    """Whether views have the bits of contiguous tensors, no_grad those of a recorded call, and autocast those of
    tensors that the caller casts; gradients have the dtype of the tensor."""
    attend = lambda *x: ring_attention(*x, group, way, is_causal=True)  # noqa: E731

    def bits(x, cast=None):
        x = [y.detach().requires_grad_() for y in x]
        o = attend(*(x if cast is None else (y.to(cast) for y in x)))
        return [o, *torch.autograd.grad(o.float().sum(), x)]  # whose cotangent is one number for all

    n = shard(torch.zeros(21, 1), group).shape[0]
    views = [torch.randn(2, n, 4, 8).transpose(1, 2), torch.randn(1, 2, n, 8).expand(2, 2, n, 8)]
    views.append(torch.randn(2, 2, 8, 2 * n)[..., ::2].transpose(2, 3))
    plain, recorded = [y.clone(memory_format=torch.contiguous_format) for y in views], bits(views)
    found = {"views": all(map(torch.equal, recorded, bits(plain)))}
    with torch.no_grad():
        o = attend(*(y.requires_grad_() for y in plain))
    found["no_grad"] = torch.equal(o, recorded[0]) and not o.requires_grad
    with torch.autocast("cpu", torch.bfloat16):
        lower = bits(plain)
    found["autocast"] = all(map(torch.equal, lower, bits(plain, torch.bfloat16)))
    found["dtypes"] = [y.dtype for y in lower] == [torch.bfloat16, *[torch.float32] * 3]
    return found


class _Layers(torch.nn.Module):
    """Two layers of attention with a sink."""

    def __init__(self, attend):
        super().__init__()
        self.attend = attend
        self.layers = torch.nn.ModuleList(torch.nn.Linear(8, 24, dtype=F64) for _ in range(2))
        self.sinks = torch.nn.ParameterList(torch.ones(2, dtype=F64) for _ in range(2))

    def forward(self, x):
        for layer, sink in zip(self.layers, self.sinks, strict=True):
            q, k, v = layer(x).unflatten(-1, (6, 4)).transpose(1, 2).chunk(3, dim=1)
            x = x + self.attend(q, k, v, is_causal=True, sink=sink).transpose(1, 2).flatten(2)
        return x


def in_data_parallel(group, way):
    """Errors of gradients in DistributedDataParallel, whose messages are under way while ring_attention sends its own;
    it averages over the ranks. Small buckets: a message for each parameter."""
    whole = _Layers(scaled_dot_product_attention)
    x = torch.randn(2, 13, 8, dtype=F64)
    ring = _Layers(functools.partial(ring_attention, group=group, way=way))
    ring.load_state_dict(whole.state_dict())
    parallel = torch.nn.parallel.DistributedDataParallel(ring, process_group=group, bucket_cap_mb=1e-5)
    whole(x).square().sum().backward()
    (parallel(shard(x, group)).square().sum() * dist.get_world_size(group)).backward()
    pairs = zip(ring.parameters(), whole.parameters(), strict=True)
    return max(_error(mine.grad, other.grad, other.grad) for mine, other in pairs)


def two_groups(group):
    """Errors if ranks 1 and 3 work on one problem and ranks 0 and 2 on another, and what a call with a group of others
    raises."""
    groups = [dist.new_group(ranks) for ranks in ((0, 2), (1, 3))]
    mine = dist.get_rank(group) % 2
    try:
        shard(torch.zeros(3, 1), groups[1 - mine])
        message = "no error"
    except ValueError as error:
        message = str(error)
    problem = Problem(Case(11 + 4 * mine, 17, kv_heads=2, keywords={"is_causal": True}), groups[mine])
    expected = first_order(problem.whole_function(), problem.x, problem.t)
    worst = 0.0
    for way in _ring_word.WAYS:
        cut = problem.cut(problem.x), problem.cut(problem.t)
        worst = max(worst, *errors(problem, first_order(problem.ring_function(way), *cut), expected).values())
    return worst, message


def loop_until_error(group):
    """Calls ring_attention and its backward pass again and again, and says which error ended that."""
    x = torch.zeros(1, 2, 64, 16, requires_grad=True)
    end = time.monotonic() + TIMEOUT
    while time.monotonic() < end:
        try:
            ring_attention(x, x, x, group, way="keys").sum().backward()
        except RuntimeError as error:
            return str(error)
    return "no error"
