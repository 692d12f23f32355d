"""attngrad.onnx: the cases of onnx.backend.test for Attention, and what they leave out."""

import re
import unittest

import numpy as np
import onnx
import onnx.backend.test
import pytest
from onnx import helper
from onnx.backend.test.loader import load_model_tests
from onnx.reference import ReferenceEvaluator

import attngrad.onnx
from attngrad.onnx import Attention

INPUTS = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
OUTPUTS = ["Y", "present_key", "present_value", "qk_matmul_output"]
RNG = np.random.default_rng(5)


def cases_of_onnx():
    """The tests of the suite, by name; those with _expanded are models of other operators that compute the same."""
    pattern = "^test_attention_.*_cpu$"
    with np.errstate(all="ignore"):  # it computes the cases of all operators
        runner = onnx.backend.test.BackendTest(attngrad.onnx, __name__).include(pattern)
    cases = [vars(case).items() for case in runner.test_cases.values()]
    return {name: test for case in cases for name, test in case if re.search(pattern, name)}


CASES = cases_of_onnx()
TestSuiteOfOnnx = pytest.mark.filterwarnings("ignore:invalid value encountered in subtract")(
    type("TestSuiteOfOnnx", (unittest.TestCase,), CASES)
)


def test_no_case_is_missing():
    """Every case with a node Attention is in the suite, runs our class, and is not skipped."""
    cases = [
        c for c in load_model_tests(kind="node") if "Attention" in {n.op_type for n in c.model.graph.node}
    ]
    assert len(cases) > 80 and {c.name + "_cpu" for c in cases} <= set(CASES)
    for case in cases:
        nodes = attngrad.onnx.prepare(case.model).evaluator.rt_nodes_
        assert any(isinstance(node, Attention) for node in nodes), case.name
    assert not any(getattr(test, "__unittest_skip__", False) for test in CASES.values())


# ---- Single nodes ----


def draw(*shape, dtype=np.float32):
    return RNG.standard_normal(shape).astype(dtype)


def node_and_inputs(inputs, outputs, attributes):
    names = [name if name in inputs else "" for name in INPUTS]
    while not names[-1]:
        names.pop()
    node = helper.make_node("Attention", names, outputs, **attributes)
    return node, [inputs[name] for name in names if name]


def run(inputs, outputs=("Y",), opset=25, **attributes):
    node, arrays = node_and_inputs(inputs, list(outputs), attributes)
    return attngrad.onnx.run_node(node, arrays, opset_version=opset)


def run_peer(inputs, outputs=("Y",), **attributes):
    node, arrays = node_and_inputs(inputs, list(outputs), attributes)
    return ReferenceEvaluator(node).run(None, dict(zip([n for n in node.input if n], arrays)))


def qkv(dtype=np.float32):
    return {
        "Q": draw(2, 4, 3, 8, dtype=dtype),
        "K": draw(2, 2, 5, 8, dtype=dtype),
        "V": draw(2, 2, 5, 6, dtype=dtype),
    }


MASKS = {
    "one axis": draw(5),
    "fewer keys": draw(3, 4),
    "fewer keys, bool": RNG.random((2, 1, 3, 4)) < 0.7,
    "whole numbers": RNG.integers(-2, 3, (3, 5)),
    "uint8 is added": RNG.integers(0, 3, (4, 3, 5)).astype(np.uint8),
    "float64": draw(3, 5, dtype=np.float64),
}


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_masks(mask):
    inputs = qkv() | {"attn_mask": mask}
    np.testing.assert_allclose(run(inputs).Y, run_peer(inputs)[0], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("dtypes", [("f4", "f8"), ("f2", "f4"), ("f8", "f2")])
def test_values_of_another_dtype(dtypes):
    """Y has the dtype of Q; it is computed as exactly as if V were converted."""
    inputs = qkv(dtypes[0])
    narrow = run(inputs).Y
    y, key, value = run(inputs | {"V": inputs["V"].astype(dtypes[1])}, OUTPUTS[:3])
    assert (y.dtype, key.dtype, value.dtype) == tuple(map(np.dtype, (dtypes[0], *dtypes)))
    np.testing.assert_allclose(y, narrow, rtol=2e-3, atol=1e-3)


@pytest.mark.parametrize("mode", range(4))
def test_scores(mode):
    """qk_matmul_output with every feature at once, for queries after a cache."""
    rows = {"past_key": draw(2, 2, 4, 8), "past_value": draw(2, 2, 4, 6), "attn_mask": draw(2, 1, 3, 9)}
    attributes = {"is_causal": 1, "left_window_size": 5, "qk_matmul_output_mode": mode, "scale": 0.25}
    inputs = qkv() | rows
    if mode > 0:  # mode 0 is before softcap; the peer's is after it
        attributes["softcap"] = 2.0
    both = zip(run(inputs, OUTPUTS, **attributes), run_peer(inputs, OUTPUTS, **attributes))
    for name, (ours, peer) in zip(OUTPUTS, both):
        np.testing.assert_allclose(ours, peer, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"left_window_size": 1, "right_window_size": 0}])
@pytest.mark.parametrize("mode", range(4))
def test_scores_with_lengths(mode, attributes):
    """The scores of keys after a sequence's end are minus infinity; one sequence has no key at all."""
    inputs = {"Q": draw(3, 4, 3, 8), "K": draw(3, 2, 5, 8), "V": draw(3, 2, 5, 6)}
    inputs["nonpad_kv_seqlen"] = np.array([2, 5, 0])
    attributes = attributes | {"qk_matmul_output_mode": mode}
    both = zip(run(inputs, OUTPUTS, **attributes), run_peer(inputs, OUTPUTS, **attributes))
    for name, (ours, peer) in zip(OUTPUTS, both):
        np.testing.assert_allclose(ours, peer, rtol=1e-4, atol=1e-6, err_msg=name)


def test_raw_scores_are_before_softcap():
    inputs, outputs = qkv(), ["Y", "", "", "qk_matmul_output"]
    raw = run(inputs, outputs).qk_matmul_output
    np.testing.assert_array_equal(run(inputs, outputs, softcap=0.5).qk_matmul_output, raw)
    np.testing.assert_allclose(
        run(inputs, outputs, softcap=0.5, qk_matmul_output_mode=1).qk_matmul_output,
        0.5 * np.tanh(raw / 0.5),
        rtol=1e-5,
    )


def test_an_unnamed_output_is_no_input_of_later_nodes():
    text = """<ir_version: 10, opset_import: ["": 23]>
        two (float[1, 1, 3, 4] q) => (float[1, 1, 3, 4] z) {
            y, , , scores = Attention (q, q, q)
            z = Attention (y, y, y, , q, q)
        }"""
    q = draw(1, 1, 3, 4)
    (z,) = attngrad.onnx.run_model(onnx.parser.parse_model(text), [q])
    y = attngrad.forward(q, q, q).o
    both = np.concatenate((q, y), axis=2)
    np.testing.assert_array_equal(z, attngrad.forward(y, both, both).o)


FUNCTIONS = """<ir_version: 10, opset_import: ["": 25, "local": 1]>
    m (float[1, 2, n, 4] q, bool c) => (float[1, 2, n, 4] y) {
        x = If (c) <then_branch = a () => (x) { x = local.outer (q) }, else_branch = b () => (x) { x = Identity (q) }>
        y = local.outer (x)
    }
    <domain: "local", opset_import: ["": 25]> inner (x) => (z) { z = Attention <is_causal = 1> (x, x, x) }
    <domain: "local", opset_import: ["": 25, "local": 1]> outer (x) => (z) { z = local.inner (x) }"""


def test_functions_of_a_model(monkeypatch):
    """Attention in a function that another one calls, from the graph and from a branch, is attngrad's."""
    calls = []
    run = Attention._run
    monkeypatch.setattr(Attention, "_run", lambda *a, **k: calls.append(1) or run(*a, **k))
    q = draw(1, 2, 3, 4)
    (y,) = attngrad.onnx.run_model(onnx.parser.parse_model(FUNCTIONS), [q, np.array(True)])
    assert len(calls) == 2
    x = attngrad.forward(q, q, q, causal=True).o
    np.testing.assert_array_equal(y, attngrad.forward(x, x, x, causal=True).o)


# ---- Wrong arguments ----

GOOD = qkv()
FLAT = {name: np.swapaxes(x, 1, 2).reshape(2, x.shape[2], -1) for name, x in GOOD.items()}
PAST = {"past_key": GOOD["K"], "past_value": GOOD["V"]}
WRONG = [
    ({"Q": draw(2, 4)}, {}, "^Q: 2 axes"),
    ({"Q": draw(2, 4, 3, 8).astype(np.int32), "K": GOOD["K"].astype(np.int32)}, {}, "^Q: int32"),
    ({"K": draw(2, 2, 5, 8, dtype=np.float64)}, {}, "^K: float64, but Q is float32"),
    ({"K": draw(2, 2, 5, 7)}, {}, "^K: head size 7"),
    ({"K": draw(2, 3, 5, 8), "V": draw(2, 3, 5, 6)}, {}, "^K: 3 heads"),
    ({"V": draw(2, 2, 4, 6)}, {}, "^V: shape"),
    ({"V": GOOD["V"].astype(np.complex64)}, {}, "^V: complex64"),
    ({"attn_mask": draw(3, 5).astype(np.complex64)}, {}, "^attn_mask: complex64"),
    ({"attn_mask": draw(4, 5)}, {}, "^attn_mask: shape"),
    ({"attn_mask": draw(3, 6) > 0}, {}, "^attn_mask: shape"),
    ({"past_key": GOOD["K"]}, {}, "^past_value: missing"),
    (PAST | {"past_value": draw(2, 2, 5, 5)}, {}, "^past_value: shape"),
    (PAST | {"past_key": draw(2, 2, 5, 8, dtype=np.float16)}, {}, "^past_key: float16"),
    (PAST | {"nonpad_kv_seqlen": np.array([3, 4])}, {}, "^nonpad_kv_seqlen: given together"),
    ({"nonpad_kv_seqlen": np.array([3, 6])}, {}, "^nonpad_kv_seqlen"),
    ({"nonpad_kv_seqlen": np.array([3])}, {}, "^nonpad_kv_seqlen: has 1 entries"),
    ({}, {"q_num_heads": 4, "kv_num_heads": 2}, "^q_num_heads, kv_num_heads: given"),
    (FLAT, {"q_num_heads": 4}, "^kv_num_heads: missing"),
    (FLAT, {"q_num_heads": 5, "kv_num_heads": 2}, "^q_num_heads: 5, which does not divide the 32"),
    ({}, {"left_window_size": -2}, "^left_window_size: -2"),
    ({}, {"right_window_size": -5}, "^right_window_size: -5"),
    ({}, {"qk_matmul_output_mode": 4}, "^qk_matmul_output_mode: 4"),
    ({}, {"softmax_precision": 7}, "^softmax_precision: 7"),
    ({}, {"scale": float("nan")}, "^scale: nan"),
]


@pytest.mark.parametrize("inputs, attributes, text", WRONG, ids=[text[1:] for *_, text in WRONG])
def test_wrong_arguments(inputs, attributes, text):
    with pytest.raises(ValueError, match=text):
        run(GOOD | inputs, **attributes)


def test_what_is_not_served():
    with pytest.raises(NotImplementedError, match="^K: head size 513"):
        run({"Q": draw(1, 1, 2, 8), "K": draw(1, 1, 2, 513), "V": draw(1, 1, 2, 8)})
    text = '<ir_version: 10, opset_import: ["": 23]> f (float[n] x) => (float[n] y) { y = Abs (x) }'
    model = onnx.parser.parse_model(text)
    with pytest.raises(NotImplementedError, match="^device: 'CUDA:1', must be 'CPU'"):
        attngrad.onnx.prepare(model, "CUDA:1")
    with pytest.raises(ValueError, match="^inputs: 2, but the model takes x$"):
        attngrad.onnx.run_model(model, [GOOD["Q"], GOOD["K"]])
    assert attngrad.onnx.prepare(model).run({"x": np.array([-1.0], np.float32)})["y"] == 1


def test_heads_beside_four_axes():
    """Opset 25 refuses their number, 23 and 24 ignore it."""
    y = run(GOOD, opset=24, q_num_heads=4, kv_num_heads=2).Y
    np.testing.assert_array_equal(y, run(GOOD).Y)
