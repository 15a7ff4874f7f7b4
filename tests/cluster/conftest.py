"""A private Slurm for the tests of this folder. They take minutes: `make test-cluster` runs them, `make test` does not.

If a program is missing, the tests are skipped, and the reason names the program. If `.ci/run` has set FORMERLAB_CI,
they fail instead.
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
