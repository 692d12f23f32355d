"""The page of `attngrad view` and of explain's result, in a browser."""

import base64
import copy
import html
import importlib.util
import itertools
import json
import math
import re
import subprocess
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from browser import COMMAND, ROOT, Page, browser, calculate, number
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys

import attngrad

RNG = np.random.default_rng(5)
FILES = sorted((ROOT / "src" / "view" / "page").iterdir())


@pytest.fixture(scope="module")
def driver():
    with browser() as driver:
        yield driver


def run(*arguments):
    return subprocess.run([COMMAND, "view", *map(str, arguments)], check=True, capture_output=True, text=True)


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    path = tmp_path_factory.mktemp("view") / "example.html"
    run("--out", path)
    return path


def arrays(*shape):
    return RNG.standard_normal(shape)


def call(n_q=3, n_k=4, d=3, dv=2, heads=(2,), **features):
    """An explanation with every map."""
    q, k, v = arrays(*heads, n_q, d), arrays(*heads, n_k, d), arrays(*heads, n_k, dv)
    tq, tk, tv = (arrays(*x.shape) for x in (q, k, v))
    d_o, td_o = arrays(*heads, n_q, dv), arrays(*heads, n_q, dv)
    inputs = dict(q=q, k=k, v=v, tq=tq, tk=tk, tv=tv, d_o=d_o, td_o=td_o, **features)
    return inputs, attngrad.explain(**inputs)


# ---- The file ----


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


def test_command_and_python_write_the_same_page(tmp_path):
    inputs, e = call()
    options = []
    for name, x in inputs.items():
        np.save(tmp_path / f"{name}.npy", x)
        options += [f"--{name.replace('_', '')}", tmp_path / f"{name}.npy"]
    run(*options, "--heads", "0", "--sequences", "0", "--out", tmp_path / "command.html")
    e.save_html(tmp_path / "python.html")
    pages = [(tmp_path / name).read_text() for name in ("command.html", "python.html")]
    assert re.sub(r'"facts":\[".*?",', '"facts":[', pages[0]) == pages[1]


# ---- Data ----


def read(path):
    """The page's data, and the arrays of its first head by name and kind."""
    text = Path(path).read_text()
    data = json.loads(re.search(r'id="page-data">(.*?)</script>', text, re.S)[1])
    stored = dict(re.findall(r'<script type="text/plain" id="(a\d+)">(.*?)</script>', text, re.S))
    found = {}
    for variable in data["heads"][0]["variables"]:
        for kind in ("full", "mean", "peak", "window"):
            if kind in variable:
                raw = base64.b64decode(stored[variable[kind]["id"]])
                dtype = {"f32": "<f4", "f64": "<f8", "u8": "u1"}[variable[kind]["type"]]
                found[variable["name"], kind] = np.frombuffer(raw, dtype)
    return data, found


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


# ---- Numbers ----

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
                assert math.isclose(result, value, rel_tol=2e-4, abs_tol=2e-4 * scale), (name, arithmetic)
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


# ---- Using it ----


def test_click_on_a_cell(driver, example):
    page = Page(driver, example)
    page.choose("Z")
    page.click_cell(1, 2, 3, 3)
    assert page.text("#cell h3").lower() == "query 1, key 2"
    value = number(page.text("#value"))
    assert math.isclose(calculate(page.text("#arithmetic .filled")), value, rel_tol=1e-4)
    assert {c.get_attribute("data-variable") for c in page.find_all(".card.is-input")} == {"Q", "K"}
    assert "S" in {c.get_attribute("data-variable") for c in page.find_all(".card.is-output")}
    page.choose("P")
    assert "Jacobian" in page.text("#jacobian")
    page.find("#detail .formula .name-link[data-variable=S]").click()
    assert page.text("#detail h2").startswith("S")


def test_links_lead_to_the_cell(driver, tmp_path):
    _, e = call(n_q=9, n_k=8, softcap=2.0)
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp")
    page.choose("dS")
    page.click_cell(7, 5, 9, 8)
    assert "P7,5" in page.text("#cell .inputs") and "D7" in page.text("#cell .inputs")
    page.find("#detail .formula .name-link[data-variable=P]").click()
    assert page.text("#cell h3").lower() == "query 7, key 5"
    page.choose("D")
    assert page.text("#cell h3").lower() == "query 7"
    assert "dO7,·" in page.text("#cell .inputs")


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
    attngrad.explain(inputs["q"], inputs["k"], inputs["v"], alibi=True).save_html(tmp_path / "alibi.html")
    page = Page(driver, tmp_path / "alibi.html")
    page.choose("B")
    assert "ALiBi" in page.text("#cell") and "Given" not in page.text("#cell")


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


def test_views_and_heads_switch(driver, example):
    page = Page(driver, example)
    counts = {}
    for name in ("forward", "vjp", "jvp", "vjp_jvp"):
        page.choose_map(name)
        counts[name] = len(page.names())
    assert counts["forward"] < counts["vjp"] < counts["vjp_jvp"] > counts["jvp"] > counts["forward"]
    page.choose("P")
    first = page.cells("P")
    page.select("head", "1")
    assert page.cells("P") != first


def test_slider_shows_the_jvp(driver, tmp_path):
    inputs, e = call(heads=())
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("jvp")
    page.choose("O")
    x = [inputs[n] for n in "qkv"]
    t = [inputs[n] for n in ("tq", "tk", "tv")]
    before, to = attngrad.forward(*x).o, attngrad.jvp(*x, *t).to
    slider = page.find("#step")
    slider.send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 13)
    step = number(page.text("#along-e"))
    after = attngrad.forward(*(a + step * b for a, b in zip(x, t))).o
    assert step != 0
    assert math.isclose(number(page.text("#along-predicted")), step * to[0, 0], rel_tol=1e-5)
    assert math.isclose(number(page.text("#along-true")), after[0, 0] - before[0, 0], rel_tol=1e-4)


def test_slider_shows_second_order(driver, tmp_path, example):
    inputs, e = call(heads=())
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp_jvp")
    page.choose("tdQ")
    page.find("#step").send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 13)
    step = number(page.text("#along-e"))
    x = {name: inputs[name] for name in ("q", "k", "v", "d_o")}
    moved = {name: y + step * inputs["t" + name] for name, y in x.items()}
    before, after = (
        attngrad.vjp(y["q"], y["k"], y["v"], *attngrad.forward(y["q"], y["k"], y["v"])[:2], y["d_o"]).dq
        for y in (x, moved)
    )
    assert math.isclose(number(page.text("#along-true")), after[0, 0] - before[0, 0], rel_tol=1e-4)
    tdq = page.cells("tdQ")[0, 0][0]
    assert math.isclose(number(page.text("#along-predicted")), step * tdq, rel_tol=1e-5)
    page = Page(driver, example)
    page.choose_map("vjp_jvp")
    for name in ("dS", "dWq", "dX", "tdO", "tD"):  # the error falls with the square of the step
        page.choose(name)
        errors = []
        for n in (12, 11):
            page.find("#step").send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * n)
            errors.append(abs(number(page.text("#along-difference"))))
        assert errors[1] < 0.4 * errors[0] or errors[0] < 1e-12, name


def test_keyboard_reaches_everything(driver, example):
    page = Page(driver, example)
    keys = lambda *k: ActionChains(driver).send_keys(*k).perform()  # noqa: E731
    page.script("document.body.focus()")
    reached = []
    for _ in range(40):
        keys(Keys.TAB)
        reached.append(
            page.script("const a = document.activeElement; return a.id || a.dataset.variable || a.value || a.tagName")
        )
        if reached[-1] == "map":
            break
    assert {"vjp", "head", "theme", "card-X", "card-dS", "map"} <= set(reached), reached
    keys(Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert page.script("return [state.row, state.column]") == [1, 1]
    assert page.script("return document.getElementById('live').textContent").endswith(page.text("#arithmetic b"))
    # every card by arrow keys alone
    page.script("document.querySelector('[role=option][tabindex=\"0\"]').focus()")
    keys(Keys.HOME)
    seen = set()
    for _ in range(60):
        seen.add(page.script("return state.name"))
        keys(Keys.ARROW_RIGHT)
    keys(Keys.ARROW_DOWN, Keys.HOME)
    for _ in range(60):
        seen.add(page.script("return state.name"))
        keys(Keys.ARROW_RIGHT)
    assert seen == set(page.names())


def test_arrows_go_where_they_point(driver, example):
    page = Page(driver, example)
    keys = lambda *k: ActionChains(driver).send_keys(*k).perform()  # noqa: E731
    left = lambda: page.script("return document.activeElement.getBoundingClientRect().left")  # noqa: E731
    page.choose("Z")
    page.script("document.getElementById('card-Z').focus()")
    keys(Keys.ARROW_DOWN)
    assert page.script("return state.name") == "dS"
    before = left()
    keys(Keys.ARROW_RIGHT)
    assert left() > before
    keys(Keys.HOME)
    assert page.script("return state.name") == "dX"


@pytest.mark.parametrize("width", [800, 1440])
def test_arrows_pass_between_the_cards(driver, example, width):
    page = Page(driver, example, (width, 1000))
    page.choose_map("vjp_jvp")
    page.choose("tdS")
    inside = page.script(
        """
        const graph = document.getElementById("graph").getBoundingClientRect();
        const cards = [...document.querySelectorAll(".card")].map((card) => card.getBoundingClientRect());
        let inside = 0;
        const paths = [...document.querySelectorAll("#edges > path")];
        for (const path of paths) {
            for (let at = 0; at < path.getTotalLength(); at += 4) {
                const { x, y } = path.getPointAtLength(at);
                const [left, top] = [x + graph.left, y + graph.top];
                const isIn = (c) => left > c.left + 3 && left < c.right - 3 && top > c.top + 3 && top < c.bottom - 3;
                inside += cards.some(isIn);
            }
        }
        return [paths.length > 60, paths.every((p) => p.getAttribute("marker-end")), inside];
        """
    )
    assert inside == [True, True, 0]


def test_resize_keeps_the_focus(driver, example):
    page = Page(driver, example, (1440, 1000))
    page.script("document.querySelector('#cell .name-link').focus()")
    driver.set_window_size(1000, 900)
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.script("return document.activeElement.closest('#cell') !== null")


def test_digits_in_cells_have_contrast(driver, example):
    page = Page(driver, example)
    least = page.script(
        """
        const rgb = (hex) => [1, 3, 5].map((n) => parseInt(hex.slice(n, n + 2), 16));
        const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
        const all = ["light", "dark"].flatMap((theme) => [...palette(theme), NOT_A_NUMBER[theme]]);
        return Math.min(...all.map((c) => contrast(luminance(c), luminance(rgb(inkOn(c))))));
        """
    )
    assert least >= 4.5


@pytest.mark.parametrize("masking", [-3.4e38, 0.0])
def test_outliers_do_not_blank_a_map(driver, tmp_path, masking):
    q, k = arrays(40, 4), arrays(40, 4)
    bias = np.triu(np.full((40, 40), masking), 1)
    bias[3, 3] = 1000
    attngrad.explain(q, k, k, bias=bias).save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("S")
    assert page.script("return scaleOf(variables.get('S'))") < 20
    assert "far larger" in page.text("#legend")
    page.choose("Q")
    assert "far larger" not in page.text("#legend")


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [380, 1440])
def test_accessibility(driver, example, theme, width):
    page = Page(driver, example, (width, 900), theme)
    (folder,) = importlib.util.find_spec("axe_playwright_python").submodule_search_locations
    page.script((Path(folder) / "axe.min.js").read_text())
    found = driver.execute_async_script("axe.run().then(arguments[arguments.length - 1])")["violations"]
    serious = [v for v in found if v["impact"] in ("serious", "critical")]
    assert [f"{v['id']}: {v['help']}: {v['nodes'][0]['html']}" for v in serious] == []


@pytest.mark.parametrize("width", [380, 800, 1440])
def test_nothing_is_wider_than_the_screen(driver, example, width):
    page = Page(driver, example, (width, 900))
    assert page.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.choose_map("vjp_jvp")
    assert page.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0


ODD = ["q1 k1 d1 f32", "q1 k70 d130 f16 sink softcap=2", "q90 k2 d3 dv1 bf16", "b3 h2 q6 k5 d4 f64 packed=12,11 alibi"]


@pytest.mark.parametrize("problem", ODD)
def test_odd_shapes(driver, tmp_path, problem):
    """Every variable of every map, and of the last head, is shown without a message of the browser."""
    run(problem, "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    shown = page.script(
        """
        let shown = 0;
        for (const map of PAGE.maps) {
            if (map === "vjp_jvp") {
                state.head = PAGE.heads.length - 1;
                fillChoices();
                reload();
            }
            chooseMap(map);
            for (const { name } of shownVariables()) {
                choose(name);
                const v = variables.get(name);
                chooseCell(v.endRow - 1, v.endColumn - 1);
                shown += document.getElementById("value").textContent !== "undefined";
            }
        }
        return shown;
        """
    )
    assert shown >= 60 and page.messages() == []


# ---- Bad input ----


def test_names_are_text(driver, tmp_path):
    name = '<script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">'
    _, e = call()
    e.save_html(tmp_path / "page.html", title=name)
    page = Page(driver, tmp_path / "page.html")
    assert page.text("h1") == name and driver.title == name
    assert page.script("return window.hacked") is None
    assert "<script>window" not in (tmp_path / "page.html").read_text()


def test_missing_inputs_grey_out_their_views(driver, tmp_path):
    attngrad.explain(arrays(4, 3), arrays(4, 3), arrays(4, 3)).save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    enabled = [i.get_attribute("value") for i in page.find_all("#views input") if i.is_enabled()]
    assert enabled == ["forward"]
    assert "No tangent was given" in page.text("#notes") and "No cotangent was given" in page.text("#notes")


def test_not_a_number(driver, tmp_path):
    q, k, v = arrays(4, 3), arrays(5, 3), arrays(5, 2)
    q[1, 0], v[2, 1] = np.nan, np.inf
    attngrad.explain(q, k, v).save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    assert "NaN or infinite, and left out of norms and ranges: Q 1, V 1" in page.text("#notes")
    assert "1 NaN" in page.text("#card-Q") and "1 NaN" in page.find("#card-Q").get_attribute("aria-label")
    assert "1 infinite" in page.text("#card-V")
    page.choose("Q")
    page.click_cell(1, 0, 4, 3)
    assert page.text("#value") == "NaN" and "NaN\n1" in page.text("#detail > .stats")
    page.choose("V")
    page.click_cell(2, 1, 5, 2)
    assert page.text("#value") == "∞" and "infinite\n1" in page.text("#detail > .stats")
    assert page.messages() == []


def test_infinite_scores_are_not_hidden(driver, tmp_path):
    q, k = np.array([[1.0], [-np.inf]]), np.array([[1.0], [2.0]])
    attngrad.explain(q, k, k).save_html(tmp_path / "page.html")
    data, _ = read(tmp_path / "page.html")
    stats = {v["name"]: v["stats"] for v in data["heads"][0]["variables"]}
    assert stats["S"]["hidden"] == 0 and stats["S"]["infinite"] == 2
    page = Page(driver, tmp_path / "page.html")
    page.choose("S")
    page.click_cell(1, 1, 2, 2)
    assert page.text("#value") == "−∞" and "does not see" not in page.text("#cell")


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


def test_norms_do_not_overflow(tmp_path):
    q = arrays(4, 3)
    v = np.full((4, 2), 1e200)
    tiny = np.full((4, 3), 1e-200)
    attngrad.explain(q, tiny, v).save_html(tmp_path / "page.html")
    data, _ = read(tmp_path / "page.html")
    norms = {v["name"]: v["stats"]["norm"] for v in data["heads"][0]["variables"]}
    assert math.isclose(norms["V"], math.sqrt(8) * 1e200) and math.isclose(norms["K"], math.sqrt(12) * 1e-200)


def test_curves_that_are_not_finite(driver, tmp_path):
    inputs, _ = call(heads=())
    inputs["tv"][1, 0], inputs["tq"][0, 0] = np.inf, np.nan
    attngrad.explain(**inputs).save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp_jvp")
    for name in page.names():
        page.choose(name)
    page.choose("O")
    page.click_cell(0, 0, 3, 2)
    assert "not finite" in page.text("#along") and page.messages() == []


def test_inputs_that_are_not_given(driver, tmp_path):
    inputs, _ = call(heads=())
    given = {name: inputs[name] for name in ("q", "k", "v", "tv")}
    attngrad.explain(**given).save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    assert "Not given, so zero: tQ, tK." in page.text("#notes")
    page.choose_map("jvp")
    page.choose("tQ")
    assert page.text("#detail .formula") == "not given: zero" and "Not given" in page.text("#cell")
    page.choose("tV")
    assert page.text("#detail .formula") == "given"


def test_jacobian_of_a_row_with_a_sink(driver, tmp_path):
    inputs, e = call(heads=(1,), sink=arrays(1), jacobian_row=1)
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("P")
    np.testing.assert_allclose(e["J"].sum(1), e["P"][1] * e["Ps"][1])
    assert "times the weight of the sink" in page.text("#jacobian") and "sum to zero" not in page.text("#jacobian")


def test_notebook(driver, tmp_path):
    _, e = call()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>n</title>{e._repr_html_()}", encoding="utf-8")
    page = Page(driver, tmp_path / "notebook.html")
    driver.switch_to.frame(0)
    assert page.text("h1") == "Attention"
    driver.switch_to.default_content()
    assert html.escape("<script>") in e._repr_html_()


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


# ---- Long sequences ----


def best_of(times, function):
    return min(function() for _ in range(times))


def test_256_answers_a_click_quickly(driver, tmp_path):
    run("q256 d16 f32 causal", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("P")
    rows = itertools.count(100)

    def click():
        return page.script(
            """
            const start = performance.now();
            chooseCell(arguments[0], 3);
            document.body.getBoundingClientRect();
            return performance.now() - start;
            """,
            next(rows),
        )

    assert best_of(5, click) < 250


def test_long_sequence(driver, tmp_path):
    path = tmp_path / "page.html"
    run("q8192 d4 f32 causal", "--maps", "forward", "--rows", "100-131", "--keys", "64-127", "--out", path)
    assert path.stat().st_size < 20_000_000

    def open_page():
        start = time.perf_counter()
        Page(driver, path).find("#map")
        return time.perf_counter() - start

    assert best_of(5, open_page) < 5
    page = Page(driver, path)
    assert "one cell stands for 32 queries and 32 keys" in page.text("#notes")
    page.choose("P")
    assert "block" in page.text("#pooling")
    page.select("level", "window")
    for name in ("L", "O"):  # sums over all keys: what is outside the window is one term
        for row in (100, 131):
            ((value, arithmetic),) = page.cells(name, [(row, 0)]).values()
            assert "(outside the window)" in arithmetic
            assert math.isclose(calculate(arithmetic), value, rel_tol=1e-4, abs_tol=1e-6)
    cells = page.cells("Z", [(row, column) for row in (100, 115, 131) for column in (64, 99, 127)])
    assert sum(arithmetic is not None for _, arithmetic in cells.values()) > 3
    for value, arithmetic in cells.values():
        if arithmetic is not None:
            assert math.isclose(calculate(arithmetic), value, rel_tol=1e-3, abs_tol=1e-3)
    assert page.messages() == []
