"""What a terminal and a log file show of a run of the DAG."""

import io
import re

import pytest

from formerlab.plan.run_display import SECONDS_BETWEEN_LINES, RunDisplay, stage_of

PLAN = {
    "scale": "tiny",
    "train": {f"a/b/seed{i}": {"cost": {"hours": 1.0}} for i in range(3)},
    "claims": {"code": "not a job"},
}
COUNTS = {"train": 3, "draw_one": 1, "draw_two": 1, "claims": 1, "all": 1}


class Terminal(io.StringIO):
    def isatty(self):
        return True


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


def display(clock, file, counts=None, **given):
    return RunDisplay(PLAN, COUNTS if counts is None else counts, 2, file, clock=clock, **given)


def do(shown, clock, jobs, seconds=0.0):
    for number, (rule, name) in enumerate(jobs):
        shown.started(number, rule, name)
        clock.now += seconds
        shown.finished(number)


JOBS = [("train", f"a/b/seed{i}") for i in range(3)] + [("draw_one", ""), ("draw_two", ""), ("claims", ""), ("all", "")]


def test_a_file_gets_a_line_per_stage_and_no_carriage_return(clock):
    file = io.StringIO()
    shown = display(clock, file)
    do(shown, clock, JOBS, seconds=SECONDS_BETWEEN_LINES / 2)
    shown.close()
    lines = file.getvalue().splitlines()
    assert "\r" not in file.getvalue()
    assert "\x1b" not in file.getvalue()
    assert lines[0] == "scale tiny: 6 jobs to do; details in logs/tiny/"
    stages = [line.split()[:2] for line in lines[1:] if not line.startswith("[")]
    assert stages == [["train", "3"], ["draw", "2"], ["claims", "1"]]
    assert lines[-1].startswith("[####################] 6 of 6 jobs")
    assert sum(line.startswith("[") for line in lines) <= 1 + 6 // 2


def test_a_terminal_has_one_line_that_is_rewritten(clock):
    file = Terminal()
    shown = display(clock, file)
    do(shown, clock, JOBS)
    shown.close()
    kept = [line.rpartition("\r\x1b[K")[2] for line in file.getvalue().split("\n")]
    assert [line.split()[0] for line in kept if line] == ["scale", "train", "draw", "claims", "[####################]"]


def test_the_time_left_weighs_jobs_by_their_predicted_cost(clock):
    shown = display(clock, io.StringIO(), {"train": 3})
    assert "about 1:30:00 left" in shown.line()  # as planned, three hours on two cores
    shown.started(0, "train", "a/b/seed0")
    clock.now = 100.0
    shown.finished(0)
    assert "1 of 3 jobs" in shown.line()
    assert "about 03:20 left" in shown.line()  # two more like the first
    clock.now = 1000.0
    assert "about 00:00 left" in shown.line()


def test_a_job_whose_cost_no_plan_knows_says_nothing_of_the_rest(clock):
    """A timing comes first: thirty seconds in place of the one that such jobs are taken for."""
    shown = display(clock, io.StringIO(), {"speed": 1, "train": 3})
    do(shown, clock, [("speed", "a")], seconds=30.0)
    assert "1 of 4 jobs" in shown.line()
    assert "about 1:30:00 left" in shown.line()


def test_drawings_count_for_little(clock):
    shown = display(clock, io.StringIO())
    do(shown, clock, JOBS[:3], seconds=10.0)
    left = re.search(r"about (\d+):(\d+) left", shown.line())
    assert int(left[1]) == 0
    assert int(left[2]) <= 1


def test_a_failure_names_its_log_and_how_it_ends(clock, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("1\n2\n3\nerror: no such file\n")
    file = io.StringIO()
    shown = display(clock, file)
    shown.started(7, "train", "a/b/seed1", log=str(log))
    shown.failed(7)
    shown.close()
    lines = file.getvalue().splitlines()
    at = lines.index(f"train a/b/seed1 did not finish; log {log}")
    assert lines[at + 1 : at + 4] == ["    2", "    3", "    error: no such file"]
    assert "1 failed" in lines[-2]
    assert lines[-1].startswith("1 job did not finish")
    assert "the same command again" in lines[-1]


def test_what_a_cluster_refuses_is_said_once_with_its_own_words(clock):
    file = io.StringIO()
    shown = display(clock, file)
    for job in range(3):
        shown.started(job, "train", f"a/b/seed{job}", log="of an earlier attempt")
        shown.failed(job, refused="sbatch: error:\n  no such partition")
    shown.close()
    said = "train a/b/seed0 could not be submitted: sbatch: error: no such partition"
    assert file.getvalue().splitlines().count(said) == 1
    assert "earlier attempt" not in file.getvalue()
    assert "3 jobs did not finish" in file.getvalue()


def test_what_is_tried_again_and_succeeds_is_no_failure(clock):
    file = io.StringIO()
    shown = display(clock, file)
    shown.started(7, "train", "a/b/seed1")
    shown.failed(7)
    shown.tried_again(7)
    shown.started(7, "train", "a/b/seed1")
    shown.finished(7)
    shown.close()
    assert "train a/b/seed1 is tried again\n" in file.getvalue()
    assert "1 of 6 jobs" in file.getvalue()
    assert "failed" not in file.getvalue()


def test_warnings_of_a_job_that_is_done_are_shown(clock, tmp_path):
    log = tmp_path / "track.log"
    log.write_text("synced\nwarning: the server is away\n")
    file = io.StringIO()
    shown = display(clock, file, {"track": 1})
    shown.started(1, "track", "", log=str(log))
    shown.finished(1)
    assert "\nwarning: the server is away\n" in file.getvalue()
    assert "synced" not in file.getvalue()


def test_without_a_bar_only_failures_are_shown(clock):
    file = io.StringIO()
    shown = display(clock, file, bar=False)
    do(shown, clock, JOBS)
    shown.close()
    assert file.getvalue() == ""
    shown = display(clock, file, bar=False)
    shown.started(1, "train", "a/b/seed0")
    shown.failed(1)
    assert "did not finish" in file.getvalue()


def test_a_rule_that_only_asks_for_others_is_no_job(clock):
    file = io.StringIO()
    shown = display(clock, file, {"all": 1})
    do(shown, clock, [("all", "")])
    shown.close()
    assert file.getvalue() == ""


def test_an_interrupted_run_ends_its_line(clock):
    file = io.StringIO()
    shown = display(clock, file)
    shown.started(0, "train", "a/b/seed0")
    shown.close()
    shown.close()
    assert file.getvalue().splitlines()[-1].startswith("[--------------------] 0 of 6 jobs")
    assert file.getvalue().endswith("\n")


@pytest.mark.parametrize(("rule", "stage"), [("draw_decay_table", "draw"), ("draw", "draw"), ("train", "train")])
def test_stages_of_rules(rule, stage):
    assert stage_of(rule) == stage
