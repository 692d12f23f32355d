"""Small models of many architectures, saved to a folder and loaded from it with attngrad and with eager attention: the
same loss, gradients and Hessian-vector products."""

import pytest
import torch
from zoo import NAMES, ZOO, Derivatives, distance


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """The folder of an architecture's saved model, made when it is needed first."""
    made = {}

    def folder(name):
        if name not in made:
            made[name] = tmp_path_factory.mktemp("model")
            ZOO[name].make().save_pretrained(made[name])
        return made[name]

    return folder


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def pair(name, folders):
    """The derivatives with attngrad and with eager attention, of the same inputs."""
    architecture = ZOO[name]
    inputs = architecture.inputs()
    return [Derivatives(architecture.load(folders(name), word), inputs) for word in ("attngrad", "eager")]


def calls_of_attngrad(model, inputs, monkeypatch):
    """How many times a forward pass calls the fused map."""
    from attngrad.transformers import _attention

    calls, fused = [], _attention.scaled_dot_product_attention
    monkeypatch.setattr(
        _attention, "scaled_dot_product_attention", lambda *a, **k: calls.append(k) or fused(*a, **k)
    )
    model(**inputs)
    return len(calls)


def test_loss_and_gradients(pair, name, monkeypatch):
    (ours, eager), limit = pair, ZOO[name].limit
    assert ours.model.config._attn_implementation == "attngrad"
    assert calls_of_attngrad(ours.model, ours.inputs, monkeypatch) >= 2
    torch.testing.assert_close(ours.loss(), eager.loss(), rtol=limit, atol=0)
    assert distance(ours.gradients(), eager.gradients()) < limit
    torch.testing.assert_close(ours.functional_loss(ours.parameters), eager.loss(), rtol=limit, atol=0)


def test_hessian_vector_product_by_double_backward(pair, name):
    ours, eager = pair
    assert distance(ours.double_backward(), eager.double_backward()) < ZOO[name].limit


def test_hessian_vector_product_by_forward_over_reverse(pair, name):
    ours, eager = pair
    if ZOO[name].missing is None:
        assert distance(ours.forward_over_reverse(), eager.forward_over_reverse()) < ZOO[name].limit
        return
    with pytest.raises((NotImplementedError, RuntimeError), match=ZOO[name].missing):
        eager.forward_over_reverse()
    assert distance(ours.double_backward(), eager.differences()) < 1e-7
