"""What `attngrad view` alone does; tests/cli/view.sh has what needs no Python."""

import re

import numpy as np
from view_pages import call, run


def test_command_and_python_write_the_same_page(tmp_path):
    inputs, e = call()
    options = []
    for name, x in inputs.items():
        np.save(tmp_path / f"{name}.npy", x)
        options += [f"--{name.replace('_', '')}", tmp_path / f"{name}.npy"]
    run(*options, "--heads", "0", "--sequences", "0", "--out", tmp_path / "command.html")
    e.save_html(tmp_path / "python.html")
    pages = [(tmp_path / name).read_text() for name in ("command.html", "python.html")]
    assert re.sub(r'"facts":\[".*?",', '"facts":[', pages[0]) == pages[1]
