"""The function behaves as PyTorch's own does: shapes, masks, dropout, autocast, checkpointing, memory
layouts."""

import subprocess
import sys

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint
from torch_cases import F64, plain

from attngrad.torch import scaled_dot_product_attention


def randn(*shape, **keywords):
    return torch.randn(shape, dtype=keywords.pop("dtype", F64), **keywords)


@pytest.mark.parametrize(
    "shapes",
    [
        ((3, 4), (5, 4), (5, 6)),
        ((2, 3, 4), (5, 4), (5, 6)),
        ((3, 4), (2, 5, 4), (2, 5, 6)),
        ((2, 1, 3, 4), (1, 3, 5, 4), (2, 3, 5, 6)),
        ((3, 4), (7, 2, 5, 4), (1, 2, 5, 6)),
        ((2, 3, 1, 2, 3, 4), (1, 3, 2, 2, 5, 4), (2, 1, 2, 1, 5, 6)),
        ((1, 2, 3, 4), (1, 2, 5, 4), (4, 2, 5, 6)),
    ],
)
def test_broadcasting(shapes):
    q, k, v = (randn(*shape, requires_grad=True) for shape in shapes)
    ours, theirs = scaled_dot_product_attention(q, k, v), F.scaled_dot_product_attention(q, k, v)
    assert ours.shape == theirs.shape
    torch.testing.assert_close(ours, theirs)
    cotangent = torch.randn_like(ours)
    torch.testing.assert_close(*(torch.autograd.grad(x, (q, k, v), cotangent) for x in (ours, theirs)))


@pytest.mark.parametrize(
    "shape", [(5,), (1, 5), (4, 5), (4, 1), (3, 4, 5), (3, 1, 5), (2, 1, 4, 5), (2, 3, 1, 1)]
)
@pytest.mark.parametrize("kind", ["bool", "float"])
def test_masks(shape, kind):
    q, k, v = randn(2, 3, 4, 6), randn(2, 3, 5, 6), randn(2, 3, 5, 6)
    mask = randn(*shape, requires_grad=True) if kind == "float" else randn(*shape) > -1
    ours = scaled_dot_product_attention(q, k, v, mask)
    torch.testing.assert_close(ours, plain(q, k, v, mask)[0])
    if kind == "float":
        theirs = F.scaled_dot_product_attention(q, k, v, mask)
        cotangent = torch.randn_like(ours)
        torch.testing.assert_close(*(torch.autograd.grad(x, mask, cotangent) for x in (ours, theirs)))


def test_gradient_of_a_shared_bias_keeps_its_size():
    """A bias that all batches share has one gradient in memory, not one for each."""
    q = randn(64, 1, 32, 4)
    bias = randn(32, 32, requires_grad=True)
    shapes = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            results = op(*args, **(kwargs or {}))
            if op is torch.ops.attngrad.vjp.default:
                shapes.append([tuple(x.shape) for x in results])
            return results

    o = scaled_dot_product_attention(q, q, q, bias)
    with Watch():
        o.sum().backward()
    assert shapes == [[(0,), (0,), (0,), (1, 1, 32, 32), (0,), (0,)]]


def test_empty_rows_are_zero():
    x = randn(1, 2, 3, 4, requires_grad=True)
    mask = torch.tensor([[1, 0, 0], [0, 0, 0], [1, 1, 1]], dtype=torch.bool)
    o, lse = scaled_dot_product_attention(x, x, x, mask, return_lse=True)
    assert (o[:, :, 1] == 0).all() and lse[:, :, 1].isneginf().all() and o[:, :, ::2].abs().min() > 0
    o.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("layout", ["heads_last", "transposed", "every_second", "expanded", "flipped"])
def test_layouts(layout):
    x = {
        "heads_last": lambda: randn(2, 5, 3, 4).transpose(1, 2),
        "transposed": lambda: randn(2, 3, 4, 5).transpose(-2, -1),
        "every_second": lambda: randn(2, 3, 10, 8)[:, :, ::2, ::2],
        "expanded": lambda: randn(1, 3, 1, 4).expand(2, 3, 5, 4),
        "flipped": lambda: randn(2, 3, 5, 4).flip(-1),
    }[layout]()
    dense = x.contiguous()
    assert torch.equal(
        scaled_dot_product_attention(x, x, x), scaled_dot_product_attention(dense, dense, dense)
    )


def test_views_are_not_copied():
    """The op receives the same memory for a query with heads last."""
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, op, types, args=(), kwargs=None):
            if op is torch.ops.attngrad.forward.default:
                seen.append([x.untyped_storage().data_ptr() for x in args[:3]])
            return op(*args, **(kwargs or {}))

    x = randn(2, 5, 3, 3, 4)
    with Watch():
        scaled_dot_product_attention(*(x[:, :, i].transpose(1, 2) for i in range(3)))
    assert seen == [[x.data_ptr()] * 3]


def test_dropout_follows_the_generator():
    x = randn(2, 4, 32, 8)
    torch.manual_seed(5)
    first = scaled_dot_product_attention(x, x, x, dropout_p=0.3)
    second = scaled_dot_product_attention(x, x, x, dropout_p=0.3)
    torch.manual_seed(5)
    again = scaled_dot_product_attention(x, x, x, dropout_p=0.3)
    assert torch.equal(first, again) and not torch.equal(first, second)
    seeded = [scaled_dot_product_attention(x, x, x, dropout_p=0.3, seed=s) for s in (9, torch.tensor(9), 10)]
    assert torch.equal(seeded[0], seeded[1]) and not torch.equal(seeded[0], seeded[2])


def test_dropout_keeps_the_mean():
    x, ones = randn(1, 4, 128, 8), torch.ones(1, 4, 128, 1, dtype=F64)
    o = scaled_dot_product_attention(x * 0, x, ones, dropout_p=0.25)
    assert abs(o.mean().item() - 1) < 0.01  # 65,536 weights: a standard deviation of 0.0023


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast(dtype):
    q, k, v = (randn(2, 3, 8, 16, dtype=torch.float32, requires_grad=True) for _ in range(3))
    bias = randn(8, 8, dtype=torch.float32, requires_grad=True)
    with torch.autocast("cpu", dtype):
        ours = scaled_dot_product_attention(q, k, v, bias)
        theirs = F.scaled_dot_product_attention(q, k, v, bias)
    assert ours.dtype == theirs.dtype == dtype
    truth = plain(*(x.double() for x in (q, k, v)), bias.double())[0]
    assert (ours - truth).norm() <= 2 * (theirs - truth).norm()
    for x in torch.autograd.grad(ours.float().square().sum(), (q, k, v, bias)):
        assert x.dtype == torch.float32 and x.isfinite().all()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpoint(reentrant):
    x = randn(2, 3, 8, 4, requires_grad=True)
    run = lambda x: scaled_dot_product_attention(x, x, x, dropout_p=0.2, is_causal=True).sin()  # noqa: E731
    results = []
    for wrap in (run, lambda x: checkpoint(run, x, use_reentrant=reentrant)):
        torch.manual_seed(3)
        results.append(torch.autograd.grad(wrap(x).sum(), x)[0] if not reentrant else backward(wrap(x), x))
    assert torch.equal(*results)


def backward(o, x):
    x.grad = None
    o.sum().backward()
    return x.grad


def test_checkpoint_double_backward():
    x = randn(2, 8, 4, requires_grad=True)
    run = lambda x: scaled_dot_product_attention(x, x, x, is_causal=True).sin()  # noqa: E731
    results = []
    for wrap in (run, lambda x: checkpoint(run, x, use_reentrant=False)):
        (g,) = torch.autograd.grad(wrap(x).sum(), x, create_graph=True)
        results.append(torch.autograd.grad(g.square().sum(), x)[0])
    assert torch.equal(*results)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_second_order_in_narrow_dtypes(dtype):
    """The error of a Hessian-vector product against float64, compared with that of the plain formula in the same
    dtype."""
    inputs = [torch.randn(2, 3, 16, 8).to(dtype) for _ in range(3)]
    direction = torch.randn(2, 3, 16, 8).to(dtype)

    def product(attention, inputs, direction):
        loss = lambda q: (attention(q, *inputs[1:]).float().double() ** 2).sum()  # noqa: E731
        return torch.func.jvp(torch.func.grad(loss), (inputs[0],), (direction,))[1].double()

    formula = lambda *x: plain(*x, return_lse=False)  # noqa: E731
    truth = product(formula, [x.double() for x in inputs], direction.double())
    ours, theirs = (product(a, inputs, direction) for a in (scaled_dot_product_attention, formula))
    assert (ours - truth).norm() <= 2 * (theirs - truth).norm()


def test_autocast_of_other_dtypes():
    """Every float but float64 becomes autocast's dtype, in any mixture, as in PyTorch's attention."""
    q = torch.randn(2, 3, 8, 4)
    peer = F.scaled_dot_product_attention
    half, double, mask = q.half(), q.double(), torch.randn(8, 8)
    with torch.autocast("cpu", torch.bfloat16):
        for inputs in ((half,) * 3, (q, q, half), (q, q, q, mask.half()), (q, half, q, mask), (double,) * 3):
            ours, theirs = (f(*inputs) for f in (scaled_dot_product_attention, peer))
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=0.03, atol=0.03)


def test_output_has_the_layout_of_the_query():
    """A caller who transposed [batch, position, head, channel] for the call can transpose back without a copy."""
    x = torch.randn(2, 5, 3, 8)
    y = x.transpose(1, 2)
    o = scaled_dot_product_attention(y, y, y)
    assert torch.equal(o, scaled_dot_product_attention(*[y.contiguous()] * 3))
    assert o.transpose(1, 2).view(2, 5, 24).shape == (2, 5, 24)
    first = torch.randn(5, 2, 3, 8).permute(1, 2, 0, 3)
    scaled_dot_product_attention(first, y, y).permute(2, 0, 1, 3).view(5, 2, 24)
    qkv = torch.randn(2, 5, 72).unflatten(-1, (3, 3, 8)).permute(2, 0, 3, 1, 4)
    _, to = torch.func.jvp(lambda q: scaled_dot_product_attention(q, qkv[1], qkv[2]), (qkv[0],), (y,))
    to.transpose(1, 2).view(2, 5, 24)
    assert scaled_dot_product_attention(x[:1].expand(4, 5, 3, 8), x[:1], x[:1]).is_contiguous()


def test_offsets_threads_and_backend():
    """A part of the batch and heads, given its offsets, drops the same weights as within the whole."""
    x = randn(4, 6, 8, 4)
    features = {"dropout_p": 0.5, "seed": 5, "threads": 1, "backend": "reference"}
    full = scaled_dot_product_attention(x, x, x, **features)
    part = scaled_dot_product_attention(*[x[1:3, 2:5]] * 3, **features, batch_offset=1, head_offset=2)
    torch.testing.assert_close(part, full[1:3, 2:5])


def test_wider_bias():
    """A float32 bias of bfloat16 queries is not rounded, nor is its gradient."""
    q = torch.randn(1, 2, 8, 16).bfloat16()
    bias = torch.randn(8, 8, requires_grad=True)
    o = scaled_dot_product_attention(q, q, q, bias)
    (gradient,) = torch.autograd.grad(o.float().sum(), bias)
    assert o.dtype == torch.bfloat16 and gradient.dtype == torch.float32


def test_no_grad_keeps_nothing():
    x = randn(2, 8, 4, requires_grad=True)
    with torch.no_grad():
        assert scaled_dot_product_attention(x, x, x).grad_fn is None
    with torch.inference_mode():
        assert scaled_dot_product_attention(x, x, x).is_inference()


LONG = """
import resource, torch
from attngrad.torch import scaled_dot_product_attention
x, t = (torch.randn(4, {n}, 8) for _ in range(2))
loss = lambda x: scaled_dot_product_attention(x, x, x, is_causal=True).square().sum()
torch.func.jvp(torch.func.grad(loss), (x[:, :8],), (t[:, :8],))
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
product = torch.func.jvp(torch.func.grad(loss), (x,), (t,))[1]
assert product.isfinite().all()
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_long_sequence_in_little_memory():
    """A Hessian-vector product over 4096 positions: the weights alone would take 256 MiB in float32, and the
    formula several times that. In a process of its own, so that other tests do not raise its peak memory."""
    code = LONG.format(n=4096)
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64 * 1024, f"{done.stdout} KiB more"
