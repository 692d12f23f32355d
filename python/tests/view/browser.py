"""A page of src/view in a real browser, read and used as a reader does."""

import ast
import math
import operator
import os
import re
from contextlib import contextmanager
from pathlib import Path

import pytest
from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select

ROOT = Path(__file__).resolve().parents[3]
CHROMIUM = "/usr/bin/chromium"
COMMAND = os.environ.get("ATTNGRAD_COMMAND")  # set by python/test


@contextmanager
def browser():
    if not Path(CHROMIUM).exists():
        lacking = pytest.fail if os.environ.get("CI") else pytest.skip
        lacking(f"there is no {CHROMIUM}: scripts/setup test-python installs it")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for word in ("headless=new", "no-sandbox", "disable-gpu", "disable-dev-shm-usage", "hide-scrollbars"):
        options.add_argument(f"--{word}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service("/usr/bin/chromedriver"))
    try:
        yield driver
    finally:
        driver.quit()


class Page:
    """A page that is open. The methods that read or click go through what is on the screen."""

    def __init__(self, driver, path, size=(1440, 1000), theme="light"):
        self.driver = driver
        driver.set_window_size(*size)
        media = [{"name": "prefers-color-scheme", "value": theme}]
        driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": media})
        driver.get(Path(path).resolve().as_uri())

    def script(self, text, *arguments):
        return self.driver.execute_script(text, *arguments)

    def find(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def find_all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector):
        return self.find(selector).text

    def messages(self):
        return self.driver.get_log("browser")

    def names(self):
        return [card.get_attribute("data-variable") for card in self.find_all("[role=option]")]

    def select(self, name, value):
        Select(self.find(f"#{name}")).select_by_value(value)

    def choose_map(self, name):
        self.find(f"#views input[value={name}] + span").click()

    def choose(self, name):
        self.find(f"#card-{name}").click()

    def click_cell(self, row, column, rows, columns):
        """Clicks into the middle of a cell of the large map."""
        canvas = self.find("#map")
        self.script("arguments[0].scrollIntoView({block: 'center'})", canvas)
        width, height = canvas.size["width"], canvas.size["height"]
        x = (column + 0.5) * width / columns - width / 2
        y = (row + 0.5) * height / rows - height / 2
        mouse = ActionChains(self.driver, duration=0)
        mouse.move_to_element_with_offset(canvas, round(x), round(y)).click().perform()

    def cells(self, name, which=None):
        """Value and arithmetic of every cell, or of some, as the page writes them: {(row, column): (value,
        arithmetic)}."""
        found = self.script(
            """
            choose(arguments[0]);
            const v = variables.get(arguments[0]);
            const result = [];
            const all = [];
            for (let r = v.row0; r < v.endRow; r++) for (let c = v.column0; c < v.endColumn; c++) all.push([r, c]);
            for (const [r, c] of arguments[1] || all) {
                [state.row, state.column] = [r, c];
                document.getElementById("cell").innerHTML = arithmeticHtml(v, { inputs: [], outputs: [] });
                const filled = document.querySelector("#arithmetic .filled");
                result.push([r, c, document.getElementById("value").textContent, filled && filled.textContent]);
            }
            return result;
            """,
            name,
            which,
        )
        return {(r, c): (number(value), arithmetic) for r, c, value, arithmetic in found}


def number(text):
    words = {"NaN": "nan", "∞": "inf", "−∞": "-inf"}
    return float(words.get(text, text.replace("−", "-")))


_OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv}


def calculate(arithmetic):
    """The result of a line of the page's arithmetic: "= 0.5 · (1 · 2 + (−3) · 4)"."""
    functions = {"exp": math.exp, "log": lambda x: math.log(x) if x > 0 else -math.inf, "tanh": math.tanh, "abs": abs}
    asides = r"\(\d+ smaller terms\)|\(outside the window\)|\(\d+ hidden pairs? left out\)"
    text = re.sub(r"\|([^|]*)\|", r"abs(\1)", re.sub(asides, "", arithmetic).removeprefix("="))
    text = re.sub(r"\)2(?![\d.])", ")**2", text.replace("−", "-").replace("·", "*").replace("∞", "1e999"))

    def value(node):
        if isinstance(node, ast.Expression):
            return value(node.body)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.UnaryOp):
            return -value(node.operand)
        if isinstance(node, ast.Call):
            return functions[node.func.id](value(node.args[0]))
        if isinstance(node.op, ast.Pow):
            return value(node.left) ** value(node.right)
        return _OPERATORS[type(node.op)](value(node.left), value(node.right))

    return value(ast.parse(text.strip(), mode="eval"))
