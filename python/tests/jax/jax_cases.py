"""What the JAX tests share: attention by its formula in plain jax.numpy, one case for each feature, and a loss."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from attngrad.jax import dot_product_attention

B, T, S, N, K, D, DV = 2, 3, 4, 4, 2, 3, 2
_RNG = np.random.default_rng(0)


def array(*shape):
    return jnp.asarray(_RNG.standard_normal(shape))


def like(tree):
    return jax.tree.map(lambda x: array(*x.shape), tree)


# ---- The formula ----


def _positions(x, f, n_q, n_k, lengths):
    """Positions of queries [B, T, 1] and of keys [B, 1, S]."""
    i, j = jnp.arange(n_q)[None, :, None], jnp.arange(n_k)[None, None, :]
    shift = (lengths[1] - lengths[0])[:, None, None] if f.get("align") == "bottom-right" else 0
    q0 = jnp.asarray(f.get("q_offsets", [f.get("q_offset", 0)]))[:, None, None]
    k0 = jnp.asarray(f.get("k_offsets", [f.get("k_offset", 0)]))[:, None, None]
    return i + q0 + shift, j + k0


def _biases(x, f, p, g):
    total = x.get("bias", 0)
    if "bias_table" in x:
        table = jnp.atleast_2d(x["bias_table"])
        buckets = jnp.asarray(f.get("buckets", range(table.shape[1])))
        radius = len(buckets) // 2
        columns = buckets[jnp.clip(g - p, -radius, radius) + radius]
        total = total + jnp.moveaxis(table[:, columns], 0, 1)
    if "alibi" in f:
        slopes = [2.0 ** (-8 * (h + 1) / N) for h in range(N)] if f["alibi"] is True else f["alibi"]
        total = total - jnp.asarray(slopes)[:, None, None] * abs(p - g)[:, None]
    return total


def _visible(f, p, g, n_q, n_k, lengths):
    i, j = jnp.arange(n_q)[None, :, None], jnp.arange(n_k)[None, None, :]
    seen = (i < lengths[0][:, None, None]) & (j < lengths[1][:, None, None])
    if f.get("is_causal"):
        seen &= g <= p
    if "local_window_size" in f:
        left, right = f["local_window_size"]
        seen &= (p - left <= g) & (g <= p + right)
    seen = seen[:, None]
    return seen & f["mask"] if "mask" in f else seen


def formula(x, f):
    """o and lse of a dict of arrays with derivatives and one of other features, both by argument name; N x N."""
    if "q_packed" in f:
        return _packed(x, f)
    q, k, v = x["query"], x["key"], x["value"]
    batch, n_q, heads, size = q.shape
    n_k, group = k.shape[1], heads // k.shape[2]
    k, v = jnp.repeat(k, group, 2), jnp.repeat(v, group, 2)
    s = jnp.einsum("bthd,bshd->bhts", q, k) * f.get("scale", size**-0.5)
    if "softcap" in f:
        s = f["softcap"] * jnp.tanh(s / f["softcap"])
    lengths = [
        jnp.asarray(f.get(name, jnp.full(batch, n)))
        for name, n in (("query_seq_lengths", n_q), ("key_value_seq_lengths", n_k))
    ]
    p, g = _positions(x, f, n_q, n_k, lengths)
    seen = _visible(f, p, g, n_q, n_k, lengths)
    s = jnp.where(seen, s + _biases(x, f, p, g), -jnp.inf)
    sink = x["sink"][:, None] if "sink" in x else jnp.full((1, 1), -jnp.inf)
    top = jax.lax.stop_gradient(jnp.maximum(s.max(-1, initial=-jnp.inf), sink))
    top = jnp.where(jnp.isfinite(top), top, 0)
    weights = jnp.where(seen, jnp.exp(jnp.where(seen, s, 0) - top[..., None]), 0)
    total = weights.sum(-1) + jnp.exp(sink - top)
    is_empty = total == 0
    total = jnp.where(is_empty, 1, total)
    o = jnp.einsum("bhts,bshd->bthd", weights / total[..., None], v)
    return o, jnp.moveaxis(jnp.where(is_empty, -jnp.inf, jnp.log(total) + top), 1, 2)


def _packed(x, f):
    """Each sequence by itself; query [total, heads, size]."""
    rest = {name: y for name, y in f.items() if name not in ("q_packed", "k_packed", "longest")}
    parts = []
    for (q0, q1), (k0, k1) in zip(
        zip(f["q_packed"], f["q_packed"][1:]), zip(f["k_packed"], f["k_packed"][1:]), strict=True
    ):
        one = x | {"query": x["query"][None, q0:q1], "key": x["key"][None, k0:k1], "value": x["value"][None, k0:k1]}
        parts.append(formula(one, rest))
    return tuple(jnp.concatenate([part[i][0] for part in parts]) for i in (0, 1))


# ---- Cases ----

_MASK = jnp.array([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]], bool)
_EMPTY_ROW = jnp.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], bool)
# name: (further arrays with derivatives, other features)
CASES = {
    "plain": ({}, {}),
    "causal": ({}, {"is_causal": True}),
    "window": ({}, {"local_window_size": (1, 1), "scale": 0.7}),
    "bottom_right": ({}, {"is_causal": True, "align": "bottom-right"}),
    "lengths": ({}, {"query_seq_lengths": jnp.array([3, 2]), "key_value_seq_lengths": jnp.array([4, 1])}),
    "mask": ({}, {"mask": _MASK[None, None]}),
    "empty_row": ({}, {"mask": _EMPTY_ROW[None, None]}),
    "bias": ({"bias": (1, N, T, S)}, {}),
    "softcap": ({"bias": (B, 1, 1, S)}, {"softcap": 0.8}),
    "table": ({"bias_table": (N, 5)}, {"is_causal": True}),
    "buckets": ({"bias_table": (1, 3)}, {"buckets": [0, 1, 1, 2, 0]}),
    "sink": ({"sink": (N,)}, {"local_window_size": (1, 0)}),
    "alibi": ({}, {"alibi": True, "is_causal": True}),
    "slopes": ({}, {"alibi": [0.5, 0.25, 0.1, 0.7]}),
    "offsets": ({}, {"is_causal": True, "q_offset": 2, "k_offset": 1}),
    "offsets_per_sequence": (
        {},
        {"is_causal": True, "q_offsets": jnp.array([2, 0]), "k_offsets": jnp.array([1, 0])},
    ),
    "packed": ({"sink": (N,)}, {"q_packed": np.array([0, 1, 4]), "k_packed": np.array([0, 3, 5])}),
    "invariant": ({}, {"is_causal": True, "invariant": True}),
    "all": (
        {"bias": (1, N, T, S), "bias_table": (N, 3), "sink": (N,)},
        {"softcap": 1.5, "mask": _MASK[None, None], "is_causal": True, "align": "bottom-right", "alibi": True},
    ),
}


def inputs(name):
    """The arrays with derivatives of a case, by argument name."""
    more, f = CASES[name]
    if "q_packed" in f:
        shapes = {"query": (4, N, D), "key": (5, K, D), "value": (5, K, DV)}
    else:
        shapes = {"query": (B, T, N, D), "key": (B, S, K, D), "value": (B, S, K, DV)}
    return {argument: array(*shape) for argument, shape in (shapes | more).items()}


def ours(x, f):
    return dot_product_attention(**x, **f, return_residual=True)


def features_for(attention, f):
    """What the formula need not know is left out for it."""
    return {name: y for name, y in f.items() if attention is ours or name != "invariant"}


def scalar(attention, f):
    """A loss of o and lse that is curved everywhere."""

    def loss(x):
        o, lse = attention(x, features_for(attention, f))
        lse = jnp.where(jnp.isfinite(lse), lse, 0)
        return (jnp.sin(o) * jnp.cos(jnp.arange(o.size).reshape(o.shape))).sum() + (lse**2).sum()

    return loss


def assert_close(got, want, limit=1e-11, what=""):
    """Leaf by leaf, relative to the largest entry, at least 1."""
    got, want = jax.tree.leaves(got), jax.tree.leaves(want)
    assert len(got) == len(want), what
    for x, y in zip(got, want, strict=True):
        assert x.shape == y.shape, (what, x.shape, y.shape)
        finite = jnp.isfinite(y)
        assert bool((jnp.isfinite(x) == finite).all()), what
        error = float(abs(jnp.where(finite, x - y, 0)).max(initial=0))
        assert error <= limit * max(1.0, float(abs(jnp.where(finite, y, 0)).max(initial=0))), (what, error)
