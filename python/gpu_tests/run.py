"""Runs the tests of one file under plain python3, without pytest: run.py CORE FILE [NAME]...

CORE is the extension module that CMake built. Each function of the file whose name begins with test_ is a test; NAME
picks some. A failure prints its traceback. A test that raises unittest.SkipTest is skipped: its line says why, and it
is counted apart. The exit status is 1 if one failed or there is none, 77 if all were skipped."""

import importlib.util
import pathlib
import sys
import time
import traceback
import unittest

HERE = pathlib.Path(__file__).resolve().parent
SKIPPED = 77  # what ctest is told to take for a skipped test


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(file, name, test):
    """"passed", "skipped" or "failed"."""
    begin = time.monotonic()
    try:
        test()
    except unittest.SkipTest as reason:
        print(f"skip {file}: {name}: {reason}", flush=True)
        return "skipped"
    except Exception:
        traceback.print_exc()
        print(f"FAIL {name}", flush=True)
        return "failed"
    print(f"ok   {name} {time.monotonic() - begin:.1f} s", flush=True)
    return "passed"


def status_of(results):
    if "failed" in results or not results:
        return 1
    return 0 if "passed" in results else SKIPPED


def main(core, file, *names):
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    load("attngrad._core", core)
    module = load(pathlib.Path(file).stem, HERE / file)
    tests = {n: f for n, f in vars(module).items() if n.startswith("test_") and (not names or n in names)}
    results = [run(file, name, test) for name, test in tests.items()]
    print(", ".join(f"{results.count(result)} {result}" for result in ("passed", "failed", "skipped")))
    return status_of(results)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
