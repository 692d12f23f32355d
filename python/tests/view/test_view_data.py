"""The file of a page and the numbers in it, without a browser."""

import copy
import math
import os
import re
import stat
import tracemalloc

import numpy as np
import pytest
from browser import ROOT
from view_pages import arrays, call, read, run

import attngrad

FILES = sorted((ROOT / "src" / "view" / "page").iterdir())


def test_file_is_made_of_its_parts(example):
    page = example.read_text()
    for file in FILES:
        text = file.read_text()
        assert "</script" not in text or file.suffix == ".html", file.name
        for part in re.split("@[a-z]+@", text) if file.suffix == ".html" else [text]:
            assert part in page, file.name
    without_data = re.sub(r'<script type="(?:application/json|text/plain)".*?</script>', "", page, flags=re.S)
    assert len(without_data) < 300_000 and len(page) < 20_000_000
    assert not re.search(r"https?://|src=|@import|url\((?!#)", without_data)


def test_same_input_same_bytes(tmp_path):
    for name in "ab":
        run("h2 q7 d4 f32 causal", "--seed", 3, "--out", tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    _, e = call()
    e.save_html(tmp_path / "c")
    e.save_html(tmp_path / "d")
    assert (tmp_path / "c").read_bytes() == (tmp_path / "d").read_bytes()


CALLS = [
    ((2, 4, 5, 6), (2, 2, 7, 6), {"causal": True, "align": "bottom-right", "kv_lengths": [7, 6], "q_lengths": [5, 4]}),
    ((11, 4, 3), (9, 2, 3), {"q_packed": [0, 4, 11], "k_packed": [0, 5, 9], "alibi": True}),
    ((1, 2, 5, 4), (1, 2, 5, 4), {"bias_table": arrays(2, 5), "ttable": arrays(2, 5), "q_offset": 2}),
    ((2, 2, 5, 4), (2, 2, 6, 4), {"bias": arrays(2, 1, 5, 6), "mask": arrays(2, 1, 1, 6) > -1, "window": (3, 2)}),
    ((1, 2, 5, 4), (1, 2, 5, 4), {"dropout": 0.4, "seed": 3, "softcap": 2.0, "scale": 0.3, "head_offset": 3}),
]


@pytest.mark.parametrize("q_shape, k_shape, features", CALLS, ids=["groups", "packed", "table", "pairs", "constants"])
def test_data_is_the_trace(tmp_path, q_shape, k_shape, features):
    """Of a head that is not the first, with every feature that chooses, shifts or broadcasts."""
    q, k, v = arrays(*q_shape), arrays(*k_shape), arrays(*k_shape)
    inputs = dict(q=q, k=k, v=v, d_o=arrays(*q_shape), tq=arrays(*q_shape), tv=arrays(*k_shape), **features)
    batch = 0 if q_shape[0] == 1 else 1
    e = attngrad.explain(**inputs, batch=batch, head=1)
    e.save_html(tmp_path / "page.html")
    _, found = read(tmp_path / "page.html")
    n_q = len(found["L", "full"])
    n_k = len(found["S", "full"]) // n_q
    names = [name for name, kind in found if name in e]
    assert {"Z", "S", "P", "dP", "dS", "tS", "tP", "tdP", "tdS", "D", "mu", "tD"} <= set(names)
    for name in names:
        want = e[name][:n_q, :n_k] if e[name].ndim == 2 else e[name][:n_q]
        np.testing.assert_array_equal(found[name, "full"], want.ravel(), err_msg=name)


def test_long_data_is_the_trace(tmp_path):
    """Pooled and in a window, in several blocks of query rows."""
    q, k, v = arrays(1100, 4), arrays(900, 4), arrays(900, 4)
    d_o = arrays(1100, 4)
    e = attngrad.explain(q, k, v, d_o=d_o, causal=True)
    e.save_html(tmp_path / "page.html", rows=(650, 690), keys=(10, 40))
    data, found = read(tmp_path / "page.html")
    pool = data["heads"][0]["pool"]
    assert pool == {"queries": 5, "keys": 4}
    hidden = np.isneginf(e["S"])
    for name in ("Z", "S", "P", "dP", "dS"):
        np.testing.assert_allclose(found[name, "window"], e[name][650:690, 10:40].ravel(), rtol=1e-6, atol=1e-7)
        blocks = np.ma.masked_array(np.where(hidden, 0, e[name]), hidden).reshape(220, 5, 225, 4)
        mean = blocks.mean((1, 3)).filled(-np.inf if name == "S" else 0)
        np.testing.assert_allclose(found[name, "mean"], mean.ravel(), rtol=1e-4, atol=1e-6)
        peak = np.abs(blocks).max((1, 3)).filled(np.inf if name == "S" else 0)
        np.testing.assert_allclose(np.abs(found[name, "peak"]), peak.ravel(), rtol=1e-6)
    gradients = attngrad.vjp(q, k, v, *attngrad.forward(q, k, v, causal=True)[:2], d_o, causal=True)
    np.testing.assert_allclose(found["dQ", "window"], gradients.dq[650:690].ravel(), rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(found["dK", "window"], gradients.dk[10:40].ravel(), rtol=1e-5, atol=1e-7)


def test_page_needs_no_matrix(tmp_path):
    q, k, v = arrays(2000, 4), arrays(2000, 4), arrays(2000, 4)
    tracemalloc.start()
    e = attngrad.explain(q, k, v, d_o=q)
    e.save_html(tmp_path / "page.html")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2000 * 2000 * 8  # one matrix
    assert "dS" in e and len(e) == 13


@pytest.mark.parametrize(
    "read", [dict, lambda e: {**e}, lambda e: {} | e, copy.copy, lambda e: dict(e.items()), lambda e: e.copy()]
)
def test_values_are_computed_when_asked_for(read):
    inputs, e = call()
    want = {name: e[name] for name in e}
    got = read(attngrad.explain(**inputs))
    assert list(got) == list(want)
    for name, values in want.items():
        np.testing.assert_array_equal(got[name], values)


def test_norms_do_not_overflow(tmp_path):
    q = arrays(4, 3)
    v = np.full((4, 2), 1e200)
    tiny = np.full((4, 3), 1e-200)
    attngrad.explain(q, tiny, v).save_html(tmp_path / "page.html")
    data, _ = read(tmp_path / "page.html")
    norms = {v["name"]: v["stats"]["norm"] for v in data["heads"][0]["variables"]}
    assert math.isclose(norms["V"], math.sqrt(8) * 1e200) and math.isclose(norms["K"], math.sqrt(12) * 1e-200)


def test_notebook_of_a_large_page():
    e = attngrad.explain(*arrays(3, 500, 4), d_o=arrays(500, 4))
    assert len(e._repr_html_()) < 300 and "save_html" in e._repr_html_()


def test_refusals(tmp_path):
    _, e = call()
    with pytest.raises(ValueError, match="head 7: there are 2"):
        e.save_html(tmp_path / "x", heads=[7])
    with pytest.raises(ValueError, match="maps: 'hvp'"):
        e.save_html(tmp_path / "x", maps=["hvp"])
    with pytest.raises(ValueError, match="queries 0 to 9: there are 3"):
        e.save_html(tmp_path / "x", rows=(0, 10))
    with pytest.raises(FileNotFoundError):
        e.save_html(tmp_path / "no" / "such")
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_file_is_not_replaced(tmp_path):
    _, e = call()
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="pipe': it is not a regular file"):
        e.save_html(tmp_path / "pipe")
    with pytest.raises(OSError, match="it is a directory"):
        e.save_html(tmp_path)
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode) and len(list(tmp_path.iterdir())) == 1
