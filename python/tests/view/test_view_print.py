"""The page on paper: what the browser's print command makes of it."""

import base64
import re

import pytest
from browser import Page
from pdf import images, painted, streams
from view_pages import run


def print_page(driver):
    """With the browser's settings as they are at first: backgrounds are not printed."""
    return base64.b64decode(driver.print_page())


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_colours_are_printed(driver, example, theme):
    page = Page(driver, example, theme=theme)
    pdf = print_page(driver)
    assert re.search(rb"/FunctionType 3(?:(?!endobj).)*/ShadingType 2", pdf, re.S), "the ramp of the key"
    assert re.search(rb"/ShadingType 1", pdf), "the hatch of the key"
    assert len(re.findall(rb"/Subtype /Image", pdf)) > len(page.names()), "the maps"
    assert page.script("return document.documentElement.dataset.theme") == theme  # paper was light meanwhile


def test_nothing_is_cut_off(driver, example):
    page = Page(driver, example)
    page.choose_map("vjp_jvp")
    pdf = print_page(driver)
    texts = list(streams(pdf))
    boxes = [box for text in texts for box in painted(text)]
    # the first path that a page clips to is the part inside its margins
    left, _, width, _ = map(float, re.search(r"([\d.]+) ([\d.]+) ([\d.]+) ([\d.]+) re\s+W", texts[0]).groups())
    scale = float(texts[0].split()[0])
    assert len(boxes) > 100
    assert min(box[0] for box in boxes) >= scale * left - 0.1
    assert max(box[1] for box in boxes) <= scale * (left + width) + 0.1


def test_paper_is_used(driver, example, tmp_path):
    """A lane begins below the one before it, and continues on the next page: none is left half empty."""
    run("h4 kv2 q24 d8 f32 causal window=8,0 softcap=3 dropout=0.1 sink alibi", "--out", tmp_path / "page.html")
    for path in (example, tmp_path / "page.html"):
        page = Page(driver, path)
        page.choose_map("vjp_jvp")
        assert len(re.findall(rb"/Type /Page\n", print_page(driver))) <= 5


def test_hidden_pairs_have_the_colour_of_the_hatch(driver, tmp_path):
    """Also along their edge: the scores of hidden pairs are minus infinity, which has a colour of its own."""
    run("q256 d4 f32 causal", "--maps", "forward", "--out", tmp_path / "page.html")
    page = Page(driver, tmp_path / "page.html", (1000, 900))
    page.choose("S")
    seen = page.script(
        """
        const isMagenta = (data, n) => data[n] - data[n + 1] > 25 && data[n + 2] - data[n + 1] > 25;
        return ["#card-S canvas", "#map"].map((selector) => {
            const canvas = document.querySelector(selector);
            const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
            return data.filter((_, n) => n % 4 === 0 && isMagenta(data, n)).length;
        });
        """
    )
    printed = [sum(r - g > 25 and b - g > 25 for r, g, b in image) for image in images(print_page(driver))]
    assert seen == [0, 0] and len(printed) > len(page.names()) and max(printed) == 0
