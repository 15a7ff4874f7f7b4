"""How long Slurm lets a job go on."""

import pytest

from formerlab.commands.slurm import parse_left, seconds_left


@pytest.mark.parametrize(
    ("said", "seconds"),
    [("0:05", 5), ("58:12", 3492), ("2:00:00", 7200), ("1-02:03:04", 93784), ("UNLIMITED", None), ("", None)],
)
def test_every_form_of_a_time_is_read(said, seconds):
    assert parse_left(said) == seconds


def test_outside_a_job_and_without_slurm_there_is_no_limit(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert seconds_left() is None
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert seconds_left() is None
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\n[ "$2" = --jobs=7 ] && echo "    1:30"\n')
    squeue.chmod(0o755)
    assert seconds_left() == 90
