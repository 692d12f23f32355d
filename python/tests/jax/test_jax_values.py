"""Values and all derivatives up to the second, for each feature, against the plain formula and against differences."""

import functools
from concurrent.futures import ThreadPoolExecutor

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.test_util import check_grads

import attngrad
from attngrad.jax import dot_product_attention
from jax_cases import CASES, array, assert_close, features_for, formula, inputs, like, ours, scalar


def _dot(a, b):
    return sum((x * y).sum() for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def _transforms(f, x, t):
    """Each order of differentiation, by its name."""
    g, jvp = jax.grad(f), jax.jvp
    return {
        "value_and_grad": jax.value_and_grad(f)(x),
        "jvp": jvp(f, (x,), (t,)),
        "jvp of grad": jvp(g, (x,), (t,)),
        "grad of jvp": jax.grad(lambda x: jvp(f, (x,), (t,))[1])(x),
        "grad of grad": jax.grad(lambda x: _dot(g(x), t))(x),
        "jvp of jvp": jvp(lambda x: jvp(f, (x,), (t,))[1], (x,), (t,))[1],
    }


def _more_transforms(f, x, t):
    return {
        "linearize": jax.linearize(f, x)[1](t),
        "linearize of grad": jax.linearize(jax.grad(f), x)[1](t),
        "vjp of vjp": jax.vjp(lambda x: jax.vjp(f, x)[1](1.0)[0], x)[1](t),
    }


_COMPILED = ("packed", "all")  # the others run operation by operation: those of the formula are compiled once for all


@pytest.mark.parametrize("name", CASES)
def test_every_order_is_that_of_the_formula(name):
    x = inputs(name)
    t = like(x)
    f = CASES[name][1]

    def results(attention, x, t):
        values = attention(x, features_for(attention, f))
        loss = scalar(attention, f)
        more = _more_transforms(loss, x, t) if name == "all" else {}
        return {"values": values} | _transforms(loss, x, t) | more

    run = functools.partial(jax.jit, static_argnums=0) if name in _COMPILED else lambda f: f
    got, want = (run(results)(attention, x, t) for attention in (ours, formula))
    for how in got:
        assert_close(got[how], want[how], what=how)


@pytest.mark.parametrize("name", CASES)
def test_differences(name):
    check_grads(scalar(ours, CASES[name][1]), (inputs(name),), order=2, modes=["fwd", "rev"])


def test_dropout():
    """The weights are those that attngrad.forward drops with the same seed, and the derivatives fit the values."""
    q, k, v = (array(2, 3, 2, 3) for _ in range(3))
    f = jax.jit(lambda q, k, v, seed: dot_product_attention(q, k, v, dropout=0.4, seed=seed))
    heads_first = [np.swapaxes(np.asarray(x), 1, 2) for x in (q, k, v)]
    want = attngrad.forward(*heads_first, dropout=0.4, seed=(5 << 32) + 11).o
    assert_close(f(q, k, v, jnp.array([11, 5], jnp.uint32)), jnp.asarray(np.swapaxes(want, 1, 2)))
    assert_close(f(q, k, v, jnp.uint64((5 << 32) + 11)), jnp.asarray(np.swapaxes(want, 1, 2)))
    key = jax.random.key(3)
    other = f(q, k, v, key)
    assert abs(other - f(q, k, v, jax.random.fold_in(key, 1))).max() > 0.01
    assert_close(other, dot_product_attention(q, k, v, dropout=0.4, seed=key))
    check_grads(lambda *x: jnp.sin(f(*x, key)).sum(), (q, k, v), order=2, modes=["fwd", "rev"])


@pytest.mark.parametrize("has_x64", [True, False])
def test_whole_numbers_as_seeds(has_x64):
    """A number of NumPy is the number of Python, also if JAX has 32 bits only."""
    with jax.enable_x64(has_x64):
        q = jnp.ones((1, 4, 2, 3))
        v = jnp.arange(24.0).reshape(q.shape)
        o = lambda seed: dot_product_attention(q, q, v, dropout=0.5, seed=seed)  # noqa: E731
        for number in (np.int64(2**40 + 1), np.uint64(2**40 + 1), np.array(2**40 + 1)):
            assert_close(o(number), o(2**40 + 1), 0)
        assert abs(o(2**40 + 1) - o(1)).max() > 0.1


def test_as_jax_nn():
    """In all of its arguments; its softmax is float32 even if the inputs are float64."""
    q, k, v = array(2, 7, 4, 5), array(2, 9, 2, 5), array(2, 9, 2, 5)
    # Each query sees the key at its own position: if it saw none, jax.nn would give the mean of the values.
    mask = (array(2, 1, 7, 9) > -1) | jnp.eye(7, 9, dtype=bool)
    for f in (
        {},
        {"is_causal": True},
        {"local_window_size": 3},
        {"local_window_size": (2, 1), "mask": mask},
        {"bias": array(1, 4, 7, 9), "scale": 0.3},
        {"query_seq_lengths": jnp.int32([7, 3]), "key_value_seq_lengths": jnp.int32([4, 9])},
        {"return_residual": True},
    ):
        assert_close(dot_product_attention(q, k, v, **f), jax.nn.dot_product_attention(q, k, v, **f), 1e-6, f)
    three = [x[0] for x in (q, k, v)]
    assert_close(dot_product_attention(*three), jax.nn.dot_product_attention(*three), 1e-6)
    assert_close(
        dot_product_attention(q, k, v, implementation="xla"), jax.nn.dot_product_attention(q, k, v), 0
    )


def test_defaults_beside_another_implementation():
    """A default that is given is no feature, however it was computed."""
    q = array(1, 3, 2, 4)
    f = {"dropout": float("0.0"), "align": "-".join(["top", "left"]), "threads": int("0"), "save_low": True}
    got = dot_product_attention(q, q, q, implementation="xla", **f)
    assert_close(got, jax.nn.dot_product_attention(q, q, q), 0)


def test_invariant():
    """A sequence has the same bits alone and inside a batch."""
    q, k, v = (array(3, 33, 2, 8).astype(jnp.float32) for _ in range(3))
    f = jax.grad(lambda *x: dot_product_attention(*x, is_causal=True, invariant=True).sum(), (0, 1, 2))
    whole, alone = f(q, k, v), f(*(x[1:2] for x in (q, k, v)))
    for x, y in zip(whole, alone, strict=True):
        assert bool((x[1:2] == y).all())


def test_bits_and_threads():
    """On XLA's threads results have the bits that they have on the library's; calls from many threads end."""
    q, k, v = (array(2, 200, 4, 16).astype(jnp.float32) for _ in range(3))
    heads_first = [np.swapaxes(np.asarray(x), 1, 2) for x in (q, k, v)]
    f = jax.jit(lambda *x: dot_product_attention(*x, is_causal=True, return_residual=True))
    want = attngrad.forward(*heads_first, causal=True)
    with ThreadPoolExecutor(8) as pool:
        for o, lse in pool.map(lambda _: f(q, k, v), range(100)):
            assert np.array_equal(np.swapaxes(o, 1, 2), want.o)
            assert np.array_equal(np.swapaxes(lse, 1, 2), want.lse.astype(np.float32))
    d_o = np.cos(heads_first[0])
    want = attngrad.vjp(*heads_first, want.o, want.lse, d_o, causal=True)
    pull = jax.vjp(lambda *x: f(*x)[0], q, k, v)[1]
    for got, x in zip(pull(jnp.asarray(np.swapaxes(d_o, 1, 2))), (want.dq, want.dk, want.dv), strict=True):
        assert np.array_equal(np.swapaxes(got, 1, 2), x)


def test_query_without_keys():
    """Zeros and -inf, which docs/python.md lists among the differences from jax.nn: its residual is a large number."""
    q = array(1, 2, 1, 3)
    mask = jnp.array([[True, True], [False, False]])
    o, lse = dot_product_attention(q, q, q, mask=mask, return_residual=True)
    assert not o[0, 1].any() and lse[0, 1, 0] == -jnp.inf and jnp.isfinite(lse[0, 0, 0])
    _, residual = jax.nn.dot_product_attention(q, q, q, mask=mask[None, None], return_residual=True)
    assert residual[0, 1, 0] < -1e38 and jnp.isfinite(residual[0, 1, 0])


def test_empty_arrays():
    for batch, n_q, n_k in ((0, 3, 4), (2, 0, 4), (2, 3, 0)):
        q, k = jnp.ones((batch, n_q, 2, 3)), jnp.ones((batch, n_k, 2, 3))
        o = dot_product_attention(q, k, k)
        assert o.shape == q.shape and not o.any()
        gradients = jax.grad(lambda *x: dot_product_attention(*x).sum(), (0, 1, 2))(q, k, k)
        assert not any(g.any() for g in gradients)
