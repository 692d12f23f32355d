"""The slider: the true change along the tangent beside the derivative's prediction."""

import math

import numpy as np
import pytest
from browser import Page, number
from selenium.webdriver.common.keys import Keys
from view_pages import call, run

import attngrad


def test_slider_shows_the_jvp(driver, tmp_path):
    inputs, e = call(heads=())
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("jvp")
    page.choose("O")
    page.script("chooseCell(0, 0)")
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
    page.script("chooseCell(0, 0)")
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


def test_no_move_changes_nothing(driver, tmp_path):
    """Also if the numbers along the tangent are float32: 400 numbers per step."""
    _, e = call(n_q=20, n_k=20, heads=())
    e.save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("jvp")
    page.choose("P")
    page.find("#step").send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 10)
    assert [page.text(f"#along-{name}") for name in ("e", "true", "predicted", "difference")] == ["0"] * 4


def moved(inputs, step):
    return {name: inputs[name] + step * inputs["t" + name] for name in ("q", "k", "v", "d_o")}


def check_change(page, name, row, values):
    """Of a cell of the first column at a step; values(step): the true ones of the whole variable."""
    page.script("chooseCell(arguments[0], 0)", row)
    page.find("#step").send_keys(Keys.HOME, *[Keys.ARROW_RIGHT] * 13)
    step = number(page.text("#along-e"))
    true = values(step)[row, 0] - values(0)[row, 0]
    assert step != 0 and math.isclose(number(page.text("#along-true")), true, rel_tol=1e-3), name


def test_slider_of_a_long_sequence(driver, tmp_path):
    """Above 64 queries the page moves a part of them."""
    inputs, e = call(n_q=100, n_k=90, heads=())
    e.save_html(tmp_path / "page.html", rows=(20, 30))
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp_jvp")
    page.choose("O")
    assert "queries 20 to 29, keys 0 to 63" in page.text("#along")
    forward = lambda step: attngrad.forward(*(moved(inputs, step)[name] for name in "qkv")).o  # noqa: E731
    check_change(page, "O", 25, forward)
    page.script("chooseCell(50, 0)")
    assert "This cell is not among them" in page.text("#along")
    page.choose("dK")
    assert "a sum over all queries" in page.text("#along") and page.messages() == []


def test_slider_of_a_pooled_page(driver, tmp_path):
    inputs, e = call(n_q=1100, n_k=1000, heads=())
    e.save_html(tmp_path / "page.html", rows=(650, 690), keys=(10, 40), maps=["vjp_jvp"])
    page = Page(driver, tmp_path / "page.html")
    page.choose_map("vjp_jvp")
    page.choose("dQ")
    page.find("#along button").click()  # leads from the blocks to the window

    def gradient(step):
        x = moved(inputs, step)
        o, lse = attngrad.forward(x["q"], x["k"], x["v"])[:2]
        return attngrad.vjp(x["q"], x["k"], x["v"], o, lse, x["d_o"]).dq

    check_change(page, "dQ", 655, gradient)
    assert page.messages() == []


def test_axes_of_the_curve_have_numbers(driver, example):
    page = Page(driver, example)
    page.choose_map("jvp")
    page.choose("tP")
    down, along = page.script(
        """
        const texts = [...document.querySelectorAll("#plot text")];
        const of = (isDown) => texts.filter((t) => (t.getAttribute("y") < 140) === isDown).map((t) => t.textContent);
        return [of(true), of(false)];
        """
    )
    assert 2 <= len(down) <= 6 and [number(text) for text in down] == sorted(map(number, down))
    assert along[0].startswith("e = −") and along[1] == "0" and number(along[2]) > 0
    widest = page.script(
        """
        const spans = [[0, 1], [-1e-9, 3e-9], [1e6, 1.0000001e6], [-5e300, 4e300], [0.999, 1.0001]];
        const all = spans.map(([low, high]) => ticks(low, high));
        return all.map((marks) => [marks.length, new Set(marks.map((m) => m.text)).size]);
        """
    )
    assert all(2 <= count <= 6 and distinct == count for count, distinct in widest), widest


@pytest.mark.parametrize("problem", [None, "q256 d8 f32"])
def test_slider_is_seen_without_scrolling(driver, example, tmp_path, problem):
    if problem:
        run(problem, "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html" if problem else example, (1440, 857))
    page.choose_map("jvp")
    assert page.script("return document.getElementById('step').getBoundingClientRect().bottom") < 857
