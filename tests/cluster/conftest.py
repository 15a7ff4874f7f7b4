"""A private Slurm for the tests of this folder, which take minutes: they run where FORMERLAB_TEST_SLURM is set."""

import os

import pytest
from private_slurm import PrivateSlurm, missing


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Start a Slurm for the tests of a file and stop it after them, whatever happens in between."""
    if not os.environ.get("FORMERLAB_TEST_SLURM"):
        pytest.skip("a private Slurm takes minutes: set FORMERLAB_TEST_SLURM=1")
    if reason := missing():
        pytest.fail(f"FORMERLAB_TEST_SLURM is set, but {reason}")
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
