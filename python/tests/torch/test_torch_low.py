"""save_low: the backward of 16-bit attention uses the low half of the output. Its gradients are compared with
float64 and, bit for bit, with the maps on arrays that are given the low halves, in every mode of PyTorch."""

import copy

import numpy as np
import pytest
import torch
from torch import func, nn
from torch.autograd import forward_ad, graph
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import attngrad
from attngrad.torch import MultiheadAttention, replace, scaled_dot_product_attention

HALVES = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
SAVES = pytest.mark.parametrize("save_low", [True, False])
CAUSAL = {"causal": True, "threads": 1}


def hard_case(dtype):
    """q, k and v with peaked rows, d_o near o, and tangents."""
    q, k, v, *t = torch.randn(6, 2, 3, 256, 32).to(dtype)
    q = 6 * q
    o = F.scaled_dot_product_attention(q.double(), k.double(), v.double(), is_causal=True)
    return (q, k, v), (o + 0.05 * torch.randn(o.shape)).to(dtype), tuple(t)


def attention(q, k, v, **keywords):
    return scaled_dot_product_attention(q, k, v, is_causal=True, **keywords)


def loss_of(d_o, **keywords):
    """Linear in o, so that d_o is exactly the cotangent."""
    return lambda q, k, v: (attention(q, k, v, **keywords) * d_o).sum()


def gradients(loss, inputs):
    inputs = [x.detach().requires_grad_() for x in inputs]
    return torch.autograd.grad(loss(*inputs), inputs)


def assert_same(ours, arrays):
    for x, a in zip(ours, arrays, strict=True):
        assert np.array_equal(x.detach().float().numpy(), np.asarray(a, np.float32))


def vjp_of_arrays(inputs, d_o, low):
    f = attngrad.forward(*inputs, low=True, **CAUSAL)
    return attngrad.vjp(*inputs, f.o, f.lse, d_o, o_low=f.o_low if low else None, **CAUSAL)[:3]


def vjp_jvp_of_arrays(inputs, d_o, t, low):
    """With the low halves jvp is given o, as in PyTorch."""
    f = attngrad.forward(*inputs, low=True, **CAUSAL)
    p = attngrad.jvp(*inputs, *t, low=True, **(f._asdict() if low else {}), **CAUSAL)
    halves = {"o_low": f.o_low, "to_low": p.to_low} if low else {}
    return attngrad.vjp_jvp(*inputs, f.o, f.lse, p.to, p.mu, d_o, *t, **halves, **CAUSAL)[:3]


class Watch(TorchDispatchMode):
    """The names of the ops that run, and whether a low half is among their tensors."""

    # op: the positions of low halves among its arguments
    LOW = {"forward": (), "forward_low": (), "vjp": (15,), "jvp": (15,), "vjp_jvp": (15, 26), "jvp_jvp": (15,)}

    def __init__(self):
        super().__init__()
        self.seen = set()

    def __torch_dispatch__(self, op, types, args=(), kwargs=None):
        namespace, _, name = op._schema.name.partition("::")
        if namespace == "attngrad":
            low = [args[i] is not None for i in self.LOW[name]]
            assert all(low) or not any(low)
            self.seen.add((name, name == "forward_low" or any(low)))
        return op(*args, **(kwargs or {}))


# ---- First derivatives ----


@HALVES
def test_closer_to_the_truth(dtype):
    inputs, d_o, _ = hard_case(dtype)
    truth = gradients(
        lambda *x: (F.scaled_dot_product_attention(*x, is_causal=True) * d_o.double()).sum(),
        [x.double() for x in inputs],
    )
    ours, plain = (gradients(loss_of(d_o, save_low=save_low), inputs) for save_low in (True, False))
    for x, y, z in list(zip(ours, plain, truth, strict=True))[:2]:
        assert (x.double() - z).norm() < 0.8 * (y.double() - z).norm()
    assert torch.equal(ours[2], plain[2])  # the gradient of v does not depend on o


@HALVES
@SAVES
def test_bits_of_vjp(dtype, save_low):
    """Without low halves these are the bits of vjp as it was before there were any."""
    inputs, d_o, _ = hard_case(dtype)
    assert_same(gradients(loss_of(d_o, save_low=save_low), inputs), vjp_of_arrays(inputs, d_o, save_low))


@pytest.mark.parametrize(
    "dtype, save_low, n_saved",
    [(torch.bfloat16, True, 6), (torch.float16, True, 6), (torch.bfloat16, False, 5), (torch.float32, True, 5)],
)
def test_saved_tensors(dtype, save_low, n_saved):
    """q, k, v, o and lse, and one more of o's size and dtype."""
    q, k, v = torch.randn(3, 2, 3, 8, 4).to(dtype).requires_grad_()
    saved = []
    with graph.saved_tensors_hooks(lambda x: saved.append(x) or x, lambda x: x):
        o = scaled_dot_product_attention(*(x * 1 for x in (q, k, v)), save_low=save_low)
    assert len(saved) == n_saved
    assert sum(x.nbytes for x in saved) == (n_saved - 1) * o.nbytes + o.numel() // 4 * 8
    o.sum().backward()


def test_only_if_a_gradient_is_recorded():
    q, k, v, t = torch.randn(4, 2, 3, 8, 4).bfloat16()
    recorded = q.clone().requires_grad_()
    with Watch() as watch:
        attention(q, k, v)
        func.vmap(attention)(q, k, v)
        func.jvp(lambda q: attention(q, k, v), (q,), (t,))
        func.grad(lambda x: (attention(q, k, v) * x).sum())(t)
        with torch.no_grad():
            attention(recorded, k, v)
        with forward_ad.dual_level():
            attention(forward_ad.make_dual(q, t), k, v)
    assert watch.seen == {("forward", False), ("jvp", False)}


def test_float32_is_unaffected():
    inputs, d_o, t = hard_case(torch.float32)
    results = []
    with Watch() as watch:
        for save_low in (True, False):
            loss = loss_of(d_o, save_low=save_low)
            gradient = func.grad(loss, argnums=(0, 1, 2))
            results.append([*gradients(loss, inputs), *func.jvp(gradient, inputs, t)[1]])
    assert watch.seen == {(name, False) for name in ("forward", "vjp", "jvp", "vjp_jvp")}
    assert all(torch.equal(x, y) for x, y in zip(*results, strict=True))


def test_autocast():
    inputs, d_o, _ = hard_case(torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        ours = gradients(lambda *x: (attention(*x) * d_o).sum(), [x.float() for x in inputs])
    assert_same(ours, vjp_of_arrays(inputs, d_o, True))


def test_heads_last():
    """o_low has the strides of o, whatever they are."""
    inputs, d_o, _ = hard_case(torch.bfloat16)
    views = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in inputs]
    assert_same(gradients(loss_of(d_o), views), vjp_of_arrays(inputs, d_o, True))


def test_wrong_argument():
    x = torch.randn(1, 4, 4).bfloat16()
    for call in (
        lambda: scaled_dot_product_attention(x, x, x, save_low=1),
        lambda: MultiheadAttention(8, 2, save_low=None),
        lambda: replace(nn.Linear(2, 2), save_low="no"),
    ):
        with pytest.raises(TypeError, match="^save_low: .*, must be a bool"):
            call()


# ---- Second derivatives ----


def double_backward(loss, inputs, t):
    inputs = [x.detach().requires_grad_() for x in inputs]
    g = torch.autograd.grad(loss(*inputs), inputs, create_graph=True)
    return torch.autograd.grad(g, inputs, t)


def dual_backward(loss, inputs, t):
    """Reverse over forward, by torch.autograd alone."""
    inputs = [x.detach().requires_grad_() for x in inputs]
    with forward_ad.dual_level():
        value = loss(*(forward_ad.make_dual(x, y) for x, y in zip(inputs, t, strict=True)))
        tangent = forward_ad.unpack_dual(value).tangent
    return torch.autograd.grad(tangent, inputs)


SECOND = {
    "double backward": double_backward,
    "dual backward": dual_backward,
    "forward over reverse": lambda f, x, t: func.jvp(func.grad(f, argnums=(0, 1, 2)), x, t)[1],
    "reverse over forward": lambda f, x, t: func.grad(lambda *x: func.jvp(f, x, t)[1], argnums=(0, 1, 2))(*x),
}


@HALVES
@SAVES
@pytest.mark.parametrize("order", SECOND)
def test_second_derivatives(order, dtype, save_low):
    inputs, d_o, t = hard_case(dtype)
    with Watch() as watch:
        ours = SECOND[order](loss_of(d_o, save_low=save_low), inputs, t)
    assert ("vjp_jvp", save_low) in watch.seen and ("vjp_jvp", not save_low) not in watch.seen
    assert_same(ours, vjp_jvp_of_arrays(inputs, d_o, t, save_low))


@pytest.mark.parametrize(
    "dtype, low, given", [(torch.float32, False, True), (torch.bfloat16, True, True), (torch.bfloat16, False, False)]
)
def test_jvp_is_given_o(dtype, low, given):
    """The op reads o, so that it need not compute it again; a 16-bit one only with its low half."""
    q, k, v, t, o, o_low = torch.randn(6, 1, 2, 40, 8).to(dtype)
    absent = (None,) * 9
    lse = torch.ops.attngrad.forward(q, k, v, *absent, "")[1]
    to, _, _ = torch.ops.attngrad.jvp(q, k, v, *absent, "", torch.nan * o, lse, o_low if low else None, t, *absent[:5])
    assert to.isnan().all() if given else to.isfinite().all()


@HALVES
@SAVES
def test_forward_over_forward(dtype, save_low):
    """jvp_jvp also reads o, so two levels of forward mode compute the low half, though no gradient is recorded."""
    (q, k, v), _, (t, s, _) = hard_case(dtype)
    run = lambda q: attention(q, k, v, save_low=save_low)  # noqa: E731
    with Watch() as watch:
        func.jvp(lambda q: func.jvp(run, (q,), (t,))[1], (q,), (s,))
    assert watch.seen == {
        ("forward_low" if save_low else "forward", save_low), ("jvp", save_low), ("jvp_jvp", save_low)
    }  # fmt: skip


# ---- vmap, torch.compile, checkpoint, layers ----


@SAVES
def test_vmap(save_low):
    """Once folded into the batch, and once, as the sink is mapped too, one call per element."""
    inputs, d_o, t = hard_case(torch.bfloat16)
    loss = lambda q, k, v, d_o: (attention(q, k, v, save_low=save_low) * d_o).sum()  # noqa: E731
    gradient = func.grad(loss, argnums=(0, 1, 2))
    assert_same(func.vmap(gradient)(*inputs, d_o), vjp_of_arrays(inputs, d_o, save_low))
    product = lambda x, t, d_o: func.jvp(lambda *x: gradient(*x, d_o), x, t)[1]  # noqa: E731
    assert_same(func.vmap(product)(inputs, t, d_o), vjp_jvp_of_arrays(inputs, d_o, t, save_low))

    def with_sink(sink, x, d_o):
        return (attention(*x, sink=sink, save_low=save_low) * d_o).sum()

    sinks = torch.randn(2, 3).bfloat16()
    with Watch() as watch:
        mapped = func.vmap(func.grad(with_sink))(sinks, inputs, d_o)
    assert watch.seen == {("forward_low" if save_low else "forward", save_low), ("vjp", save_low)}
    for i in range(2):
        alone = func.grad(with_sink)(sinks[i], [x[i] for x in inputs], d_o[i])
        assert torch.equal(mapped[i], alone)


@SAVES
def test_compiled(save_low):
    torch.compiler.reset()
    inputs, d_o, t = hard_case(torch.bfloat16)
    loss = loss_of(d_o, save_low=save_low)
    compiled = lambda f: torch.compile(f, fullgraph=True, backend="aot_eager")  # noqa: E731
    assert_same(gradients(compiled(loss), inputs), vjp_of_arrays(inputs, d_o, save_low))
    product = compiled(lambda x, t: SECOND["forward over reverse"](loss, x, t))
    assert_same(product(inputs, t), vjp_jvp_of_arrays(inputs, d_o, t, save_low))


@SAVES
def test_exported(save_low):
    """The graph has the op forward, which decides at each run."""
    inputs, d_o, _ = hard_case(torch.bfloat16)

    class Model(nn.Module):
        def forward(self, q, k, v):
            return attention(q, k, v, save_low=save_low)

    program = torch.export.export(Model(), inputs)
    ours = gradients(lambda *x: (program.module()(*x) * d_o).sum(), inputs)
    assert_same(ours, vjp_of_arrays(inputs, d_o, save_low))
    with Watch() as watch:
        program.module()(*inputs)
    assert watch.seen == {("forward", False)}


@SAVES
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant, save_low):
    inputs, d_o, _ = hard_case(torch.bfloat16)
    run = lambda *x: attention(*x, save_low=save_low)  # noqa: E731
    leaves = [x.clone().requires_grad_() for x in inputs]
    (checkpoint(run, *leaves, use_reentrant=use_reentrant) * d_o).sum().backward()
    assert_same([x.grad for x in leaves], vjp_of_arrays(inputs, d_o, save_low))


def test_layers():
    layer = nn.TransformerEncoderLayer(16, 4, 32, dropout=0.0, batch_first=True, dtype=torch.bfloat16)
    x = torch.randn(2, 8, 16).bfloat16()
    own = MultiheadAttention(16, 4, batch_first=True, dtype=torch.bfloat16, save_low=False)
    old = copy.deepcopy(own)
    del old.save_low  # as a layer that was saved before it had the attribute
    for run, save_low in (
        (replace(copy.deepcopy(layer)), True),
        (replace(copy.deepcopy(layer), save_low=False), False),
        (lambda x: own(x, x, x, need_weights=False)[0], False),
        (lambda x: old(x, x, x, need_weights=False)[0], True),
    ):
        with Watch() as watch:
            run(x).sum().backward()
        assert watch.seen == {("forward_low" if save_low else "forward", save_low), ("vjp", save_low)}
