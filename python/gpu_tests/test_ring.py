"""ring_attention on CUDA tensors, against attention of one process on the CPU in float64: values, gradients, double
backward, forward mode. The group is one rank of NCCL; the last test runs the others again on three ranks that share
the GPU, with gloo, as NCCL wants a GPU for each. ATTNGRAD_TEST_DEVICE=cpu runs all on the CPU, with gloo: a test of
this file itself."""

import atexit
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

import torch
import torch.distributed as dist
from test_torch import DEVICE, SMALL, cases_of, compare, inputs, leaves, weight_of

from attngrad.torch import ring_attention, scaled_dot_product_attention, shard, unshard

WAYS = ("keys", "queries", "all_to_all")
SHARED = ("sink", "bias_table")
RANKS = 3
SECONDS = 150


def join_group():
    """The group that the environment names, or one rank. Nothing outside this machine is looked up."""
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    folder = os.environ.get("ATTNGRAD_TEST_STORE")
    rank, size = (int(os.environ[name]) if folder else n for name, n in (("RANK", 0), ("WORLD_SIZE", 1)))
    store = dist.FileStore(f"{folder}/store", size) if folder else dist.HashStore()
    backend = "nccl" if DEVICE == "cuda" and size == 1 else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=size)
    atexit.register(dist.destroy_process_group)
    print(f"rank {rank} of {size}, {backend}, tensors on {DEVICE}", flush=True)


if not dist.is_initialized():
    join_group()


def whole_case(options, names):
    def attention(q, k, v, *rest):
        return scaled_dot_product_attention(q, k, v, **dict(zip(names, rest)), **options)

    return attention


def ring_case(options, names, way):
    options = {name: value for name, value in options.items() if name != "enable_gqa"}

    def attention(q, k, v, *rest):
        return ring_attention(q, k, v, way=way, **dict(zip(names, rest)), **options)

    return attention


def joined(x, name=None):
    """The whole of what the ranks have of the output, or of a gradient if it has a name."""
    if name in SHARED:
        x = x.clone()
        dist.all_reduce(x)
        return x
    return unshard(x)


def each_case(function, dtypes=(torch.float64, torch.float32, torch.bfloat16)):
    """function(attention, xs, tangents, cotangent) gives an output or None, and gradients or none."""
    for options, tensors in cases_of(SMALL):
        names = ("q", "k", "v", *tensors)
        for dtype in dtypes:
            xs = inputs(dtype, tensors, options.get("enable_gqa", False))
            wide = [x.double() for x in xs]
            w = weight_of(wide[0])
            o, gradients = function(whole_case(options, list(tensors)), wide, [weight_of(x) for x in wide], w)
            for way in WAYS:
                mine = [
                    [y if name in SHARED else shard(y) for name, y in zip(names, ys)]
                    for ys in ([x.to(DEVICE) for x in xs], [weight_of(x).to(DEVICE) for x in xs])
                ]
                attention = ring_case(options, list(tensors), way)
                own, own_gradients = function(attention, *mine, shard(w.to(DEVICE, dtype)))
                label = f"{way} {options} {list(tensors)} {dtype}"
                if o is not None:
                    assert own.device.type == DEVICE
                    compare(f"{label} output", joined(own), o, dtype)
                for name, x, y in zip(names, own_gradients, gradients):
                    assert x.device.type == DEVICE
                    compare(f"{label} d{name}", joined(x, name), y, dtype)


def test_forward_and_backward():
    def function(attention, xs, tangents, w):
        xs = leaves(xs)
        o = attention(*xs)
        return o, torch.autograd.grad((o * w).sum(), xs)

    each_case(function, (torch.float64, torch.float32, torch.float16, torch.bfloat16))


def test_double_backward():
    def function(attention, xs, tangents, w):
        xs = leaves(xs)
        gradients = torch.autograd.grad((attention(*xs) * w).sum(), xs, create_graph=True)
        return None, torch.autograd.grad(sum((g * t).sum() for g, t in zip(gradients, tangents)), xs)

    each_case(function)


def test_forward_mode():
    def function(attention, xs, tangents, w):
        return torch.func.jvp(attention, tuple(xs), tuple(tangents))[1], []

    each_case(function)


def test_nested_forward_mode():
    def function(attention, xs, tangents, w):
        t = tuple(tangents)
        return torch.func.jvp(lambda *x: torch.func.jvp(attention, x, t)[1], tuple(xs), t)[1], []

    each_case(function, (torch.float64, torch.float32))


def test_bits():
    """The same bits twice."""
    torch.manual_seed(1)
    q, k, v = (shard(torch.randn(1, 4, 1001, 64, device=DEVICE)).requires_grad_() for _ in range(3))
    for way in WAYS:
        runs = []
        for _ in range(2):
            o = ring_attention(q, k, v, way=way, is_causal=True)
            runs.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v))])
        assert all(map(torch.equal, *runs)), way


def test_three_ranks():
    if dist.get_world_size() > 1:
        raise unittest.SkipTest("one of several ranks: it starts none")
    names = [name for name in globals() if name.startswith("test_") and name != "test_three_ranks"]
    core = sys.modules["attngrad._core"].__file__
    run = [sys.executable, str(pathlib.Path(__file__).with_name("run.py")), core, "test_ring.py"]
    with tempfile.TemporaryDirectory() as folder:
        common = os.environ | {"ATTNGRAD_TEST_STORE": folder, "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        ranks = [
            subprocess.Popen([*run, *names], env=common | {"RANK": str(rank)}, **pipes) for rank in range(RANKS)
        ]
        try:
            for rank, process in enumerate(ranks):
                text = process.communicate(timeout=SECONDS)[0].decode()
                assert process.returncode == 0, f"rank {rank}:\n{text}"
        finally:
            for process in ranks:
                process.kill()
