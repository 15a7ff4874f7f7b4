"""A private Slurm for the tests of this folder. They take minutes: `make test-cluster` runs them, `make test` does not.

Where something of it is missing they skip and say what, but for `.ci/run`, which sets FORMERLAB_CI: there they fail.
"""

import os

import pytest
from private_slurm import PrivateSlurm, missing


@pytest.fixture(scope="session")
def installed():
    """Skip or fail where no Slurm can be started."""
    if reason := missing():
        if os.environ.get("FORMERLAB_CI"):
            pytest.fail(reason)
        pytest.skip(reason)


@pytest.fixture(scope="session")
def slurm(installed, tmp_path_factory):
    """Start a Slurm and stop it after the last test, whatever happens in between."""
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
