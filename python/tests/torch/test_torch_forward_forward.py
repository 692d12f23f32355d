"""Forward over forward: every feature against the plain formula and finite differences, vmap against a loop, the
derivatives with respect to the directions, every dtype by the error rule, and the third order, which is refused.

PyTorch's gradcheck cannot go forward over forward: its forward mode is torch.autograd.forward_ad's, which does not
nest, not even with torch.func.jvp inside."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad, gradcheck
from torch_cases import BY_NAME, CASES, F64, plain, within_rule

from attngrad.torch import scaled_dot_product_attention

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
formula_cases = pytest.mark.parametrize("case", [c for c in CASES if c.formula], ids=lambda case: case.name)
some_cases = pytest.mark.parametrize(
    "case", [BY_NAME[name] for name in ("all", "mask_and_bias", "gqa", "packed", "dropout")], ids=lambda c: c.name
)


def second(f, x, t, s):
    """The second derivative of f at x along t and s."""
    return func.jvp(lambda *x: func.jvp(f, x, t)[1], x, s)[1]


def draw(case, n=3):
    return tuple(case.inputs(requires_grad=False) for _ in range(n))


def close(x, y, rtol=1e-10):
    torch.testing.assert_close(x, y, rtol=rtol, atol=1e-12)


@formula_cases
def test_formula(case, backend):
    """Along two directions, and twice along one, which the map computes in another way."""
    x, t, s = draw(case)
    for directions in ((t, s), (t, t)):
        close(second(case.function(), x, *directions), second(case.function(plain), x, *directions))


@cases
def test_differences(case, backend):
    """Differences of jvp along s."""
    x, t, s = draw(case)
    step = 1e-5
    ends = [
        func.jvp(case.function(), tuple(a + sign * step * b for a, b in zip(x, s, strict=True)), t)[1]
        for sign in (1, -1)
    ]
    ends = ends if case.lse else [(end,) for end in ends]
    ours = second(case.function(), x, t, s)
    differences = tuple((a - b) / (2 * step) for a, b in zip(*ends, strict=True))
    torch.testing.assert_close(ours if case.lse else (ours,), differences, rtol=1e-6, atol=1e-8)


@formula_cases
def test_hessian(case):
    """jacfwd of jacfwd of a nonlinear function of each input: vmap of the second derivative in both directions."""
    inputs = case.inputs(requires_grad=False)

    def hessian(attention, argnum):
        def loss(x):
            result = case.function(attention)(*inputs[:argnum], x.sin(), *inputs[argnum + 1 :])
            return sum(part.sin().sum() for part in (result if case.lse else (result,)))

        return func.jacfwd(func.jacfwd(loss))(inputs[argnum])

    for argnum in range(len(inputs)):
        close(hessian(scaled_dot_product_attention, argnum), hessian(plain, argnum))


def test_inputs_that_curve():
    """The inputs of attention have second tangents of their own, and the three come from one tensor."""
    x, t, s = torch.randn(3, 2, 3, 5, 4, dtype=F64)
    weights = torch.randn(3, 4, 4, dtype=F64)
    ours, theirs = (
        second(lambda x, run=run: run(*(torch.tanh(x @ w) for w in weights), return_lse=True), (x,), (t,), (s,))
        for run in (scaled_dot_product_attention, plain)
    )
    close(ours, theirs)


@cases
def test_vmap(case):
    """Several directions at once, of one point and of points of their own."""
    stacked = [tuple(torch.stack(column) for column in zip(*draw(case), strict=True)) for _ in range(3)]
    row = lambda tensors, i: tuple(a[i] for a in tensors)  # noqa: E731
    run = lambda x, t, s: second(case.function(), x, t, s)  # noqa: E731
    points, ts, ss = stacked
    for shared in (True, False):
        x, dim = (row(points, 0), None) if shared else (points, 0)
        mapped = func.vmap(run, in_dims=(dim, 0, 0))(x, ts, ss)
        for i in range(3):
            alone = run(x if shared else row(points, i), row(ts, i), row(ss, i))
            close(row(mapped, i) if case.lse else mapped[i], alone)


@some_cases
def test_gradient_of_the_directions(case, backend):
    """Linear in each direction, and differentiable with respect to both; backward and, by torch.func, forward."""
    x, t, s = draw(case)
    n = len(x)
    run = lambda *ts: second(case.function(), x, ts[:n], ts[n:])  # noqa: E731
    assert gradcheck(run, [a.clone().requires_grad_() for a in (*t, *s)], check_batched_grad=True)
    for i in range(2 * n):
        close(func.jacfwd(run, i)(*t, *s), func.jacrev(run, i)(*t, *s))


def test_equal_directions_have_one_result():
    """Equal directions have the same bits as one that is given twice; the order of the directions does not matter."""
    x, t, s = (torch.randn(2, 3, 40, 8) for _ in range(3))
    run = lambda t, s: second(lambda x: scaled_dot_product_attention(x, x, x), (x,), (t,), (s,))  # noqa: E731
    assert torch.equal(run(t, t), run(t, t.clone()))
    torch.testing.assert_close(run(t, s), run(s, t), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("save_low", [True, False])
def test_error_rule(dtype, save_low):
    """The error relative to float64, with the plain formula's in the same dtype beside it."""
    x, t, s = (tuple(torch.randn(3, 2, 3, 70, 16, dtype=F64).to(dtype)) for _ in range(3))
    ours = second(lambda *x: scaled_dot_product_attention(*x, is_causal=True, save_low=save_low), x, t, s)
    formula = lambda *x: plain(*x, is_causal=True)[0]  # noqa: E731
    peer = second(formula, x, t, s)
    truth = second(formula, *(tuple(a.double() for a in each) for each in (x, t, s)))
    passes, error, peer_error = within_rule(ours, peer, truth, dtype)
    print(f"{dtype}, save_low={save_low}: {error:.1e}, plain formula {peer_error:.1e}")
    assert ours.dtype == dtype and passes, (error, peer_error)


def test_third_order_refused():
    x, t, s = torch.randn(3, 2, 3, 4, dtype=F64)
    loss = lambda x: scaled_dot_product_attention(x, x, x).sin().sum()  # noqa: E731
    two = lambda x: second(loss, (x,), (t,), (s,))  # noqa: E731
    for third in (
        lambda x: func.jvp(two, (x,), (t,)),
        func.jacfwd(func.jacfwd(func.jacfwd(loss))),
        func.grad(two),
        func.jacfwd(func.hessian(loss)),
        lambda x: two(x.clone().requires_grad_()).backward(),
    ):
        with pytest.raises(NotImplementedError, match="third derivative.*finite differences"):
            third(x)


def test_dual_numbers_do_not_nest():
    """PyTorch refuses torch.autograd.forward_ad around torch.func.jvp, with a message of its own."""
    x = torch.randn(2, 3, 4)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match="Nested forward mode AD is not supported"):
        func.jvp(lambda x: scaled_dot_product_attention(x, x, x), (forward_ad.make_dual(x, x),), (x,))


@pytest.mark.parametrize("transform", ["jvp", "jacfwd"])
def test_compiled(transform):
    torch.compiler.reset()
    x, t, s, k, v = (torch.randn(1, 2, 8, 4) for _ in range(5))
    loss = lambda x: scaled_dot_product_attention(x, k, v, is_causal=True).sin().sum()  # noqa: E731
    run = {
        "jvp": lambda x, t, s: second(loss, (x,), (t,), (s,)),
        "jacfwd": lambda x, t, s: func.jacfwd(func.jacfwd(loss))(x),
    }[transform]
    assert torch.equal(torch.compile(run, fullgraph=True, backend="aot_eager")(x, t, s), run(x, t, s))
