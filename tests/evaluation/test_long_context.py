"""Long-context tasks: the rules of RULER, lengths, seeds and scores."""

import re
from collections import Counter

import pytest

from formerlab.errors import UserError
from formerlab.evaluation.language.harness import load_tasks
from formerlab.evaluation.pruning.long_context import (
    SOLVED_LENGTH,
    TASKS,
    Text,
    examples,
    read_text,
    score,
    task_config,
)


@pytest.fixture(scope="module")
def text():
    return read_text()


@pytest.fixture(scope="module")
def count():
    """Return a fast function that counts tokens.

    Tokens are pieces of up to five letters, pieces of up to three digits, and single punctuation marks.
    """
    return lambda text: len(re.findall(r"[a-zA-Z]{1,5}|\d{1,3}|[^\w\s]", text))


@pytest.mark.parametrize("length", [512, 1024, 4096])
@pytest.mark.parametrize("name", TASKS)
def test_lengths_are_at_most_two_per_cent_below_the_limit(name, length, text, count):
    generated = list(examples(name, length, 3, count, text))
    for example in generated:
        tokens = count(f"{example.input} {example.gen_prefix}") + TASKS[name].answer_tokens
        assert 0.98 * length <= tokens <= length
    assert generated == list(examples(name, length, 3, count, text)), "equal seeds give equal texts"
    assert len({example.input for example in generated}) == 3
    assert generated[0] != next(examples(name, length, 1, count, text, seed=1))


@pytest.mark.parametrize(
    ("name", "hidden", "requested", "answers"),
    [
        ("needle_single", 1, 1, 1),
        ("needle_multikey", 4, 1, 1),
        ("needle_multivalue", 4, 1, 4),
        ("needle_multiquery", 4, 4, 4),
    ],
)
def test_needles_occur_once_and_only_requested_needles_are_answers(name, hidden, requested, answers, text, count):
    for example in examples(name, 1024, 4, count, text):
        pairs = re.findall(r"One of the special magic numbers for ([\w-]+) is: (\d{7})\.", example.input)
        assert len({value for _, value in pairs}) == len(pairs) == hidden
        question = example.input.rpartition("\n")[2]
        assert {key for key, _ in pairs if key in question} == {key for key, value in pairs if value in example.outputs}
        assert sum(key in question for key in {key for key, _ in pairs}) == requested
        assert len(example.outputs) == answers
        assert all(example.input.count(value) == 1 for value in example.outputs)
        assert ("What is" in question) == (answers == 1)


@pytest.mark.parametrize("length", [512, 2048])
def test_variables_form_one_chain_in_order(length, text, count):
    for example in examples("variable_tracking", length, 3, count, text):
        *solved, question = example.input.split("Memorize and track")[1:]
        # texts of at least SOLVED_LENGTH tokens start with a few-shot example
        assert len(solved) == (length >= SOLVED_LENGTH)
        assigned = re.findall(r"VAR ([A-Z]+) = (?:VAR )?(\w+)", question)
        assert [name for name, _ in assigned] == example.outputs
        assert [value for _, value in assigned][1:] == example.outputs[:-1]
        assert f"the value {assigned[0][1]} in" in question
        assert all(len(name) == 5 for name in example.outputs)


@pytest.mark.parametrize(("length", "repeats"), [(512, (6, 1)), (1024, (6, 1)), (4096, (30, 3))])
def test_common_words_are_listed_more_often(length, repeats, text, count):
    (example,) = examples("common_words", length, 1, count, text)
    listed = Counter(re.findall(r"\d+\. ([a-z]+)", example.input.rpartition("Below is a numbered list")[2]))
    assert sorted(example.outputs) == sorted(word for word, times in listed.items() if times == repeats[0])
    assert {*listed.values()} == {*repeats}
    assert len(example.outputs) == 10


@pytest.mark.parametrize("length", [512, 4096])
def test_frequent_words_follow_the_zipf_law(length, text, count):
    (example,) = examples("frequent_words", length, 1, count, text)
    coded = Counter(re.search(r"coded words\. (.*)\nQuestion", example.input)[1].split())
    (noise, noise_count), *others = coded.most_common()
    assert noise == "..."
    assert [word for word, _ in others[:3]] == example.outputs
    for rank, (_, times) in enumerate(others[:3], 2):
        assert times == pytest.approx(noise_count / rank**2, abs=1)
    assert others[2][1] > others[3][1]


def test_scores_by_fraction_and_by_any_answer():
    document = {"outputs": ["ABC", "def"]}
    assert score(document, [" abc,\x07 x"]) == {"string_match": 0.5, "string_match_part": 1.0}
    assert score(document, ["x"]) == {"string_match": 0.0, "string_match_part": 0.0}


def test_the_harness_uses_the_prompt_whose_length_was_counted(text, count):
    generated = list(examples("needle_single", 512, 2, count, text))
    (task,) = load_tasks([task_config("needle_single", 512, generated)])["tasks"].values()
    task.build_all_requests()
    assert [instance.args[0] for instance in task.instances] == [f"{row.input} {row.gen_prefix}" for row in generated]
    assert task.instances[0].args[1]["max_gen_toks"] == 128


def test_mistakes_are_refused(text, count, tmp_path):
    with pytest.raises(UserError, match="lengths: 100 is not in 512 to 8192"):
        next(examples("needle_single", 100, 1, count, text))
    with pytest.raises(
        UserError,
        match=r"--text: 90 words \(\d+ different words of 4 to 9 letters\) are too few for needle_single at 1024",
    ):
        next(examples("needle_single", 1024, 1, count, Text(text.words[:90])))
    with pytest.raises(UserError, match="lengths: 512 tokens leave no room for an example of common_words"):
        next(examples("common_words", 512, 1, lambda text: 2 * count(text), text))
    with pytest.raises(UserError, match="not a readable UTF-8 file"):
        read_text(tmp_path / "missing.txt")
    (tmp_path / "text.txt").write_text("some words of mine")
    assert read_text(tmp_path / "text.txt").vocabulary == ["mine", "some", "words"]
