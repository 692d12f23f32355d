"""Masks become features: what each description turns into, and that the result is that of the boolean matrix."""

import pytest
import torch
from torch import nn
from transformers import masking_utils
from zoo import LENGTH, padding

from attngrad.transformers import _patterns
from attngrad.transformers._attention import attention
from attngrad.transformers._masks import Mask, make_mask

pytestmark = pytest.mark.oldest
N, B = LENGTH, 2
ZERO = torch.zeros(B, dtype=torch.int64)
RESTARTS = torch.tensor([[0, 1, 2, 3, 0, 1, 2, 3, 4, 5, 6, 7], [0, 1, 2, 0, 1, 2, 3, 4, 5, 6, 0, 1]])
SEQUENCES = (RESTARTS == 0).cumsum(dim=1) - 1


def functions():
    m = masking_utils
    found = {
        "causal": m.causal_mask_function,
        "window": m.sliding_window_causal_mask_function(4),
        "chunks": m.chunked_causal_mask_function(5, ZERO),
        "chunks after padding": m.chunked_causal_mask_function(5, torch.tensor([0, 5])),
        "packed": m.and_masks(m.causal_mask_function, m.packed_sequence_mask_function(SEQUENCES)),
        "all": m.bidirectional_mask_function,
        "window both ways": m.sliding_window_bidirectional_mask_function(3),
    }
    if hasattr(m, "packed_sequence_compatibility_function"):
        window = m.sliding_window_causal_mask_function(3)
        chunks = m.chunked_causal_mask_function(3, ZERO)
        found["packed window"] = m.packed_sequence_compatibility_function(window, RESTARTS, SEQUENCES)
        found["packed chunks"] = m.packed_sequence_compatibility_function(chunks, RESTARTS, SEQUENCES)
    return found


PADDINGS = {
    "none": None,
    "right": padding("right").bool(),
    "left": padding("left").bool(),
    "hole": torch.ones(B, N, dtype=torch.bool).index_fill(1, torch.tensor([3]), False),
    "nothing": torch.tensor([[True], [False]]).expand(B, N),
}
SIZES = {  # q_length, kv_length, q_offset, kv_offset
    "square": (N, N, 0, 0),
    "decode": (1, N, N - 1, 0),
    "chunk of a prefill": (4, N, N - 4, 0),
    "rolling cache": (3, 6, N - 3, N - 6),
    "static cache": (4, N + 5, 3, 0),
}


def same_as_matrix(mask):
    """Compares the attention by features with that by the boolean matrix, forward and backward."""
    n_q, n_k = mask.shape[2:]
    module = nn.Identity()
    q = torch.randn(B, 4, n_q, 8, dtype=torch.float64, requires_grad=True)
    k, v = (torch.randn(B, 2, n_k, 8, dtype=torch.float64, requires_grad=True) for _ in range(2))
    results = []
    for m in (mask, mask.dense.contiguous()):
        o = attention(module, q, k, v, m)[0]
        results.append([o, *torch.autograd.grad(o.sin().sum(), (q, k, v))])
    torch.testing.assert_close(*results, rtol=1e-12, atol=1e-13)


CASES = [
    (pattern, side, size)
    for pattern in functions()
    for side in PADDINGS
    for size in SIZES
    if size == "square" or "packed" not in pattern  # sequences are packed in square masks only
]


@pytest.mark.parametrize("pattern, side, size", CASES)
def test_features_are_the_matrix(pattern, side, size):
    n_q, n_k, q_offset, kv_offset = SIZES[size]
    mask = make_mask(B, n_q, n_k, q_offset, kv_offset, functions()[pattern], PADDINGS[side])
    assert isinstance(mask, Mask)
    same_as_matrix(mask)
    matrix = mask.visible.keywords.get("attn_mask")
    has_segments = "chunk" in pattern or "packed" in pattern
    needs_matrix = has_segments and (size != "square" or side in ("hole", "left"))
    if not needs_matrix:
        assert matrix is None or matrix.shape[1:3] == (1, 1)


@pytest.mark.parametrize(
    "pattern, side, want",
    [
        ("causal", "none", {"is_causal": True}),
        ("causal", "right", {"is_causal": True, "kv_lengths": [N, N - 5]}),
        ("window", "none", {"is_causal": True, "window": (3, None)}),
        ("all", "none", {}),
        ("all", "right", {"kv_lengths": [N, N - 5]}),
        ("window both ways", "none", {"window": (3, 3)}),
    ],
)
def test_which_features(pattern, side, want):
    mask = make_mask(B, N, N, 0, 0, functions()[pattern], PADDINGS[side])
    got = {name: x.tolist() if name == "kv_lengths" else x for name, x in mask.visible.keywords.items()}
    assert got == want and mask.visible.packed is None
    assert "dense" not in mask.__dict__  # the matrix was never made


def test_left_padding_is_one_mask_for_all_queries():
    keywords = make_mask(B, N, N, 0, 0, attention_mask=PADDINGS["left"]).visible.keywords
    assert keywords["is_causal"] and keywords["attn_mask"].shape == (B, 1, 1, N)


def test_packed_sequences():
    visible = make_mask(B, N, N, 0, 0, functions()["packed"]).visible
    assert all(x.tolist() == [0, 4, 12, 15, 22, 24] for x in visible.packed)
    assert visible.keywords == {"is_causal": True, "longest": [8, 8]}


def test_chunks_are_packed_sequences():
    visible = make_mask(B, N, N, 0, 0, functions()["chunks"]).visible
    assert all(x.tolist() == [0, 5, 10, 12, 17, 22, 24] for x in visible.packed)


def test_chunks_without_their_padding():
    visible = make_mask(B, N, N, 0, 0, functions()["chunks after padding"], PADDINGS["left"]).visible
    q, k = visible.packed  # the second row: five padded queries without keys, five keys without queries, then chunks
    assert q[-4:].tolist() == [17, 17, 22, 24] and k[-4:].tolist() == [12, 17, 22, 24]


def test_unknown_function_is_a_matrix():
    even = lambda b, h, q, k: (q + k) % 2 == 0  # noqa: E731
    union = masking_utils.or_masks(masking_utils.causal_mask_function, masking_utils.sliding_window_overlay(3))
    for function in (masking_utils.and_masks(masking_utils.causal_mask_function, even), union):
        mask = make_mask(B, N, N, 0, 0, function, PADDINGS["right"])
        assert mask.pattern is None and mask.visible.keywords.keys() == {"attn_mask"}
        same_as_matrix(mask)


def test_a_changed_meaning_is_noticed(monkeypatch):
    """If a release gave the window another meaning, its masks would be matrices."""
    monkeypatch.setattr(
        masking_utils,
        "sliding_window_overlay",
        lambda sliding_window: lambda b, h, q, k: k >= q - sliding_window,
    )
    _patterns._readers.cache_clear()
    try:
        assert _patterns.read(masking_utils.sliding_window_overlay(3)) is None
        assert _patterns.read(masking_utils.causal_mask_function) == _patterns.Pattern(causal=True)
    finally:
        monkeypatch.undo()
        _patterns._readers.cache_clear()


def test_a_model_may_compute_with_the_mask():
    mask = make_mask(B, N, N, 0, 0, attention_mask=PADDINGS["right"])
    dense = mask.dense
    assert mask.shape == dense.shape and mask.dtype == torch.bool and mask.detach() is mask
    assert torch.equal(mask[:, :, :, :5], dense[:, :, :, :5]) and torch.equal(~mask, ~dense)
    assert torch.equal(torch.where(mask, 0.0, -1.0), torch.where(dense, 0.0, -1.0))
    scores = torch.zeros(B, 1, N, N)
    assert torch.equal(scores.masked_fill_(~mask, -1.0), torch.where(dense, 0.0, -1.0))
    part = mask[:, :, 2:] & mask[:, :, 2:]
    assert isinstance(part, Mask) and torch.equal(part.visible.keywords["attn_mask"], dense[:, :, 2:])


@pytest.mark.parametrize(
    "compute",
    [
        lambda m: torch.zeros(N) + m,
        lambda m: torch.zeros(N) + m[:, :, :, :N],
        lambda m: (~m) * -1e9,
        lambda m: m.float(),
        lambda m: 1.0 - m.to(torch.float64),
        lambda m: m.logical_not_(),
        lambda m: torch.zeros(B, 1, N, N).add_(m),
        lambda m: torch.ones(B, 1, N, N).mul_(m),
        lambda m: torch.addcmul(torch.zeros(N), m, torch.ones(1)),
        lambda m: torch.zeros(B, 1, N, N).copy_(m),
        lambda m: torch.cat([m, torch.zeros(B, 1, N, N)]),
        lambda m: torch.where(m, m, torch.zeros(())),
        lambda m: m.masked_fill(~m, -1e9),
        lambda m: m == 0,
        lambda m: m.sum(),
        lambda m: m.cumsum(dim=3),
        lambda m: m.exp(),
    ],
)
def test_a_model_may_not_take_the_mask_for_numbers(compute):
    with pytest.raises(NotImplementedError, match="^attention_mask: the model computes with it"):
        compute(make_mask(B, N, N, 0, 0, attention_mask=PADDINGS["right"]))


@pytest.mark.parametrize(
    "compute",
    [
        lambda m: torch.where(m, 0.0, -1.0),
        lambda m: torch.zeros(B, 1, N, N).masked_fill_(~m, -1.0),
        lambda m: torch.ones(B, 1, N, N)[m],
        lambda m: (m | m.transpose(2, 3)).flip(2),
        lambda m: m.masked_fill(m, False),
        lambda m: torch.nn.functional.pad(m, (1, 0)),
        lambda m: torch.cat([m, m], dim=3)[..., 1:].repeat(1, 2, 1, 1).reshape(-1, N),
        lambda m: torch.zeros(B, 1, N, N, dtype=torch.bool).copy_(m).all(dim=3),
        lambda m: m.index_select(3, torch.arange(3)).expand(B, 2, N, 3).contiguous(),
        lambda m: torch.zeros_like(m, dtype=torch.float32),
        lambda m: torch.nn.functional.scaled_dot_product_attention(*torch.ones(3, B, 4, N, 8), attn_mask=m),
    ],
)
def test_a_model_may_use_the_mask_as_truth_values(compute):
    mask = make_mask(B, N, N)
    got, want = compute(mask), compute(mask.dense)
    assert got.dtype == want.dtype and torch.equal(got, want)


def test_inside_vmap():
    """Padding that vmap batches has no values to look at, but gives the same, except in queries that see no key."""
    q, k, v = torch.randn(3, 3, B, 4, N, 8, dtype=torch.float64)
    sides = torch.stack([PADDINGS[side] for side in ("right", "left", "hole")])

    def run(q, k, v, side):
        return attention(nn.Identity(), q, k, v, make_mask(B, N, N, 0, 0, attention_mask=side))[0]

    want = torch.stack([run(*x) for x in zip(q, k, v, sides, strict=True)])
    seeing = torch.stack([make_mask(B, N, N, attention_mask=x).dense.any(dim=3)[:, 0] for x in sides])
    got = torch.vmap(run)(q, k, v, sides)
    torch.testing.assert_close(got[seeing], want[seeing], rtol=1e-12, atol=1e-13)


def test_inside_jvp_and_grad():
    """A function that is differentiated may compute with the mask."""
    mask = make_mask(B, N, N)
    f = lambda x: torch.where(mask, x, 0.0).sin().sum()  # noqa: E731
    x = torch.randn(N, N)
    want = torch.where(mask.dense, -x.sin(), 0.0).sum(dim=(0, 1))
    product = torch.func.jvp(torch.func.grad(f), (x,), (torch.ones_like(x),))[1]
    torch.testing.assert_close(product, want)
