"""The tests of NumPy and of other packages pass inside an open node as they do outside."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent.parent
SOAK = bool(os.environ.get("LEAPP_SOAK"))
NUMPY = [
    "_core.tests.test_array_coercion", "_core.tests.test_indexing", "_core.tests.test_numeric", "_core.tests.test_shape_base",
    "_core.tests.test_ufunc", "_core.tests.test_umath", "lib.tests.test_shape_base", "lib.tests.test_index_tricks",
]  # fmt: skip
NUMPY_SOAK = ["lib", "linalg", "ma", "polynomial", "fft", "matrixlib", "random"]
# They build extension modules; the last one gives NumPy's own np.argsort to C code.
NOT_RUN = {"test_cython", "test_limited_api", "test_mem_policy", "test_custom_dtypes"}
# They compare np.sum and others with the functions that NumPy gives to __array_function__, or look for C code behind them.
ABOUT_IDENTITY = [
    "test_override_sum", "test_sum_on_mock_array", "test_nep35_functions_as_array_functions", "test_function_like",
    "test_array_like and False and (full or ones)", "test_c_func_dispatcher_text_signature",
]  # fmt: skip
# Fails wherever torch is loaded: pickle looks for names in all modules, and torch.classes raises.
OF_TORCH = ["test_pickle_name_is_qualname"]
OTHERS = ["networkx.linalg", "scipy.linalg.tests.test_special_matrices"]


def run(modules: list[str], where: Path) -> None:
    """Run the tests of installed modules inside an open node."""
    # NumPy leaves out tests that need more memory than this: CI runs two of these at a time.
    settings = {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'src'}", "NPY_AVAILABLE_MEM": "2GB"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "tests.numpy.inside_node", "-p", "no:cacheprovider", "-p", "no:xdist",
         "--tb=short", "-k", " and ".join(f"not ({name})" for name in [*ABOUT_IDENTITY, *OF_TORCH]), "--pyargs", *modules],
        cwd=where, capture_output=True, text=True, timeout=7200, check=False, env={**os.environ, **settings},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]


def core() -> list[str]:
    """The test modules of NumPy's core."""
    found = Path(np.__file__).parent.glob("_core/tests/test_*.py")
    return [f"_core.tests.{file.stem}" for file in sorted(found) if file.stem not in NOT_RUN]


@pytest.mark.pinned("the tests of this NumPy")
def test_numpy(tmp_path: Path) -> None:
    run([f"numpy.{name}" for name in [*core(), *NUMPY_SOAK]] if SOAK else [f"numpy.{name}" for name in NUMPY], tmp_path)


@pytest.mark.pinned("the tests of these versions")
def test_other_packages(tmp_path: Path) -> None:
    run(OTHERS, tmp_path)
