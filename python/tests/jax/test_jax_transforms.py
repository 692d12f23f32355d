"""The transforms of JAX around the primitives: vmap, Hessians, control flow, checkpoint, export; what is not computed;
what is refused."""

import itertools

import jax
import jax.numpy as jnp
import pytest
from jax import export

from attngrad.jax import CHECKPOINT_NAME, dot_product_attention
from jax_cases import B, D, DV, K, N, S, T, array, assert_close, formula


def _plain(q, k, v, **f):
    return formula({"query": q, "key": k, "value": v}, {"is_causal": True, **f})[0]


def _ours(q, k, v, **f):
    return dot_product_attention(q, k, v, is_causal=True, **f)


def _loss(f):
    return lambda *x: jnp.sin(f(*x)).sum()


# ---- vmap ----

_STACKED = array(3, B, T, N, D), array(3, B, S, K, D), array(3, B, S, K, DV)


def _mapped(axes):
    """The stacked arrays with their mapped axis at axes[i], or one of them if that is None."""
    return [x[0] if a is None else jnp.moveaxis(x, 0, a) for x, a in zip(_STACKED, axes, strict=True)]


def _orders(f, axes):
    """Derivatives under vmap and over it."""
    gradient = jax.grad(_loss(f), (0, 1, 2))
    total = jax.grad(lambda *x: jnp.sin(jax.vmap(f, axes)(*x)).sum(), (0, 1, 2))

    def run(*x):
        return {
            "values": jax.vmap(f, axes)(*x),
            "grad under vmap": jax.vmap(gradient, axes)(*x),
            "hvp under vmap": jax.vmap(lambda *y: jax.jvp(gradient, y, y)[1], axes)(*x),
            "jvp of jvp under vmap": jax.vmap(
                lambda *y: jax.jvp(lambda *z: jax.jvp(f, z, y)[1], y, y)[1], axes
            )(*x),
            "grad over vmap": total(*x),
            "hvp over vmap": jax.jvp(total, x, x)[1],
            "grad of jvp over vmap": jax.grad(lambda *y: jax.jvp(_loss(jax.vmap(f, axes)), y, x)[1], (0, 1, 2))(*x),
        }

    return run


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None), (None, 0, None), (1, None, 2), (None, None, 0)])
def test_vmap_over_any_operands(axes):
    args = _mapped(axes)
    got, want = (jax.jit(_orders(f, axes))(*args) for f in (_ours, _plain))
    for how in got:
        assert_close(got[how], want[how], what=how)


def test_vmap_nested():
    q, k, v = _STACKED
    nested = lambda f: jax.vmap(jax.vmap(f, (0, None, None)), (None, 0, None))  # noqa: E731
    assert_close(nested(_ours)(q, k, v[0]), nested(_plain)(q, k, v[0]))
    total = lambda f: jax.grad(lambda *x: jnp.sin(nested(f)(*x)).sum(), (0, 1, 2))  # noqa: E731
    assert_close(total(_ours)(q, k, v[0]), total(_plain)(q, k, v[0]))
    with pytest.raises(NotImplementedError, match="nested more than 8"):
        f = _ours
        for _ in range(9):
            f = jax.vmap(f, (0, None, None))
        f(jnp.ones((1,) * 9 + q[0].shape), k[0], v[0])


def test_vmap_of_other_operands():
    """Lengths, offsets, tables, sinks, masks and seeds have mapped axes too."""
    q, k, v = (x[0] for x in _STACKED)
    lengths, offsets = jnp.array([[1, 4], [4, 2], [3, 3]]), jnp.array([0, 2, 1])
    for name, values in (
        ("key_value_seq_lengths", lengths),
        ("q_offset", offsets),
        ("mask", array(3, B, 1, T, S) > -0.5),
        ("bias", array(3, 1, N, T, S)),
        ("bias_table", array(3, N, 5)),
        ("sink", array(3, N)),
    ):
        f = lambda x: _ours(q, k, v, **{name: x})  # noqa: B023, E731
        assert_close(jax.vmap(f)(values), jnp.stack([f(x) for x in values]), what=name)
        if name in ("bias", "bias_table", "sink"):
            g = jax.grad(_loss(f))
            assert_close(jax.vmap(g)(values), jnp.stack([g(x) for x in values]), what=name)
    keys = jax.random.split(jax.random.key(1), 3)
    f = lambda key: _ours(q, k, v, dropout=0.5, seed=key)  # noqa: E731
    assert_close(jax.vmap(f)(keys), jnp.stack([f(key) for key in keys]))


def test_vmap_of_nothing():
    """Sums over a mapped axis without elements are zero."""
    q, k, v = (x[0] for x in _STACKED)
    g = jax.grad(lambda q, k: jax.vmap(_ours, (0, None, None))(q, k, v).sum(), (0, 1))
    dq, dk = g(jnp.zeros((0, *q.shape)), k)
    assert dq.shape == (0, *q.shape) and not dk.any()


def test_folded_is_one_call():
    """If each operand has the axis, vmap makes the batch larger and adds no loop."""
    text = str(jax.make_jaxpr(jax.vmap(_ours))(*_STACKED))
    assert text.count("attngrad_forward[") == 1 and "maps=()" in text
    axes = (0, None, None)
    assert "maps=(3,)" in str(jax.make_jaxpr(jax.vmap(_ours, axes))(*_mapped(axes)))


# ---- Hessians, control flow, checkpoint ----


def test_hessian_in_four_orders():
    q, k, v = array(1, 2, 2, 2), array(1, 3, 1, 2), array(1, 3, 1, 2)
    jacobians = jax.jacfwd, jax.jacrev
    want = jax.hessian(lambda q: _loss(_plain)(q, k, v))(q)
    for outer, inner in itertools.product(jacobians, jacobians):
        assert_close(outer(inner(lambda q: _loss(_ours)(q, k, v)))(q), want)


def _recurrent(f, k, v):
    return lambda q: jax.lax.scan(lambda c, _: (f(c, k, v), None), q, None, length=3)[0].sum()


def _branching(f, k, v):
    return lambda q: jax.lax.cond(q.sum() > 0, lambda q: f(q, k, v), lambda q: 2 * f(q, k, v), q).sum()


def test_control_flow():
    q, k, v = array(B, T, N, D), array(B, S, K, D), array(B, S, K, D)
    for around in (_recurrent, _branching):
        hvp = lambda f: jax.jit(lambda q: jax.jvp(jax.grad(around(f, k, v)), (q,), (q,)))(q)  # noqa: B023, E731
        assert_close(hvp(_ours), hvp(_plain))


def test_checkpoint():
    """With the policy the residuals are kept and forward runs once; without it twice."""
    q, k, v = (x[0] for x in _STACKED)
    f = lambda q: _ours(q, k, v)  # noqa: E731
    policy = jax.checkpoint_policies.save_only_these_names(CHECKPOINT_NAME)
    want = jax.jvp(jax.grad(_loss(f)), (q,), (q,))
    for g, n in ((jax.checkpoint(f), 2), (jax.checkpoint(f, policy=policy), 1)):
        gradient = jax.grad(_loss(g))
        assert str(jax.make_jaxpr(gradient)(q)).count("attngrad_forward[") == n
        assert_close(jax.jvp(gradient, (q,), (q,)), want)


# ---- What is not computed ----


def _calls(f, *args):
    """How often the compiled program calls the handler."""
    return jax.jit(f).lower(*args).compile().as_text().count('custom_call_target="attngrad"')


def test_zero_tangents_are_no_operands():
    q, k, v = (x[0] for x in _STACKED)
    text = str(jax.make_jaxpr(lambda t: jax.jvp(lambda q: _ours(q, k, v), (q,), (t,)))(q))
    assert "'tq'" in text and "'tk'" not in text and "'tv'" not in text
    text = str(jax.make_jaxpr(jax.grad(lambda v: _ours(q, k, v).sum()))(v))
    assert "'dv'" in text and "'dq'" not in text and "'dk'" not in text


def test_number_of_calls():
    """forward and vjp for a gradient; forward, jvp and vjp_jvp for a Hessian-vector product alone."""
    x = tuple(x[0] for x in _STACKED)
    gradient = jax.grad(lambda *x: _ours(*x).sum(), (0, 1, 2))
    assert _calls(_ours, *x) == 1
    assert _calls(gradient, *x) == 2
    assert _calls(lambda *x: jax.jvp(_ours, x, x), *x) == 2
    assert _calls(lambda *x: jax.jvp(gradient, x, x)[1], *x) == 3
    assert _calls(lambda *x: jax.jvp(lambda *y: jax.jvp(_ours, y, x)[1], x, x)[1], *x) == 3


# ---- Linear in directions; third order ----


def test_products_are_linear_in_their_directions():
    """A Hessian-vector product has a gradient with respect to its direction, a second tangent with respect to both."""
    q, k, v = (x[0] for x in _STACKED)
    t, s, w = array(*q.shape), array(*q.shape), array(*q.shape)
    for f in (_ours, _plain):
        loss = lambda q: _loss(f)(q, k, v)  # noqa: B023, E731
        hvp = lambda t: jax.jvp(jax.grad(loss), (q,), (t,))[1]  # noqa: B023, E731
        second = lambda t, s: jax.jvp(lambda q: jax.jvp(loss, (q,), (t,))[1], (q,), (s,))[1]  # noqa: B023, E731
        results = jax.jit(
            lambda t, s: (jax.vjp(hvp, t)[1](w), jax.jvp(hvp, (t,), (s,)), jax.grad(second, (0, 1))(t, s))  # noqa: B023
        )(t, s)
        if f is _ours:
            got = results
    assert_close(got, results)


@pytest.mark.parametrize("axis", [None, 0])
def test_derivatives_of_a_transposed_gradient(axis):
    """The pullback, transposed in its cotangent, is the Jacobian times t without forward mode; it has derivatives, also
    if it is mapped over q while the cotangent is not."""
    (stacked, k, v), w = _mapped((0, None, None)), array(B, T, N, DV)
    q = stacked if axis == 0 else stacked[0]
    t = array(*q.shape)

    def product(f):
        pull = lambda q, d: jax.vjp(lambda q: f(q, k, v), q)[1](d)[0]  # noqa: E731
        many = pull if axis is None else jax.vmap(pull, (0, None))
        return lambda q: jax.vjp(lambda d: many(q, d), w)[1](t)[0]

    def results(f):
        g = product(f)
        return g(q), jax.jvp(g, (q,), (t,)), jax.grad(lambda q: jnp.sin(g(q)).sum())(q)

    assert_close(jax.jit(lambda: results(_ours))(), jax.jit(lambda: results(_plain))())


def test_gradient_of_a_product_in_the_cotangent():
    """The weights w of the output appear in the cotangent of attention alone: an HVP has a gradient in w."""
    q, k, v = (x[0] for x in _STACKED)
    w = array(B, T, N, DV)

    def product(f):
        return lambda w: (
            jax.jvp(jax.grad(lambda q: (f(q, k, v) * w).sum()), (q,), (q,))[1] * q
        ).sum()

    assert_close(jax.grad(product(_ours))(w), jax.grad(product(_plain))(w))
    assert_close(jax.jvp(product(_ours), (w,), (w,)), jax.jvp(product(_plain), (w,), (w,)))


def test_transpose_of_a_product_in_weights():
    """The weights w are in the cotangent of attention and, times a number that moves too, in its tangent: an HVP is
    linear in w."""
    q, k, v = (x[0] for x in _STACKED)
    w = array(B, T, N, DV)

    def transposed(f):
        def product(w):
            loss = lambda q, a: (w * jnp.sin(a) * f(q, k, v)).sum()  # noqa: E731
            return jax.jvp(jax.grad(loss), (q, 0.4), (q, 0.3))[1]

        return jax.jit(jax.linear_transpose(product, w))(q)

    assert_close(transposed(_ours), transposed(_plain))


def test_third_order_is_refused():
    q, k, v = (x[0] for x in _STACKED)
    f = lambda q: _loss(_ours)(q, k, v)  # noqa: E731
    hvp = lambda q: jax.jvp(jax.grad(f), (q,), (q,))[1]  # noqa: E731
    second = lambda q: jax.jvp(lambda q: jax.jvp(f, (q,), (q,))[1], (q,), (q,))[1]  # noqa: E731
    for third in (
        lambda: jax.jvp(hvp, (q,), (q,)),
        lambda: jax.jit(jax.grad(lambda q: hvp(q).sum()))(q),
        lambda: jax.grad(second)(q),
    ):
        with pytest.raises(NotImplementedError, match="third derivative.*finite differences.*jax.nn"):
            third()


# ---- jax.export with symbolic sizes ----


def _exported(f, *shapes):
    """The program of f for float64 arrays of these shapes, stored and loaded."""
    types = [jax.ShapeDtypeStruct(shape, jnp.float64) for shape in shapes]
    allowed = [export.DisabledSafetyCheck.custom_call("attngrad")]
    program = export.export(jax.jit(f), disabled_checks=allowed)(*types)
    return jax.jit(export.deserialize(program.serialize()).call)


def _derivatives(f):
    gradient = lambda *x: jax.grad(_loss(f), tuple(range(len(x))))(*x)  # noqa: E731

    def run(*x):
        return f(*x), jax.jvp(f, x, x)[1], jax.jvp(gradient, x, x), jax.jvp(lambda *y: jax.jvp(f, y, x)[1], x, x)[1]

    return run


def _assert_same(program, f, *shapes):
    x = [array(*shape) for shape in shapes]
    assert_close(program(*x), jax.jit(_derivatives(f))(*x), 1e-14, what=shapes)


def test_export_with_symbolic_batch_and_lengths():
    """One program serves every batch and every length."""
    shapes = lambda b, t, s: ((b, t, N, D), (b, s, K, D), (b, s, K, DV), (1, N, t, s))  # noqa: E731

    def f(q, k, v, bias):
        lengths = jnp.full(q.shape[0], k.shape[1] - 1)
        return _ours(q, k, v, bias=bias, key_value_seq_lengths=lengths, softcap=2.0)

    program = _exported(_derivatives(f), *shapes(*export.symbolic_shape("b, t, s")))
    for sizes in ((1, 1, 2), (3, 5, 4)):
        _assert_same(program, f, *shapes(*sizes))


@pytest.mark.parametrize("axes", [(0, 0, 0), (0, None, None)])
def test_export_of_vmap_with_symbolic_sizes(axes):
    """A mapped axis that joins the batch may be symbolic, and so may the batch under one that does not."""
    m, b = export.symbolic_shape("m, b")
    f = jax.vmap(_ours, axes)

    def shapes(m, b):
        mapped = [(m,) if axis == 0 else () for axis in axes]
        return [(*m, b, *rest) for m, rest in zip(mapped, ((T, N, D), (S, K, D), (S, K, DV)), strict=True)]

    program = _exported(_derivatives(f), *shapes(m if axes == (0, 0, 0) else 3, b))
    _assert_same(program, f, *shapes(3, 2))


# ---- Memory ----


def test_temporary_memory_of_a_hessian_vector_product():
    """Buffers of the compiled program: under 10 MiB, with 8 heads of 2,048 x 2,048 scores of 16 MiB each. XLA optimises
    here as it does by default."""

    def product(w, x, t):
        gradient = jax.grad(lambda *x: (dot_product_attention(*x) * w).sum(), (0, 1, 2))
        return jax.vjp(gradient, *x)[1](t)

    one = jax.ShapeDtypeStruct((1, 2048, 8, 64), jnp.float32)
    lowered = jax.jit(product).lower(one, (one,) * 3, (one,) * 3)
    program = lowered.compile({"xla_backend_optimization_level": 3})
    assert 0 < program.memory_analysis().temp_size_in_bytes < 10 * 2**20
