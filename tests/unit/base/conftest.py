"""What the tests of the base layer share: both kernels, and fresh interpreters."""

from __future__ import annotations

import os
import pathlib
import subprocess
import sys

import pytest

from cordwood.base import kernels


@pytest.fixture(params=["hashlib", "numba"])
def kernel(request):
    """Run the test with each kernel."""
    if request.param == "numba":
        pytest.importorskip("numba")
    before = kernels.use_kernel(request.param)
    yield request.param
    kernels.use_kernel(before)


@pytest.fixture
def run_python():
    """A function: the words that code prints in a fresh interpreter, which must end well.

    Any output on stderr is a failure, and so is an interpreter that does not end.
    """

    def run(code, **environment):
        package = pathlib.Path(kernels.__file__).parents[2]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        inherited = {key: text for key, text in os.environ.items() if key != "CORDWOOD_KERNEL"}
        ended = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            env={**inherited, "PYTHONPATH": path, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        well = (0, "")
        assert well == (ended.returncode, ended.stderr)
        return ended.stdout.split()

    return run
