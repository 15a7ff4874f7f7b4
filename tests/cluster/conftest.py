"""Fixtures that start a private Slurm.

`make test-cluster` runs the tests of this folder, which take minutes. `make test` does not run them. The tests that
need Slurm are skipped with a reason if a program is missing or the user is not root. If `.ci/run` has set FORMERLAB_CI,
they fail instead. test_other_schedulers.py needs no Slurm.
"""

import os

import pytest
from private_slurm import PrivateSlurm, reason_unavailable


@pytest.fixture(scope="session")
def installed():
    """Skip the test, or fail it under FORMERLAB_CI, if no private Slurm can run."""
    if reason := reason_unavailable():
        if os.environ.get("FORMERLAB_CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm(installed, tmp_path_factory):
    """Start a private Slurm, and stop it after the last test, even after a failure."""
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
