"""The command answer-tasks: rows per policy and budget, resuming, and the minimum score of the full cache."""

import csv
from itertools import product

import pytest
import tiny_models

from formerlab.__main__ import main
from formerlab.errors import EXIT_STOPPED_EARLY, EXIT_USER_ERROR, UserError
from formerlab.evaluation.language.suites import HarnessSuite
from formerlab.integrations import generative
from formerlab.integrations.huggingface import pruned_lm

WORDS = ["--tasks", "frequent_words", "--lengths", "1024", "--examples", "1"]
METRICS = ("string_match", "string_match_part")


@pytest.fixture(scope="module")
def folder(tokenizer, tmp_path_factory):
    return str(tiny_models.save("llama", tmp_path_factory.mktemp("model"), tokenizer, max_position_embeddings=1024))


def test_finished_tasks_are_not_answered_again_unless_text_or_code_changed(folder, tmp_path, monkeypatch, capsys):
    out, text, answered = tmp_path / "rows.csv", tmp_path / "text.txt", []
    text.write_text("the bird sings by the river and the house is old. " * 100)
    words = ["answer-tasks", folder, "--tasks", "needle_single", "--lengths", "1024", "--examples", "1"]
    words += ["--policies", "local", "--budgets", "16", "--text", str(text), "--out", str(out)]
    assert main(words) == 0
    rows = list(csv.DictReader(out.open()))
    assert tuple(rows[0]) == generative.COLUMNS
    cells = [(policy, budget, metric) for policy, budget in (("full", "1.0"), ("local", "16")) for metric in METRICS]
    assert [(row["policy"], row["budget"], row["metric"]) for row in rows] == cells
    assert {(row["task"], row["example"]) for row in rows} == {("needle_single_1024", "0")}
    printed = capsys.readouterr()
    assert "| needle_single_1024 | string_match | 1 | 0 (n = 1) | 0 (n = 1) | no |" in printed.out
    assert "answer 2/2" in printed.err

    monkeypatch.setattr(pruned_lm, "task_scores", lambda lm, *_, **__: answered.append(lm.policy.kind) or [])
    assert main(words) == 0
    assert list(csv.DictReader(out.open())) == rows
    assert answered == []
    monkeypatch.setattr(generative, "code_hash", lambda *_, **__: "changed")
    assert main(words) == 0
    assert answered == ["full", "local"]
    text.write_text("an old house by the river where many birds sing. " * 100)
    assert main(words) == 0
    assert answered == 2 * ["full", "local"]


def test_a_stopped_run_continues_after_its_last_finished_task(folder, tmp_path, monkeypatch, capsys):
    answered, out = [], tmp_path / "rows.csv"

    def scores(lm, loaded, **_):
        answered.append(lm.policy.kind)
        if len(answered) == 2:
            raise KeyboardInterrupt
        return [(*loaded["tasks"], "1.0", 0, "string_match", 1.0)]

    monkeypatch.setattr(pruned_lm, "task_scores", scores)
    words = ["answer-tasks", folder, "--tasks", "frequent_words", "--lengths", "1024", "--examples", "1"]
    words += ["--policies", "local", "--budgets", "16", "--out", str(out)]
    assert main(words) == EXIT_STOPPED_EARLY
    assert not out.exists()
    assert "run the same command again to continue" in capsys.readouterr().err
    assert main(words) == 0
    assert answered == ["full", "local", "local"]
    assert len(out.read_text().splitlines()) == 3


def test_the_table_marks_tasks_that_the_full_cache_answers_well_enough():
    rows = [("full", None, None, 1.0, "needle_single_512", "1.0", index, "string_match", index) for index in (0, 1)]
    expected = "| needle_single_512 | string_match | 2 | 0.500 [0.000, 1.000] | yes |"
    assert generative.summary_table(rows)[-1] == expected


def test_a_group_of_the_harness_is_answered_task_by_task(folder, birds, tmp_path, capsys):
    out = tmp_path / "rows.csv"
    words = ["answer-tasks", folder, "--policies", "local", "--budgets", "4", "--out", str(out), "--examples", "2"]
    assert main([*words, "--tasks", "birds"]) == 0
    rows = [(row["policy"], row["task"], row["example"]) for row in csv.DictReader(out.open())]
    assert rows == [*product(("full", "local"), ("birds_short", "birds_long"), "01")]
    (birds / "broken.yaml").write_text("group: broken\ntask: [no_such_bird]\n")
    capsys.readouterr()
    assert main([*words, "--tasks", "broken"]) == EXIT_USER_ERROR
    assert "error: group broken: its tasks cannot be loaded" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"suites\.x\.task: 'birds' is a group of lm-evaluation-harness"):
        HarnessSuite(task="birds").config("x", tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--lengths", "2048"], "lengths: 2048 exceeds the model's context of 1024 tokens"),
        (["--tasks", "no_such_task"], "has no task 'no_such_task'"),
        (["--policies", "decay alpha"], "'alpha' in 'decay alpha' is not NAME=VALUE"),
        (["--policies", "decoy"], "--policies"),
        (["--policies", "ideal"], "deal"),
        (["--budgets", "0"], "--budgets"),
        ([*WORDS, "--budgets", "0.0001"], "budget 0.0001: gives fewer than one key for a prompt"),
        ([*WORDS, "--policies", "h2o protect=prompt", "--budgets", "64"], "budget 64: H2O retains a prompt of 9"),
        ([*WORDS, "--chat-template"], "the tokenizer has no chat template"),
        ([*WORDS, "--policies", "head_adaptive(h2o)"], "evicts in simulation only"),
        ([*WORDS, "--policies", "pyramid(h2o) layers=9"], "the model has 2 layers; give layers=2"),
    ],
)
def test_mistakes_give_a_one_line_error_before_the_first_answer(folder, tmp_path, capsys, monkeypatch, words, message):
    monkeypatch.setattr(pruned_lm, "task_scores", lambda *_, **__: pytest.fail("a task was answered"))
    assert main(["answer-tasks", folder, "--out", str(tmp_path / "rows.csv"), *words]) == EXIT_USER_ERROR
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert message in error
