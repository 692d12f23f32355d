"""A wrong argument is refused with its name while JAX traces; another platform by name; what only a value can tell,
at run time by the handler."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from attngrad.jax import dot_product_attention

_Q, _K = jnp.ones((2, 3, 4, 5)), jnp.ones((2, 6, 2, 5))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"query": "x"}, TypeError, "query: str"),
        ({"query": None}, TypeError, "query: NoneType"),
        ({"query": jnp.ones((3, 5))}, ValueError, r"query: shape \[3, 5\]"),
        ({"query": jnp.ones((2, 3, 4, 5), jnp.int32)}, TypeError, "query: int32"),
        ({"key": jnp.ones((2, 6, 2, 5), jnp.float32)}, TypeError, "key: float32, but query is float64"),
        ({"key": jnp.ones((2, 6, 2, 7))}, ValueError, "key: head size 7, but query has 5"),
        ({"key": jnp.ones((2, 6, 3, 5)), "value": jnp.ones((2, 6, 3, 5))}, ValueError, "key: 3 heads"),
        ({"key": jnp.ones((1, 6, 2, 5)), "value": jnp.ones((1, 6, 2, 5))}, ValueError, "key: batch 1"),
        ({"value": jnp.ones((2, 7, 2, 5))}, ValueError, r"value: shape \[2, 7, 2, 5\]"),
        ({"query": jnp.ones((2, 3, 4, 600)), "key": jnp.ones((2, 6, 2, 600))}, ValueError, "query: .*dim_qk is 600"),
        ({"bias": jnp.ones((2, 4, 3, 5))}, ValueError, "bias: shape"),
        ({"bias": jnp.ones((2, 4, 3, 6), int)}, TypeError, "bias: int64, must be a float"),
        ({"mask": jnp.ones((2, 4, 3, 6))}, TypeError, "mask: float64, must be bool"),
        ({"mask": jnp.ones((3, 4, 3, 6), bool)}, ValueError, "mask: shape"),
        ({"scale": "2"}, TypeError, "scale: '2' is not a number"),
        ({"is_causal": 1}, TypeError, "is_causal: 1"),
        ({"query_seq_lengths": jnp.ones(3, int)}, ValueError, r"query_seq_lengths: shape \[3\], must be \[2\]"),
        ({"key_value_seq_lengths": jnp.ones(2)}, TypeError, "key_value_seq_lengths: float64"),
        ({"query_seq_lengths": [1, 4]}, ValueError, r"query_seq_lengths: \[1\] is 4: must be from 0 to 3"),
        ({"key_value_seq_lengths": [-1, 6]}, ValueError, r"key_value_seq_lengths: \[0\] is -1: .* 0 to 6"),
        ({"local_window_size": (-5, 1)}, ValueError, "local_window_size: "),
        ({"local_window_size": "x"}, TypeError, "local_window_size: "),
        ({"softcap": -1.0}, ValueError, "softcap is -1"),
        ({"sink": jnp.ones(3)}, ValueError, r"sink: shape \[3\], must be \[4\]"),
        ({"bias_table": jnp.ones((4, 4))}, ValueError, "bias_table: 4 columns"),
        ({"bias_table": jnp.ones((3, 5))}, ValueError, "bias_table: shape"),
        ({"buckets": [0, 1, 0]}, ValueError, "buckets: given without bias_table"),
        ({"bias_table": jnp.ones((4, 2)), "buckets": [0, 1, 2]}, ValueError, "buckets: 2: must be columns"),
        ({"alibi": [1.0, 2.0]}, ValueError, "alibi"),
        ({"align": "left"}, ValueError, "align: 'left'"),
        ({"dropout": 1.0, "seed": 1}, ValueError, "dropout is 1"),
        ({"dropout": 0.5}, ValueError, "seed: missing"),
        ({"dropout": 0.5, "seed": 1.5}, TypeError, "seed: float64"),
        ({"dropout": 0.5, "seed": -1}, ValueError, "seed: -1"),
        ({"dropout": 0.5, "seed": np.int64(-1)}, ValueError, "seed: -1"),
        ({"dropout": 0.5, "seed": jnp.int32(-1)}, ValueError, "seed: -1"),
        ({"dropout": 0.5, "seed": True}, TypeError, "seed: bool"),
        ({"dropout": 0.5, "seed": jnp.arange(7, dtype=jnp.uint32)}, TypeError, r"seed: uint32 of shape \[7\]"),
        ({"dropout": 0.5, "seed": jax.random.split(jax.random.key(0))}, TypeError, r"seed: uint32 of shape \[2, 2\]"),
        ({"dropout": 0.5, "seed": "x"}, TypeError, "seed: str"),
        ({"q_offset": 1.5}, TypeError, "q_offset: float64"),
        ({"q_offset": 2**31}, ValueError, "q_offset: a number that does not fit into 32 bits"),
        ({"q_offset": 2**70}, ValueError, "q_offset: a number that does not fit into 32 bits"),
        ({"q_offset": None, "k_offsets": [1, 2**40]}, ValueError, "k_offsets: a number that does not fit"),
        ({"q_offset": 1, "align": "bottom-right"}, ValueError, "q_offset: given beside align"),
        ({"q_offset": 1, "q_offsets": [1, 2]}, ValueError, "q_offset: given beside q_offsets"),
        ({"k_offsets": jnp.ones(3, int)}, ValueError, r"k_offsets: shape \[3\]"),
        ({"longest": (1, 1)}, ValueError, "longest: given without"),
        ({"q_packed": [0, 1]}, ValueError, "k_packed: missing"),
        ({"head_offset": -1}, ValueError, "head_offset is -1"),
        ({"invariant": 1}, TypeError, "invariant: 1"),
        ({"save_low": 0}, TypeError, "save_low: 0"),
        ({"backend": "gpu"}, ValueError, "backend: 'gpu'"),
        ({"threads": -1}, ValueError, "threads: "),
        ({"implementation": "xla", "softcap": 2.0}, ValueError, "softcap: given beside implementation='xla'"),
        ({"implementation": "other"}, ValueError, "other"),
    ],
)
def test_refused_by_name(arguments, error, message):
    arguments = {"query": _Q, "key": _K, "value": _K, **arguments}
    with pytest.raises(error, match=message):
        dot_product_attention(**arguments)
    with pytest.raises(error, match=message):  # constants of a program
        jax.make_jaxpr(lambda: dot_product_attention(**arguments))()


def test_lists_with_traced_lengths():
    """A list may have both; its values are left to the handler."""
    f = jax.jit(lambda n: dot_product_attention(_Q, _K, _K, query_seq_lengths=[3, n]))
    assert f(2).shape == _Q.shape


def test_packed():
    q, k = jnp.ones((4, 2, 3)), jnp.ones((5, 2, 3))
    good = {"q_packed": [0, 1, 4], "k_packed": [0, 2, 5]}
    for wrong, message in (
        ({"q_packed": [1, 4]}, "q_packed: must begin with 0"),
        ({"q_packed": [0, 5, 4]}, "q_packed: must begin with 0"),
        ({"k_packed": [0, 2, 6]}, "k_packed: must begin with 0"),
        ({"k_packed": [0, 5]}, r"k_packed: shape \[2\], but q_packed has \[3\]"),
        ({"query_seq_lengths": [1, 2]}, "query_seq_lengths: given beside q_packed"),
        ({"longest": (5, 5)}, "query: .*q_len is 5"),
    ):
        with pytest.raises(ValueError, match=message):
            dot_product_attention(q, k, k, **(good | wrong))
    with pytest.raises(ValueError, match="query: shape"):
        dot_product_attention(q[None], k[None], k[None], **good)
    traced = lambda ends, **f: dot_product_attention(q, k, k, q_packed=ends, k_packed=[0, 2, 5], **f)  # noqa: E731
    with pytest.raises(TypeError, match="longest: missing"):
        jax.jit(traced)(jnp.array([0, 1, 4]))
    assert jax.jit(lambda x: traced(x, longest=(3, 3)))(jnp.array([0, 1, 4])).shape == q.shape


def test_constants_may_not_be_traced():
    for name in ("scale", "softcap", "is_causal", "dropout", "threads"):
        with pytest.raises(TypeError, match=f"{name}: traced"):
            jax.jit(lambda x: dot_product_attention(_Q, _K, _K, **{name: x}))(1.0)  # noqa: B023


@pytest.mark.parametrize(("name", "most"), [("query_seq_lengths", 3), ("key_value_seq_lengths", 6)])
def test_values_are_checked_at_run_time(name, most):
    """By the handler. JAX makes JaxRuntimeError of it or, in a jitted function that has run before, ValueError."""
    f = jax.jit(lambda n: dot_product_attention(_Q, _K, _K, **{name: n}))
    wrong, right = jnp.array([3, most + 1]), jnp.array([3, most])
    message = rf"attngrad: {name}\[1\] is {most + 1}"
    with pytest.raises(jax.errors.JaxRuntimeError, match=message):
        f(wrong).block_until_ready()
    assert f(right).shape == _Q.shape
    with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
        f(wrong).block_until_ready()
    assert f(right).shape == _Q.shape
    compiled = f.lower(right).compile()
    for _ in range(2):
        with pytest.raises((jax.errors.JaxRuntimeError, ValueError), match=message):
            compiled(wrong).block_until_ready()


@pytest.mark.parametrize(
    ("name", "shape"),
    [("query", "2, 3, h, 5"), ("key", "2, 6, 4, d"), ("value", "b, 6, 4, d"), ("bias_table", "4, n"), ("sink", "h")],
)
def test_symbolic_sizes(name, shape):
    """Only the batch and lengths may be symbolic."""
    shapes = {"query": (2, 3, 4, 5), "key": (2, 6, 4, 5), "value": (2, 6, 4, 5), name: export.symbolic_shape(shape)}
    types = {name: jax.ShapeDtypeStruct(shape, jnp.float64) for name, shape in shapes.items()}
    with pytest.raises(NotImplementedError, match=f"{name}: shape .*only the batch and lengths may be symbolic"):
        export.export(jax.jit(dot_product_attention))(**types)


def test_symbolic_sizes_of_packed_sequences_and_vmap():
    packed = lambda q: dot_product_attention(q, q, q, q_packed=[0, 2], k_packed=[0, 2])  # noqa: E731
    mapped = jax.vmap(lambda q: dot_product_attention(q, _Q, _Q))
    for f, shape, message in (
        (packed, "n, 2, 3", r"query: shape \[n, 2, 3\]: only the batch"),
        (mapped, "n, 2, 3, 4, 5", "vmap over an axis of the symbolic size n"),
    ):
        x = jax.ShapeDtypeStruct(export.symbolic_shape(shape), jnp.float64)
        with pytest.raises(NotImplementedError, match=message):
            export.export(jax.jit(f))(x)


def test_other_platforms():
    """JAX lowers for a platform that is not there; so this is what a CUDA array gives."""
    traced = jax.jit(jax.grad(lambda q: dot_product_attention(q, _K, _K).sum())).trace(_Q)
    with pytest.raises(NotImplementedError, match="attngrad.jax: runs on the CPU, not on cuda"):
        traced.lower(lowering_platforms=("cuda",))
