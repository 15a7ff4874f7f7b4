"""The embedded questions: held out, answerable, balanced, and readable by lm-evaluation-harness."""

import json
from collections import Counter

import pytest
from corpora import embedded_data

from formerlab.data import load_stream, load_tokenizer, prepare
from formerlab.data.text.docstrings import Documented, Module
from formerlab.data.text.questions import CHOICES, TASKS, last_words, make_questions, next_sentences, summaries
from formerlab.errors import UserError
from formerlab.evaluation.language.suites import embedded_tasks

NAMES = ["embedded_summary", "embedded_next_sentence", "embedded_last_word"]


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    out = tmp_path_factory.mktemp("embedded")
    prepare("embedded", embedded_data(), out)
    return out


def questions(out, task):
    return [json.loads(line) for line in (out / f"questions/{task}.jsonl").read_text(encoding="utf-8").splitlines()]


ENTRY = Documented(
    "def fit(X, y):",
    (
        "Fit the linear model to the training data\nby least squares.",
        "The data are centred first. Then the normal equations are solved with a stable factorisation.",
        "Too short. No.",
        "    An indented paragraph is a listing. It is passed over, long as it may be.",
        "X : array. It describes a parameter, so it is passed over as well.",
    ),
)


def test_entries_give_the_expected_question_candidates():
    assert list(summaries(ENTRY)) == [("def fit(X, y):", "Fit the linear model to the training data by least squares.")]
    assert list(next_sentences(ENTRY)) == []
    longer = Documented(
        "m", ("The data are centred and scaled first. Then the equations are solved by factorisation.",)
    )
    assert list(next_sentences(longer)) == [
        ("The data are centred and scaled first.", "Then the equations are solved by factorisation.")
    ]
    assert next(last_words(longer))[1] == "factorisation"
    assert list(summaries(longer)) == []


@pytest.mark.parametrize("task", NAMES)
def test_questions_are_well_formed_and_balanced(out, task):
    rows = questions(out, task)
    assert len(rows) == 8
    assert len({row["id"] for row in rows}) == len({row["query"] for row in rows}) == 8
    assert Counter(row["gold"] for row in rows) == dict.fromkeys(range(CHOICES), 2)
    for question in rows:
        assert set(question) == {"id", "query", "choices", "gold"}
        assert len({choice.lower() for choice in question["choices"]}) == CHOICES


@pytest.mark.parametrize("task", ["embedded_next_sentence", "embedded_last_word"])
def test_questions_are_held_out(out, task):
    tokenizer = load_tokenizer(out)
    trained = " ".join(tokenizer.decode(load_stream(out, "train").tolist()).split())
    for question in questions(out, task):
        assert question["query"] not in trained


def test_wrong_choices_are_from_other_modules_with_similar_lengths():
    modules = [Module(f"m{m}", tuple(entry(m, n) for n in range(20))) for m in range(20)]
    question_rows = make_questions(TASKS[0], modules, 400)
    assert question_rows == make_questions(TASKS[0], modules, 400)
    lengths = Counter()
    for question in question_rows:
        correct = question["choices"][question["gold"]]
        wrong = [choice for choice in question["choices"] if choice != correct]
        assert not [choice for choice in wrong if choice.split()[0] == correct.split()[0]]
        lengths[sum(len(choice) < len(correct) for choice in wrong)] += 1
    assert min(lengths[rank] for rank in range(CHOICES)) > 60, "the length of a choice does not reveal the answer"


def test_no_query_repeats():
    same = [Module(f"m{m}", (Documented("def forward(x):", entry(m, m).paragraphs), entry(m, 0))) for m in range(9)]
    question_rows = make_questions(TASKS[0], same, 50)
    assert len({question["query"] for question in question_rows}) == len(question_rows) == 10


def entry(module, number):
    return Documented(f"def f{module}_{number}():", (f"Module{module:02} does {'very ' * (5 + number)}much {number}.",))


def test_fewer_questions_than_requested_are_accepted_but_not_zero(capsys):
    modules = [Module(f"m{m}", (entry(m, m),)) for m in range(5)]
    assert len(make_questions(TASKS[0], modules, 9)) == 5
    assert "5 questions" in capsys.readouterr().err
    with pytest.raises(UserError, match="the test documents yield no 'embedded_summary'"):
        make_questions(TASKS[0], modules[:2], 9)


def test_the_harness_loads_the_tasks_without_network(out):
    loaded = pytest.importorskip("lm_eval.tasks").TaskManager(include_defaults=False).load(list(embedded_tasks(out)))
    assert list(loaded["tasks"]) == NAMES
    for name, task in loaded["tasks"].items():
        question_rows = questions(out, name)
        assert [task.doc_to_text(doc) for doc in task.test_docs()] == [question["query"] for question in question_rows]
        assert [task.doc_to_choice(doc) for doc in task.test_docs()] == [
            question["choices"] for question in question_rows
        ]
        assert [task.doc_to_target(doc) for doc in task.test_docs()] == [question["gold"] for question in question_rows]


def test_missing_questions_are_refused(out, tmp_path):
    (tmp_path / "manifest.json").write_bytes((out / "manifest.json").read_bytes())
    with pytest.raises(UserError, match=r"embedded_summary\.jsonl: no such file"):
        list(embedded_tasks(tmp_path))
