"""What the PyTorch tests share: attention by its formula in plain PyTorch, one case for each feature, and the
error rule."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from attngrad.torch import scaled_dot_product_attention

F64 = torch.float64
# The error rule: what rounding the result alone may cost, relative to it, and the spacing of the dtype at 1.
FLOOR = {torch.float64: 1e-13, torch.float32: 1e-6, torch.float16: 6e-4, torch.bfloat16: 4e-3}
EPSILON = {torch.float64: 2**-52, torch.float32: 2**-23, torch.float16: 2**-10, torch.bfloat16: 2**-7}


def within_rule(ours, peer, truth, dtype, amplitude=0.0, scale=0.0):
    """(passes, our error, the peer's), errors relative to the larger of truth's norm and `scale`. Ours may be twice
    the peer's, or 8 epsilons times `amplitude`, the norm of the formula with every term taken by absolute
    value, or FLOOR."""
    norm = max(truth.norm().item(), scale)
    error, peer_error = ((x.to(truth.dtype) - truth).norm().item() for x in (ours, peer))
    unit = norm if norm > 0 else 1.0
    allowed = max(2 * peer_error, 8 * EPSILON[dtype] * amplitude, FLOOR[dtype] * norm)
    return error <= allowed, error / unit, peer_error / unit


# ---- The formula ----


def positions(n_q, n_k, align="top-left", q_offset=0, k_offset=0):
    shift = n_k - n_q if align == "bottom-right" else 0
    return torch.arange(n_q)[:, None] + q_offset + shift, torch.arange(n_k)[None, :] + k_offset


def visible_pairs(n_q, n_k, *, is_causal=False, window=None, **where):
    p, g = positions(n_q, n_k, **where)
    seen = torch.ones(n_q, n_k, dtype=torch.bool)
    if is_causal:
        seen = seen & (g <= p)
    if window is not None:
        left, right = window
        seen &= (g >= p - left) if left >= 0 else seen
        seen &= (g <= p + right) if right >= 0 else seen
    return seen


def table_bias(table, buckets, n_q, n_k, **where):
    p, g = positions(n_q, n_k, **where)
    radius = (len(buckets) - 1) // 2 if buckets is not None else (table.shape[-1] - 1) // 2
    distance = (g - p).clamp(-radius, radius) + radius
    columns = distance if buckets is None else torch.tensor(buckets)[distance]
    return table[..., columns]


def default_slopes(heads):
    return torch.tensor([2.0 ** (-8 * (h + 1) / heads) for h in range(heads)], dtype=F64)


def plain(
    q,
    k,
    v,
    attn_mask=None,
    is_causal=False,
    scale=None,
    enable_gqa=False,
    *,
    align="top-left",
    window=None,
    bias=None,
    bias_table=None,
    buckets=None,
    alibi=None,
    softcap=None,
    sink=None,
    kv_lengths=None,
    q_offset=0,
    k_offset=0,
    q_offsets=None,
    k_offsets=None,
    dropout_factors=None,
    return_lse=True,
):
    """Attention by its formula, N x N, in the inputs' dtype: o, lse. dropout_factors: 0 or 1 / (1 - p) for each
    weight."""
    if q_offsets is not None:
        q_offset, k_offset = (torch.tensor(x)[:, None, None, None] for x in (q_offsets, k_offsets))
    where = {"align": align, "q_offset": q_offset, "k_offset": k_offset}
    n_q, n_k = q.shape[-2], k.shape[-2]
    if enable_gqa:
        k, v = (x.repeat_interleave(q.shape[-3] // x.shape[-3], dim=-3) for x in (k, v))
    s = q @ k.transpose(-2, -1) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    seen = visible_pairs(n_q, n_k, is_causal=is_causal, window=window, **where)
    if kv_lengths is not None:
        seen = seen & (torch.arange(n_k) < torch.as_tensor(kv_lengths)[..., None, None, None])
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        seen = seen & attn_mask
    elif attn_mask is not None:
        s = s + attn_mask
    if bias is not None:
        s = s + bias
    if bias_table is not None:
        s = s + table_bias(bias_table, buckets, n_q, n_k, **where)
    if alibi is not None:
        p, g = positions(n_q, n_k, **where)
        slopes = default_slopes(q.shape[-3]) if alibi is True else torch.tensor(alibi, dtype=F64)
        s = s - slopes[:, None, None].to(s.dtype) * (p - g).abs()
    s = s.masked_fill(~seen, float("-inf"))
    logits = s if sink is None else torch.cat([s, sink[:, None, None].expand(*s.shape[:-1], 1)], dim=-1)
    empty = logits.isneginf().all(dim=-1, keepdim=True)
    lse = logits.masked_fill(empty, 0).logsumexp(dim=-1, keepdim=True)
    weights = torch.exp(s - lse).masked_fill(empty, 0)
    if dropout_factors is not None:
        weights = weights * dropout_factors
    o = weights @ v
    return (o, lse.masked_fill(empty, float("-inf")).squeeze(-1)) if return_lse else o


def amplitudes(q, k, v, d_o, **keywords):
    """Norms of o and of the gradients of q, k, v and a bias, with every term of the formula taken by absolute
    value; in float64 multiplied by 1 + the largest score: its rounding error becomes a relative error of exp."""
    is_wide = q.dtype == F64
    q, k, v, d_o = (x.detach().double() for x in (q, k, v, d_o))
    keywords = {
        name: x.double() if torch.is_tensor(x) and x.is_floating_point() else x
        for name, x in keywords.items()
    }
    groups = q.shape[-3] // k.shape[-3]
    identity = torch.eye(k.shape[-2], dtype=F64).expand(*k.shape[:-1], k.shape[-2])
    weights = plain(q, k, identity, **keywords)[0]  # P V with V = I
    k, v = (x.abs().repeat_interleave(groups, dim=-3) for x in (k, v))
    q, d_o, o = q.abs(), d_o.abs(), weights @ v
    terms = weights * (d_o @ v.transpose(-2, -1) + (d_o * o).sum(dim=-1, keepdim=True))
    scale = keywords.get("scale") or q.shape[-1] ** -0.5
    grouped = lambda x: x.unflatten(-3, (-1, groups)).sum(dim=-3)  # noqa: E731
    results = [
        o,
        scale * terms @ k,
        grouped(scale * terms.transpose(-2, -1) @ q),
        grouped(weights.transpose(-2, -1) @ d_o),
    ]
    bias = keywords.get("attn_mask")
    if bias is not None and bias.dtype != torch.bool:
        results.append(
            terms.sum_to_size(bias.shape) if bias.dim() == terms.dim() else terms.flatten(0, -3).sum(dim=0)
        )
    largest = 1 + scale * (q @ k.transpose(-2, -1)).max().item() if is_wide else 1
    return [x.norm().item() * largest for x in results]


# ---- Cases ----


@dataclass
class Case:
    """One feature: shapes of q, k, v, keywords, and tensors with gradients by their keyword."""

    name: str
    q: tuple[int, ...] = (1, 2, 3, 2)
    k: tuple[int, ...] = (1, 2, 4, 2)
    v: tuple[int, ...] = (1, 2, 4, 3)
    keywords: dict = field(default_factory=dict)
    tensors: dict = field(default_factory=dict)
    lse: bool = True  # whether lse is finite everywhere
    formula: bool = True  # whether `plain` has it

    def inputs(self, requires_grad=True):
        """q, k, v, then the tensors of `tensors`."""
        shapes = [self.q, self.k, self.v, *self.tensors.values()]
        return tuple(torch.randn(shape, dtype=F64, requires_grad=requires_grad) for shape in shapes)

    def function(self, attention=scaled_dot_product_attention, **more):
        def run(q, k, v, *rest):
            named = dict(zip(self.tensors, rest, strict=True))
            result = attention(q, k, v, **self.keywords, **named, **more, return_lse=self.lse)
            return result

        return run


_MASK = torch.tensor([[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]], dtype=torch.bool)
_EMPTY_ROW = torch.tensor([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 0]], dtype=torch.bool)

CASES = [
    Case("plain"),
    Case("flat", (3, 2), (4, 2), (4, 3)),
    Case("three_axes", (2, 3, 2), (2, 4, 2), (2, 4, 3)),
    Case("five_axes", (2, 1, 1, 3, 2), (1, 2, 1, 4, 2), (2, 2, 1, 4, 2)),
    Case("broadcast_batch", (2, 1, 3, 2), (1, 1, 4, 2), (1, 1, 4, 2)),
    Case("causal", keywords={"is_causal": True}),
    Case("bottom_right", keywords={"is_causal": True, "align": "bottom-right"}),
    Case("window", keywords={"window": (1, 1)}),
    Case("scale", keywords={"scale": 0.3}),
    Case("softcap", keywords={"softcap": 0.8}),
    Case("mask", keywords={"attn_mask": _MASK}),
    Case("empty_row", keywords={"attn_mask": _EMPTY_ROW}, lse=False),
    Case("float_mask", tensors={"attn_mask": (3, 4)}),
    Case("float_mask_of_keys", (2, 2, 2, 2), (2, 2, 3, 2), (2, 2, 3, 2), tensors={"attn_mask": (2, 1, 1, 3)}),
    Case("mask_and_bias", keywords={"attn_mask": _MASK}, tensors={"bias": (2, 3, 1)}),
    Case("table", keywords={"is_causal": True}, tensors={"bias_table": (2, 5)}),
    Case("buckets", keywords={"buckets": [0, 1, 1, 2, 0]}, tensors={"bias_table": (1, 3)}),
    Case("alibi", keywords={"alibi": True, "is_causal": True}),
    Case("slopes", keywords={"alibi": [0.5, 0.1]}),
    Case("sink", tensors={"sink": (2,)}),
    Case("sink_of_empty_row", keywords={"attn_mask": _EMPTY_ROW}, tensors={"sink": (2,)}),
    Case("dropout", keywords={"dropout_p": 0.4, "seed": 11}, formula=False),
    Case("gqa", (1, 4, 2, 2), (1, 2, 3, 2), (1, 2, 3, 2), {"enable_gqa": True}),
    Case("gqa_keys_and_values_differ", (1, 4, 2, 2), (1, 2, 3, 2), (1, 1, 3, 2), {"enable_gqa": True}),
    Case("one_kv_head", (1, 2, 3, 2), (1, 1, 3, 2), (1, 1, 3, 2)),
    Case("kv_lengths", (2, 1, 2, 2), (2, 1, 3, 2), (2, 1, 3, 2), {"kv_lengths": [1, 3]}),
    Case(
        "q_lengths", (2, 1, 2, 2), (2, 1, 3, 2), (2, 1, 3, 2), {"q_lengths": [1, 2]}, lse=False, formula=False
    ),
    Case(
        "packed",
        (1, 4, 2),
        (1, 5, 2),
        (1, 5, 2),
        {"q_packed": [0, 1, 4], "k_packed": [0, 3, 5]},
        formula=False,
    ),
    Case(
        "packed_longest",
        (1, 4, 2),
        (1, 5, 2),
        (1, 5, 2),
        {"q_packed": [0, 1, 4], "k_packed": [0, 3, 5], "longest": (4, 5)},
        formula=False,
    ),
    Case("offsets", keywords={"is_causal": True, "q_offset": 4, "k_offset": 2}),
    Case(
        "offsets_per_sequence",
        (2, 2, 3, 2),
        (2, 2, 4, 2),
        (2, 2, 4, 3),
        {"is_causal": True, "alibi": True, "q_offsets": [4, 1], "k_offsets": [2, 0]},
    ),
    Case(
        "all",
        keywords={
            "is_causal": True,
            "align": "bottom-right",
            "window": (2, -1),
            "softcap": 1.5,
            "alibi": True,
        },
        tensors={"bias": (1, 1, 3, 4), "bias_table": (2, 3), "sink": (2,)},
    ),
]
BY_NAME = {case.name: case for case in CASES}
