"""Shows the attention of a PyTorch model: every call of scaled_dot_product_attention in a forward and a backward pass
becomes a page with its heads, their weights and the gradients that the loss sends through them.

    python view_model.py [FOLDER [MODULE:FUNCTION]]

writes FOLDER/attention-0.html and so on. FUNCTION, of a module that Python can import, runs your model and returns the
loss, a tensor of one number; without it a small model of this file is shown.
"""

import importlib
import inspect
import sys
from pathlib import Path

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

import attngrad


def sdpa(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """The parameters of torch.nn.functional.scaled_dot_product_attention."""


class Recorder(TorchFunctionMode):
    """Keeps the arguments and the result of each attention call inside a `with` block."""

    def __init__(self):
        super().__init__()
        self.calls = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is functional.scaled_dot_product_attention:
            if result.requires_grad:
                result.retain_grad()
            bound = inspect.signature(sdpa).bind(*args, **(kwargs or {}))
            bound.apply_defaults()
            self.calls.append((bound.arguments, result))
        return result


def array(x):
    return x.detach().double().cpu().numpy()


def features(call):
    """The arguments of a call beside query, key and value, as attngrad has them."""
    if call["dropout_p"] > 0:
        raise ValueError("dropout: nobody knows which weights PyTorch has dropped; call model.eval() first")
    found = {"causal": call["is_causal"]}
    if call["scale"] is not None:
        found["scale"] = call["scale"]
    mask = call["attn_mask"]
    if mask is not None and mask.dtype == torch.bool:
        found["mask"] = mask.detach().cpu().numpy()
    elif mask is not None:
        found["bias"] = array(mask)
    return found


def show(run, folder):
    """Writes the pages of the attention calls of run(), which returns a loss; returns whether attngrad computes the
    same outputs as the model, within the accuracy of its dtype."""
    folder.mkdir(parents=True, exist_ok=True)
    with Recorder() as recorder:
        loss = run()
        if loss.requires_grad:
            loss.backward()
    all_same = True
    for n, (call, o) in enumerate(recorder.calls):
        inputs = [array(call[name]) for name in ("query", "key", "value")]
        more = features(call)
        d_o = None if o.grad is None else array(o.grad)
        path = folder / f"attention-{n}.html"
        explained = attngrad.explain(*inputs, d_o=d_o, **more)
        explained.save_html(path, title=f"Attention {n} of the model", heads=[], sequences=[])
        error = abs(attngrad.forward(*inputs, **more).o - array(o)).max()
        same = error <= 16 * torch.finfo(o.dtype).eps * max(1, abs(inputs[2]).max())
        all_same = all_same and same
        verdict = "ok" if same else "WRONG"
        print(f"{path}: output {list(o.shape)}, largest difference to the model's {error:.1e}: {verdict}")
    if not recorder.calls:
        print("the model does not call scaled_dot_product_attention: there is nothing to show")
    return all_same and bool(recorder.calls)


# ---- A small model ----


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


def small_model():
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block(32, 4), Block(32, 4))
    return model(torch.randn(1, 12, 32)).square().mean()


def main(folder=".", function=None):
    run = small_model
    if function is not None:
        module, _, name = function.partition(":")
        sys.path.insert(0, ".")
        run = getattr(importlib.import_module(module), name)
    return 0 if show(run, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
