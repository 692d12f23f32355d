"""PyTorch's attention on our arrays: the fused kernel's forward and backward, and for what it does not have,
the unfused formula's derivative along tangents and its double backward."""

import math

try:
    import torch
except ImportError:
    torch = None


def version():
    return torch.__version__ if torch else None


def set_threads(count):
    if torch:
        torch.set_num_threads(count)


def unfused(q, k, v, hidden):
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    if hidden is not None:
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, -1) @ v


def _tensor(arrays, name):
    buffer = arrays.buffers[name]
    dtype = {"f": torch.float32, "d": torch.float64}[arrays.code]
    flat = torch.frombuffer(
        buffer.bytes, dtype=dtype, offset=buffer.offset, count=buffer.size // dtype.itemsize
    )
    return flat.view(1, arrays.heads, -1, arrays.dim)


def runners(case, arrays):
    """Functions without arguments, by name."""
    if not torch or not case.torch:
        return {}
    q, k, v, d_o, tq, tk, tv = (_tensor(arrays, name) for name in ("q", "k", "v", "d_o", "tq", "tk", "tv"))
    inputs = tuple(x.detach().requires_grad_() for x in (q, k, v))
    attention = torch.nn.functional.scaled_dot_product_attention
    output = attention(*inputs, is_causal=case.causal)

    def forward():
        with torch.no_grad():
            attention(q, k, v, is_causal=case.causal)

    def backward():
        torch.autograd.grad(output, inputs, d_o, retain_graph=True)

    def jvp():
        with torch.no_grad():
            torch.func.jvp(lambda *x: unfused(*x, hidden), (q, k, v), (tq, tk, tv))

    def all_orders():
        gradients = torch.autograd.grad(unfused(*inputs, hidden), inputs, d_o, create_graph=True)
        torch.autograd.grad(gradients, inputs, (tq, tk, tv))

    found = {"torch forward": forward, "torch backward": backward}
    if case.unfused:
        hidden = torch.ones(case.n_q, case.n_k, dtype=torch.bool).triu(1) if case.causal else None
        found |= {"torch jvp": jvp, "torch forward+backward+double": all_orders}
    return found
