"""The slider: the true change along the tangent beside the derivative's prediction."""

import math

import numpy as np
from browser import Page, number
from selenium.webdriver.common.keys import Keys
from view_pages import call

import attngrad


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
