"""The page on paper: what the browser's print command makes of it."""

import base64
import re

import pytest
from browser import Page
from pdf import painted, streams


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
    assert len(boxes) > 100 and len(re.findall(rb"/Type /Page\n", pdf)) < 8
    assert min(box[0] for box in boxes) >= scale * left - 0.1
    assert max(box[1] for box in boxes) <= scale * (left + width) + 0.1
