"""invariant=True: each sequence with one kv head and its query heads has the same bits alone as in a batch, in any
order, padded, packed, under vmap and torch.compile; in every derivative."""

import copy

import pytest
import torch
from torch import func, nn
from torch.utils._python_dispatch import TorchDispatchMode

from attngrad.torch import MultiheadAttention, replace, scaled_dot_product_attention

BATCH, KV_HEADS, GROUP, DIM = 4, 2, 2, 16  # GROUP: query heads per kv head
OF_KEYS = ("dk", "dv", "tdk", "tdv")
# Queries and keys, and what has other bits in a batch than alone without the option: the keys of few queries are split
# if there are few heads, and so are many queries in the gradients of keys and values.
SHAPES = {"few queries": (4, 4200, ("o", "to", "sto")), "many queries": (600, 64, OF_KEYS)}
shapes = pytest.mark.parametrize("shape", SHAPES)


def draw(shape, batch=BATCH):
    """q, k, v, their first and second direction, and a cotangent of o."""
    n_q, n_k, _ = SHAPES[shape]
    q = [torch.randn(batch, KV_HEADS * GROUP, n_q, DIM) for _ in range(4)]
    k = [torch.randn(batch, KV_HEADS, n_k, DIM) for _ in range(6)]
    return [(q[i], k[i], k[i + 3]) for i in range(3)] + [q[3]]


def results(x, t, s, d_o, invariant=True, **keywords):
    """Every derivative up to the second order, by name."""
    keywords |= {"enable_gqa": True, "return_lse": True, "invariant": invariant}
    run = lambda *x: scaled_dot_product_attention(*x, **keywords)  # noqa: E731

    def loss(*x):
        o, lse = run(*x)
        return (o * d_o).sum() + lse.sum()

    y, ty = func.jvp(run, x, t)
    _, sty = func.jvp(lambda *x: func.jvp(run, x, t)[1], x, s)
    g, tg = func.jvp(func.grad(loss, argnums=(0, 1, 2)), x, t)
    names = ("o", "lse", "to", "mu", "sto", "nu", "dq", "dk", "dv", "tdq", "tdk", "tdv")
    return dict(zip(names, (*y, *ty, *sty, *g, *tg), strict=True))


def each(inputs, function):
    """function(tensor, is it of keys) of all inputs, in their structure."""
    *three, d_o = inputs
    return [(function(q, False), function(k, True), function(v, True)) for q, k, v in three] + [function(d_o, False)]


def part(inputs, b, hk):
    """The inputs of one sequence and one kv head."""
    return each(inputs, lambda x, of_keys: one_of(x, b, hk, of_keys))


def one_of(x, b, hk, of_keys):
    return x[b : b + 1, hk : hk + 1] if of_keys else x[b : b + 1, hk * GROUP : (hk + 1) * GROUP]


def differing(together, alone, b, hk):
    """The results whose bits differ; those of a padded sequence have more rows."""
    ours = {name: one_of(x, b, hk, name in OF_KEYS) for name, x in together.items()}
    return {name for name, x in alone.items() if not torch.equal(ours[name][:, :, : x.shape[2]], x)}


@shapes
def test_alone(shape, backend):
    inputs = draw(shape)
    together, plain = results(*inputs), results(*inputs, invariant=False)
    changed = set()
    for b in range(BATCH):
        for hk in range(KV_HEADS):
            own = part(inputs, b, hk)
            assert differing(together, results(*own), b, hk) == set()
            changed |= differing(plain, results(*own, invariant=False), b, hk)
    if backend == "cpu":  # the reference does not look at the batch; and this test sees the option
        assert changed >= set(SHAPES[shape][2])


@shapes
def test_order(shape):
    """Sequences and kv heads in another order."""
    inputs, order = draw(shape), torch.randperm(BATCH)

    def shuffled(x, of_keys):
        return (x if of_keys else x.unflatten(1, (KV_HEADS, GROUP))).flip(1)[order].reshape(x.shape)

    together = results(*inputs)
    for name, x in results(*each(inputs, shuffled)).items():
        assert torch.equal(x, shuffled(together[name], name in OF_KEYS)), name


def lengths_of(shape):
    n_q, n_k, _ = SHAPES[shape]
    return [n_q, n_q - 1, n_q // 2, n_q], [n_k, n_k // 3, n_k - 5, n_k // 2]


@shapes
def test_padded(shape):
    inputs, (q_lengths, k_lengths) = draw(shape), lengths_of(shape)
    together = results(*inputs, q_lengths=q_lengths, kv_lengths=k_lengths)
    for b in range(BATCH):
        own = each(
            part(inputs, b, 1), lambda x, of_keys, b=b: x[:, :, : (k_lengths if of_keys else q_lengths)[b]]
        )
        assert differing(together, results(*own), b, 1) == set()


@shapes
def test_packed(shape):
    inputs, (q_lengths, k_lengths) = draw(shape), lengths_of(shape)

    def pack(x, of_keys):
        lengths = k_lengths if of_keys else q_lengths
        return torch.cat([x[b, :, : lengths[b]] for b in range(BATCH)], dim=1)

    offsets = [[sum(lengths[:b]) for b in range(BATCH + 1)] for lengths in (q_lengths, k_lengths)]
    packed = results(*each(inputs, pack), q_packed=offsets[0], k_packed=offsets[1])
    padded = results(*inputs, q_lengths=q_lengths, kv_lengths=k_lengths)
    for name, x in packed.items():
        assert torch.equal(x, pack(padded[name], name in OF_KEYS)), name


@shapes
def test_vmap(shape):
    """Folded into the batch."""
    inputs = draw(shape)
    mapped = func.vmap(lambda *x: results(*x))(*inputs)
    for b in range(BATCH):
        alone = results(*each(inputs, lambda x, _, b=b: x[b]))
        assert all(torch.equal(mapped[name][b], x) for name, x in alone.items())


@shapes
def test_compiled(shape):
    torch.compiler.reset()
    inputs = draw(shape)
    run = lambda *x: scaled_dot_product_attention(*x, enable_gqa=True, invariant=True)  # noqa: E731
    built = torch.compile(run, fullgraph=True, backend="aot_eager")
    q, k, v = (x.requires_grad_() for x in inputs[0])
    together = built(q, k, v)
    gradients = torch.autograd.grad(together, (q, k, v), inputs[-1])
    for b in range(BATCH):
        own = part(inputs, b, 0)
        o = run(*own[0])
        alone = torch.autograd.grad(o, own[0], own[-1])
        assert torch.equal(one_of(together, b, 0, False), o)
        for x, y, of_keys in zip(gradients, alone, (False, True, True), strict=True):
            assert torch.equal(one_of(x, b, 0, of_keys), y)


def test_one_direction():
    """jvp of jvp along the same tensors twice, and along equal ones: whether they are the same depends on the caller,
    and on vmap, which may copy them."""
    x, t, _, d_o = draw("few queries")
    same, equal = results(x, t, t, d_o), results(x, t, tuple(y.clone() for y in t), d_o)
    assert all(torch.equal(y, equal[name]) for name, y in same.items())


class Watch(TorchDispatchMode):
    """Whether the ops that run have the option: a set of bools."""

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        if op._schema.name.startswith("attngrad::"):
            self.seen.add("invariant" in args[12].split())
        return op(*args, **(kwargs or {}))


def test_layers():
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True)
    x = torch.randn(2, 8, 16)
    own = MultiheadAttention(16, 4, batch_first=True, invariant=True)
    old = copy.deepcopy(own)
    del old.invariant  # as a layer that was saved before it had the attribute
    for run, invariant in (
        (replace(copy.deepcopy(layer)), False),
        (replace(copy.deepcopy(layer), invariant=True), True),
        (lambda x: own(x, x, x, need_weights=False)[0], True),
        (lambda x: old(x, x, x, need_weights=False)[0], False),
    ):
        with Watch() as watch:
            run(x).sum().backward()
        assert watch.seen == {invariant}


def test_refused():
    x = torch.randn(2, 3, 4)
    for call in (
        lambda: scaled_dot_product_attention(x, x, x, invariant=1),
        lambda: MultiheadAttention(8, 2, invariant=None),
        lambda: replace(nn.Linear(2, 2), invariant="yes"),
    ):
        with pytest.raises(TypeError, match="^invariant: .*, must be a bool"):
            call()
