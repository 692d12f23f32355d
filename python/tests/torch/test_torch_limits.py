"""What does not work with PyTorch fails, or behaves, as docs/python.md says; and so does the way around it."""

import io
import subprocess
import sys

import pytest
import torch
from torch import distributed, fx, nn
from torch.distributed.tensor import Shard, distribute_tensor
from torch.masked import masked_tensor
from torch.utils.flop_counter import FlopCounterMode

from attngrad.torch import MultiheadAttention, replace, scaled_dot_product_attention

X = torch.randn(2, 4, 8, 16)
ROWS = torch.randn(2, 8, 16)


class Attention(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(x, x, x, is_causal=True)


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MultiheadAttention(16, 4, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x, need_weights=False)[0]


pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.*:" + kind) for kind in ("FutureWarning", "DeprecationWarning")
] + [
    pytest.mark.filterwarnings("ignore:Converting a tensor to a Python:torch.jit.TracerWarning"),
    pytest.mark.filterwarnings("ignore:.*MaskedTensor:UserWarning"),
]


class TestScript:
    def test_function(self):
        with pytest.raises(Exception, match="keyword-only arguments"):
            torch.jit.script(Attention())

    @pytest.mark.parametrize("make", [Layer, lambda: replace(nn.TransformerEncoderLayer(16, 4, 32))])
    def test_module(self, make):
        with pytest.raises(NotImplementedError, match="torch.jit.script cannot compile it; use torch.export"):
            torch.jit.script(make())

    @pytest.mark.parametrize("model", [Attention(), Layer()], ids=["function", "module"])
    def test_trace_works(self, model):
        x = X if isinstance(model, Attention) else ROWS
        traced = torch.jit.trace(model, (x,))
        assert torch.equal(traced(2 * x[:1]), model(2 * x[:1]))

    def test_replace_names_scripted_layers(self):
        scripted = torch.jit.script(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True))
        with pytest.warns(UserWarning, match=r"left alone: self_attn \(RecursiveScriptModule\)"):
            replace(scripted)

    def test_saved_model_needs_the_import(self, tmp_path):
        path = tmp_path / "model.pt"
        torch.jit.save(torch.jit.trace(Attention(), (X,)), path)
        code = (
            "import sys, torch\n"
            "try:\n"
            "    torch.jit.load(sys.argv[1])\n"
            "except RuntimeError as error:\n"
            "    print(error)\n"
            "import attngrad.torch\n"
            "torch.jit.load(sys.argv[1])\n"
        )
        done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True)
        assert done.returncode == 0 and "attngrad::forward" in done.stdout, done.stdout + done.stderr


class TestSymbolicTrace:
    def test_function(self):
        with pytest.raises(TypeError, match=r"^query: a Proxy .*torch.fx.wrap\('scaled_dot_product"):
            fx.symbolic_trace(Attention())

    def test_module(self):
        with pytest.raises(TypeError, match="^query: a Proxy .*is_leaf_module"):
            fx.symbolic_trace(Layer())

    def test_wrapped_function_works(self, tmp_path, monkeypatch):
        """torch.fx.wrap must stand at the top level of a file."""
        (tmp_path / "wrapped.py").write_text(
            "import torch\n"
            "from attngrad.torch import scaled_dot_product_attention\n"
            "torch.fx.wrap('scaled_dot_product_attention')\n"
            "def run(x):\n"
            "    return scaled_dot_product_attention(x, x, x, is_causal=True)\n"
        )
        monkeypatch.syspath_prepend(str(tmp_path))
        from wrapped import run

        assert torch.equal(fx.symbolic_trace(run)(X), run(X))

    def test_leaf_module_works(self):
        class Tracer(fx.Tracer):
            def is_leaf_module(self, m, name):
                return isinstance(m, MultiheadAttention) or super().is_leaf_module(m, name)

        layer = Layer()
        assert torch.equal(fx.GraphModule(layer, Tracer().trace(layer))(ROWS), layer(ROWS))


@pytest.mark.parametrize("order", ["alone", "of grad", "inside grad"])
def test_functionalize(order):
    loss = lambda x: Attention()(x).square().sum()  # noqa: E731
    grad, functionalize = torch.func.grad, torch.func.functionalize
    run = {
        "alone": functionalize(loss),
        "of grad": functionalize(grad(loss)),
        "inside grad": grad(functionalize(loss)),
    }
    with pytest.raises(NotImplementedError, match="under torch.func.functionalize: PyTorch cannot"):
        run[order](X)


def test_onnx_export():
    with pytest.warns(DeprecationWarning), pytest.raises(Exception, match="attngrad::forward"):
        torch.onnx.export(Attention(), (X,), io.BytesIO(), dynamo=False)


def test_sharded_tensors():
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        mesh = distributed.init_device_mesh("cpu", (1,))
        x = distribute_tensor(X, mesh, [Shard(1)])
        with pytest.raises(NotImplementedError, match="attngrad.forward.default"):
            scaled_dot_product_attention(x, x, x)
        local = x.to_local()
        assert scaled_dot_product_attention(local, local, local).shape == X.shape
    finally:
        distributed.destroy_process_group()


def test_masked_tensors():
    x = masked_tensor(X, torch.ones_like(X, dtype=torch.bool))
    with pytest.raises(TypeError, match="attngrad.forward"):
        scaled_dot_product_attention(x, x, x)


def test_flops_are_not_counted():
    with FlopCounterMode(display=False) as counter:
        scaled_dot_product_attention(X, X, X)
    assert counter.get_total_flops() == 0


def test_vmap_of_dropout_needs_randomness():
    run = lambda x: scaled_dot_product_attention(x, x, x, dropout_p=0.5)  # noqa: E731
    with pytest.raises(RuntimeError, match="randomness"):
        torch.func.vmap(run)(X)
    assert torch.func.vmap(run, randomness="different")(X).shape == X.shape
