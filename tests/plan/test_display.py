"""The display of a run of the DAG in a terminal and in a log file."""

import io
import json
import logging
import sys
from types import SimpleNamespace

import pytest
from snakemake_interface_logger_plugins.common import LogEvent

from formerlab.plan.locate import PLAN_VARIABLE
from snakemake_logger_plugin_formerlab import LogHandler

PLAN = {
    "scale": "tiny",
    "studies": {"vision": {}},
    "train": {f"a/b/seed{i}": {"cost": {"hours": 1.0}} for i in range(3)},
    "draw": {"one": {"outputs": ["figures/live/tiny/one.pdf"]}},
}
COUNTS = {"train": 3, "draw_one": 1, "draw_two": 1, "claims": 1, "all": 1}
JOBS = [("train", f"a/b/seed{i}") for i in range(3)] + [("draw_one", ""), ("draw_two", ""), ("claims", ""), ("all", "")]
FAILURE = "Exiting because a job execution failed. Look below for error messages"


class Terminal(io.StringIO):
    def isatty(self):
        return True


def started(job, rule, name="", log=""):
    return {
        "event": LogEvent.JOB_INFO,
        "jobid": job,
        "rule_name": rule,
        "wildcards": {"id": name} if name else {},
        "log": [log] if log else [],
    }


def finished(job):
    return {"event": LogEvent.JOB_FINISHED, "job_id": job}


def failed(job, message=""):
    return {"event": LogEvent.JOB_ERROR, "jobid": job, "rule_msg": message}


EVERYTHING = [event for job, names in enumerate(JOBS) for event in (started(job, *names), finished(job))]


@pytest.fixture
def show(monkeypatch, tmp_path):
    """Return a function that displays events and returns the displayed lines."""
    (tmp_path / "plan.json").write_text(json.dumps(PLAN))
    monkeypatch.setattr("snakemake_logger_plugin_formerlab.read_plan", lambda path: json.loads(path.read_text()))
    monkeypatch.setenv(PLAN_VARIABLE, str(tmp_path / "plan.json"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))

    def displayed_lines(events, counts=COUNTS, quiet=(), file=None, dry=False):
        file = file or io.StringIO()
        monkeypatch.setattr(sys, "stdout" if dry else "stderr", file)
        options = {"quiet": quiet, "verbose": False, "printshellcmds": False, "debug_dag": False, "dryrun": dry}
        handler = LogHandler(SimpleNamespace(**options), None)
        begun = [{"event": LogEvent.RUN_INFO, "stats": counts | {"total": 9}}] if counts else []
        for event in (*begun, *events):
            record = {"msg": event, "levelno": logging.ERROR} if isinstance(event, str) else event
            handler.emit(logging.makeLogRecord({"levelno": logging.INFO} | record))
        handler.close()
        handler.close()
        return file.getvalue().splitlines()

    return displayed_lines


def test_a_log_file_has_a_line_per_stage_and_no_carriage_return(show):
    lines = show(EVERYTHING)
    assert not {"\r", "\x1b"} & set("".join(lines))
    assert lines[0] == "scale tiny: 6 jobs to do; details in logs/tiny/"
    assert [line.split()[:2] for line in lines if " done after " in line] == [
        ["train", "3"],
        ["draw", "2"],
        ["claims", "1"],
    ]
    assert lines[-1].startswith("[####################] 6 of 6 jobs")


def test_a_terminal_has_one_line_that_is_rewritten(show):
    file = Terminal()
    show(EVERYTHING, file=file)
    final_lines = [line.rpartition("\r")[2].split() for line in file.getvalue().split("\n")]
    heads = [words[0] for words in final_lines if words and not words[0].startswith("[")]
    assert heads == ["scale", "train", "draw", "claims"]


def test_the_bar_weighs_jobs_by_their_predicted_cost(show):
    assert show(EVERYTHING[6:10])[-1].startswith("[--------------------] 2 of 6 jobs")


@pytest.mark.parametrize("quiet", [(), ("progress",)])
def test_a_failure_prints_its_log_file_and_the_last_lines(show, tmp_path, quiet):
    log = tmp_path / "train.log"
    log.write_text("1\n2\n3\nerror: no such file\n")
    lines = show(
        [started(7, "train", "a/b/seed1", str(log)), failed(7), "RuleException:\nsaid twice", FAILURE], quiet=quiet
    )
    at = lines.index(f"train a/b/seed1 did not finish; log {log}")
    assert lines[at + 1 : at + 4] == ["    2", "    3", "    error: no such file"]
    assert lines[-1].startswith("1 job did not finish")
    assert any("1 failed" in line for line in lines) == (not quiet)


def test_a_refusal_of_the_cluster_is_printed_once(show):
    refused = "sbatch failed. The error message was 'sbatch: error:\n  no such partition'.\n"
    jobs = [
        (started(job, "train", f"a/b/seed{job}", "of an earlier attempt"), failed(job, refused)) for job in range(3)
    ]
    lines = show([event for job in jobs for event in job])
    assert lines.count("train a/b/seed0 could not be submitted: sbatch: error: no such partition") == 1
    assert "earlier attempt" not in "".join(lines)
    assert lines[-1].startswith("3 jobs did not finish")


def test_a_job_that_succeeds_after_a_restart_is_no_failure(show, tmp_path):
    log = tmp_path / "train.log"
    log.write_text("done\nwarning: the server is away\n")
    first, again = started(7, "train", "a/b/seed1"), started(7, "train", "a/b/seed1", str(log))
    lines = show([first, failed(7), "Trying to restart job 7.", again, finished(7)])
    assert "train a/b/seed1 is restarted" in lines
    assert "warning: the server is away" in lines
    assert "1 of 6 jobs" in lines[-1]


def test_quiet_options_are_respected(show):
    assert show(EVERYTHING, quiet=("progress",)) == []
    assert show([started(0, "all"), finished(0)], {"all": 1}) == []


def test_a_dry_run_prints_a_line_per_stage(show):
    lines = [line.split()[:2] for line in show(EVERYTHING, dry=True)]
    assert lines == [["train", "3"], ["draw", "2"], ["claims", "1"], ["total", "6"]]


@pytest.mark.parametrize(
    ("target", "suggestion"), [("visoin", "vision"), ("figurs/tiny/one.pdf", PLAN["draw"]["one"]["outputs"][0])]
)
def test_an_unknown_target_gives_one_line_with_a_suggestion(show, target, suggestion):
    message = (
        f"MissingRuleException:\nNo rule to produce {target} (if you use input functions make sure that they work)."
    )
    assert show([message], counts={}) == [f"no target '{target}'; did you mean {suggestion}?"]


def test_an_unwritable_cache_gives_one_line_and_status_2(show, tmp_path):
    (tmp_path / "cache").touch()
    file = io.StringIO()
    with pytest.raises(SystemExit, match=r"^2$"):
        show([], file=file)
    assert file.getvalue().count("\n") == 1
    assert "set XDG_CACHE_HOME" in file.getvalue()
