"""A private Slurm for the tests of this folder; without one they skip, except where FORMERLAB_NEEDS_SLURM is set."""

import os

import pytest
from private_slurm import PrivateSlurm, missing


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    """Start a Slurm for the tests of a file and stop it after them, whatever happens in between."""
    if reason := missing():
        if os.environ.get("FORMERLAB_NEEDS_SLURM"):
            pytest.fail(f"Slurm is required here: {reason}")
        pytest.skip(f"no private Slurm: {reason}")
    cluster = PrivateSlurm(tmp_path_factory.mktemp("slurm"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
