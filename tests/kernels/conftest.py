"""Triton where there is no GPU: its interpreter runs kernels on the CPU, its compiler builds them for any target."""

import os
from importlib.util import find_spec

import pytest
from fixtures.own_process import own_process


@pytest.fixture(scope="session")
def triton():
    """Return Triton; without it skip the test, or fail it where FORMERLAB_CI=1 says it must run."""
    if find_spec("triton") is None:
        reason = "triton is not installed; `make test` installs it on Linux"
        pytest.fail(reason) if os.environ.get("FORMERLAB_CI") == "1" else pytest.skip(reason)
    import triton

    return triton


@pytest.fixture(scope="session")
def interpreted(triton):
    """Return what calls a function of a test module in a process where Triton interprets its kernels."""
    with own_process(TRITON_INTERPRET="1") as call:  # read when a kernel is defined
        yield call
