"""The attention layers of Flax with attngrad's attention_fn: outputs, gradients and Hessian-vector products of the
parameters are those with Flax's own."""

import functools

import jax
import jax.numpy as jnp
import pytest
from flax import linen, nnx

from attngrad.jax import attention_fn
from jax_cases import array, assert_close

_X = array(2, 3, 5, 8)  # two leading axes


def _orders(loss, parameters):
    gradient = jax.grad(loss)
    return jax.jit(lambda p: (loss(p), gradient(p), jax.jvp(gradient, (p,), (p,))[1]))(parameters)


def _linen(**options):
    return linen.MultiHeadDotProductAttention(num_heads=2, param_dtype=jnp.float64, **options)


def test_linen():
    mask = linen.make_causal_mask(jnp.ones(_X.shape[:-1]))
    parameters = _linen().init(jax.random.key(0), _X)

    def loss(**options):
        return lambda p: jnp.sin(_linen(**options).apply(p, _X, mask=mask)).sum()

    want = _orders(loss(), parameters)
    assert_close(_orders(loss(attention_fn=attention_fn), parameters), want)
    causal = functools.partial(attention_fn, is_causal=True)
    got = _orders(lambda p: jnp.sin(_linen(attention_fn=causal).apply(p, _X)).sum(), parameters)
    assert_close(got, want)


def _nnx(**options):
    return nnx.MultiHeadAttention(
        num_heads=2, in_features=8, decode=False, param_dtype=jnp.float64, rngs=nnx.Rngs(0), **options
    )


def test_nnx():
    mask = nnx.make_causal_mask(jnp.ones(_X.shape[:-1]))

    def results(**options):
        graph, parameters, rest = nnx.split(_nnx(**options), nnx.Param, ...)
        loss = lambda p: jnp.sin(nnx.merge(graph, p, rest)(_X, mask=mask)).sum()  # noqa: E731
        return _orders(loss, parameters)

    # Flax calls jax.nn's attention here, whose softmax is float32.
    assert_close(results(attention_fn=attention_fn), results(), 2e-5)


def test_dropout():
    layer = _linen(attention_fn=attention_fn, dropout_rate=0.5, broadcast_dropout=False)
    parameters = layer.init(jax.random.key(0), _X, deterministic=True)
    run = lambda key: layer.apply(parameters, _X, deterministic=False, rngs={"dropout": key})  # noqa: E731
    keys = jax.random.split(jax.random.key(1), 200)
    outputs = jax.vmap(run)(keys)
    assert abs(outputs[0] - outputs[1]).max() > 0.01
    want = layer.apply(parameters, _X, deterministic=True)
    assert abs(outputs.mean(0) - want).max() < 5 * (outputs.std(0) / 200**0.5).max()


@pytest.mark.parametrize(
    ("options", "message"),
    [({"dropout_rate": 0.5}, "broadcast_dropout: True"), ({"sow": True}, "sow_weights: attngrad never")],
)
def test_what_is_not_served_is_refused(options, message):
    sow = options.pop("sow", False)
    layer = _linen(attention_fn=attention_fn, **options)
    parameters = _linen().init(jax.random.key(0), _X)
    with pytest.raises(NotImplementedError, match=message):
        layer.apply(
            parameters, _X, deterministic=False, sow_weights=sow, rngs={"dropout": jax.random.key(1)}
        )


def test_dropout_without_a_key_is_refused():
    q = jnp.ones((1, 2, 1, 3))
    with pytest.raises(ValueError, match="dropout_rng: missing"):
        attention_fn(q, q, q, dropout_rate=0.5, broadcast_dropout=False)
