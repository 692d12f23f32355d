"""What a reader does with the page: clicks, links, maps, heads, notebooks, odd shapes, unusual numbers."""

import html
import math

import numpy as np
import pytest
from browser import Page, calculate, number
from view_pages import arrays, call, read, run, save

import attngrad


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


@pytest.mark.parametrize("medium, width", [("screen", 380), ("print", 1000), ("screen", 1440)])
def test_arrows_or_their_words(driver, example, medium, width):
    """Narrow screens and paper have no arrows: the cards say where they would come from and go to."""
    page = Page(driver, example, (width, 900))
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": medium})
    words = [span.text for span in page.find_all("#card-dS .flow") if span.is_displayed()]
    has_arrows = page.find("#edges").is_displayed()
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert (words, has_arrows) == (([], True) if width == 1440 else (["from P, dP, D", "to dQ, dK"], False))
    assert "from P dP D, to dQ dK" in page.find("#card-dS").get_attribute("aria-label")


ODD = ["q1 k1 d1 f32", "q1 k70 d130 f16 sink softcap=2", "q90 k2 d3 dv1 bf16", "b3 h2 q6 k5 d4 f64 packed=12,11 alibi"]


@pytest.mark.parametrize("problem", ODD)
def test_odd_shapes(driver, tmp_path, problem):
    """Every map, and every variable of the last head, is shown without a message of the browser."""
    run(problem, "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    shown = page.script(
        """
        let shown = 0;
        for (const map of PAGE.maps) chooseMap(map);
        state.head = PAGE.heads.length - 1;
        fillChoices();
        reload();
        for (const { name } of shownVariables()) {
            choose(name);
            const v = variables.get(name);
            chooseCell(v.endRow - 1, v.endColumn - 1);
            shown += document.getElementById("value").textContent !== "undefined";
        }
        return shown;
        """
    )
    assert shown >= 32 and page.messages() == []


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
    assert page.text("#value") == "NaN" and "NaN\n1" in page.text("#stats")
    page.choose("V")
    page.click_cell(2, 1, 5, 2)
    assert page.text("#value") == "∞" and "infinite\n1" in page.text("#stats")
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


def test_arithmetic_that_is_not_finite(driver, tmp_path):
    """If a formula gives another result than the map has, the page says why."""
    q, k = np.array([[1.0], [2.0]]), np.array([[np.inf], [-np.inf], [2.0]])
    run(*save(tmp_path, q=q, k=k, v=np.ones((3, 1))), "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    said = {}
    for name, row, column in (("L", 0, 0), ("P", 0, 1), ("Z", 0, 0), ("S", 0, 2)):
        page.choose(name)
        page.script("chooseCell(arguments[0], arguments[1])", row, column)
        said[name] = " ".join(page.text("#arithmetic").split())
    assert "it would be ∞. It is calculated otherwise" in said["L"] and said["L"].endswith("= NaN")
    assert "it would be NaN. It is calculated otherwise" in said["P"] and said["P"].endswith("= 0")
    assert "otherwise" not in said["Z"] and "otherwise" not in said["S"]


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


def test_notebook(driver, tmp_path):
    _, e = call()
    (tmp_path / "notebook.html").write_text(f"<!doctype html><title>n</title>{e._repr_html_()}", encoding="utf-8")
    page = Page(driver, tmp_path / "notebook.html")
    driver.switch_to.frame(0)
    assert page.text("h1") == "Attention"
    driver.switch_to.default_content()
    assert html.escape("<script>") in e._repr_html_()


@pytest.mark.parametrize("size", [3, 4, 24, 100])
def test_square_maps(driver, tmp_path, size):
    """As many queries as keys: the maps are square, with or without numbers in their cells."""
    run(f"q{size} d2 f32", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("P")
    for selector in ("#card-P canvas", "#map", "#jacobian-map"):
        width, height = page.script(
            "const { width, height } = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [width, height]",
            selector,
        )
        assert abs(width - height) < 1 and width > 40, selector


def test_table_follows_what_is_chosen(driver, pooled):
    """It stays open, and has the means or the largest magnitudes of the variable that is shown."""
    page = Page(driver, pooled)
    page.choose("P")
    page.find("#numbers summary").click()
    first = lambda kind: page.script(  # noqa: E731
        "return formatNumber(decode(variables.get(state.name).record[arguments[0]])[0])", kind
    )
    cell = lambda: page.find_all("#numbers td")[1].text  # noqa: E731
    assert first("mean") != first("peak") and cell() == first("mean")
    page.find("#pooling input[value=peak]").click()
    assert cell() == first("peak")
    page.choose("Z")
    assert cell() == first("peak")


def test_jacobian_of_a_row_with_hidden_keys(driver, tmp_path):
    """They are hatched; a legend has the scale; a row in which one key has all the weight has a zero Jacobian."""
    run("q6 d4 f32 causal", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("P")
    page.script("chooseCell(2, 1)")
    p = page.script("return [...variables.get('P').values].slice(12, 15)")
    largest = max(x * (1 - x) for x in p)
    marks = [number(span.text) for span in page.find_all("#jacobian .scale span")]
    assert math.isclose(marks[-1], largest, rel_tol=1e-2) and "hidden key" in page.text("#jacobian .legend")
    hidden = page.script(
        "const J = jacobianOf(variables.get('P'), 2); return [0, 1, 2, 3, 4, 5].map((j) => J.hidden(0, j))"
    )
    assert hidden == [False] * 3 + [True] * 3 and "Rows and columns sum to zero" in page.text("#jacobian .help")
    page.script("chooseCell(0, 0)")
    assert "It is zero" in page.text("#jacobian .help")


def test_opens_where_something_moves(driver, tmp_path):
    """In the first row of a causal page the weights are fixed: no slope, no Jacobian."""
    run("q8 d4 f32 causal", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    dS, P = (np.array(page.script("return [...variables.get(arguments[0]).values]", name)) for name in ("dS", "P"))
    assert number(page.text("#value")) == dS[np.argmax(np.abs(dS) * (1 - P))] != dS[0]
    page.choose_map("jvp")
    assert number(page.text("#along-predicted")) != 0 and "It is zero" not in page.text("#jacobian")
    run("q1100 d4 f32 causal", "--maps", "forward", "--rows", "0-15", "--keys", "0-15", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.script("chooseCell(800, 100)")
    page.select("level", "window")  # which has no such cell
    p = page.script("return [...variables.get('P').values]")
    value = number(page.text("#value"))
    assert math.isclose(value * (1 - value), max(x * (1 - x) for x in p), rel_tol=1e-6)
