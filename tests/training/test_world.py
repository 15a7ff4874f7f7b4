"""Environment variables of torchrun as job scripts set them."""

import pytest

from formerlab.errors import UserError
from formerlab.files import variable
from formerlab.training.processes import world_size


@pytest.fixture(autouse=True)
def no_torchrun(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize("value", ["", " ", "1"])
def test_an_empty_world_size_or_one_means_one_process(value, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", value)
    assert world_size() == 1
    monkeypatch.setenv("RANK", value.strip("1"))
    assert variable("RANK") is None


@pytest.mark.parametrize("value", ["0", "-1", "two", "1.0"])
def test_an_invalid_world_size_is_refused(value, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", value)
    with pytest.raises(UserError, match=f"WORLD_SIZE={value}: set it to the number of processes"):
        world_size()


def test_a_world_size_without_torchrun_is_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("MASTER_ADDR", "localhost")
    with pytest.raises(UserError, match="without RANK, LOCAL_RANK, MASTER_PORT: unset it, or start with"):
        world_size()
