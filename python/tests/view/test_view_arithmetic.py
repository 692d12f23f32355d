"""The numbers on the page are the trace's, and the arithmetic beside each gives it."""

import json
import math
import re
import subprocess

import numpy as np
import pytest
from browser import COMMAND, ROOT, Page, calculate
from view_pages import arrays, call

import attngrad

FEATURES = [
    {},
    {"causal": True},
    {"softcap": 1.5, "dropout": 0.3, "seed": 7, "sink": arrays(2), "tsink": arrays(2)},
    {"bias": arrays(3, 4), "tbias": arrays(3, 4), "window": (1, 1), "d_lse": arrays(2, 3), "td_lse": arrays(2, 3)},
    {"alibi": True, "align": "bottom-right", "mask": np.array([[1, 0, 1, 1], [0, 0, 0, 0], [1, 1, 0, 1]], bool)},
]


@pytest.mark.parametrize("features", FEATURES, ids=lambda f: " ".join(f) or "plain")
def test_numbers_are_the_trace_and_their_arithmetic_gives_them(driver, tmp_path, features):
    inputs, e = call(**features)
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp_jvp")
    names = page.names()
    assert {"Q", "P", "O", "dS", "dQ", "tP", "tO", "tdS", "tdQ"} <= set(names)
    checked = set()
    for name in names:
        for (row, column), (value, arithmetic) in page.cells(name).items():
            if name in e:
                want = e[name][row, column] if e[name].ndim == 2 else e[name][row]
                assert value == want, (name, row, column)
                checked.add(name)
            if arithmetic is not None:
                scale = np.abs(e["dS"]).max() + abs(value)
                result = calculate(arithmetic)
                assert math.isclose(result, value, rel_tol=1e-5, abs_tol=1e-6 * scale), (name, arithmetic)
    assert {"Z", "S", "P", "L", "dP", "dS", "D", "tZ", "tP", "mu", "tdP", "tdS", "tD"} <= checked
    assert page.messages() == []


def test_results_of_the_maps(driver, tmp_path):
    inputs, e = call(heads=())
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp_jvp")
    x = {n: inputs[n] for n in "qkv"}
    t = {n: inputs[n] for n in ("tq", "tk", "tv")}
    forward = attngrad.jvp(**x, **t)
    grads = attngrad.vjp(**x, o=forward.o, lse=forward.lse, d_o=inputs["d_o"])
    second = attngrad.vjp_jvp(
        **x, **t, o=forward.o, lse=forward.lse, to=forward.to, mu=forward.mu, d_o=inputs["d_o"], td_o=inputs["td_o"]
    )
    want = {"O": forward.o, "tO": forward.to, "dQ": grads.dq, "dK": grads.dk, "dV": grads.dv}
    want |= {"tdQ": second.tdq, "tdK": second.tdk, "tdV": second.tdv}
    for name, values in want.items():
        for cell, (value, _) in page.cells(name).items():
            assert math.isclose(value, values[cell], rel_tol=1e-12, abs_tol=1e-13), name


def test_example_is_the_demo(driver, example):
    demo = json.loads(subprocess.run([COMMAND, "demo", "--json"], check=True, capture_output=True).stdout)
    page = Page(driver, example)
    assert page.messages() == []
    page.choose_map("vjp_jvp")
    for name in page.names():
        cells = page.cells(name)
        for cell, (value, arithmetic) in cells.items():
            if arithmetic is not None:
                assert math.isclose(calculate(arithmetic), value, rel_tol=1e-5, abs_tol=1e-12), (name, cell, arithmetic)
        values = np.array(demo["variables"].get(name, {}).get("values", []))
        if values.size == 0:
            continue
        own = np.array([cells[cell][0] for cell in sorted(cells)])
        shape = [max(axis) + 1 for axis in zip(*cells)]
        if values.ndim == 3:
            values = values[0]
        elif name in ("L", "D"):
            values = values[0][:, None]
        elif values.ndim == 2 and values.shape[1] != shape[1]:
            values = values[:, : shape[1]]  # the columns of head 0
        np.testing.assert_allclose(own.reshape(shape), values.reshape(shape), atol=1e-14, err_msg=name)
    assert page.messages() == []


def test_formulas_are_those_of_the_documents():
    script = (ROOT / "src" / "view" / "page" / "formulas.js").read_text()
    squeeze = lambda text: re.sub(r"\s+", " ", text)  # noqa: E731
    math_page = squeeze((ROOT / "docs" / "math.md").read_text())
    rules = re.findall(r'\["(\w+)", \d, "[^"]*", "([^"]*)"', squeeze(script))
    left = {"L": "L_i ="}  # docs/math.md writes L by its elements
    # of the layer of the worked example, which has one X and no bias vectors, and names of section 6
    layer = set("f tf C tC Y tY dY tdY dWq dWk dWv tdWq tdWk tdWv dX tdX phi1 phi2".split())
    assert len(rules) > 30
    for name, rule in rules:
        if name not in layer:
            line = f"{left.get(name, f'{name} =')} {rule}"
            assert line in math_page or (name == "tdS" and f" = {rule}" in math_page), line


def test_every_computed_variable_has_arithmetic(driver, tmp_path):
    inputs, _ = call(softcap=2.0)
    attngrad.explain(**{n: inputs[n] for n in ("q", "k", "v", "tq")}, softcap=2.0).save_html(tmp_path / "jvp.html")
    page = Page(driver, tmp_path / "jvp.html")
    page.choose_map("jvp")
    assert "phi1" in page.names()
    page.choose("phi1")
    assert "tanh" in page.text("#arithmetic") and {"Z", "tS"} <= {
        c.get_attribute("data-variable") for c in page.find_all(".card.is-input, .card.is-output")
    }


@pytest.mark.parametrize("bias", [None, arrays(3, 4)], ids=["alone", "and a bias"])
def test_slope_of_alibi(driver, tmp_path, bias):
    """B is -slope |p - g|, of a head that is not the first, with positions that do not start at 0."""
    q, k, v = arrays(2, 3, 3), arrays(2, 4, 3), arrays(2, 4, 2)
    e = attngrad.explain(q, k, v, alibi=True, q_offset=5, bias=bias, head=1)
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("B")
    assert "slope · |p" in page.text("#detail .element") and "by ALiBi" in page.text("#detail .note")
    given = bias if bias is not None else np.zeros((3, 4))
    for (row, column), (value, arithmetic) in page.cells("B").items():
        distance = 5 + row - column
        assert value == e["B"][row, column] and math.isclose(value, given[row, column] - distance / 256)
        assert f"|{5 + row} − {column}|" in arithmetic and ("0.00390625 ·" in arithmetic)
        assert math.isclose(calculate(arithmetic), value, rel_tol=1e-5)


def test_names_without_a_card_are_explained(driver, example):
    page = Page(driver, example)
    page.choose("O")
    assert "no dropout: R = P" in page.text("#detail .note")
    page.choose("dQ")
    assert "no softcap: dZ = dS" in page.text("#detail .note")
    page.choose("C")
    assert "[O]: O of all heads side by side" in page.text("#detail .note")
    page.select("head", "1")
    page.choose("Q")
    assert "Wqm,2+c" in page.text("#detail .element") and "Wqm,2" in page.text("#arithmetic")


def test_hidden_pairs_are_left_out_of_sums(driver, tmp_path):
    q, k, v = arrays(12, 3), arrays(12, 3), arrays(12, 2)
    v[11] = np.nan
    o = attngrad.explain(q, k, v, causal=True)
    o.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    for name in ("O", "L"):
        for (row, _), (value, arithmetic) in page.cells(name).items():
            if row < 11:
                assert math.isclose(calculate(arithmetic), value, rel_tol=1e-4, abs_tol=1e-5)
                assert f"({11 - row} hidden pair" in arithmetic and "NaN" not in arithmetic and "∞" not in arithmetic


def test_jacobian_of_a_row_with_a_sink(driver, tmp_path):
    inputs, e = call(heads=(1,), sink=arrays(1), jacobian_row=1)
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("P")
    np.testing.assert_allclose(e["J"].sum(1), e["P"][1] * e["Ps"][1])
    assert "times the weight of the sink" in page.text("#jacobian") and "sum to zero" not in page.text("#jacobian")


def test_all_digits_are_shown(driver, example):
    """A float32 and a float64 read back from the page's text are the same numbers."""
    page = Page(driver, example)
    wrong = page.script(
        """
        const bits = new Uint32Array(2);
        const [singles, doubles] = [new Float32Array(bits.buffer), new Float64Array(bits.buffer)];
        const back = (x, isSingle) => Number(formatExactly(x, isSingle).replaceAll("−", "-"));
        const wrong = [];
        for (let n = 0; n < 100000; n++) {
            bits[0] = Math.imul(n, 2654435761);
            bits[1] = Math.imul(n + 7, 2246822519);
            const [single, double] = [singles[0], doubles[0]];
            if (Number.isFinite(single) && Math.fround(back(single, true)) !== single) wrong.push(single);
            if (Number.isFinite(double) && back(double, false) !== double) wrong.push(double);
        }
        return wrong;
        """
    )
    assert wrong == []
    assert page.script("return [formatNumber(-0), formatExactly(Math.fround(0.1), true)]") == ["0", "0.1"]


def test_single_numbers_are_those_of_the_trace(driver, tmp_path):
    """Beyond 64 queries or keys the page has float32."""
    e = attngrad.explain(arrays(3, 4), arrays(70, 4), arrays(70, 2))
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    for (row, column), (value, _) in page.cells("P").items():
        assert np.float32(value) == np.float32(e["P"][row, column])
