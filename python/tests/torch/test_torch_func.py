"""torch.func: each transform and each order of two of them compared with the plain formula, vmap compared with a
loop, and the orders that are refused."""

import pytest
import torch
from torch import func
from torch.autograd import forward_ad
from torch_cases import BY_NAME, CASES, F64, plain

from attngrad.torch import scaled_dot_product_attention

formula_cases = pytest.mark.parametrize("case", [c for c in CASES if c.formula], ids=lambda case: case.name)
some_cases = pytest.mark.parametrize(
    "case",
    [BY_NAME[name] for name in ("all", "mask_and_bias", "gqa", "five_axes", "kv_lengths")],
    ids=lambda c: c.name,
)


def scalar_of(case, attention, argnum, inputs):
    """A nonlinear scalar function of one input, through o and lse."""
    run = case.function(attention) if attention is not None else case.function()

    def loss(x):
        result = run(*inputs[:argnum], x, *inputs[argnum + 1 :])
        parts = result if case.lse else (result,)
        return sum(part.sin().sum() for part in parts)

    return loss


def close(x, y):
    torch.testing.assert_close(x, y, rtol=1e-10, atol=1e-12)


@formula_cases
@pytest.mark.parametrize("transform", ["hessian", "reverse_reverse", "reverse_forward"])
def test_second_order(case, transform):
    apply = {
        "hessian": func.hessian,
        "reverse_reverse": lambda f: func.jacrev(func.jacrev(f)),
        "reverse_forward": lambda f: func.jacrev(func.jacfwd(f)),
    }[transform]
    inputs = case.inputs(requires_grad=False)
    for argnum, x in enumerate(inputs):
        ours, theirs = (apply(scalar_of(case, a, argnum, inputs))(x) for a in (None, plain))
        close(ours, theirs)


@some_cases
def test_mixed_second_order(case):
    """d2 / dq dx for every other input x."""
    inputs = case.inputs(requires_grad=False)
    for argnum in range(1, len(inputs)):

        def mixed(attention, argnum=argnum):
            def gradient(x):
                others = [*inputs[:argnum], x, *inputs[argnum + 1 :]]
                return func.grad(scalar_of(case, attention, 0, others))(inputs[0])

            return gradient

        for jacobian in (func.jacrev, func.jacfwd):
            close(jacobian(mixed(None))(inputs[argnum]), jacobian(mixed(plain))(inputs[argnum]))


@some_cases
def test_first_order(case):
    inputs, tangents = case.inputs(requires_grad=False), case.inputs(requires_grad=False)
    close(func.jvp(case.function(), inputs, tangents), func.jvp(case.function(plain), inputs, tangents))
    (o, back), (p, plain_back) = (
        func.vjp(case.function(a), *inputs) for a in (scaled_dot_product_attention, plain)
    )
    cotangent = tuple(torch.randn_like(x) for x in o)
    close(back(cotangent), plain_back(cotangent))
    argnums = tuple(range(len(inputs)))
    for jacobian in (func.jacrev, func.jacfwd):
        close(
            jacobian(case.function(), argnums)(*inputs),
            jacobian(case.function(plain), argnums)(*inputs),
        )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_vmap_per_sample(case):
    """Gradients of each of three problems at once; and with some inputs shared by all three."""
    samples = [case.inputs(requires_grad=False) for _ in range(3)]
    n = len(samples[0])
    for shared in ((), (0,), (1, 2), tuple(range(3, n))):
        dims = tuple(None if i in shared else 1 for i in range(n))
        stacked = [
            samples[0][i] if i in shared else torch.stack([s[i] for s in samples], dim=1) for i in range(n)
        ]

        def gradients(*inputs):
            loss = lambda *x: scalar_of(case, None, 0, x)(x[0])  # noqa: E731
            return func.grad(loss, tuple(range(n)))(*inputs)

        batched = func.vmap(gradients, in_dims=dims)(*stacked)
        for i, sample in enumerate(samples):
            single = gradients(*(samples[0][j] if j in shared else x for j, x in enumerate(sample)))
            close(tuple(x[i] for x in batched), single)


def test_vmap_nested():
    q, k, v = torch.randn(3, 2, 3, 4, 5, 6, dtype=F64)
    nested = func.vmap(func.vmap(scaled_dot_product_attention, in_dims=(1, None, 1)), in_dims=(0, 0, 0))
    o = nested(q, k[:, :, 0], v)
    for i in range(2):
        for j in range(4):
            close(o[i, j], scaled_dot_product_attention(q[i, :, j], k[i, :, 0], v[i, :, j]))


def test_vmap_dropout():
    """randomness="same" drops the same weights everywhere, "different" does not, the default refuses."""
    x = torch.randn(2, 8, 8, dtype=F64)
    run = lambda x: scaled_dot_product_attention(x, x, x, dropout_p=0.5)  # noqa: E731
    twice = torch.stack([x, x])
    same = func.vmap(run, randomness="same")(twice)
    assert torch.equal(same[0], same[1])
    different = func.vmap(run, randomness="different")(twice)
    assert not torch.equal(different[0], different[1])
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(run)(twice)


def test_jacobian_under_dropout_uses_one_mask():
    x = torch.randn(2, 4, 3, dtype=F64)
    run = lambda x: scaled_dot_product_attention(x, x, x, dropout_p=0.5, seed=3)  # noqa: E731
    close(func.jacrev(run)(x), func.jacfwd(run)(x))


def test_reverse_over_dual_numbers():
    """Backward through a forward-mode derivative of torch.autograd.forward_ad."""
    case = BY_NAME["all"]
    inputs, tangents = case.inputs(), case.inputs()
    with forward_ad.dual_level():
        duals = [forward_ad.make_dual(x, t) for x, t in zip(inputs, tangents, strict=True)]
        parts = [forward_ad.unpack_dual(x) for x in case.function()(*duals)]
        ours = sum(part.tangent.sin().sum() + part.primal.cos().sum() for part in parts)
    outputs, directions = func.jvp(case.function(plain), inputs, tangents)
    theirs = sum(x.sin().sum() for x in directions) + sum(x.cos().sum() for x in outputs)
    close(*(torch.autograd.grad(loss, [*inputs, *tangents]) for loss in (ours, theirs)))


def test_linear_in_the_direction():
    """The Jacobian of a Hessian-vector product with respect to its vector is the Hessian, in both modes."""
    case = BY_NAME["all"]
    inputs = case.inputs(requires_grad=False)
    loss = scalar_of(case, None, 0, inputs)
    product = lambda t: func.jvp(func.grad(loss), (inputs[0],), (t,))[1]  # noqa: E731
    direction = torch.randn_like(inputs[0])
    for jacobian in (func.jacrev, func.jacfwd):
        close(jacobian(product)(direction), func.hessian(loss)(inputs[0]))


def test_third_order_refused():
    x = torch.randn(2, 3, 4, dtype=F64)
    loss = lambda x: scaled_dot_product_attention(x, x, x).sin().sum()  # noqa: E731
    for third in (
        func.grad(lambda x: func.hessian(loss)(x).sum()),
        func.jacrev(func.jacrev(func.jacrev(loss))),
        func.jacfwd(func.jacrev(func.jacrev(loss))),
    ):
        with pytest.raises(NotImplementedError, match="third derivative.*finite differences"):
            third(x)
    y = x.clone().requires_grad_()
    (g,) = torch.autograd.grad(loss(y), y, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), y, create_graph=True)
    with pytest.raises(NotImplementedError, match="third derivative"):
        h.sum().backward()


def test_functional_products():
    """torch.autograd.functional.hvp differentiates a double backward by its direction alone: second order,
    though the point is recorded too."""
    x, t = (torch.randn(2, 3, 5, 4, dtype=F64) for _ in range(2))
    loss = lambda x: scaled_dot_product_attention(x, x, x, is_causal=True).sin().sum()  # noqa: E731
    expected = func.jvp(func.grad(loss), (x,), (t,))[1]
    for product in (torch.autograd.functional.hvp, torch.autograd.functional.vhp):
        close(product(loss, x, t)[1], expected)
    y = x.clone().requires_grad_()
    with pytest.raises(NotImplementedError, match="third"):
        torch.autograd.functional.hvp(loss, y, t, create_graph=True)[1].sum().backward()
