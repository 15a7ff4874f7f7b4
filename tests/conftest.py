"""Settings of all tests: fixed seeds, one thread, plans built in the same process, and writing without fsync."""

import os
import sqlite3

import hypothesis
import pytest

from formerlab.files import write_json
from formerlab.plan import locate

hypothesis.settings.register_profile("formerlab", max_examples=30, deadline=None)
hypothesis.settings.load_profile("formerlab")


@pytest.fixture(autouse=True)
def _fixed_seed_and_one_thread() -> None:
    try:
        import torch
    except ImportError:  # tests of figures need no torch
        return
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.fixture
def unchecked_shapes(monkeypatch):
    """Disable type and shape checks.

    They would reject invalid arguments before the code under test, and torch.compile cannot trace them.
    """
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture(scope="session", autouse=True)
def _plan_in_this_process():
    """Build plans in this process, because a new process would import torch. tests/plan/test_locate.py starts one."""

    def make(root, options, path):
        from formerlab.plan.build import build_plan

        write_json(path, build_plan(root.resolve(), options))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locate, "_make", make)
        yield


@pytest.fixture(scope="session", autouse=True)
def _without_fsync():
    """Do not flush written files to the disk: MLflow alone would flush about a hundred times per database."""
    connect = sqlite3.connect

    def quick(*names, **options):
        connection = connect(*names, **options)
        connection.execute("pragma synchronous=off")
        return connection

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqlite3.dbapi2, "connect", quick)
        patch.setattr(os, "fsync", lambda file: None)
        yield
