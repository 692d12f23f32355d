"""Comparison with other implementations (peers): PyTorch's own attention, on the samples of its test suite and on
random configurations, and nn.MultiheadAttention. Truth is the peer in float64; our error is compared with the
peer's in the same dtype."""

import random

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch_cases import amplitudes, within_rule

from attngrad.torch import MultiheadAttention, scaled_dot_product_attention

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def widen(x):
    if isinstance(x, torch.Tensor) and x.is_floating_point():
        return x.detach().double().requires_grad_(x.requires_grad)
    return x


def check_error(tally, what, ours, peer, truth, dtype, **scales):
    passes, error, peer_error = within_rule(ours, peer, truth, dtype, **scales)
    tally.append((error, peer_error))
    assert passes, f"{what}: error {error:.2e}, the peer's {peer_error:.2e}"


def report(name, tally):
    worst = max(tally)
    print(
        f"{name}: {len(tally)} results; largest error {worst[0]:.1e}, the peer's there {worst[1]:.1e}, ",
        end="",
    )
    print(f"the peer's largest {max(b for _, b in tally):.1e}")


def compare(tally, what, dtype, tensors, keywords):
    """Output and gradients of one configuration."""
    o = {}
    wide = [widen(x) for x in tensors]
    wide_keywords = {name: widen(x) for name, x in keywords.items()}
    with sdpa_kernel(SDPBackend.MATH):
        o["truth"] = F.scaled_dot_product_attention(*wide, **wide_keywords)
    o["peer"] = F.scaled_dot_product_attention(*tensors, **keywords)
    o["ours"] = scaled_dot_product_attention(*tensors, **keywords)
    cotangent = torch.randn(o["ours"].shape).to(dtype)
    bounds = amplitudes(*tensors, cotangent, **{x: y for x, y in keywords.items() if x != "dropout_p"})
    check_error(tally, what + " o", o["ours"], o["peer"], o["truth"], dtype, amplitude=bounds[0])
    leaves = [x for x in (*tensors, keywords.get("attn_mask")) if x is not None and x.requires_grad]
    wide_leaves = [x for x in (*wide, wide_keywords.get("attn_mask")) if x is not None and x.requires_grad]
    gradients = {
        name: torch.autograd.grad(
            o[name], wide_leaves if name == "truth" else leaves, cotangent.to(o[name].dtype)
        )
        for name in o
    }
    for i, triple in enumerate(zip(gradients["ours"], gradients["peer"], gradients["truth"], strict=True)):
        check_error(tally, f"{what} gradient {i}", *triple, dtype, amplitude=bounds[i + 1])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_samples_of_its_test_suite(dtype):
    methods = pytest.importorskip("torch.testing._internal.common_methods_invocations")
    op = next(op for op in methods.op_db if op.name == "nn.functional.scaled_dot_product_attention")
    tally = []
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        tensors, keywords = (sample.input, *sample.args), sample.kwargs
        if keywords.get("dropout_p"):
            compare_dropout(tensors, keywords)
        else:
            compare(tally, str(sample.kwargs), dtype, tensors, keywords)
    assert len(tally) >= 13 * 4
    report(f"samples in {dtype}", tally)


def compare_dropout(tensors, keywords):
    """The peer drops other weights, so that only shape, dtype and finite gradients can be checked."""
    theirs = F.scaled_dot_product_attention(*tensors, **keywords)
    ours = scaled_dot_product_attention(*tensors, **keywords)
    assert ours.shape == theirs.shape and ours.dtype == theirs.dtype
    assert all(x.isfinite().all() for x in torch.autograd.grad(ours.sum(), tensors))


def draw(rng, dtype):
    """A random configuration that PyTorch's own function accepts."""
    batch, heads, d, dv = (
        rng.randint(1, 3),
        rng.choice((1, 2, 4, 6)),
        rng.choice((1, 3, 8, 16, 40)),
        rng.choice((1, 8, 24)),
    )
    n_q, n_k = rng.choice((1, 2, 7, 16, 33, 70)), rng.choice((1, 3, 8, 31, 65))
    gqa = rng.random() < 0.3
    kv_heads = rng.choice([h for h in range(1, heads + 1) if heads % h == 0]) if gqa else heads

    def make(*shape):
        return torch.randn(shape).mul(rng.choice((0.3, 1, 3))).to(dtype).requires_grad_()

    tensors = (make(batch, heads, n_q, d), make(batch, kv_heads, n_k, d), make(batch, kv_heads, n_k, dv))
    keywords = {"enable_gqa": gqa}
    if rng.random() < 0.3:
        keywords["scale"] = rng.choice((0.1, 0.5, 2.0))
    kind = rng.choice(("none", "causal", "bool", "float"))
    if kind == "causal":
        keywords["is_causal"] = True
    elif kind != "none":
        shape = (rng.choice((1, batch)), rng.choice((1, heads)), rng.choice((1, n_q)), n_k)
        mask = torch.rand(shape) < 0.7
        mask[..., rng.randrange(n_k)] = True
        keywords["attn_mask"] = mask if kind == "bool" else make(*shape)
    return tensors, keywords


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_random_configurations(dtype):
    rng, tally = random.Random(f"sdpa {dtype}"), []
    for number in range(100):
        tensors, keywords = draw(rng, dtype)
        what = f"{number}: {[list(x.shape) for x in tensors]} {sorted(keywords)}"
        compare(tally, what, dtype, tensors, keywords)
    report(f"random configurations in {dtype}", tally)


def draw_layer(rng, dtype):
    heads = rng.choice((1, 2, 4))
    width = heads * rng.choice((2, 5, 8))
    options = {
        "bias": rng.random() < 0.7,
        "batch_first": rng.random() < 0.5,
        "add_zero_attn": rng.random() < 0.2,
    }
    options["add_bias_kv"] = rng.random() < 0.2
    self_attention = rng.random() < 0.5
    if not self_attention and rng.random() < 0.5:
        options["kdim"], options["vdim"] = rng.randint(1, 12), rng.randint(1, 12)
    theirs = nn.MultiheadAttention(width, heads, **options).to(dtype)
    for parameter in theirs.parameters():
        nn.init.normal_(parameter, std=0.4)
    return theirs, MultiheadAttention(width, heads, **options).to(dtype), options, self_attention


def draw_call(rng, dtype, layer, options, self_attention):
    """Inputs and masks; every query sees a key."""
    batch, n_q = rng.randint(1, 3), rng.choice((1, 4, 9))
    n_k = n_q if self_attention else rng.choice((1, 5, 8))
    is_batched = rng.random() < 0.8
    batch = batch if is_batched else 1

    def make(n, width):
        shape = (batch, n, width) if options["batch_first"] else (n, batch, width)
        return torch.randn(shape if is_batched else (n, width)).to(dtype).requires_grad_()

    q = make(n_q, layer.embed_dim)
    inputs = (q, q, q) if self_attention else (q, make(n_k, layer.kdim), make(n_k, layer.vdim))
    keywords = {"need_weights": rng.random() < 0.4, "average_attn_weights": rng.random() < 0.5}
    kind, floats = rng.choice(("none", "padding", "mask", "both", "causal")), rng.random() < 0.4
    if kind in ("padding", "both"):
        padding = torch.rand(batch, n_k) < 0.3
        padding[:, 0] = False
        keywords["key_padding_mask"] = mask_of(padding if is_batched else padding[0], floats, dtype)
    if kind in ("mask", "both"):
        shape = (n_q, n_k) if rng.random() < 0.5 else (batch * layer.num_heads, n_q, n_k)
        masked = torch.rand(shape) < 0.3
        masked[..., 0] = False
        keywords["attn_mask"] = mask_of(masked, floats, dtype)
    if kind == "causal" and n_q == n_k:
        keywords["attn_mask"] = torch.ones(n_q, n_k, dtype=torch.bool).triu(1)
        keywords["is_causal"] = not (options["add_zero_attn"] or options["add_bias_kv"])
    return inputs, keywords


def mask_of(masked, floats, dtype):
    return torch.randn(masked.shape).to(dtype).masked_fill(masked, float("-inf")) if floats else masked


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
def test_multihead_attention(dtype):
    """Outputs, weights and the gradients of inputs and parameters."""
    rng, tally = random.Random(f"layer {dtype}"), []
    for number in range(100):
        theirs, ours, options, self_attention = draw_layer(rng, dtype)
        ours.load_state_dict(theirs.state_dict())
        truth = type(theirs)(theirs.embed_dim, theirs.num_heads, **options).double()
        truth.load_state_dict(theirs.state_dict())
        inputs, keywords = draw_call(rng, dtype, theirs, options, self_attention)
        results = []
        for layer in (ours, theirs, truth):
            wide = widen if layer is truth else lambda x: x
            leaves = [wide(x) for x in dict.fromkeys(inputs)]
            arguments = leaves * 3 if self_attention else leaves
            o, weights = layer(*arguments, **{name: wide(x) for name, x in keywords.items()})
            assert (weights is not None) == keywords["need_weights"]
            cotangent = torch.linspace(-1, 1, o.numel()).view(o.shape).to(dtype).to(o.dtype)
            gradients = torch.autograd.grad(o, [*leaves, *layer.parameters()], cotangent)
            results.append([*gradients, o, *([] if weights is None else [weights])])
        what = f"{number}: {options} {sorted(keywords)} {[list(x.shape) for x in inputs]}"
        # The error of a gradient that cancels to zero is taken relative to the largest gradient.
        largest = max(x.norm().item() for x in results[2][: len(gradients)])
        for i, triple in enumerate(zip(*results, strict=True)):
            check_error(tally, f"{what} result {i}", *triple, dtype, scale=largest if i < len(gradients) else 0.0)
    report(f"nn.MultiheadAttention in {dtype}", tally)
