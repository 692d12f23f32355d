"""Wrong arguments are refused with an exception that names the argument; unusual but valid ones work."""

import numpy as np
import pytest
import torch
from torch import nn
from torch_cases import F64

import attngrad.torch
from attngrad.torch import scaled_dot_product_attention


def q(*shape, **keywords):
    return torch.randn(shape or (2, 3, 4, 8), **keywords)


_PACKED = {"q_packed": [0, 3, 4], "k_packed": [0, 1, 4]}
WRONG = [
    ("query: list", TypeError, lambda: ([1.0], q(), q()), {}),
    ("query: dtype torch.int64", TypeError, lambda: (q().long(), q().long(), q().long()), {}),
    ("query: dtype torch.complex64", TypeError, lambda: (q().cfloat(),) * 3, {}),
    (
        "key: dtype torch.float64, but query has torch.float32",
        TypeError,
        lambda: (q(), q().double(), q()),
        {},
    ),
    ("value: dtype torch.bfloat16", TypeError, lambda: (q(), q(), q().bfloat16()), {}),
    ("key: device meta, but query is on cpu", ValueError, lambda: (q(), q(device="meta"), q()), {}),
    ("key: device cpu, but query is on meta", ValueError, lambda: (q(device="meta"), q(), q()), {}),
    ("query: 1 axes", ValueError, lambda: (q(4), q(), q()), {}),
    ("key: head size 7, but query has 8", ValueError, lambda: (q(), q(2, 3, 4, 7), q()), {}),
    ("value: 5 positions, but key has 4", ValueError, lambda: (q(), q(), q(2, 3, 5, 8)), {}),
    ("leading axes", ValueError, lambda: (q(), q(5, 3, 4, 8), q(5, 3, 4, 8)), {}),
    ("heads", ValueError, lambda: (q(), q(2, 2, 4, 8), q(2, 2, 4, 8)), {}),
    (
        "key: 2 heads, which do not divide query's 3",
        ValueError,
        lambda: (q(), q(2, 2, 4, 8), q()),
        {"enable_gqa": True},
    ),
    ("sparse", TypeError, lambda: (q().to_sparse(), q(), q()), {}),
    ("query: head size 600, must be from 1 to 512", ValueError, lambda: (q(1, 1, 2, 600),) * 3, {}),
    ("query: head size 0", ValueError, lambda: (q(1, 1, 2, 0), q(1, 1, 2, 0), q(1, 1, 2, 4)), {}),
    ("value: head size 0", ValueError, lambda: (q(), q(), q(2, 3, 4, 0)), {}),
    ("query: 0 heads", ValueError, lambda: (q(2, 0, 4, 8),) * 3, {}),
    ("attn_mask: dtype torch.int64", TypeError, None, {"attn_mask": torch.ones(4, 4, dtype=torch.int64)}),
    ("attn_mask: dtype torch.float64", TypeError, None, {"attn_mask": torch.ones(4, 4, dtype=F64)}),
    ("attn_mask: shape", ValueError, None, {"attn_mask": torch.ones(4, 5)}),
    ("attn_mask: shape", ValueError, None, {"attn_mask": torch.ones(7, 1, 1, 1, 4, 4, dtype=torch.bool)}),
    ("attn_mask: device meta", ValueError, None, {"attn_mask": torch.ones(4, 4, device="meta")}),
    (
        "attn_mask: device meta",
        ValueError,
        None,
        {"attn_mask": torch.ones(4, 4, dtype=torch.bool, device="meta")},
    ),
    (
        "bias: attn_mask is a float",
        ValueError,
        None,
        {"attn_mask": torch.ones(4, 4), "bias": torch.ones(4, 4)},
    ),
    ("bias: dtype torch.bool, must be float", TypeError, None, {"bias": torch.ones(4, 4).bool()}),
    ("dropout_p: 1.0", ValueError, None, {"dropout_p": 1.0}),
    ("dropout_p: -0.1", ValueError, None, {"dropout_p": -0.1}),
    ("^dropout_p: nan, must be finite", ValueError, None, {"dropout_p": float("nan")}),
    ("seed: -1", ValueError, None, {"dropout_p": 0.5, "seed": -1}),
    ("seed: 1.5", TypeError, None, {"dropout_p": 0.5, "seed": 1.5}),
    ("seed: torch.int64 of shape \\[2\\]", TypeError, None, {"dropout_p": 0.5, "seed": torch.tensor([1, 2])}),
    ("seed is -5", ValueError, None, {"dropout_p": 0.5, "seed": torch.tensor(-5)}),
    ("softcap", ValueError, None, {"softcap": -1.0}),
    ("^scale: nan, must be finite", ValueError, None, {"scale": float("nan")}),
    ("^scale: inf, must be finite", ValueError, None, {"scale": torch.tensor(float("inf"))}),
    ("^softcap: nan, must be finite", ValueError, None, {"softcap": float("nan")}),
    ("^alibi: nan, must be finite", ValueError, None, {"alibi": [0.1, float("nan"), 0.2]}),
    ("align: 'middle'", ValueError, None, {"align": "middle"}),
    ("window: 3", ValueError, None, {"window": 3}),
    ("window", ValueError, None, {"window": (-2, 0)}),
    ("sink: shape \\[2\\], must be \\[3\\]", ValueError, None, {"sink": torch.ones(2)}),
    ("bias_table: shape", ValueError, None, {"bias_table": torch.ones(2, 5)}),
    ("bias_table: 4 columns", ValueError, None, {"bias_table": torch.ones(3, 4)}),
    ("buckets: given without bias_table", ValueError, None, {"buckets": [0, 1, 2]}),
    ("buckets: 2 numbers", ValueError, None, {"buckets": [0, 1], "bias_table": torch.ones(3, 2)}),
    ("buckets", ValueError, None, {"buckets": [0, 1, 7], "bias_table": torch.ones(3, 2)}),
    ("alibi: 2 slopes, but there are 3 heads", ValueError, None, {"alibi": [0.1, 0.2]}),
    ("kv_lengths: shape", ValueError, None, {"kv_lengths": [1, 2, 3]}),
    ("kv_lengths\\[1\\] is 9", ValueError, None, {"kv_lengths": [1, 9]}),
    ("kv_lengths: dtype torch.float32", TypeError, None, {"kv_lengths": torch.ones(2)}),
    (
        "kv_lengths: device meta",
        ValueError,
        None,
        {"kv_lengths": torch.ones(2, dtype=torch.int64, device="meta")},
    ),
    ("longest: given without q_packed", ValueError, None, {"longest": (4, 4)}),
    ("longest: 1 numbers", ValueError, lambda: (q(3, 4, 8),) * 3, _PACKED | {"longest": (4,)}),
    ("longest: 5, must be from 0 to 4", ValueError, lambda: (q(3, 4, 8),) * 3, _PACKED | {"longest": (4, 5)}),
    ("longest: True", TypeError, lambda: (q(3, 4, 8),) * 3, _PACKED | {"longest": (4, True)}),
    (r"longest: \(3, 2\), but .* \(3, 3\)", ValueError, lambda: (q(3, 4, 8),) * 3, _PACKED | {"longest": (3, 2)}),
    ("q_packed, k_packed: give both", ValueError, lambda: (q(3, 4, 8),) * 3, {"q_packed": [0, 4]}),
    ("q_packed: packed sequences", ValueError, None, {"q_packed": [0, 4], "k_packed": [0, 4]}),
    (
        "k_packed: \\[0, 3, 2\\]",
        ValueError,
        lambda: (q(3, 4, 8),) * 3,
        {"q_packed": [0, 2, 4], "k_packed": [0, 3, 2]},
    ),
    ("k_packed: \\[0, 9\\]", ValueError, lambda: (q(3, 4, 8),) * 3, {"q_packed": [0, 4], "k_packed": [0, 9]}),
    ("q_packed: \\[1, 4\\]", ValueError, lambda: (q(3, 4, 8),) * 3, {"q_packed": [1, 4], "k_packed": [0, 4]}),
    (
        "k_packed: 3 offsets, but q_packed has 2",
        ValueError,
        lambda: (q(3, 4, 8),) * 3,
        {"q_packed": [0, 4], "k_packed": [0, 2, 4]},
    ),
    ("q_offset", ValueError, None, {"q_offset": 1, "align": "bottom-right"}),
    ("k_offsets", ValueError, None, {"k_offsets": [1, 2], "align": "bottom-right"}),
    ("q_offset", ValueError, None, {"q_offsets": [1, 2], "q_offset": 1}),
    ("q_offsets: has 3 entries instead of 2", ValueError, None, {"q_offsets": [1, 2, 3]}),
    ("q_offsets: has 0 entries instead of 2", ValueError, None, {"q_offsets": []}),
    ("q_offsets: 1.5", TypeError, None, {"q_offsets": [1.5, 2]}),
    ("k_offsets: int", TypeError, None, {"k_offsets": 2}),
    # What is not an integer is refused, not rounded.
    ("window: 1.7", TypeError, None, {"window": (1.7, 2)}),
    ("window: 'a'", TypeError, None, {"window": ("a", "b")}),
    ("q_offset: 1.5", TypeError, None, {"q_offset": 1.5}),
    ("q_offset: 1180591620717411303424", ValueError, None, {"q_offset": 2**70}),
    ("k_offset: '1'", TypeError, None, {"k_offset": "1"}),
    ("batch_offset: -1", ValueError, None, {"batch_offset": -1}),
    ("head_offset: 0.5", TypeError, None, {"head_offset": 0.5}),
    ("threads: -1", ValueError, None, {"threads": -1}),
    ("backend: 'gpu'", ValueError, None, {"backend": "gpu"}),
    ("buckets: 0.5", TypeError, None, {"buckets": [0.5, 1, 1], "bias_table": torch.ones(3, 2)}),
    ("buckets: 1099511627776", ValueError, None, {"buckets": [0, 1, 2**40], "bias_table": torch.ones(3, 2)}),
    ("kv_lengths: 1.9", TypeError, None, {"kv_lengths": [1.9, 2.0]}),
    ("kv_lengths: int", TypeError, None, {"kv_lengths": 3}),
    ("kv_lengths: \\[1, 2\\]", TypeError, None, {"kv_lengths": [[1, 2]]}),
    ("is_causal: int", TypeError, None, {"is_causal": 1}),
    ("is_causal: Tensor", TypeError, None, {"is_causal": torch.tensor(True)}),
    ("enable_gqa: int", TypeError, None, {"enable_gqa": 1}),
    ("return_lse: str", TypeError, None, {"return_lse": "no"}),
    ("seed: 1.5", TypeError, None, {"seed": 1.5}),
    ("softcap: 'a'", TypeError, None, {"softcap": "a"}),
    ("scale: list", TypeError, None, {"scale": [1.0]}),
    ("dropout_p: NoneType", TypeError, None, {"dropout_p": None}),
    # Strings are no numbers, bools no integers.
    *(
        (f"^{name}: {value!r}, must be a {kind}number", TypeError, None, {name: value})
        for names, kind in (
            ("scale softcap dropout_p", ""),
            ("seed q_offset k_offset batch_offset head_offset threads", "whole "),
        )
        for name in names.split()
        for value in ("2", b"2", True, np.False_)
    ),
    ("^scale: tensor\\(True\\)", TypeError, None, {"scale": torch.tensor(True)}),
    ("^q_offset: tensor\\(True\\)", TypeError, None, {"q_offset": torch.tensor(True)}),
    ("^scale: Tensor, must be a number", TypeError, None, {"scale": torch.ones(2)}),
    ("^window: True, must be a whole number", TypeError, None, {"window": (True, False)}),
    ("^kv_lengths: True, must be a whole number", TypeError, None, {"kv_lengths": [True, 2]}),
    ("^buckets: True", TypeError, None, {"buckets": [True, 1, 1], "bias_table": torch.ones(3, 2)}),
    ("^alibi: True, must be a number", TypeError, None, {"alibi": [True, 0.5, 0.5]}),
    ("^alibi: '1', must be a number", TypeError, None, {"alibi": ["1", "2", "3"]}),
    # Constants have no gradient.
    ("alibi: requires a gradient", TypeError, None, {"alibi": torch.ones(3, requires_grad=True)}),
    ("alibi: requires a gradient", TypeError, None, {"alibi": list(torch.ones(3, requires_grad=True))}),
    ("softcap: requires a gradient", TypeError, None, {"softcap": torch.ones((), requires_grad=True)}),
    ("scale: requires a gradient", TypeError, None, {"scale": torch.ones((), requires_grad=True)}),
    ("bias_table: shape \\[\\]", ValueError, None, {"bias_table": torch.ones(()), "buckets": [0]}),
    ("bias_table: shape", ValueError, None, {"bias_table": torch.ones(3, 0), "buckets": [0]}),
    ("backend: \\['cpu'\\]", ValueError, None, {"backend": ["cpu"]}),
    ("alibi: float", TypeError, None, {"alibi": 0.5}),
    ("alibi: shape", ValueError, None, {"alibi": torch.ones(3, 1)}),
    # What must be a tensor
    ("attn_mask: list", TypeError, None, {"attn_mask": [[True] * 4] * 4}),
    ("bias: list", TypeError, None, {"bias": [0.0] * 4}),
    ("sink: list", TypeError, None, {"sink": [0.0] * 3}),
    ("bias_table: list", TypeError, None, {"bias_table": [0.0] * 3}),
    ("attn_mask: a nested or sparse", TypeError, None, {"attn_mask": torch.ones(4, 4).to_sparse()}),
    (
        "attn_mask: 5 axes",
        ValueError,
        lambda: (q(3, 4, 8),) * 3,
        {"attn_mask": torch.ones(1, 1, 1, 4, 4), "q_packed": [0, 4], "k_packed": [0, 4]},
    ),
]


@pytest.mark.parametrize(
    ("message", "kind", "inputs", "keywords"), WRONG, ids=[str(i) for i in range(len(WRONG))]
)
def test_refused(message, kind, inputs, keywords):
    with pytest.raises(kind, match=message):
        scaled_dot_product_attention(*(inputs() if inputs else (q(), q(), q())), **keywords)


@pytest.mark.parametrize(("name", "shape"), [("scale", ()), ("softcap", ()), ("alibi", (3,))])
def test_constants_have_no_derivative(name, shape):
    """Refused in both modes: otherwise the derivative would silently be zero."""
    x, value = q(), torch.ones(shape)
    run = lambda value: scaled_dot_product_attention(x, x, x, **{name: value}).sum()  # noqa: E731
    with pytest.raises(TypeError, match=f"{name}: has a tangent"):
        torch.func.jvp(run, (value,), (value,))
    with pytest.raises(TypeError, match=f"{name}: requires a gradient"):
        torch.func.grad(run)(value)


def test_numbers_of_numpy():
    """Integers, floats and booleans of NumPy are accepted like Python's."""
    x = q()
    plain = {"is_causal": True, "window": (1, 0), "q_offset": 1, "dropout_p": 0.5, "seed": 3}
    theirs = {
        "is_causal": np.True_,
        "window": np.array([1, 0]),
        "q_offset": np.int32(1),
        "dropout_p": np.float32(0.5),
        "seed": np.int64(3),
    }
    both = (scaled_dot_product_attention(x, x, x, **features) for features in (plain, theirs))
    assert torch.equal(*both)


def test_nested_tensors_refused():
    nested = torch.nested.nested_tensor([q(4, 8), q(5, 8)], layout=torch.jagged)
    with pytest.raises(TypeError, match="nested"):
        scaled_dot_product_attention(nested, nested, nested)
    with pytest.raises(TypeError, match="nested"):
        attngrad.torch.MultiheadAttention(8, 2, batch_first=True)(nested, nested, nested)


def test_integer_mask_cannot_require_gradients():
    """PyTorch itself refuses it."""
    with pytest.raises(RuntimeError, match="floating point"):
        torch.ones(4, 4, dtype=torch.uint8, requires_grad=True)


@pytest.mark.parametrize(
    "shapes",
    [
        ((0, 3, 4, 8), (0, 3, 5, 8)),
        ((2, 3, 0, 8), (2, 3, 5, 8)),
        ((2, 3, 4, 8), (2, 3, 0, 8)),
        ((2, 3, 0, 8), (2, 3, 0, 8)),
        ((0, 8), (5, 8)),
    ],
)
def test_empty_tensors(shapes):
    """No sequences, no queries or no keys: zeros of the right shape, in every map."""
    query, key = (torch.randn(shape, dtype=F64, requires_grad=True) for shape in shapes)
    o, lse = scaled_dot_product_attention(query, key, key, return_lse=True)
    assert o.shape == query.shape and (o == 0).all() and lse.isneginf().all()
    gradients = torch.autograd.grad(o.sum(), (query, key), create_graph=True)
    assert all((x == 0).all() for x in gradients)
    twice = torch.autograd.grad(sum(x.sum() for x in gradients), (query, key), materialize_grads=True)
    assert all((x == 0).all() for x in twice)
    _, tangent = torch.func.jvp(lambda x: scaled_dot_product_attention(x, key, key), (query,), (query,))
    assert (tangent == 0).all()


def test_sink_without_keys():
    query, key = q(2, 3, 4, 8), q(2, 3, 0, 8)
    sink = torch.randn(3, requires_grad=True)
    o, lse = scaled_dot_product_attention(query, key, key, sink=sink, return_lse=True)
    torch.testing.assert_close(lse, sink.double()[None, :, None].expand(2, 3, 4))
    assert (o == 0).all()
    lse.sum().backward()
    torch.testing.assert_close(sink.grad, torch.full((3,), 8.0))


def test_changed_in_place():
    """PyTorch notices that a saved tensor changed."""
    x = q(requires_grad=True)
    y = x * 1
    o = scaled_dot_product_attention(y, y, y)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        o.sum().backward()


@pytest.mark.parametrize(
    ("model", "message"),
    [(3, "model: int, must be"), (None, "model: NoneType, must be"), (nn.Linear, "model: type, must be")],
)
def test_replace_takes_a_module(model, message):
    with pytest.raises(TypeError, match=f"^{message} a torch.nn.Module"):
        attngrad.torch.replace(model)


def test_module_refusals():
    layer = attngrad.torch.MultiheadAttention(8, 2, batch_first=True)
    x = q(2, 4, 8)
    for message, kind, keywords in (
        ("attn_mask: dtype torch.int64", TypeError, {"attn_mask": torch.ones(4, 4, dtype=torch.int64)}),
        ("attn_mask: shape", ValueError, {"attn_mask": torch.ones(4, 5)}),
        ("key_padding_mask: shape", ValueError, {"key_padding_mask": torch.ones(2, 5)}),
    ):
        with pytest.raises(kind, match=message):
            layer(x, x, x, **keywords)
    with pytest.raises(ValueError, match="axes"):
        layer(x[None], x[None], x[None])
    assert isinstance(layer, nn.MultiheadAttention)
