"""scripts/venv on small lists of packages made here: two layers, and the removal of those that are not used."""

import os
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DAY = 24 * 3600


def make_wheel(folder, name, version):
    """A package with one module, whose `version` says which it is; returns its line in a list of requirements."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", f"version = {version}\n")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return f"{name} @ {path.as_uri()}\n"


class Tree:
    """A copy of the script beside lists of its own, and a cache of its own."""

    def __init__(self, folder):
        self.folder, self.cache = folder, folder / "cache" / "attngrad"
        (folder / "scripts").mkdir()
        (folder / "python").mkdir()
        shutil.copy(ROOT / "scripts" / "venv", folder / "scripts")
        self.write("requirements-large.txt", make_wheel(folder, "big", 1))
        self.ask_for(1)

    def write(self, name, text):
        (self.folder / "python" / name).write_text(text)

    def ask_for(self, version):
        """Puts this version of the small package into the second list."""
        self.write("requirements.txt", "# import: big small\n" + make_wheel(self.folder, "small", version))

    def run(self, *arguments, status=0):
        environment = os.environ | {"XDG_CACHE_HOME": str(self.cache.parent), "PYTHON": sys.executable}
        result = subprocess.run(
            [self.folder / "scripts" / "venv", *arguments],
            capture_output=True,
            text=True,
            env=environment | {"PIP_NO_INDEX": "1"},
        )
        assert result.returncode == status, result.stderr
        return Path(result.stdout.strip()), result.stderr

    def layers(self):
        return {p.name for p in self.cache.iterdir() if p.is_dir()}

    def age(self, *names, days=15):
        for name in names:
            then = time.time() - days * DAY
            os.utime(self.cache / name / "used", (then, then))


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    return Tree(tmp_path_factory.mktemp("venv"))


@pytest.fixture(scope="module")
def layers(tree):
    """The names of the first layer, and of two environments on top of it."""
    python, said = tree.run()
    (large,) = tree.cache.glob("large-*")
    assert said.count("installing") == 2
    tree.ask_for(2)
    second, said = tree.run()
    assert said.count("installing") == 1 and list(tree.cache.glob("large-*")) == [large]
    return large.name, python.parents[1].name, second.parents[1].name


def test_layers(tree, layers):
    """Both packages can be imported, the big one from the first layer; a second run makes nothing."""
    before = tree.layers()
    python, said = tree.run()
    assert said == "" and tree.layers() == before == set(layers)
    code = "import big, small; print(big.__file__, big.version, small.version)"
    file, *versions = subprocess.check_output([python, "-I", "-c", code], text=True).split()
    assert Path(file).is_relative_to(tree.cache / layers[0]) and versions == ["1", "2"]


def test_one_list_alone(tree, layers):
    """An environment of one more list has its packages, in versions of the main list, and none of the others."""
    tool = make_wheel(tree.folder, "tool", 1)
    tree.write("requirements-tools.txt", "# import: tool small\n-c requirements.txt\nsmall\n" + tool)
    python, said = tree.run("tools")
    assert said.count("installing") == 1 and tree.layers() == {*layers, python.parents[1].name}
    code = "import importlib.util, tool, small; print(small.version, importlib.util.find_spec('big'))"
    assert subprocess.check_output([python, "-I", "-c", code], text=True).split() == ["2", "None"]
    assert tree.run("tools") == (python, "")
    shutil.rmtree(python.parents[1])


def test_a_failure_leaves_nothing(tree, layers):
    before = tree.layers()
    good = (tree.folder / "python" / "requirements.txt").read_text()
    tree.write("requirements.txt", good.replace("# import: big", "# import: missing"))
    _, said = tree.run(status=1)
    tree.write("requirements.txt", good)
    assert "No module named 'missing'" in said and tree.layers() == before


def test_unused_layers_are_removed(tree, layers):
    """After 14 days without use; neither what a process uses, nor what the script has not made."""
    large, first, second = layers
    others = ["notes", "python-notes", "python-123456789abc"]
    for name in others:
        (tree.cache / name).mkdir()
    before_stamps = tree.cache / "python-00000000beef"
    before_stamps.mkdir()
    (before_stamps / "pyvenv.cfg").touch()
    packages = tree.cache / "packages-0123456789ab"
    packages.mkdir()
    (packages / "used").touch()
    tree.age(first, packages.name, days=13)
    tree.run()
    assert tree.layers() == {*layers, *others, before_stamps.name, packages.name}

    with subprocess.Popen([tree.cache / first / "bin" / "python", "-c", "input()"], stdin=-1) as process:
        tree.age(first, before_stamps.name, packages.name)
        _, said = tree.run()
        assert tree.layers() == {*layers, *others} and said.count("removing") == 2
        process.communicate(b"\n")
    _, said = tree.run()
    assert tree.layers() == {large, second, *others} and said.count("removing") == 1


def test_a_first_layer_goes_after_those_on_top(tree, layers):
    large, _, second = layers
    tree.write("requirements-large.txt", make_wheel(tree.folder, "big", 2))
    with subprocess.Popen([tree.cache / second / "bin" / "python", "-c", "input()"], stdin=-1) as process:
        tree.age(large, second)
        tree.run()
        assert {large, second} <= tree.layers()
        process.communicate(b"\n")
    tree.run()
    assert not {large, second} & tree.layers()
