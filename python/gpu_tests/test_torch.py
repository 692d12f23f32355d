"""attngrad.torch on CUDA tensors, against the same call on the CPU in float64: values, gradients, double backward, forward
mode, torch.func, vmap, compile, autocast, and what is refused. ATTNGRAD_TEST_DEVICE=cpu runs what does not need a GPU on
the CPU: a test of this file itself."""

import unittest

import torch
import torch.nn.functional as F
from attngrad.torch import MultiheadAttention, scaled_dot_product_attention as sdpa
from torch_tools import DEVICE, compare, draw, leaves, needs_gpu, refuses, weight_of

import attngrad

CASES = [
    ({}, {}),
    ({"is_causal": True, "enable_gqa": True}, {}),
    ({"softcap": 3.0, "window": (20, 3)}, {"sink": (4,)}),
    ({"alibi": True}, {"bias": (1, 4, 33, 40)}),
    ({"align": "bottom-right", "is_causal": True}, {"bias_table": (4, 9)}),
    ({"dropout_p": 0.2, "seed": 5}, {}),
    ({"kv_lengths": [30, 11]}, {}),
]


def inputs(dtype, tensors, gqa=False):
    """q, k, v and the tensors of features on the CPU."""
    torch.manual_seed(3)
    heads = 2 if gqa else 4
    main = [draw(2, 4, 33, 32), draw(2, heads, 40, 32), draw(2, heads, 40, 32)]
    return [x.to(dtype) for x in main + [draw(*shape) for shape in tensors.values()]]


def each_case(function, dtypes=(torch.float64, torch.float32, torch.bfloat16)):
    """function(attention, *tensors) gives tensors: on the GPU in each dtype, on the CPU in float64 of the same values."""
    for options, tensors in CASES:
        for dtype in dtypes:
            xs = inputs(dtype, tensors, options.get("enable_gqa", False))
            names = list(tensors)

            def attention(q, k, v, *rest, names=names, options=options):
                return sdpa(q, k, v, **dict(zip(names, rest)), **options)

            wanted = function(attention, *[x.double() for x in xs])
            got = function(attention, *[x.to(DEVICE) for x in xs])
            for n, (a, b) in enumerate(zip(got, wanted, strict=True)):
                assert a.device.type == DEVICE
                compare(f"{options} {list(tensors)} {dtype} result {n}", a, b, dtype)


def test_forward_and_backward():
    def function(attention, *xs):
        xs = leaves(xs)
        o = attention(*xs)
        return [o, *torch.autograd.grad((o * weight_of(o)).sum(), xs)]

    each_case(function, (torch.float64, torch.float32, torch.float16, torch.bfloat16))


def test_double_backward():
    def function(attention, *xs):
        xs = leaves(xs)
        o = attention(*xs)
        gradients = torch.autograd.grad((o * weight_of(o)).sum(), xs, create_graph=True)
        return torch.autograd.grad(sum((g * weight_of(g)).sum() for g in gradients), xs)

    each_case(function)


def test_forward_mode():
    def function(attention, *xs):
        return torch.func.jvp(attention, tuple(xs), tuple(weight_of(x) for x in xs))

    each_case(function)


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
