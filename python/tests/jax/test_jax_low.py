"""float32, float16 and bfloat16, with and without jax_enable_x64, and the low halves of 16-bit outputs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from attngrad.jax import dot_product_attention
from jax_cases import assert_close

_LIMITS = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 1.5e-2}


def _arrays(dtype, *shape):
    rng = np.random.default_rng(5)
    return tuple(jnp.asarray(rng.standard_normal(shape), dtype) for _ in range(3))


def _results(*x, **f):
    loss = lambda *y: jnp.sin(dot_product_attention(*y, is_causal=True, **f).astype(jnp.float32)).sum()  # noqa: E731
    gradient = jax.grad(loss, (0, 1, 2))
    second = jax.jvp(lambda *y: jax.jvp(loss, y, x)[1], x, x)
    return jax.value_and_grad(loss)(*x), jax.jvp(gradient, x, x)[1], second


def _relative(x, y):
    return float(jnp.linalg.norm(x.astype(jnp.float64) - y) / jnp.linalg.norm(y))


@pytest.mark.parametrize("x64", [True, False])
@pytest.mark.parametrize("dtype", _LIMITS)
def test_dtypes(dtype, x64):
    x = _arrays(dtype, 2, 9, 2, 8)
    want = jax.jit(_results)(*(y.astype(jnp.float64) for y in x))
    with jax.enable_x64(x64):
        got = jax.jit(_results)(*x)
        assert all(y.dtype == dtype for y in (*got[0][1], *got[1]))
    for y, z in zip((*got[0][1], *got[1]), (*want[0][1], *want[1]), strict=True):
        assert _relative(jnp.asarray(np.asarray(y)), z) < _LIMITS[dtype]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_low_half_of_the_output(dtype):
    """Rows are peaked, so the rounding of o weighs: with its low half gradients are as exact as their own rounding."""
    q, k, v = (x * 3 for x in _arrays(dtype, 1, 64, 2, 16))
    w = _arrays(dtype, 1, 64, 2, 16)[0]
    errors = []
    gradient = jax.grad(lambda q, k, v, **f: (dot_product_attention(q, k, v, **f) * v).sum(), (0, 1))
    want = gradient(*(x.astype(jnp.float64) for x in (q, k, v)))
    for save_low in (True, False):
        got = jax.jit(lambda *x: gradient(*x, save_low=save_low))(q, k, v)  # noqa: B023
        errors.append(max(map(_relative, got, want)))
    assert errors[0] < 0.7 * errors[1], errors
    del w


def test_low_half_is_a_residual_only_if_differentiated():
    x = _arrays("bfloat16", 1, 4, 2, 8)
    assert "o_low" not in str(jax.make_jaxpr(dot_product_attention)(*x))
    gradient = jax.grad(lambda *x, **f: dot_product_attention(*x, **f).sum())
    assert "o_low" in str(jax.make_jaxpr(gradient)(*x))
    assert "o_low" not in str(jax.make_jaxpr(lambda *x: gradient(*x, save_low=False))(*x))


def test_bias_of_another_dtype():
    """Beside 16-bit queries a float32 bias keeps its digits, and its gradient is float32."""
    q, k, v = _arrays("bfloat16", 1, 4, 2, 8)
    bias = jnp.linspace(0, 3, 32, dtype=jnp.float32).reshape(1, 2, 4, 4)
    gradient = jax.grad(lambda b: (dot_product_attention(q, k, v, b) * v).astype(jnp.float32).sum())
    assert gradient(bias).dtype == jnp.float32 and gradient(bias.astype(jnp.bfloat16)).dtype == jnp.bfloat16
    want = gradient(bias)
    got = gradient(bias.astype(jnp.float64))
    assert got.dtype == jnp.float64
    assert_close(got, want.astype(jnp.float64), 1e-6)


def test_sums_over_mapped_axes_are_rounded_once():
    """A key shared by 64 queries: its bfloat16 gradient is the sum of 64, not of 64 rounded sums."""
    q, k, v = _arrays("bfloat16", 1, 8, 1, 8)
    many = jnp.stack([q * (1 + i / 64) for i in range(64)])

    def loss(v, q, k):
        return jax.vmap(dot_product_attention, (0, None, None))(q, k, v).astype(v.dtype).astype(jnp.float32).sum()

    got = jax.grad(loss)(v, many, k)
    want = jax.grad(loss)(*(x.astype(jnp.float64) for x in (v, many, k)))
    assert got.dtype == jnp.bfloat16 and _relative(got, want) < 4e-3
