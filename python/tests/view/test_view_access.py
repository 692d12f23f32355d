"""The page by keyboard and screen reader, on every width, in both themes."""

import importlib.util
from pathlib import Path

import pytest
from browser import Page
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys


def press(driver, *keys):
    ActionChains(driver, duration=0).send_keys(*keys).perform()


def tab_to(page, condition):
    """Presses Tab until the element in focus, `a`, fulfils the condition; returns how often."""
    for count in range(1, 101):
        press(page.driver, Keys.TAB)
        if page.script(f"const a = document.activeElement; return Boolean({condition})"):
            return count
    raise AssertionError(f"Tab never reached: {condition}")


def walk_lanes(page):
    """Goes by Tab from lane to lane, in each by arrows to every card; returns their names."""
    seen = []
    for lane in ("forward", "vjp", "jvp", "vjp_jvp"):
        tab_to(page, f"a.closest('[aria-labelledby=lane-{lane}]')")
        press(page.driver, Keys.HOME)
        for _ in page.find_all(f"[aria-labelledby=lane-{lane}] .card"):
            seen.append(page.script("return state.name"))
            press(page.driver, Keys.ARROW_RIGHT)
    return seen


def test_keyboard_reaches_everything(driver, example):
    """With Tab, arrows and Enter alone, from the top of the page to its end."""
    page = Page(driver, example)
    tab_to(page, "a.name === 'map'")
    press(driver, Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.script("return state.map") == "vjp_jvp"
    for name in ("head", "colours", "theme"):
        tab_to(page, f"a.id === '{name}'")
    assert sorted(walk_lanes(page)) == sorted(page.names())
    tab_to(page, "a.matches('#detail .formula .name-link')")
    target = page.script("return document.activeElement.dataset.variable")
    press(driver, Keys.ENTER)
    assert page.script("return [state.name, document.activeElement.id]") == [target, "map"]
    press(driver, Keys.HOME, Keys.PAGE_UP, Keys.ARROW_RIGHT, Keys.ARROW_DOWN)
    assert page.script("return [state.row, state.column]") == [1, 1]
    assert page.script("return document.getElementById('live').textContent").endswith(page.text("#arithmetic b"))
    tab_to(page, "a.id === 'step'")
    before = page.text("#along-e")
    press(driver, Keys.ARROW_RIGHT)
    assert page.text("#along-e") != before
    tab_to(page, "a.matches('#cell .name-link')")
    tab_to(page, "a.tagName === 'SUMMARY'")
    press(driver, Keys.ENTER)
    assert tab_to(page, f"a.getAttribute('aria-label') === 'Numbers of {target}'") == 1
    first = page.script("return formatNumber(variables.get(state.name).values[0])")
    assert page.find_all("#numbers td")[1].text == first


def test_tab_skips_nothing(driver, example):
    page = Page(driver, example)
    count = page.script(
        """
        document.querySelector("#views input[value=vjp_jvp]").click();
        document.getElementById("numbers").open = true;
        const all = "a, button, select, summary, input:checked, input[type=range], [tabindex='0']";
        window.reachable = [...document.querySelectorAll(all)].filter((x) => x.checkVisibility());
        return window.reachable.length;
        """
    )
    reached = set()
    for _ in range(count + 5):
        press(driver, Keys.TAB)
        reached.add(page.script("return window.reachable.indexOf(document.activeElement)"))
    assert count > 15 and set(range(count)) <= reached


def test_arrows_go_where_they_point(driver, example):
    page = Page(driver, example)
    left = lambda: page.script("return document.activeElement.getBoundingClientRect().left")  # noqa: E731
    page.choose("Z")
    page.script("document.getElementById('card-Z').focus()")
    press(driver, Keys.ARROW_DOWN)
    assert page.script("return state.name") == "dS"
    before = left()
    press(driver, Keys.ARROW_RIGHT)
    assert left() > before
    press(driver, Keys.HOME)
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


def test_arrows_beside_each_other_are_told_apart(driver, example):
    """Four lines lead from P down to variables on its left."""
    page = Page(driver, example)
    page.choose_map("vjp_jvp")
    page.choose("P")
    places = page.script(
        """
        const { top } = document.getElementById("graph").getBoundingClientRect();
        const level = document.querySelectorAll(".lane")[1].getBoundingClientRect().top - top;
        const left = document.getElementById("card-P").getBoundingClientRect().left;
        const places = [];
        for (const path of document.querySelectorAll("#edges .outputs[d]")) {
            for (let at = 0; at < path.getTotalLength(); at += 1) {
                const { x, y } = path.getPointAtLength(at);
                if (Math.abs(y - level) <= 0.5 && x < left) { places.push(x); break; }
            }
        }
        return places.sort((a, b) => a - b);
        """
    )
    assert len(places) >= 4 and min(b - a for a, b in zip(places, places[1:])) > 2.5


def test_arrows_pass_behind_captions(driver, example):
    page = Page(driver, example)
    page.choose_map("vjp_jvp")
    page.choose("tdS")
    captions = page.script(
        """
        const layer = (element) => Number(getComputedStyle(element).zIndex) || 0;
        const edges = layer(document.getElementById("edges"));
        return [...document.querySelectorAll(".lane h2, .lane h2 + p")].map((caption) => {
            const { backgroundColor } = getComputedStyle(caption);
            return layer(caption) > edges && backgroundColor === getComputedStyle(document.body).backgroundColor;
        });
        """
    )
    assert captions == [True] * 8


def test_ranges_fit_into_a_line(driver, example):
    """At every width, with as many digits as there is room for; also after the window was resized."""
    page = Page(driver, example)
    page.choose_map("vjp_jvp")
    digits = {}
    for width in (380, 800, 1280, 1900):
        driver.set_window_size(width, 900)
        page.script("redraw()")  # what the page does in its next frame
        ranges = page.script(
            """
            const places = [...document.querySelectorAll(".card .range")];
            return places.map((place) => [place.textContent, place.getBoundingClientRect().height]);
            """
        )
        assert sum("…" in text for text, _ in ranges) > 40 and [text for text, height in ranges if height > 20] == []
        digits[width] = page.text("#card-dS .range")
    assert digits[1900] == "−0.267…0.263" and len(digits[800]) < len(digits[1900])


def test_back_to_the_graph(driver, example):
    """On narrow screens a tap on a card leads down to its numbers, and a link from there to the card."""
    page = Page(driver, example, (380, 800))
    page.choose("Q")
    page.script("document.getElementById('stats').scrollIntoView()")
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    assert page.script(top, "#card-Q") < 0
    page.find(".to-graph").click()
    assert 0 < page.script(top, "#card-Q") < 600 and page.script("return state.name") == "Q"
    driver.set_window_size(1440, 900)
    assert not page.find(".to-graph").is_displayed()


def test_resize_keeps_the_focus(driver, example):
    page = Page(driver, example, (1440, 1000))
    page.script("document.querySelector('#cell .name-link').focus()")
    driver.set_window_size(1000, 900)
    driver.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")
    assert page.script("return document.activeElement.closest('#cell') !== null")


def serious(page):
    """What axe finds on the page as it is now."""
    (folder,) = importlib.util.find_spec("axe_playwright_python").submodule_search_locations
    page.script((Path(folder) / "axe.min.js").read_text())
    run_axe = "axe.run({resultTypes: ['violations']}).then(arguments[arguments.length - 1])"
    found = page.driver.execute_async_script(run_axe)["violations"]
    chosen = [v for v in found if v["impact"] in ("serious", "critical")]
    return [f"{v['id']}: {v['help']}: {v['nodes'][0]['html']}" for v in chosen]


ALL = ("forward", "vjp", "jvp", "vjp_jvp")
LAST = ("vjp_jvp",)


@pytest.mark.parametrize("width, theme, maps", [(1440, "light", ALL), (1440, "dark", LAST), (380, "dark", LAST)])
def test_accessibility(driver, example, width, theme, maps):
    """With a cell chosen and the table of numbers open."""
    page = Page(driver, example, (width, 900), theme)
    for name in maps:
        page.choose_map(name)
        page.click_cell(1, 1, 3, 3)
        page.find("summary").click()
        assert serious(page) == [], name


@pytest.mark.parametrize("level, theme", [("pooled", "light"), ("window", "dark")])
def test_accessibility_of_a_pooled_page(driver, pooled, level, theme):
    page = Page(driver, pooled, (1440, 900), theme)
    page.select("level", level)
    page.click_cell(20, 10, *page.script("const v = variables.get(state.name); return [v.rows, v.columns]"))
    assert serious(page) == []


@pytest.mark.parametrize("width", [380, 800, 1440])
def test_nothing_is_wider_than_the_screen(driver, example, width):
    page = Page(driver, example, (width, 900))
    assert page.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
    page.choose_map("vjp_jvp")
    assert page.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
