"""Pages of long sequences: pooled, with a window, and fast."""

import itertools
import math
import time

from browser import Page, calculate, number
from view_pages import read, run, within


def test_256_answers_a_click_quickly(driver, tmp_path):
    """From the press of the mouse to the next frame on the screen."""
    run("q256 d16 f32 causal", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("P")
    rows = itertools.count(100)

    def click():
        row = next(rows)
        page.script(
            """
            window.painted = new Promise((resolve) => {
                const afterPaint = (done) => requestAnimationFrame(() => setTimeout(done));
                const onPress = ({ timeStamp }) => document.addEventListener(
                    "click", () => afterPaint(() => resolve(performance.now() - timeStamp)), { once: true });
                document.addEventListener("pointerdown", onPress, { once: true, capture: true });
            });
            """
        )
        page.click_cell(row, 3, 256, 256)
        milliseconds = driver.execute_async_script("window.painted.then(arguments[0])")
        assert page.script("return [state.row, state.column]") == [row, 3]
        return milliseconds

    assert within(250, click)


def test_long_sequence_opens_quickly(driver, tmp_path):
    """To the first frame, of the page that the command makes if only the problem is given."""
    path = tmp_path / "page.html"
    run("q8192 d4 f32 causal", "--out", path)
    assert path.stat().st_size < 20_000_000

    def open_page():
        start = time.perf_counter()
        Page(driver, path)
        driver.execute_async_script("requestAnimationFrame(() => setTimeout(arguments[0]))")
        return time.perf_counter() - start

    assert within(5, open_page)
    page = Page(driver, path)
    assert page.find("#views input[value=vjp]").is_enabled() and page.names()[-1] == "dV"
    assert "one cell stands for 32 queries and 32 keys" in page.text("#notes")


def test_window_of_a_long_sequence(driver, tmp_path):
    path = tmp_path / "page.html"
    run("q1100 d4 f32 causal", "--maps", "forward,vjp", "--rows", "100-131", "--keys", "64-127", "--out", path)
    page = Page(driver, path)
    page.choose("P")
    assert "block" in page.text("#pooling")
    page.select("level", "window")
    assert "hidden pair" in page.text("#legend")
    for name in ("L", "O"):  # sums over all keys: what is outside the window is one term
        for row in (100, 131):
            ((value, arithmetic),) = page.cells(name, [(row, 0)]).values()
            assert "(outside the window)" in arithmetic
            assert math.isclose(calculate(arithmetic), value, rel_tol=1e-4, abs_tol=1e-6)
    cells = page.cells("Z", [(row, column) for row in (100, 115, 131) for column in (64, 99, 127)])
    assert sum(arithmetic is not None for _, arithmetic in cells.values()) > 3
    for value, arithmetic in cells.values():
        if arithmetic is not None:
            assert math.isclose(calculate(arithmetic), value, rel_tol=1e-5, abs_tol=1e-6)
    assert page.messages() == []


def test_statistics_of_a_window_are_its_own(driver, tmp_path):
    path = tmp_path / "page.html"
    run("q1100 d4 f32 causal", "--maps", "forward", "--rows", "200-231", "--keys", "0-63", "--out", path)
    _, found = read(path)
    values = found["S", "window"].astype(float)
    page = Page(driver, path)
    page.choose("S")
    assert "hidden pairs" in page.text("#stats") and "1100 × 1100" in page.text("#card-S").split("\n")
    page.select("level", "window")
    shown = dict(zip(*[iter(page.text("#stats").split("\n"))] * 2))
    want = {"norm": (values**2).sum() ** 0.5, "smallest": values.min(), "largest": values.max(), "mean": values.mean()}
    assert shown.keys() == want.keys() and "hidden" not in page.text("#legend")  # these queries see all these keys
    for name, value in want.items():
        assert math.isclose(number(shown[name]), value, rel_tol=1e-5), name
    assert page.text("#detail .shape") == "32 × 64 of 1100 × 1100"
    assert f"{number(shown['smallest']):.3g}…".replace("-", "−") in page.text("#card-S")
