"""Tests of replace(), and of MultiheadAttention where it is not compared with nn.MultiheadAttention."""

import copy
import warnings

import pytest
import torch
from torch import func, nn
from torch_cases import F64

from attngrad.torch import MultiheadAttention, replace


def close(x, y):
    torch.testing.assert_close(x, y, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("need_weights", [False, True])
def test_causal_without_a_mask(need_weights):
    layer, x = MultiheadAttention(12, 3, batch_first=True, dtype=F64), torch.randn(2, 5, 12, dtype=F64)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1)
    close(layer(x, x, x, None, need_weights, is_causal=True)[0], layer(x, x, x, None, need_weights, mask)[0])


def test_fully_masked_query_gives_output_bias():
    layer = MultiheadAttention(8, 2, batch_first=True, dtype=F64)
    nn.init.normal_(layer.out_proj.bias)
    x = torch.randn(1, 3, 8, dtype=F64, requires_grad=True)
    mask = torch.tensor([[0, 0, 0], [1, 1, 1], [0, 0, 0]], dtype=torch.bool)
    for need_weights in (False, True):
        o, weights = layer(x, x, x, need_weights=need_weights, attn_mask=mask)
        close(o[0, 1], layer.out_proj.bias)
        assert torch.autograd.grad(o.sum(), x)[0].isfinite().all()
    assert (weights[0, 1] == 0).all()


def test_dropout_only_in_training():
    layer, x = MultiheadAttention(8, 2, dropout=0.5, batch_first=True), torch.randn(2, 6, 8)
    for need_weights in (False, True):
        layer.train()
        assert not torch.equal(layer(x, x, x, None, need_weights)[0], layer(x, x, x, None, need_weights)[0])
        layer.eval()
        assert torch.equal(layer(x, x, x, None, need_weights)[0], layer(x, x, x, None, need_weights)[0])


def models():
    layer = nn.TransformerEncoderLayer(12, 2, 16, dropout=0.0, batch_first=True, dtype=F64)
    decoder_layer = nn.TransformerDecoderLayer(12, 3, 16, dropout=0.0, batch_first=True, dtype=F64)
    causal = nn.Transformer.generate_square_subsequent_mask(5, dtype=F64)
    padding = torch.tensor([[0, 0, 0, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)
    return {
        "encoder": (nn.TransformerEncoder(layer, 2), lambda m, x: m(x)),
        "padded": (nn.TransformerEncoder(layer, 2), lambda m, x: m(x, src_key_padding_mask=padding)[:, :3]),
        "causal": (nn.TransformerEncoder(layer, 2), lambda m, x: m(x, mask=causal, is_causal=True)),
        "decoder": (
            nn.TransformerDecoder(decoder_layer, 2),
            lambda m, x: m(x, x.flip(1), tgt_mask=causal, tgt_is_causal=True),
        ),
    }


@pytest.mark.parametrize("name", ["encoder", "padded", "causal", "decoder"])
@pytest.mark.parametrize("training", [True, False])
def test_replace(name, training):
    """The same outputs and gradients as before, in training and evaluation, with and without no_grad; then
    jvp and Hessian-vector products, which agree with finite differences of the gradient."""
    model, run = models()[name]
    model.train(training)
    ours = replace(copy.deepcopy(model))
    assert ours.state_dict().keys() == model.state_dict().keys()
    x = torch.randn(2, 5, 12, dtype=F64, requires_grad=True)
    close(run(ours, x), run(model, x))
    with torch.no_grad():
        close(run(ours, x), run(model, x))
    losses = [run(m, x).sin().sum() for m in (ours, model)]
    gradients = [
        torch.autograd.grad(y, [x, *m.parameters()]) for y, m in zip(losses, (ours, model), strict=True)
    ]
    close(*gradients)
    point, t = x.detach(), torch.randn_like(x)
    loss = lambda x: run(ours, x).sin().sum()  # noqa: E731
    tangent = func.jvp(loss, (point,), (t,))[1]
    close(tangent, (gradients[0][0] * t).sum())
    product = func.jvp(func.grad(loss), (point,), (t,))[1]
    step = 1e-5
    difference = (func.grad(loss)(point + step * t) - func.grad(loss)(point - step * t)) / (2 * step)
    assert (product - difference).norm() < 1e-7 * product.norm()


def test_replace_keeps_hooks_sharing_and_subclasses():
    class Special(nn.MultiheadAttention):
        pass

    shared = nn.MultiheadAttention(8, 2)
    calls = []
    shared.register_forward_hook(lambda *_: calls.append(1))
    model = nn.ModuleDict({"a": shared, "b": shared, "c": Special(8, 2)})
    weight = shared.in_proj_weight
    with pytest.warns(UserWarning, match=r"left alone: c \(Special\)$"):
        assert replace(model) is model
    assert model["a"] is model["b"] and isinstance(model["a"], MultiheadAttention)
    assert type(model["c"]) is Special and model["a"].in_proj_weight is weight
    x = torch.randn(4, 1, 8)
    model["a"](x, x, x)
    assert calls == [1]


def test_replace_a_single_layer():
    layer = nn.MultiheadAttention(8, 2)
    assert isinstance(replace(layer), MultiheadAttention)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        replace(layer)


def test_replace_warns_about_parametrized_layers():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    nn.utils.parametrizations.weight_norm(model.self_attn, "in_proj_weight")
    with pytest.warns(UserWarning, match="left alone: self_attn"):
        replace(model)


def test_per_sample_gradients():
    """torch.func over a functional module: vmap of grad."""
    layer = MultiheadAttention(8, 2, batch_first=True, dtype=F64)
    parameters = {name: x.detach() for name, x in layer.named_parameters()}
    xs = torch.randn(3, 5, 8, dtype=F64)

    def loss(parameters, x):
        return func.functional_call(layer, parameters, (x, x, x), {"need_weights": False})[0].sin().sum()

    batched = func.vmap(func.grad(loss), in_dims=(None, 0))(parameters, xs)
    for i, x in enumerate(xs):
        close({name: g[i] for name, g in batched.items()}, func.grad(loss)(parameters, x))
