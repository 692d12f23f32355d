"""PyTorch's attention on our arrays: forward and backward of the fused kernel; jvp and double backward, which
it does not have, of the unfused formula."""

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


def unfused(q, k, v, masked):
    scores = q @ k.transpose(-1, -2) * (1 / math.sqrt(q.shape[-1]))
    if masked is not None:
        scores = scores.masked_fill(masked, -math.inf)
    return torch.softmax(scores, -1) @ v


def tensor(buffer, dtype, *shape, start=0):
    """A tensor in the same memory, from a byte offset on."""
    dtype = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16}[dtype]
    count = (buffer.size - start) // dtype.itemsize if -1 in shape else math.prod(shape)
    flat = torch.frombuffer(buffer.bytes, dtype=dtype, offset=buffer.offset + start, count=count)
    return flat.view(*shape)


def tensors(arrays, *names):
    return [tensor(arrays.buffers[name], arrays.dtype, 1, arrays.heads, -1, arrays.dim) for name in names]


def causal_mask(length, causal):
    """The mask of the unfused formula, True for keys after the query; causal cases are square."""
    return torch.ones(length, length, dtype=torch.bool).triu(1) if causal else None


def fused_gradients(case, arrays):
    inputs = [x.requires_grad_() for x in tensors(arrays, "q", "k", "v")]
    output = torch.nn.functional.scaled_dot_product_attention(*inputs, is_causal=case.causal)
    return torch.autograd.grad(output, inputs, *tensors(arrays, "d_o"))


def true_gradients(case, arrays):
    """Gradients by the formula, in float64."""
    inputs = [x.double().requires_grad_() for x in tensors(arrays, "q", "k", "v")]
    output = unfused(*inputs, causal_mask(case.length, case.causal))
    return torch.autograd.grad(output, inputs, tensors(arrays, "d_o")[0].double())


def runners(case, arrays):
    """Functions without arguments, by name."""
    if not torch or not case.torch:
        return {}
    q, k, v, d_o, tq, tk, tv = tensors(arrays, "q", "k", "v", "d_o", "tq", "tk", "tv")
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
            torch.func.jvp(lambda *x: unfused(*x, masked), (q, k, v), (tq, tk, tv))

    def all_orders():
        gradients = torch.autograd.grad(unfused(*inputs, masked), inputs, d_o, create_graph=True)
        torch.autograd.grad(gradients, inputs, (tq, tk, tv))

    found = {"torch forward": forward, "torch backward": backward}
    if case.unfused:
        masked = causal_mask(case.n_q, case.causal)
        found |= {"torch jvp": jvp, "torch forward+backward+double": all_orders}
    return found
