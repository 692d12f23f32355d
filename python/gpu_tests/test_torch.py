"""attngrad.torch on CUDA tensors, against the same call on the CPU in float64: values, gradients, double backward, forward
mode, torch.func, vmap, compile, autocast, and what is refused. ATTNGRAD_TEST_DEVICE=cpu runs what does not need a GPU on
the CPU: a test of this file itself."""

import os
import unittest
from typing import NamedTuple

import torch
import torch.nn.functional as F
from attngrad.torch import MultiheadAttention, scaled_dot_product_attention as sdpa
from torch_tools import DEVICE, compare, draw, leaves, needs_gpu, refuses, weight_of

import attngrad
from attngrad import _core, _plan


class Sizes(NamedTuple):
    n_q: int
    n_k: int
    d: int


SMALL = Sizes(33, 40, 32)  # the kernels for short sequences, where they serve
LARGE = (Sizes(200, 260, 64), Sizes(200, 260, 128))  # several tiles of every kernel, those for Hopper in 16 bits


def cases_of(sizes):
    """Options, and the shapes of the tensors of features."""
    return [
        ({}, {}),
        ({"is_causal": True, "enable_gqa": True}, {}),
        ({"softcap": 3.0, "window": (20, 3)}, {"sink": (4,)}),
        ({"alibi": True}, {"bias": (1, 4, sizes.n_q, sizes.n_k)}),
        ({"align": "bottom-right", "is_causal": True}, {"bias_table": (4, 9)}),
        ({"dropout_p": 0.2, "seed": 5}, {}),
        ({"kv_lengths": [sizes.n_k * 3 // 4, sizes.n_k // 4]}, {}),
    ]


def cases_of_hopper(sizes):
    """With those that have kernels for Hopper but are parts of a case above, which has portable ones."""
    mask = torch.rand(2, 1, sizes.n_q, sizes.n_k, generator=torch.Generator().manual_seed(4)) < 0.7
    more = [({}, {"bias": (1, 4, sizes.n_q, sizes.n_k)}), ({"attn_mask": mask}, {})]
    return cases_of(sizes) + more


def inputs(dtype, tensors, gqa=False, sizes=SMALL):
    """q, k, v and the tensors of features on the CPU."""
    torch.manual_seed(3)
    heads, (n_q, n_k, d) = 2 if gqa else 4, sizes
    main = [draw(2, 4, n_q, d), draw(2, heads, n_k, d), draw(2, heads, n_k, d)]
    return [x.to(dtype) for x in main + [draw(*shape) for shape in tensors.values()]]


def attention_of(options, names):
    """A function of q, k, v and the tensors of features."""

    def attention(q, k, v, *rest):
        here = {name: x.to(q.device) if isinstance(x, torch.Tensor) else x for name, x in options.items()}
        return sdpa(q, k, v, **dict(zip(names, rest)), **here)

    return attention


def compare_case(function, options, tensors, sizes, dtype):
    """function(attention, *tensors) gives tensors: here in this dtype, on the CPU in float64 of the same values."""
    xs = inputs(dtype, tensors, options.get("enable_gqa", False), sizes)
    attention = attention_of(options, list(tensors))
    wanted = function(attention, *[x.double() for x in xs])
    got = function(attention, *[x.to(DEVICE) for x in xs])
    for n, (a, b) in enumerate(zip(got, wanted, strict=True)):
        assert a.device.type == DEVICE and a.dtype == dtype
        compare(f"{sizes} {list(options)} {list(tensors)} {dtype} result {n}", a, b, dtype)


def each_case(function, dtypes=(torch.float64, torch.float32, torch.bfloat16)):
    for options, tensors in cases_of(SMALL):
        for dtype in dtypes:
            compare_case(function, options, tensors, SMALL, dtype)


def each_large_case(function):
    """In 16 bits, of which the tensor cores make their products."""
    for sizes in LARGE:
        for options, tensors in cases_of_hopper(sizes):
            for dtype in (torch.bfloat16, torch.float16):
                compare_case(function, options, tensors, sizes, dtype)


def forward_and_backward(attention, *xs):
    xs = leaves(xs)
    o = attention(*xs)
    return [o, *torch.autograd.grad((o * weight_of(o)).sum(), xs)]


def double_backward(attention, *xs):
    xs = leaves(xs)
    o = attention(*xs)
    gradients = torch.autograd.grad((o * weight_of(o)).sum(), xs, create_graph=True)
    return torch.autograd.grad(sum((g * weight_of(g)).sum() for g in gradients), xs)


def forward_mode(attention, *xs):
    return torch.func.jvp(attention, tuple(xs), tuple(weight_of(x) for x in xs))


def test_forward_and_backward():
    each_case(forward_and_backward, (torch.float64, torch.float32, torch.float16, torch.bfloat16))


def test_forward_and_backward_large():
    each_large_case(forward_and_backward)


def test_double_backward():
    each_case(double_backward)


def test_double_backward_large():
    each_large_case(double_backward)


def test_forward_mode():
    each_case(forward_mode)


def test_forward_mode_large():
    each_large_case(forward_mode)


def test_large_cases_run_on_hopper():
    """Else the three tests above would not reach the kernels that they are for."""
    needs_gpu()
    if torch.cuda.get_device_capability() != (9, 0) or os.environ.get("ATTNGRAD_ISA", "sm90") != "sm90":
        raise unittest.SkipTest("another GPU or another table than sm90")
    for n_q, n_k, d in LARGE:
        for dtype in ("bf16", "f16"):
            for features in ("", "causal", "causal softcap=3 window=20,3 sink", "dropout=0.2"):
                problem = f"b2 h4 q{n_q} k{n_k} d{d} {dtype} {features}"
                words = _plan.get(problem, backend=_core.BACKEND_CUDA, device=1).describe()
                assert "wgmma in forward, vjp, jvp and vjp_jvp" in words, f"{problem}: {words}"


def test_nested_forward_mode():
    def function(attention, *xs):
        t = tuple(weight_of(x) for x in xs)
        return torch.func.jvp(lambda *p: torch.func.jvp(attention, p, t)[1], tuple(xs), t)

    each_case(function, (torch.float64, torch.float32))


def test_hessian_vector_product():
    def function(attention, *xs):
        def loss(*p):
            o = attention(*p)
            return (o * weight_of(o)).sum()

        grad = torch.func.grad(loss, argnums=tuple(range(len(xs))))
        return torch.func.jvp(grad, tuple(xs), tuple(weight_of(x) for x in xs))[1]

    each_case(function, (torch.float64, torch.float32))


def test_vmap():
    x = draw(3, 2, 4, 9, 16)
    wanted = torch.stack([sdpa(*[x[i]] * 3, is_causal=True) for i in range(3)])
    y = x.to(DEVICE)
    compare("vmap", torch.func.vmap(lambda q: sdpa(q, q, q, is_causal=True))(y), wanted, torch.float64)
    gradient = torch.func.vmap(torch.func.grad(lambda q: sdpa(q, q, q).square().sum()))(y)
    wanted = torch.stack([torch.func.grad(lambda q: sdpa(q, q, q).square().sum())(x[i]) for i in range(3)])
    compare("vmap of grad", gradient, wanted, torch.float64)


def test_compile():
    x = draw(2, 4, 33, 32, dtype=torch.float32)

    def loss(q):
        return sdpa(q * 2, q, q, is_causal=True).square().sum()

    wanted = torch.func.grad(loss)(x.double())
    q = x.to(DEVICE).requires_grad_()
    torch.compile(loss, fullgraph=True)(q).backward()
    compare("compile", q.grad, wanted, torch.float32)


def test_autocast():
    x = draw(2, 4, 33, 32, dtype=torch.float32).to(DEVICE)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        o = sdpa(x, x, x)
    assert o.dtype == torch.bfloat16
    compare("autocast", o, sdpa(*[x.cpu().bfloat16().double()] * 3), torch.bfloat16)


def test_against_pytorch():
    q, k, v = (draw(2, 4, 128, 64, dtype=torch.float32).to(DEVICE) for _ in range(3))
    compare("PyTorch's own", sdpa(q, k, v), F.scaled_dot_product_attention(q, k, v).cpu(), torch.float32)


def test_module():
    torch.manual_seed(1)
    module = MultiheadAttention(32, 4, batch_first=True, dtype=torch.float64)
    x = draw(2, 9, 32)
    wanted = module(x, x, x, need_weights=False)[0]
    module.to(DEVICE)
    compare("module", module(*[x.to(DEVICE)] * 3, need_weights=False)[0], wanted, torch.float64)


def test_strides():
    x = draw(2, 33, 4, 40)
    wanted = sdpa(*[x.transpose(1, 2)[..., 3:36]] * 3)
    compare("strides", sdpa(*[x.to(DEVICE).transpose(1, 2)[..., 3:36]] * 3), wanted, torch.float64)


def test_packed():
    q, ends = draw(4, 50, 16), [0, 20, 20, 47]
    wanted = sdpa(q, q, q, q_packed=ends, k_packed=ends, is_causal=True)
    compare("packed", sdpa(*[q.to(DEVICE)] * 3, q_packed=ends, k_packed=ends, is_causal=True), wanted, torch.float64)


def test_mixed_devices():
    needs_gpu()
    x, y = draw(1, 2, 8, 16), draw(1, 2, 8, 16).to("cuda")
    refuses("key: device cpu, but query is on cuda:0", lambda: sdpa(y, x, y))
    refuses("value: device cuda:0, but query is on cpu", lambda: sdpa(x, x, y))
    refuses("bias: device cpu", lambda: sdpa(y, y, y, bias=draw(1, 2, 8, 8)))
    refuses("backend: runs on the CPU", lambda: sdpa(y, y, y, backend="cpu"))
    refuses("backend: 'cuda', but query is on the CPU", lambda: sdpa(x, x, x, backend="cuda"))


def test_arrays_of_pytorch():
    needs_gpu()
    x = draw(2, 9, 16)
    wanted = attngrad.forward(x, x, x).o
    y = x.to("cuda")
    o = attngrad.forward(y, y, y).o
    assert type(o) is torch.Tensor and o.is_cuda
    compare("a tensor", o, torch.as_tensor(wanted), torch.float64)


def test_arrays_of_cupy():
    """Beside PyTorch's in one process; test_cupy.py has the rest."""
    needs_gpu()
    try:
        import cupy
    except ImportError as error:
        raise unittest.SkipTest(f"CuPy is not here: {error}") from None
    x = draw(2, 9, 16)
    z = cupy.asarray(x.numpy())
    o = attngrad.forward(z, z, z).o
    assert isinstance(o, cupy.ndarray)
    compare("CuPy", torch.as_tensor(cupy.asnumpy(o)), torch.as_tensor(attngrad.forward(x, x, x).o), torch.float64)


def test_memory():
    """A second derivative at 8,192 positions takes memory in proportion to them, and gives all of it back."""
    needs_gpu()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    q, k, v = (torch.randn(1, 4, 8192, 64, device="cuda", requires_grad=True) for _ in range(3))
    torch.cuda.reset_peak_memory_stats()
    o = sdpa(q, k, v)
    gradients = torch.autograd.grad(o.square().sum(), (q, k, v), create_graph=True)
    torch.autograd.grad(sum(g.square().sum() for g in gradients), (q, k, v))
    bytes_of_q = q.numel() * 4
    assert torch.cuda.max_memory_allocated() - before < 60 * bytes_of_q  # scores alone would be 128 times it
    del q, k, v, o, gradients
    torch.cuda.synchronize()
    assert torch.cuda.memory_allocated() == before
