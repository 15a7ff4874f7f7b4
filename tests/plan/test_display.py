"""What a terminal and a log file show of a run of the DAG."""

import io

from snakemake_logger_plugin_formerlab.display import Display

PLAN = {
    "scale": "tiny",
    "train": {f"a/b/seed{i}": {"cost": {"hours": 1.0}} for i in range(3)},
    "claims": {"code": "not a job"},
}
COUNTS = {"train": 3, "draw_one": 1, "draw_two": 1, "claims": 1, "all": 1}
JOBS = [("train", f"a/b/seed{i}") for i in range(3)] + [("draw_one", ""), ("draw_two", ""), ("claims", ""), ("all", "")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


def shown(do, counts=COUNTS, file=None, **given):
    """Return the lines of a display after it was told something."""
    file = file or io.StringIO()
    display = Display(PLAN, counts, file, **given)
    do(display)
    display.close()
    display.close()
    return file.getvalue().splitlines()


def everything(display):
    for number, (rule, name) in enumerate(JOBS):
        display.started(number, rule, name)
        display.finished(number)


def test_a_file_gets_a_line_per_stage_and_no_carriage_return():
    lines = shown(everything)
    assert not {"\r", "\x1b"} & set("".join(lines))
    assert lines[0] == "scale tiny: 6 jobs to do; details in logs/tiny/"
    assert [line.split()[:2] for line in lines if " done after " in line] == [
        ["train", "3"],
        ["draw", "2"],
        ["claims", "1"],
    ]
    assert lines[-1].startswith("[####################] 6 of 6 jobs")


def test_a_terminal_has_one_line_that_is_rewritten():
    file = Terminal()
    shown(everything, file=file)
    left = [line.rpartition("\r")[2].split() for line in file.getvalue().split("\n")]
    assert [words[0] for words in left if words and not words[0].startswith("[")] == [
        "scale",
        "train",
        "draw",
        "claims",
    ]


def test_the_bar_weighs_jobs_by_their_predicted_cost():
    def two_drawings(display):
        for number, (rule, name) in enumerate(JOBS[3:5]):
            display.started(number, rule, name)
            display.finished(number)

    assert shown(two_drawings)[-1].startswith("[--------------------] 2 of 6 jobs")


def test_a_failure_names_its_log_and_how_it_ends(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("1\n2\n3\nerror: no such file\n")

    def fail(display):
        display.started(7, "train", "a/b/seed1", log=str(log))
        display.failed(7)

    for bar in (True, False):
        lines = shown(fail, bar=bar)
        at = lines.index(f"train a/b/seed1 did not finish; log {log}")
        assert lines[at + 1 : at + 4] == ["    2", "    3", "    error: no such file"]
        assert lines[-1].startswith("1 job did not finish")
        assert bar == any("1 failed" in line for line in lines)


def test_what_a_cluster_refuses_is_said_once_with_its_own_words():
    def refuse(display):
        for job in range(3):
            display.started(job, "train", f"a/b/seed{job}", log="of an earlier attempt")
            display.failed(job, refused="sbatch: error:\n  no such partition")

    lines = shown(refuse)
    assert lines.count("train a/b/seed0 could not be submitted: sbatch: error: no such partition") == 1
    assert "earlier attempt" not in "".join(lines)
    assert lines[-1].startswith("3 jobs did not finish")


def test_what_is_tried_again_and_succeeds_is_no_failure(tmp_path):
    log = tmp_path / "train.log"
    log.write_text("done\nwarning: the server is away\n")

    def retry(display):
        display.started(7, "train", "a/b/seed1")
        display.failed(7)
        display.tried_again(7)
        display.started(7, "train", "a/b/seed1", log=str(log))
        display.finished(7)

    lines = shown(retry)
    assert "train a/b/seed1 is tried again" in lines
    assert "warning: the server is away" in lines
    assert "1 of 6 jobs" in lines[-1]


def test_what_nobody_asked_to_see_is_not_shown():
    assert shown(everything, bar=False) == []
    assert shown(lambda display: (display.started(0, "all", ""), display.finished(0)), {"all": 1}) == []
