"""Triton without a GPU: the interpreter runs kernels on the CPU, and the compiler builds them for any target."""

import os
from importlib.util import find_spec

import pytest
from fixtures.separate_process import separate_process


@pytest.fixture(scope="session")
def triton():
    """Return Triton. Without Triton, skip the test, or fail it if FORMERLAB_CI=1."""
    if find_spec("triton") is None:
        reason = "triton is not installed; `make test` installs it on Linux"
        pytest.fail(reason) if os.environ.get("FORMERLAB_CI") == "1" else pytest.skip(reason)
    import triton

    return triton


@pytest.fixture(scope="session")
def interpreted(triton):
    """Return a function that calls a test function in a process with TRITON_INTERPRET=1."""
    with separate_process(TRITON_INTERPRET="1") as call:  # Triton reads the variable when a kernel is defined
        yield call
