"""What needs a process of its own: several devices, exported programs, an import without JAX."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from jax import export

from attngrad.jax import dot_product_attention
from jax_cases import array, assert_close

_HERE = Path(__file__).parent


def _run(*command, **environment):
    result = subprocess.run(
        [sys.executable, *map(str, command)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def test_several_devices():
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    print(_run("-m", "pytest", "-p", "no:cacheprovider", "-q", _HERE / "sharded.py", XLA_FLAGS=flags))


def test_exported_program(tmp_path):
    """A gradient is exported here and run in another process."""
    x = array(1, 3, 2, 4), array(1, 5, 2, 4), array(1, 5, 2, 4)
    gradient = jax.jit(
        jax.grad(lambda *x: dot_product_attention(*x, alibi=[0.5, 0.25], softcap=2.0).sum(), (0, 1, 2))
    )
    allowed = [export.DisabledSafetyCheck.custom_call("attngrad")]
    program = export.export(gradient, disabled_checks=allowed)(*x).serialize()
    (tmp_path / "program").write_bytes(program)
    np.savez(tmp_path / "inputs.npz", *x)
    _run(_HERE / "exported.py", tmp_path / "program", tmp_path / "inputs.npz", tmp_path / "results.npz")
    results = np.load(tmp_path / "results.npz")
    assert_close([results[name] for name in results.files], gradient(*x), 0)


def test_import_without_jax():
    code = (
        "import sys; sys.modules['jax'] = None\n"
        "try:\n    import attngrad.jax\n"
        "except ModuleNotFoundError as error:\n    print(error)"
    )
    assert "attngrad.jax needs JAX: pip install 'attngrad[jax]'" in _run("-c", code)


def test_old_release_of_jax():
    code = (
        "import jax; jax.__version__, jax.__version_info__ = '0.9.2', (0, 9, 2)\n"
        "try:\n    import attngrad.jax\n"
        "except ImportError as error:\n    print(error)"
    )
    assert "attngrad.jax needs JAX 0.10 or newer, not 0.9.2" in _run("-c", code)
