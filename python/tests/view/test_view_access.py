"""The page by keyboard and screen reader, on every width, in both themes."""

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from browser import Page
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from view_pages import arrays

import attngrad


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
