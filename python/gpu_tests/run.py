"""Runs the tests of one file under plain python3, without pytest: run.py CORE FILE [NAME]...

CORE is the extension module that CMake built. Each function of the file whose name begins with test_ is a test; NAME picks
some. A failure prints its traceback; the exit status is 1 if one failed or none ran."""

import importlib.util
import pathlib
import sys
import time
import traceback

HERE = pathlib.Path(__file__).resolve().parent


def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def run(name, test):
    begin = time.monotonic()
    try:
        test()
    except Exception:
        traceback.print_exc()
        print(f"FAIL {name}", flush=True)
        return False
    print(f"ok   {name} {time.monotonic() - begin:.1f} s", flush=True)
    return True


def main(core, file, *names):
    sys.path[:0] = [str(HERE), str(HERE.parent)]
    load("attngrad._core", core)
    module = load(pathlib.Path(file).stem, HERE / file)
    tests = {n: f for n, f in vars(module).items() if n.startswith("test_") and (not names or n in names)}
    passed = sum([run(name, test) for name, test in tests.items()])
    print(f"{passed} passed, {len(tests) - passed} failed")
    return 0 if passed == len(tests) > 0 else 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
