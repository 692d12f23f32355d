"""shard_map and jit over sharded arrays, on eight CPU devices. Not collected by itself: the number of devices is fixed
when JAX starts, so test_jax_processes.py runs this file in a process of its own."""

import jax

jax.config.update("jax_enable_x64", True)
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

from attngrad.jax import dot_product_attention
from jax_cases import array, assert_close

D, S, T = 3, 5, 4


def _causal(q, k, v, **f):
    return dot_product_attention(q, k, v, is_causal=True, **f)


def _loss(f):
    return lambda *x: jnp.sin(f(*x)).sum()


def _orders(f):
    gradient = lambda *x: jax.grad(_loss(f), tuple(range(len(x))))(*x)  # noqa: E731
    return lambda *x: (f(*x), gradient(*x), jax.jvp(gradient, x, x)[1])


def _mesh(**sizes):
    return jax.make_mesh(tuple(sizes.values()), tuple(sizes), axis_types=(AxisType.Auto,) * len(sizes))


# ---- shard_map ----


def test_shard_map_by_batch_and_heads():
    mesh = _mesh(b=2, h=2)
    x = array(4, T, 4, D), array(4, S, 2, D), array(4, S, 2, D)
    spec = P("b", None, "h")
    f = jax.shard_map(_causal, mesh=mesh, in_specs=(spec,) * 3, out_specs=spec)
    assert_close(jax.jit(_orders(f))(*x), jax.jit(_orders(_causal))(*x))


def test_shard_map_by_queries():
    """Keys on every device, queries sharded by position: a traced offset, and JAX sums the gradients of the keys."""
    mesh = _mesh(t=4)
    x = array(1, 4 * T, 2, D), array(1, 4 * T, 2, D), array(1, 4 * T, 2, D)
    rows = lambda q, k, v: _causal(q, k, v, q_offset=jax.lax.axis_index("t") * T)  # noqa: E731
    f = jax.shard_map(rows, mesh=mesh, in_specs=(P(None, "t"), P(), P()), out_specs=P(None, "t"))
    assert_close(jax.jit(_orders(f))(*x), jax.jit(_orders(_causal))(*x))


# ---- jit over sharded arrays ----


def _without_gathers(f, *x):
    """The results of the compiled program, which gathers no operand."""
    program = jax.jit(f).lower(*x).compile()
    text = program.as_text()
    assert "all-gather" not in text and "all-to-all" not in text and "collective-permute" not in text
    return program(*x), text


def _put(mesh, spec, *arrays):
    return [jax.device_put(x, NamedSharding(mesh, spec)) for x in arrays]


@pytest.mark.parametrize("kv_heads", [4, 2, 1])
def test_jit_by_batch(kv_heads):
    mesh = _mesh(b=4)
    x = array(8, T, 4, D), array(8, S, kv_heads, D), array(8, S, kv_heads, D)
    got, text = _without_gathers(_orders(_causal), *_put(mesh, P("b"), *x))
    assert_close(got, _orders(_causal)(*x))
    assert "all-reduce" not in text
    assert got[0].sharding.spec == P("b") or got[0].sharding.spec[0] == "b"


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_jit_by_batch_and_heads(kv_heads):
    mesh = _mesh(b=2, h=2)
    x = array(4, T, 4, D), array(4, S, kv_heads, D), array(4, S, kv_heads, D)
    got, _ = _without_gathers(_orders(_causal), *_put(mesh, P("b", None, "h"), *x))
    assert_close(got, _orders(_causal)(*x))


@pytest.mark.parametrize("axes", [("x", "y"), ("y", "x")])
def test_jit_by_batch_over_two_axes_of_the_mesh(axes):
    mesh = _mesh(x=2, y=2)
    x = array(4, T, 2, D), array(4, S, 2, D), array(4, S, 2, D)
    got, _ = _without_gathers(_orders(_causal), *_put(mesh, P(axes), *x))
    assert_close(got, _orders(_causal)(*x))


def test_jit_sums_gradients_of_what_is_shared():
    """bias, table and sink are whole on each device, or sharded by heads; their gradients are sums over the batch."""
    mesh = _mesh(b=2, h=2)
    main = array(4, T, 4, D), array(4, S, 4, D), array(4, S, 4, D)
    more = array(1, 4, T, S), array(4, 5), array(4)

    def f(q, k, v, bias, table, sink):
        return dot_product_attention(q, k, v, bias, bias_table=table, sink=sink, is_causal=True)

    specs = P(None, "h"), P("h"), P("h")
    placed = [*_put(mesh, P("b", None, "h"), *main)]
    placed += [_put(mesh, spec, x)[0] for spec, x in zip(specs, more, strict=True)]
    got, text = _without_gathers(_orders(f), *placed)
    assert "all-reduce" in text
    assert_close(got, _orders(f)(*main, *more))
    shared = [*_put(mesh, P("b"), *main), *_put(mesh, P(), *more)]
    assert_close(_without_gathers(_orders(f), *shared)[0], got)


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_jit_of_mapped_calls(kv_heads):
    """vmap with keys for all: the mapped axis may be sharded, and the gradient of the keys is summed."""
    mesh = _mesh(m=4)
    q, k, v = array(4, 1, T, 2, D), array(1, S, kv_heads, D), array(1, S, kv_heads, D)
    f = jax.vmap(_causal, (0, None, None))
    placed = *_put(mesh, P("m"), q), *_put(mesh, P(), k, v)
    got, _ = _without_gathers(_orders(f), *placed)
    assert_close(got, _orders(f)(q, k, v))


def test_jit_with_dropout():
    """A sequence drops the same weights whichever device has it."""
    mesh = _mesh(b=4)
    x = array(8, T, 4, D), array(8, S, 4, D), array(8, S, 4, D)
    f = lambda *x: _causal(*x, dropout=0.5, seed=3)  # noqa: E731
    assert_close(_without_gathers(_orders(f), *_put(mesh, P("b"), *x))[0], _orders(f)(*x))


@pytest.mark.parametrize("kv_heads", [2, 1])
def test_jit_with_fewer_keys_than_devices(kv_heads):
    """Four devices have a head of the query each, but there are fewer heads of the key: right, if not without
    gathers."""
    mesh = _mesh(h=4)
    x = array(2, T, 4, D), array(2, S, kv_heads, D), array(2, S, kv_heads, D)
    placed = *_put(mesh, P(None, None, "h"), x[0]), *_put(mesh, P(), *x[1:])
    assert_close(jax.jit(_orders(_causal))(*placed), _orders(_causal)(*x))


def test_jit_by_queries():
    """Sharded over the length, operands are gathered."""
    mesh = _mesh(t=4)
    x = array(2, T, 4, D), array(2, S, 4, D), array(2, S, 4, D)
    placed = *_put(mesh, P(None, "t"), x[0]), *_put(mesh, P(), *x[1:])
    assert_close(jax.jit(_orders(_causal))(*placed), _orders(_causal)(*x))


def test_explicit_sharding():
    """The axes of make_mesh are explicit by default: results carry the sharding of their operands in their types."""
    mesh = jax.make_mesh((2, 2), ("b", "h"))
    x = array(4, T, 4, D), array(4, S, 4, D), array(4, S, 4, D)
    want = _orders(_causal)(*x)
    with jax.set_mesh(mesh):
        placed = _put(mesh, P("b", None, "h"), *x)
        got, _ = _without_gathers(_orders(_causal), *placed)
        assert jax.typeof(got[0]).sharding.spec == P("b", None, "h", None)
        assert_close(jax.device_get(got), want)
        rows = _put(mesh, P(None, "b"), x[0])[0]
        with pytest.raises(NotImplementedError, match="q is sharded over its axis 1"):
            _causal(rows, *_put(mesh, P(), *x[1:]))


def test_explicit_sharding_with_one_head_of_the_key():
    mesh = jax.make_mesh((4,), ("b",))
    x = array(4, T, 4, D), array(4, S, 1, D), array(4, S, 1, D)
    want = _orders(_causal)(*x)
    with jax.set_mesh(mesh):
        got, _ = _without_gathers(_orders(_causal), *_put(mesh, P("b"), *x))
        assert jax.typeof(got[0]).sharding.spec == P("b", None, None, None)
        assert_close(jax.device_get(got), want)


# ---- 16 bits ----


def _features(q, k, v, bias, table, sink):
    return _causal(q, k, v, bias=bias, bias_table=table, sink=sink)


def _placed_by_jit(mesh, main, more):
    return [*_put(mesh, P("b"), *main), *_put(mesh, P(), *more)], _features


def _placed_by_shard_map(mesh, main, more):
    specs = (P("b"),) * 3 + (P(),) * 3
    return (*main, *more), jax.shard_map(_features, mesh=mesh, in_specs=specs, out_specs=P("b"))


def _gradients_of_shared(f, x, w):
    """Of bias, table and sink, and their tangents along themselves."""
    shared = lambda *more: (f(*x[:3], *more).astype(w.dtype) * w).sum()  # noqa: E731
    gradient = jax.grad(shared, (0, 1, 2))
    return jax.jvp(gradient, tuple(x[3:]), tuple(x[3:]))


@pytest.mark.parametrize("place", [_placed_by_jit, _placed_by_shard_map])
@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_16_bit_gradients_are_rounded_after_the_sum(dtype, place):
    """The gradients of what eight devices share have the error that they have on one device."""
    length = 24
    main = [array(8, length, 4, 8).astype(dtype) for _ in range(3)]
    more = [array(*shape).astype(dtype) for shape in ((1, 4, length, length), (4, 33), (4,))]
    w = array(8, length, 4, 8)
    exact = _gradients_of_shared(_features, [x.astype(jnp.float64) for x in (*main, *more)], w)
    one = jax.jit(lambda *x: _gradients_of_shared(_features, x, w))(*main, *more)
    placed, f = place(_mesh(b=8), main, more)
    eight = jax.jit(lambda *x: _gradients_of_shared(f, x, w))(*placed)
    error = lambda x, y: float(jnp.linalg.norm(x.astype(jnp.float64) - y))  # noqa: E731
    for x, y, z in zip(*map(jax.tree.leaves, (eight, one, exact)), strict=True):
        assert x.dtype == dtype and error(x, z) <= 1.1 * error(y, z), (x.shape, error(x, z), error(y, z))


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_16_bit_gradients_of_replicated_keys(dtype):
    """Each of eight devices rounds its part; the parts are summed in float32."""
    q, k, v = (array(1, 16, 2, 8).astype(dtype) for _ in range(3))
    f = jax.shard_map(dot_product_attention, mesh=_mesh(t=8), in_specs=(P(None, "t"), P(), P()), out_specs=P(None, "t"))
    got = jax.jit(jax.grad(lambda v, q: f(q, k, v).astype(jnp.float32).sum()))(v, q)
    part = jax.grad(lambda v, q: dot_product_attention(q, k, v).astype(jnp.float32).sum())
    parts = [part(v, q[:, i : i + 2]) for i in range(0, 16, 2)]
    assert bool((got == sum(x.astype(jnp.float64) for x in parts).astype(dtype)).all())
