"""The five maps against the formulas in plain NumPy: each feature, each shape, both backends, all dtypes."""

import numpy as np
import pytest
from trials import Trial, unfused

import attngrad

Q, K, V = (2, 4, 7, 8), (2, 2, 9, 8), (2, 2, 9, 5)
CASES = {
    "2d": ((5, 4), (6, 4), (6, 3), {}),
    "3d": ((2, 5, 4), (2, 6, 4), (2, 6, 3), {}),
    "4d": ((2, 3, 5, 4), (2, 3, 6, 4), (2, 3, 6, 4), {}),
    "gqa": (Q, K, V, {}),
    "one kv head": ((1, 6, 7, 16), (1, 1, 9, 16), (1, 1, 9, 16), {}),
    "scale": (Q, K, V, {"scale": 0.7}),
    "negative scale": (Q, K, V, {"scale": -0.3}),
    "causal": (Q, K, V, {"causal": True}),
    "bottom-right": (Q, K, V, {"causal": True, "align": "bottom-right"}),
    "more queries than keys": (
        (1, 2, 9, 4),
        (1, 2, 6, 4),
        (1, 2, 6, 4),
        {"causal": True, "align": "bottom-right"},
    ),
    "window": (Q, K, V, {"window": (2, 1)}),
    "window to the left": (Q, K, V, {"window": (2, None), "causal": True}),
    "bias": (Q, K, V, {"bias": (2, 4, 7, 9)}),
    "broadcast bias": (Q, K, V, {"bias": (4, 1, 9)}),
    "bias of two axes": ((5, 4), (6, 4), (6, 3), {"bias": (5, 6)}),
    "mask": (Q, K, V, {"mask": (2, 1, 7, 9)}),
    "mask of keys": (Q, K, V, {"mask": (2, 1, 1, 9)}),
    "table": (Q, K, V, {"bias_table": (4, 7)}),
    "shared table": (Q, K, V, {"bias_table": (7,)}),
    "buckets": (Q, K, V, {"bias_table": (1, 3), "buckets": [0, 0, 1, 1, 2, 1, 0, 2, 2]}),
    "alibi": (Q, K, V, {"alibi": True}),
    "alibi of 6 heads": ((1, 6, 5, 4), (1, 6, 5, 4), (1, 6, 5, 4), {"alibi": True}),
    "slopes": (Q, K, V, {"alibi": [0.5, 0.1, 0.0, -0.2]}),
    "softcap": (Q, K, V, {"softcap": 1.5}),
    "sink": (Q, K, V, {"sink": (4,)}),
    "sink of empty rows": (Q, K, V, {"sink": (4,), "mask": (2, 1, 7, 1)}),
    "dropout": (Q, K, V, {"dropout": 0.4, "seed": 2**40 + 3}),
    "kv_lengths": (Q, K, V, {"kv_lengths": [9, 4]}),
    "lengths": (
        Q,
        K,
        V,
        {"q_lengths": [3, 7], "kv_lengths": [0, 5], "causal": True, "align": "bottom-right"},
    ),
    "offsets": (Q, K, V, {"q_offset": 5, "k_offset": 2, "causal": True, "alibi": True}),
    "offsets per sequence": (Q, K, V, {"q_offsets": [5, -3], "k_offsets": [2, 0], "causal": True, "alibi": True}),
    "offsets of queries per sequence": (
        Q,
        K,
        V,
        {"q_offsets": np.array([7, 1], np.int32), "k_offset": 2, "window": (3, 2), "bias_table": (4, 7)},
    ),
    "dropout of shards": (Q, K, V, {"dropout": 0.3, "q_offsets": [9, 4], "k_offsets": [6, 1]}),
    "dropout of a shard": (Q, K, V, {"dropout": 0.2, "batch_offset": 3, "head_offset": 4, "q_offset": 9}),
    "packed": ((9, 4, 8), (11, 2, 8), (11, 2, 5), {"q_packed": [0, 3, 3, 8], "k_packed": [0, 4, 5, 11]}),
    "packed with offsets": (
        (9, 4, 8),
        (11, 2, 8),
        (11, 2, 5),
        {"q_packed": [0, 3, 8], "k_packed": [0, 4, 11], "q_offsets": [3, 1], "k_offsets": [0, 2], "causal": True},
    ),
    "packed with all": (
        (9, 4, 8),
        (11, 2, 8),
        (11, 2, 5),
        {
            "q_packed": np.array([0, 3, 9], np.int32),
            "k_packed": [0, 4, 11],
            "bias": (2, 4, 6, 7),
            "mask": (1, 1, 6, 7),
            "sink": (4,),
            "dropout": 0.3,
            "causal": True,
            "align": "bottom-right",
        },
    ),
    "all": (
        Q,
        K,
        V,
        {
            "bias": (1, 4, 7, 9),
            "bias_table": (4, 5),
            "sink": (4,),
            "mask": (2, 1, 1, 9),
            "alibi": True,
            "softcap": 2.0,
            "dropout": 0.25,
            "seed": 7,
            "causal": True,
            "window": (4, 0),
            "kv_lengths": [9, 6],
        },
    ),
    "long": ((1, 2, 200, 64), (1, 1, 300, 64), (1, 1, 300, 64), {"causal": True, "align": "bottom-right"}),
}


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("name", CASES)
def test_maps(name, dtype):
    q, k, v, features = CASES[name]
    trial = Trial(q, k, v, dtype, **features)
    truth = trial.truth()
    with unfused():
        baseline = trial.run()
    for backend in ("reference", "cpu"):
        trial.check_errors(trial.run(backend=backend), truth, baseline)


@pytest.mark.parametrize("dtype", ["f16", "bf16"])
def test_wider_results(dtype):
    """With 16-bit inputs outputs, gradients and biases may be float32, and are then more exact."""
    trial = Trial(Q, K, V, dtype, aux="f32", bias=(4, 7, 9), sink=(4,))
    qkv, f = list(trial.x.values()), trial.features
    wide = attngrad.forward(*qkv, out_dtype=np.float32, **f)
    assert wide.o.dtype == np.float32
    d_o = trial.cot["d_o"].astype(np.float32)
    g = attngrad.vjp(*qkv, *wide, d_o, d_lse=trial.cot["d_lse"], grad_dtype="float32", **f)
    assert g.dq.dtype == g.dbias.dtype == g.dsink.dtype == np.float32
    truth, narrow = trial.truth(), trial.run()
    for name, x in (("o", wide.o), ("dq", g.dq), ("dk", g.dk), ("dbias", g.dbias)):
        assert np.linalg.norm(x - truth[name]) < 1e-5 * np.linalg.norm(truth[name]), name
    assert np.linalg.norm(narrow["o"].astype(np.float64) - truth["o"]) > 1e-4 * np.linalg.norm(truth["o"])


def test_wanted():
    trial = Trial(Q, K, V, bias=(4, 7, 9))
    f = attngrad.forward(*trial.x.values(), **trial.features)
    every = attngrad.vjp(*trial.x.values(), *f, trial.cot["d_o"], **trial.features)
    part = attngrad.vjp(*trial.x.values(), *f, trial.cot["d_o"], wanted=["dk", "dbias"], **trial.features)
    assert part.dq is part.dv is part.dsink is None
    np.testing.assert_allclose(part.dk, every.dk, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(part.dbias, every.dbias, rtol=1e-13, atol=1e-14)
    with pytest.raises(ValueError, match="wanted: 'dx' is none of dq, dk, dv"):
        attngrad.vjp(*trial.x.values(), *f, trial.cot["d_o"], wanted=["dx"], **trial.features)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_same_bits_for_every_number_of_threads(backend):
    trial = Trial((2, 4, 100, 16), (2, 2, 130, 16), (2, 2, 130, 16), "f32", causal=True, sink=(4,))
    one = trial.run(backend=backend, threads=1)
    for threads in (2, 3, 8):
        for name, x in trial.run(backend=backend, threads=threads).items():
            np.testing.assert_array_equal(x, one[name], err_msg=name)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_invariant(backend):
    rng = np.random.default_rng(5)
    shapes = (3, 4, 70, 16), (3, 2, 2100, 16), (3, 2, 2100, 16), (3, 4, 70, 16)
    q, k, v, do = (rng.standard_normal(shape, np.float32) for shape in shapes)
    keywords = {"backend": backend, "invariant": True}
    f = attngrad.forward(q, k, v, **keywords)
    g = attngrad.vjp(q, k, v, *f, do, **keywords)
    one, kv = np.s_[1:2, 2:4], np.s_[1:2, 1:2]
    alone = attngrad.forward(q[one], k[kv], v[kv], **keywords)
    np.testing.assert_array_equal(alone.o, f.o[one])
    np.testing.assert_array_equal(alone.lse, f.lse[one])
    part = attngrad.vjp(q[one], k[kv], v[kv], *alone, do[one], **keywords)
    for name, at in (("dq", one), ("dk", kv), ("dv", kv)):
        np.testing.assert_array_equal(getattr(part, name), getattr(g, name)[at], err_msg=name)
    with pytest.raises(TypeError, match="invariant: 1 is neither True nor False"):
        attngrad.forward(q, k, v, invariant=1)


@pytest.mark.parametrize("shape", [(0, 2, 3, 4), (1, 2, 0, 4)])
@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_empty(shape, backend):
    """No sequences, no queries."""
    trial = Trial(shape, shape, shape)
    results = trial.run(backend=backend)
    assert results["o"].shape == shape and results["lse"].shape == shape[:-1]
    assert all(x.size == 0 for x in results.values())


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_no_keys(backend):
    trial = Trial((2, 5, 4), (2, 0, 4), (2, 0, 3))
    results = trial.run(backend=backend)
    assert (results["o"] == 0).all() and np.isneginf(results["lse"]).all() and (results["dq"] == 0).all()
    assert results["dk"].shape == (2, 0, 4)
