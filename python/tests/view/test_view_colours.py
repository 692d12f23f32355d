"""The colours of the heat maps: contrast, and scales that tell the values of a map apart."""

import numpy as np
import pytest
from browser import Page, number
from view_pages import arrays, read, run, save

import attngrad


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


def test_masking_numbers_do_not_blank_a_map(driver, tmp_path):
    """Half of the pairs have a bias that is meant as minus infinity, in the ways that programs write it."""
    q, k = arrays(40, 4), arrays(40, 4)
    for masking in (-65504, -1e9, -1e4):
        bias = arrays(40, 40) + np.triu(np.full((40, 40), masking), 1)
        run(*save(tmp_path, q=q, k=k, v=k, bias=bias), "--out", tmp_path / "page.html")
        page = Page(driver, tmp_path / "page.html")
        seen = np.tril(np.ones((40, 40), bool))
        for name, largest in (("B", np.abs(bias[seen]).max()), ("S", np.abs((q @ k.T / 2 + bias)[seen]).max())):
            page.choose(name)
            assert page.script("return scaleOf(variables.get(state.name))") == pytest.approx(largest), (name, masking)
            assert "780 far larger cells" in page.text("#legend")


def test_hidden_pairs_are_not_far_larger(driver, tmp_path):
    """The last key is large, and the last query alone sees it."""
    q, k = arrays(20, 4), arrays(20, 4)
    seen = np.tril(np.ones((20, 20), bool))
    k[19] *= 1e4
    run(*save(tmp_path, q=q, k=k, v=q), "--causal", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("Z")
    end = page.script("return scaleOf(variables.get('Z'))")
    count = np.sum(np.abs((q @ k.T / 2)[seen]) > end)
    assert 1 < count < 10 and f"{count} far larger cells have" in page.text("#legend")


def test_a_window_has_its_own_scale(driver, tmp_path):
    """A map of small numbers is not blank because there are large ones elsewhere in the matrix."""
    q, k, v = arrays(1100, 4), arrays(1100, 4), arrays(1100, 4)
    q[:600] *= 1e-3  # the scores of these queries are small
    attngrad.explain(q, k, v, d_o=q).save_html(tmp_path / "page.html", rows=(64, 128), keys=(10, 50))
    _, found = read(tmp_path / "page.html")
    largest = np.abs(found["Z", "window"]).max()
    page = Page(driver, tmp_path / "page.html")
    page.choose("Z")
    pooled = number(page.find_all("#legend .scale span")[-1].text)
    page.select("level", "window")
    window = number(page.find_all("#legend .scale span")[-1].text)
    assert window == pytest.approx(largest, rel=1e-2) and window < 0.01 * pooled


def test_scales_of_colours(driver, tmp_path):
    """The logarithmic scale tells numbers apart that are white on the linear one; the legend says what it shows."""
    z = np.array([[1.0, 1e-2, 1e-4], [-1.0, -1e-2, -1e-8]])
    attngrad.explain(z, np.eye(3), np.eye(3), scale=1.0).save_html(tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html")
    page.choose("Z")
    marks = {}
    shares = {}
    for name in ("linear", "root", "log"):
        page.select("colours", name)
        marks[name] = [span.text for span in page.find_all("#legend .scale span")]
        shares[name] = page.script(
            """
            const colors = palette("light");
            const { values } = variables.get("Z");
            return [...values].map((z) => (colors.indexOf(colorOf(z, 1, colors)) - PALETTE_STEPS) / PALETTE_STEPS);
            """
        )
    assert marks["linear"] == ["−1", "−0.5", "0", "0.5", "1"] and marks["root"][3] == "0.25"
    assert marks["log"] == ["−1", "−0.001", "±1e−6", "0.001", "1"]
    np.testing.assert_allclose(shares["linear"], [1, 0.01, 0, -1, -0.01, 0], atol=0.003)
    np.testing.assert_allclose(shares["root"], [1, 0.1, 0.01, -1, -0.1, 0], atol=0.003)
    np.testing.assert_allclose(shares["log"], [1, 2 / 3, 1 / 3, -1, -2 / 3, 0], atol=0.003)
