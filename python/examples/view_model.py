"""Shows the attention of a PyTorch model: every attention call of a forward and a backward pass becomes a page with its
heads, their weights and the gradients that the loss sends through them.

    python view_model.py [FOLDER]      writes FOLDER/attention-0.html and so on
"""

import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import attngrad


class Recorder(TorchFunctionMode):
    """Keeps the arguments and the result of each attention call inside a `with` block."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is functional.scaled_dot_product_attention:
            result.retain_grad()
            self.calls.append((args, kwargs or {}, result))
        return result


class Block(torch.nn.Module):
    """Causal self-attention with a residual."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (y.unflatten(-1, (self.heads, -1)).transpose(-2, -3) for y in self.qkv(self.norm(x)).chunk(3, -1))
        o = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(o.transpose(-2, -3).flatten(-2))


def main(folder):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(32, 4), Block(32, 4))
    x = torch.randn(1, 12, 32)
    with Recorder() as recorder:
        loss = model(x).square().mean()
        loss.backward()
    for n, ((q, k, v), keywords, o) in enumerate(recorder.calls):
        arrays = (y.detach().numpy() for y in (q, k, v))
        explained = attngrad.explain(*arrays, d_o=o.grad.numpy(), causal=keywords.get("is_causal", False))
        path = folder / f"attention-{n}.html"
        explained.save_html(path, title=f"Attention {n} of the model", heads=[])
        same = torch.allclose(torch.tensor(explained["P"]) @ v[0, 0].double(), o[0, 0].double(), atol=1e-5)
        verdict = "ok" if same else "WRONG"
        print(f"{path}: {q.shape[1]} heads of {q.shape[2]} queries, P V is the model's output: {verdict}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else "."))
