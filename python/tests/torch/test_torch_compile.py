"""torch.compile and the dispatcher ops: whole graphs, forward and backward, with the results of eager
mode."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch_cases import BY_NAME, F64

import attngrad.torch
from attngrad.torch import scaled_dot_product_attention

NAMES = ("plain", "all", "gqa", "five_axes", "buckets", "kv_lengths", "packed", "dropout", "float_mask")


@pytest.fixture(autouse=True)
def _fresh():
    torch.compiler.reset()


def compiled(function, **options):
    """aot_eager traces forward and backward as the default backend does, and builds no C++."""
    return torch.compile(function, fullgraph=True, backend="aot_eager", **options)


@pytest.mark.parametrize("name", NAMES)
def test_whole_graph(name):
    case = BY_NAME[name]
    inputs = case.inputs()
    results = []
    for run in (case.function(), compiled(case.function())):
        parts = run(*inputs)
        loss = sum(part.sin().sum() for part in parts)
        results.append([*parts, *torch.autograd.grad(loss, inputs)])
    for x, y in zip(*results, strict=True):
        assert torch.equal(x, y)


def test_default_backend():
    q, k, v = torch.randn(3, 1, 2, 16, 8, requires_grad=True)
    run = lambda q, k, v: scaled_dot_product_attention(q.cos(), k, v, is_causal=True).sin()  # noqa: E731
    eager, built = run(q, k, v), torch.compile(run, fullgraph=True)(q, k, v)
    torch.testing.assert_close(built, eager)
    torch.testing.assert_close(*(torch.autograd.grad(x.sum(), q) for x in (built, eager)))


def test_sizes_change():
    run = compiled(lambda x: scaled_dot_product_attention(x, x, x, is_causal=True), dynamic=True)
    for n in (5, 8, 11):
        x = torch.randn(2, 3, n, 4, dtype=F64, requires_grad=True)
        eager = scaled_dot_product_attention(x, x, x, is_causal=True)
        assert torch.equal(run(x), eager)
        assert torch.equal(*(torch.autograd.grad(y.sin().sum(), x)[0] for y in (run(x), eager)))


CHANGING = {
    "window": [(1, 0), (2, 0), (3, 1)],
    "softcap": [1.0, 2.0, 3.5],
    "scale": [1.0, 2.0, 3.5],
    "q_offset": [1, 2, 3],
    "q_offsets": [[1], [2], [3]],
    "alibi": [[0.1, 0.2], [0.2, 0.3], [0.3, 0.4]],
    "buckets": [[0, 1, 2], [0, 1, 1], [2, 2, 1]],
    "kv_lengths": [[1], [2], [3]],
}


@pytest.mark.parametrize("name", CHANGING)
def test_features_change(name):
    """torch.compile makes a number a variable of the graph when it sees a second value of it."""
    x, table = torch.randn(1, 2, 6, 4), torch.randn(2, 3)
    more = {"bias_table": table} if name == "buckets" else {"is_causal": True}
    run = lambda x, value: scaled_dot_product_attention(x, x, x, **more, **{name: value})  # noqa: E731
    built = compiled(run)
    for value in CHANGING[name]:
        assert torch.equal(built(x, value), run(x, value))


def test_dropout_is_drawn_at_each_run():
    x = torch.randn(2, 16, 8)
    run = compiled(lambda x: scaled_dot_product_attention(x, x, x, dropout_p=0.5))
    assert not torch.equal(run(x), run(x))
    torch.manual_seed(1)
    first = run(x)
    torch.manual_seed(1)
    assert torch.equal(run(x), first)


@pytest.mark.parametrize("name", ("plain", "all", "gqa"))
def test_compiled_jvp(name):
    case = BY_NAME[name]
    inputs, tangents = case.inputs(requires_grad=False), case.inputs(requires_grad=False)
    run = lambda *x: func.jvp(case.function(), x[: len(inputs)], x[len(inputs) :])  # noqa: E731
    torch.testing.assert_close(compiled(run)(*inputs, *tangents), run(*inputs, *tangents), rtol=0, atol=0)


def test_compiled_hessian_vector_product():
    x, t = (torch.randn(2, 5, 4, dtype=F64) for _ in range(2))
    loss = lambda x: scaled_dot_product_attention(x, x, x, is_causal=True).sin().sum()  # noqa: E731
    run = lambda x, t: func.jvp(func.grad(loss), (x,), (t,))[1]  # noqa: E731
    torch.testing.assert_close(compiled(run)(x, t), run(x, t), rtol=0, atol=0)


def test_compiled_double_backward_is_refused_by_pytorch():
    x = torch.randn(2, 5, 4, dtype=F64, requires_grad=True)
    run = compiled(lambda x: scaled_dot_product_attention(x, x, x).sin().sum())
    (g,) = torch.autograd.grad(run(x), x, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward|does not require grad"):
        g.sum().backward()


def test_compiled_module():
    layer = attngrad.torch.MultiheadAttention(8, 2, batch_first=True, dtype=F64)
    x = torch.randn(2, 6, 8, dtype=F64)
    run = lambda x: layer(x, x, x, need_weights=False, is_causal=True)[0]  # noqa: E731
    torch.testing.assert_close(compiled(run)(x), run(x), rtol=0, atol=0)


def op_arguments(case, dtype):
    """Of each op; with low halves if the dtype has 16 bits."""
    q, k, v, *rest = (x.detach().to(dtype).requires_grad_() for x in case.inputs())
    named = dict(zip(case.tensors, rest, strict=True))
    bias = named.get("bias")
    common = [q, k, v, bias, named.get("bias_table"), named.get("sink"), *[None] * 6, "causal softcap=1.5"]
    is_low = dtype == torch.bfloat16
    forward = torch.ops.attngrad.forward_low if is_low else torch.ops.attngrad.forward
    o, lse, o_low = (*(x.detach() for x in forward(*common)), None)[:3]
    d_o, d_lse = torch.randn_like(o, requires_grad=True), torch.randn_like(lse, requires_grad=True)
    tangents = [None if x is None else torch.randn_like(x) for x in common[:6]]
    wanted = sum(1 << i for i, x in enumerate(common[:6]) if x is not None)
    to, mu, to_low = (x.detach() for x in torch.ops.attngrad.jvp(*common, o, lse, o_low, *tangents))
    to_low = to_low if is_low else None
    return {
        "forward": common,
        "forward_low": common,
        "vjp": [*common, o, lse, o_low, d_o, d_lse, wanted],
        "jvp": [*common, o, lse, o_low, *tangents],
        "vjp_jvp": [*common, o, lse, o_low, d_o, d_lse, *tangents, to, mu, to_low, None, None, wanted],
    }


OPS = ("forward", "vjp", "jvp", "vjp_jvp")


@pytest.mark.parametrize("name", ("plain", "all"))
@pytest.mark.parametrize(
    "op, dtype", [*((op, F64) for op in OPS), *((op, torch.bfloat16) for op in ("forward_low", *OPS))]
)
def test_ops(op, dtype, name):
    """PyTorch's own checks of a dispatcher op: schema, fake kernel, autograd registration."""
    checks = ["test_schema", "test_faketensor", "test_autograd_registration"]
    if op != "vjp_jvp":
        checks.append("test_aot_dispatch_dynamic")
    torch.library.opcheck(
        getattr(torch.ops.attngrad, op).default, op_arguments(BY_NAME[name], dtype)[op], test_utils=checks
    )


def as_graphs(x):
    """The function, and the same as graphs of the ops: called directly, recorded by make_fx, by torch.export."""
    run = lambda x: scaled_dot_product_attention(x, x, x, is_causal=True)  # noqa: E731

    class Model(torch.nn.Module):
        def forward(self, x):
            return run(x)

    return run, {
        "op": lambda x: torch.ops.attngrad.forward(x, x, x, *[None] * 9, "causal")[0],
        "make_fx": make_fx(run)(x),
        "export": torch.export.export(Model(), (x,)).module(),
    }


def test_every_derivative_through_the_ops():
    """Forward mode too: register_autograd alone would silently drop tangents."""
    x, t = (torch.randn(2, 3, 5, 4, dtype=F64) for _ in range(2))

    def dual(f):
        with forward_ad.dual_level():
            return forward_ad.unpack_dual(f(forward_ad.make_dual(x, t))).tangent

    def sine_loss(f):
        return lambda x: f(x).sin().sum()

    def double(f):
        y = x.clone().requires_grad_()
        (g,) = torch.autograd.grad(sine_loss(f)(y), y, create_graph=True)
        return torch.autograd.grad(g, y, t)[0]

    orders = {
        "jvp": lambda f: func.jvp(f, (x,), (t,))[1],
        "dual": dual,
        "grad": lambda f: func.grad(sine_loss(f))(x),
        "forward over reverse": lambda f: func.jvp(func.grad(sine_loss(f)), (x,), (t,))[1],
        "reverse over forward": lambda f: func.grad(lambda x: func.jvp(sine_loss(f), (x,), (t,))[1])(x),
        "double backward": double,
        "vmap": lambda f: func.vmap(f)(torch.stack([x, t])),
    }
    run, graphs = as_graphs(x)
    for order, derive in orders.items():
        expected = derive(run)
        assert expected.abs().max() > 0.1
        for name, graph in graphs.items():
            torch.testing.assert_close(derive(graph), expected, msg=lambda m, k=(order, name): f"{k}: {m}")


def test_meta_tensors():
    q = torch.randn(2, 3, 4, 8, device="meta", requires_grad=True)
    o, lse = scaled_dot_product_attention(q, q, q[..., :5], return_lse=True)
    assert o.shape == (2, 3, 4, 5) and lse.shape == (2, 3, 4) and lse.dtype == F64 and o.device.type == "meta"
    o.sum().backward()
    assert q.grad.shape == q.shape
