"""Checkpoints: integrity, identity of the run, and safe loading."""

import os
import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from formerlab.errors import UserError
from formerlab.training.checkpoint import load_checkpoint, save_checkpoint

IDENTITY = {"spec": "a1", "data": "b2", "code": "c3", "init": "d4"}
STATE = {"step": 7, "rows": {"train": [[1, 32, 0.1, 1e-300, float(np.nextafter(1, 2))]]}, "model": torch.randn(5, 3)}


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "checkpoint" / "last.pt"
    save_checkpoint(path, STATE, IDENTITY)
    return path


def test_a_checkpoint_round_trip_is_bit_identical(saved):
    actual = load_checkpoint(saved, IDENTITY)
    assert torch.equal(actual.pop("model"), STATE["model"])
    assert actual == {key: STATE[key] for key in ("step", "rows")}


def test_a_changed_byte_is_detected(saved):
    full = saved.read_bytes()
    at = full.index(STATE["model"].numpy().tobytes())
    saved.write_bytes(full[:at] + bytes([full[at] ^ 1]) + full[at + 1 :])
    with pytest.raises(UserError, match=r"last.pt: damaged \(wrong checksum of .+\); its steps are lost"):
        load_checkpoint(saved, IDENTITY)


def test_processes_share_the_memory_of_a_checkpoint(tmp_path):
    """The private memory of a process does not grow with the file, because the page cache is shared."""
    path, size = tmp_path / "last.pt", 2**26
    save_checkpoint(path, {"step": 7, "model": torch.zeros(size // 4)}, IDENTITY)
    memory = private_memory()
    content = load_checkpoint(path, IDENTITY)
    assert content["model"].sum() == 0
    assert private_memory() - memory < size / 4


def private_memory():
    lines = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return 1024 * int(lines["RssAnon"].split()[0])


@pytest.mark.parametrize("fraction", [0.0, 0.4, 0.999])
def test_a_truncated_checkpoint_gives_a_one_line_error(fraction, saved):
    full = saved.read_bytes()
    saved.write_bytes(full[: int(fraction * len(full))])
    with pytest.raises(UserError, match=r"last.pt: damaged \(.+\); its steps are lost") as caught:
        load_checkpoint(saved, IDENTITY)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [torch.zeros(2), {"state": STATE}])
def test_a_file_with_other_content_gives_a_one_line_error(content, saved):
    torch.save(content, saved)
    with pytest.raises(UserError, match=r"last.pt: damaged \(.+\); its steps are lost"):
        load_checkpoint(saved, IDENTITY)


class Bomb:
    """An object whose pickle creates a folder when it is loaded."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("inside", ["zip", "pickle"])
def test_a_checkpoint_cannot_run_code(inside, saved, tmp_path):
    content = {"belongs_to": IDENTITY, "state": Bomb(tmp_path / "exploded")}
    if inside == "zip":
        torch.save(content, saved)
    else:
        saved.write_bytes(pickle.dumps(content, protocol=2))
    with pytest.raises(UserError, match="damaged"):
        load_checkpoint(saved, IDENTITY)
    assert not (tmp_path / "exploded").exists()
    torch.load(saved, weights_only=False) if inside == "zip" else pickle.loads(saved.read_bytes())
    assert (tmp_path / "exploded").exists()  # loading without weights_only does run the code


def test_a_failed_save_keeps_the_previous_checkpoint(saved):
    with pytest.raises(AttributeError):
        save_checkpoint(saved, {"step": 8, "no": lambda: None}, IDENTITY)
    assert load_checkpoint(saved, IDENTITY)["step"] == 7
    assert list(saved.parent.iterdir()) == [saved]
