"""No room while a checkpoint or a result is written, and damaged checkpoints: nothing is lost, nothing is silent."""

import random

import pytest
from small_runs import KILLED as RUN
from small_runs import bits, interrupted, train_words, trained

from formerlab.errors import UserError
from formerlab.results.notes import read_note
from formerlab.training.record import CHECKPOINT

pytestmark = pytest.mark.xdist_group("killed")


@pytest.mark.parametrize(("largest_file", "stays_out"), [(20_000, CHECKPOINT), (2_000, "weights.safetensors")])
def test_a_full_disk_is_said_and_the_same_call_goes_on(largest_file, stays_out, processes, data, tmp_path, whole):
    """First the checkpoint after the sixth step finds no room, or, without checkpoints, the results."""
    words = train_words(RUN, data, tmp_path)
    out = tmp_path / "results" / RUN.id
    if stays_out == CHECKPOINT:
        assert processes.run(*words[:4], signal="SIGTERM", function="train_batch", at_call=6)["status"] == 75
        good = (out / CHECKPOINT).read_bytes()
    else:
        words = words[:4]
    failed = processes.run(*words, largest_file=largest_file)
    assert failed["status"] == 2, failed["output"]
    (said,) = [line for line in failed["output"].splitlines() if not line.startswith(("train ", "continuing"))]
    assert said.startswith(f"error: {out / stays_out}: could not be written, is the disk full? Make room")
    assert not list(out.rglob("*.tmp"))
    assert not (out / "run.json").exists()
    note = read_note("train", out)
    assert (note["state"], f"error: {note['reason']}") == ("failed", said)
    if stays_out == CHECKPOINT:
        assert (out / CHECKPOINT).read_bytes() == good
    else:
        assert not (out / stays_out).exists()
    again = processes.run(*words)
    assert again["status"] == 0, again["output"]
    assert ("continuing after step 6" in again["output"]) == (stays_out == CHECKPOINT)
    assert bits(out) == whole


def stopped_with_two_checkpoints(patch, data, out):
    interrupted(patch, 3, RUN, data, out, checkpoint_seconds=0)
    assert {path.name for path in (out / CHECKPOINT).parent.iterdir()} == {"last.pt", "previous.pt"}


@pytest.mark.parametrize("damage", ["overwritten", "empty"])
def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(damage, data, tmp_path, whole, monkeypatch, capsys):
    stopped_with_two_checkpoints(monkeypatch, data, tmp_path)
    path = tmp_path / CHECKPOINT
    content = bytearray(path.read_bytes())
    if damage == "overwritten":
        content[: len(content) // 2] = random.Random(0).randbytes(len(content) // 2)
    path.write_bytes({"overwritten": content, "empty": b""}[damage])
    trained(RUN, data, tmp_path)
    said = capsys.readouterr().err
    assert f"{path}: broken" in said
    assert "going on from the one before it, previous.pt" in said
    assert "continuing after step 3" in said
    assert bits(tmp_path) == whole


def test_killed_between_the_renamings_of_a_save_the_one_before_counts(data, tmp_path, whole, monkeypatch, capsys):
    stopped_with_two_checkpoints(monkeypatch, data, tmp_path)
    (tmp_path / CHECKPOINT).unlink()
    trained(RUN, data, tmp_path)
    assert "continuing after step" in capsys.readouterr().err
    assert bits(tmp_path) == whole


def test_where_both_are_damaged_nothing_is_trained_silently_anew(data, tmp_path, monkeypatch):
    stopped_with_two_checkpoints(monkeypatch, data, tmp_path)
    for path in (tmp_path / CHECKPOINT).parent.iterdir():
        path.write_bytes(b"?")
    with pytest.raises(UserError, match=r"previous\.pt: broken .*delete it to train from the start"):
        trained(RUN, data, tmp_path)


def test_training_writes_nothing_where_its_data_are(data, tmp_path, whole):
    """So they may lie where it may only read."""
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (data, *data.rglob("*"))}
    trained(RUN, data, tmp_path)
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in (data, *data.rglob("*"))} == before
    assert bits(tmp_path) == whole
