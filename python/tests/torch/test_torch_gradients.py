"""Every feature against finite differences, by PyTorch's own checks: backward, forward mode, double backward
and forward over reverse, all but the last also under vmap."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch_cases import CASES, plain

cases = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)


@cases
def test_formula(case, backend):
    """Output, and gradients for a random cotangent, compared with the plain formula."""
    if not case.formula:
        return check_without_formula(case)
    inputs = case.inputs()
    ours, theirs = case.function()(*inputs), case.function(plain)(*inputs)
    pairs = zip(ours, theirs, strict=True) if case.lse else [(ours, theirs)]
    for x, y in pairs:
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-13)
        cotangent = torch.randn_like(x)
        for a, b in zip(*(torch.autograd.grad(z, inputs, cotangent, retain_graph=True, materialize_grads=True)
                          for z in (x, y)), strict=True):  # fmt: skip
            torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def check_without_formula(case):
    """The cases that `plain` cannot express: packed sequences and query lengths, sequence by sequence; dropout, with
    the factors found by running it on V = I."""
    q, k, v = case.inputs(requires_grad=False)
    result = case.function()(q, k, v)
    o = result[0] if case.lse else result
    if case.name == "dropout":
        m = k.shape[-2]
        eye = torch.eye(m, dtype=v.dtype).expand(1, 2, m, m)
        factors = case.function()(q, k, eye)[0] / plain(q, k, eye)[0]
        assert set(factors.mul(0.6).round(decimals=9).unique().tolist()) == {0.0, 1.0}
        torch.testing.assert_close(o, plain(q, k, v, dropout_factors=factors)[0], rtol=1e-12, atol=1e-13)
    elif "q_packed" in case.keywords:
        first, second = (plain(q[:, a], k[:, b], v[:, b])[0] for a, b in
                         ((slice(0, 1), slice(0, 3)), (slice(1, 4), slice(3, 5))))  # fmt: skip
        torch.testing.assert_close(o, torch.cat([first, second], dim=1), rtol=1e-12, atol=1e-13)
    else:
        assert case.name == "q_lengths"
        expected = plain(q, k, v)[0]
        expected[0, :, 1:] = 0
        torch.testing.assert_close(o, expected, rtol=1e-12, atol=1e-13)


@cases
def test_gradcheck(case, backend):
    assert gradcheck(
        case.function(),
        case.inputs(),
        check_forward_ad=True,
        check_batched_grad=True,
        check_batched_forward_grad=True,
    )


@cases
def test_gradgradcheck(case, backend):
    assert gradgradcheck(case.function(), case.inputs(), check_fwd_over_rev=True, check_batched_grad=True)
