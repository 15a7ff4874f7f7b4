"""A private Slurm for the tests of this folder. They take minutes: `make test-cluster` runs them, `make test` does not.

Where something of it is missing they skip and say what, but for `.ci/run`, which sets FORMERLAB_CI: there they fail.
"""

import os

import pytest
from private_slurm import PrivateSlurm, missing


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """Start a Slurm and stop it after the last test, whatever happens in between."""
    if reason := missing():
        if os.environ.get("FORMERLAB_CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
