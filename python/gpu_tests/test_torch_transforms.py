"""attngrad.torch on CUDA tensors under PyTorch's transforms: gradcheck, Jacobians and Hessians of torch.func, vmap,
torch.compile in its modes, autocast; and edges: nothing to attend to, lengths that the GPU clamps, numbers that are not
finite. ATTNGRAD_TEST_DEVICE=cpu runs what does not need a GPU on the CPU."""

import unittest

import torch
from attngrad.torch import scaled_dot_product_attention as sdpa
from torch_tools import DEVICE, compare, draw, needs_gpu

# ---- Derivatives ----


def test_gradcheck():
    """PyTorch's own comparison with finite differences: first and second order, forward mode."""
    torch.manual_seed(2)
    q, k, v = (draw(1, 2, 5, 3).to(DEVICE).requires_grad_() for _ in range(3))
    bias, sink = (draw(*shape).to(DEVICE).requires_grad_() for shape in ((1, 2, 5, 5), (2,)))

    def attention(q, k, v, bias, sink):
        return sdpa(q, k, v, bias=bias, sink=sink, softcap=2.0, is_causal=True)

    inputs = (q, k, v, bias, sink)
    assert torch.autograd.gradcheck(attention, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(attention, inputs, fast_mode=True)


def both(function, *xs):
    """Its results on the GPU and, in float64, on the CPU."""
    return function(*[x.to(DEVICE) for x in xs]), function(*xs)


def test_jacobians():
    torch.manual_seed(3)
    x, y = draw(1, 2, 6, 4), draw(1, 2, 6, 4)
    for jacobian in (torch.func.jacrev, torch.func.jacfwd):
        got, wanted = both(lambda a, b: jacobian(lambda q: sdpa(q, b, b, alibi=True))(a), x, y)
        compare(jacobian.__name__, got, wanted, torch.float64)
    got, wanted = both(lambda a, b: torch.func.hessian(lambda k: sdpa(b, k, k).sin().sum())(a), x, y)
    compare("hessian", got, wanted, torch.float64)


def test_vmap_of_features():
    """Mapped and shared arguments; a mapped bias; jvp inside."""
    torch.manual_seed(4)
    q, k, bias = draw(3, 2, 4, 9, 16), draw(2, 4, 9, 16), draw(3, 1, 4, 9, 9)

    def function(q, k, bias):
        mapped = torch.func.vmap(lambda a, b: sdpa(a, k, k, bias=b, is_causal=True))(q, bias)
        tangents = torch.func.vmap(lambda a: torch.func.jvp(lambda b: sdpa(b, k, k), (a,), (a,))[1])(q)
        return torch.stack([mapped, tangents])

    compare("vmap", *both(function, q, k, bias), torch.float64)
    one_by_one = torch.stack([sdpa(q[n], k, k, bias=bias[n], is_causal=True) for n in range(3)])
    compare("vmap and a loop", function(q.to(DEVICE), k.to(DEVICE), bias.to(DEVICE))[0], one_by_one, torch.float64)


# ---- torch.compile ----


def gradient_of(function, x):
    x = x.detach().requires_grad_()
    value = function(x)
    return value.detach().clone(), torch.autograd.grad(value, x)[0].clone()


def test_compile_dynamic():
    """One graph for several lengths; lengths and seed are its inputs."""
    torch.manual_seed(5)
    torch._dynamo.reset()

    def loss(q, lengths, seed):
        return sdpa(q * 2, q, q, kv_lengths=lengths, dropout_p=0.3, seed=seed).square().sum()

    compiled = torch.compile(loss, fullgraph=True, dynamic=True)
    for n in (33, 50, 21):
        q = draw(2, 4, n, 32, dtype=torch.float32).to(DEVICE)
        lengths, seed = torch.tensor([n, n // 2], device=DEVICE), torch.tensor(n, device=DEVICE)
        wanted = gradient_of(lambda x: loss(x, lengths, seed), q)
        got = gradient_of(lambda x: compiled(x, lengths, seed), q)
        compare(f"gradient {n}", got[1], wanted[1].cpu(), torch.float32)


def test_compile_with_graphs():
    """mode="reduce-overhead": PyTorch itself captures CUDA graphs of the compiled code."""
    needs_gpu()
    torch._dynamo.reset()

    def loss(q):
        return sdpa(q * 2, q, q, is_causal=True, softcap=10.0).square().sum()

    compiled = torch.compile(loss, fullgraph=True, mode="reduce-overhead")
    for n in range(5):
        q = draw(2, 4, 64, 32, dtype=torch.float32).to("cuda")
        torch.compiler.cudagraph_mark_step_begin()
        got, wanted = gradient_of(compiled, q), gradient_of(loss, q)
        compare(f"loss {n}", got[0], wanted[0].cpu(), torch.float32)
        compare(f"gradient {n}", got[1], wanted[1].cpu(), torch.float32)


def gradients_of(function, xs):
    """Its value and its gradients."""
    xs = [x.detach().requires_grad_() for x in xs]
    value = function(*xs)
    return [value.detach().clone(), *(g.clone() for g in torch.autograd.grad(value, xs))]


def loss_of(**options):
    return lambda q, k, v: sdpa(q * 2, k, v, **options).float().square().sum()


def compare_with_float64(name, function, got, xs):
    """In float64 on the CPU, of the same values: within what bfloat16 costs."""
    wanted = gradients_of(function, [x.cpu().double() for x in xs])
    for n, (a, b) in enumerate(zip(got, wanted, strict=True)):
        error = (a.cpu().double() - b).norm() / b.norm()
        assert error <= 2e-2, f"{name} result {n}: {error:.1e}"


# Sizes that the tensor cores take: several tiles, both head sizes.
LARGE = [(200, 64, {"is_causal": True}), (333, 64, {"softcap": 5.0}), (200, 128, {}), (260, 128, {"is_causal": True})]


def large_inputs(n, d):
    return [draw(2, heads, n, d, dtype=torch.bfloat16).to(DEVICE) for heads in (4, 2, 2)]


def test_compile_large():
    """One graph of forward and backward in bfloat16."""
    torch.manual_seed(7)
    for n, d, options in LARGE:
        torch._dynamo.reset()
        loss = loss_of(enable_gqa=True, **options)
        xs = large_inputs(n, d)
        got = gradients_of(torch.compile(loss, fullgraph=True), xs)
        compare_with_float64(f"compiled {n} {d} {options}", loss, got, xs)


def test_compile_large_with_graphs():
    """The same in CUDA graphs, replayed with other inputs."""
    needs_gpu()
    torch.manual_seed(8)
    for n, d, options in LARGE:
        torch._dynamo.reset()
        loss = loss_of(enable_gqa=True, **options)
        compiled = torch.compile(loss, fullgraph=True, mode="reduce-overhead")
        for step in range(4):  # the first ones warm up and capture
            xs = large_inputs(n, d)
            torch.compiler.cudagraph_mark_step_begin()
            compare_with_float64(f"graph {n} {d} {options} step {step}", loss, gradients_of(compiled, xs), xs)


# ---- Autocast ----


def test_autocast_derivatives():
    """float32 leaves get float32 gradients of the 16-bit attention; float64 stays as it is."""
    torch.manual_seed(6)
    x = draw(2, 4, 33, 32, dtype=torch.float32)
    for dtype in (torch.float16, torch.bfloat16):
        q = x.to(DEVICE).requires_grad_()
        with torch.autocast(DEVICE, dtype=dtype):
            o = sdpa(q, q, q, is_causal=True, bias=torch.zeros(33, 33, device=DEVICE))
        assert o.dtype == dtype
        (gradient,) = torch.autograd.grad(o.float().square().sum(), q)
        assert gradient.dtype == torch.float32
        p = x.to(dtype).double().requires_grad_()
        (wanted,) = torch.autograd.grad(sdpa(p, p, p, is_causal=True).square().sum(), p)
        compare(f"gradient of {dtype}", gradient, wanted, dtype)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        y = x.double().to(DEVICE)
        assert sdpa(y, y, y).dtype == torch.float64


# ---- Edges ----


def test_nothing_to_attend_to():
    """No sequences, no queries, no keys: shapes of the results, zeros where nothing is seen."""
    for queries, keys, channels, dtype in ((4, 4, 8, torch.float64), (100, 130, 64, torch.bfloat16)):
        for batch, *rows in ((0, queries, keys), (2, 0, keys), (2, queries, 0)):
            q, k = (draw(batch, 2, n, channels, dtype=dtype).to(DEVICE).requires_grad_() for n in rows)
            o = sdpa(q, k, k)
            gradients = torch.autograd.grad(o.sum(), (q, k))
            assert o.shape == q.shape and all(g.shape == x.shape for g, x in zip(gradients, (q, k), strict=True))
            assert rows[1] > 0 or not o.any()


def test_lengths_are_clamped():
    """Lengths on the GPU that are too long or negative count as the longest, and as 0."""
    needs_gpu()
    q, k = (draw(3, 2, n, 16, dtype=torch.float32).to("cuda") for n in (9, 40))
    wild = torch.tensor([1000, -3, 7], device="cuda")
    tame = torch.tensor([40, 0, 7], device="cuda")
    got, wanted = (gradient_of(lambda x: sdpa(q, x, x, kv_lengths=n).sum(), k) for n in (wild, tame))
    assert all(map(torch.equal, got, wanted))


def test_padding_is_not_read():
    """NaN after the end of a sequence reaches nothing."""
    k = draw(2, 2, 40, 16, dtype=torch.float32)
    k[0, :, 30:], k[1, :, 11:] = float("nan"), float("inf")
    q = draw(2, 2, 9, 16, dtype=torch.float32).to(DEVICE)
    lengths = torch.tensor([30, 11], device=DEVICE)
    o, gradient = gradient_of(lambda x: sdpa(q, x, x, kv_lengths=lengths).sum(), k.to(DEVICE))
    assert torch.isfinite(o) and torch.isfinite(gradient).all()
    assert not gradient[0, :, 30:].any() and not gradient[1, :, 11:].any()


def test_current_device():
    """A tensor of another GPU than the current one runs there."""
    needs_gpu()
    if torch.cuda.device_count() < 2:
        raise unittest.SkipTest("one GPU: tensors of another than the current one are not tested")
    x = draw(1, 2, 8, 16)
    y = x.to("cuda:1")
    assert torch.cuda.current_device() == 0
    o = sdpa(y, y, y)
    assert o.device == y.device
    compare("the second GPU", o, sdpa(x, x, x), torch.float64)
    try:
        sdpa(y, x.to("cuda:0"), y)
    except ValueError as error:
        assert "key: device cuda:0, but query is on cuda:1" in str(error)
    else:
        raise AssertionError("tensors of two GPUs were not refused")
