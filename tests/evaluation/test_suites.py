import copy
import json
from pathlib import Path

import pytest
import yaml
from pydantic import TypeAdapter, ValidationError
from tokenizers import Tokenizer, models

from formerlab.errors import UserError
from formerlab.evaluation.language.examples import read_examples
from formerlab.evaluation.language.generate import generate
from formerlab.evaluation.language.harness import load_tasks
from formerlab.evaluation.language.questions import Questions, answer_requests, load_suites
from formerlab.evaluation.language.suites import HarnessSuite, LocalSuite, Suite, check_names

ROWS = {
    "choices": [
        {"goal": "the cat sat", "choices": ["on a mat", "by the old river", "dog"], "gold": 2},
        {"goal": "many birds", "choices": ["sing", "ran to an old house"], "gold": 0},
        {"goal": "where the dog", "choices": ["sat", "and the cat sat", "ran", "sing"], "gold": 3},
    ],
    "contexts": [
        {"sentence": "the cat sat where _ ran to a mat", "choices": ["the dog", "a bird"], "gold": 1},
        {"continuation": "sat on a mat", "choices": ["the cat and the dog", "many birds"], "gold": 0},
    ],
    "cloze": [{"text": "the cat sat on a mat"}, {"text": "many birds\n\nsing by the old river"}],
    "pairs": [
        {"sentence_good": "the cat sat", "sentence_bad": "the cat sing", "UID": "agreement", "pairID": "7"},
        {"sentence_good": "birds sing", "sentence_bad": "birds sat by an old", "UID": "agreement", "pairID": "8"},
    ],
}
PROMPTS = {"choices": "Question: {goal}\nAnswer:"}


@pytest.fixture(scope="module")
def suites(tmp_path_factory):
    folder = tmp_path_factory.mktemp("suites")
    for form, rows in ROWS.items():
        (folder / f"{form}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        f"{form}_local": LocalSuite(
            paths=(str(folder / f"{form}.jsonl"),), format=form, prompt=PROMPTS.get(form, "{query}")
        )
        for form in ROWS
    }


def test_answers_equal_the_loop_of_the_harness(model, tokenizer, suites, harness_rows):
    tasks = load_suites(suites)
    expected = harness_rows(tasks)
    for batch in (1, 8):
        scores = list(Questions(tasks, tokenizer).scores(model, batch=batch))
        assert [(row.task, row.example, row.metric) for row in scores] == [row[:3] for row in expected]
        assert [row.value for row in scores] == pytest.approx([row[3] for row in expected], abs=1e-4)


@pytest.mark.parametrize("leading", [False, True])
def test_scores_of_every_format(model, tokenizer, suites, leading):
    ends = {
        "choices_local": ("Question: the cat sat\nAnswer:", " on a mat"),
        "contexts_local": ("the cat sat where the dog", " ran to a mat"),
        "cloze_local": ("the cat sat on a", " mat"),
        "pairs_local": ("", "the cat sat"),
    }
    tasks = load_suites(suites)
    questions = Questions(tasks, tokenizer, leading=list(suites) if leading else [])
    requests = {texts: (texts, context, ending) for texts, context, ending in questions.encoded}
    assert set(ends.values()) <= requests.keys()
    rows = [row for row in questions.scores(model) if row.task == "cloze_local" and row.metric == "log_prob"]
    (cloze,) = answer_requests(model, [requests[ends["cloze_local"]]])
    assert cloze.log_prob in [pytest.approx(row.value) for row in rows]
    assert (requests[ends["contexts_local"]][1][:1] == [0]) == leading
    _, context, sentence = requests[ends["pairs_local"]]
    assert context == [0]
    assert tokenizer.decode(sentence) == "the cat sat"


def test_rows_have_stable_example_ids_and_the_number_of_choices_of_their_question(model, tokenizer, suites):
    rows = list(Questions(load_suites(suites), tokenizer).scores(model))
    counts = {(row.task, row.example): row.choices for row in rows}
    assert counts["pairs_local", "agreement-7"] == 2
    assert sorted(example for task, example in counts if task == "choices_local") == [
        f"choices-0000{line}" for line in (1, 2, 3)
    ]
    assert sorted(choices for (task, _), choices in counts.items() if task == "choices_local") == [2, 3, 4]
    assert {row.metric for row in rows if row.task == "cloze_local"} == {"acc", "log_prob"}
    assert {row.task_version for row in rows} == {"1.0"}


def test_the_order_of_examples_mixes_all_files(tmp_path):
    for name in "ab":
        rows = [{"text": f"some words {number}"} for number in range(50)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    examples = read_examples(paths, "cloze")
    assert examples == read_examples(paths[::-1], "cloze")
    first = [example["id"][0] for example in examples[:40]]
    assert 10 < first.count("a") < 30


def test_cut_contexts_are_counted(model, tokenizer, suites, tmp_path):
    text = " ".join(["the cat sat on a mat and the dog ran to an old house"] * 9)
    (tmp_path / "long.jsonl").write_text(json.dumps({"text": text}) + "\n" + json.dumps({"text": "a mat"}))
    tasks = load_suites({"long_local": LocalSuite(paths=(str(tmp_path),), format="cloze"), **suites})
    questions = Questions(tasks, tokenizer)
    assert questions.truncated(model.spec.context) == {"long_local": 1}
    others = Questions(load_suites(suites), tokenizer)
    assert len(list(questions.scores(model))) == len(list(others.scores(model))) + 4


MISTAKES = {
    "choices": [
        ('{"query": "a", "choices": ["b"], "gold": 0}', "must be a list of two or more strings"),
        ('{"query": "a", "choices": ["b", "c"], "gold": true}', "gold True"),
        ('{"query": NaN, "choices": ["b", "c"], "gold": 0}', "is nan"),
        ('{"id": null, "query": "a", "choices": ["b", "c"], "gold": 0}', "is None"),
        ('{"question": "a", "choices": ["b", "c"], "gold": 0}', "has no field 'query'"),
        ('{"id": "web\\ud83d", "query": "a", "choices": ["b", "c"], "gold": 0}', "unpaired surrogate"),
        ('{"query": "a\\ude00", "choices": ["b", "c"], "gold": 0}', "unpaired surrogate"),
        ('{"query": "a", "choices": ["b", "\\ud83d"], "gold": 0}', "unpaired surrogate"),
    ],
    "contexts": [('{"sentence": "no gap", "choices": ["b", "c"], "gold": 0}', "has no '_'")],
    "cloze": [('{"text": "word"}', "has only one word")],
    "pairs": [('{"sentence_good": "a b"}', "'sentence_bad' is None")],
}


@pytest.mark.parametrize(
    ("form", "line", "message"), [(form, *case) for form, cases in MISTAKES.items() for case in cases]
)
def test_the_error_for_an_invalid_row_has_its_line(tmp_path, form, line, message):
    good = {"choices": {"query": "a", **ROWS["choices"][0]}}.get(form, ROWS[form][0])
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(good) + "\n\n" + line + "\n")
    with pytest.raises(UserError) as raised:
        read_examples([path], form)
    assert str(raised.value).startswith(f"{path}, line 3: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompt": "Question: {{goal}}"}, r"\{\{goal\}\}: double braces mean.*write \{goal\}"),
        ({"prompt": "{query} {{ doc.goal | trim }}"}, r"write \{doc\}"),
        ({"prompt": "Question: $goal"}, "contains no field"),
        ({"prompt": "Question: {}"}, "contains no field"),
        ({"prompt": "Question: {goal"}, "prompt"),
        ({"prompt": "{goal}", "format": "cloze"}, "format=cloze has no prompt"),
        ({"delimiter": "", "format": "pairs"}, "format=pairs has complete sentences"),
        ({"shots_from": ("b",)}, "shots_from without shots"),
        ({"format": "pairs", "shots": 2}, "format=pairs has no question"),
    ],
)
def test_invalid_settings_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        LocalSuite(paths=("x",), **settings)
    assert LocalSuite(paths=("x",), prompt="{{a}, {b}} {goal}".replace("{a}", "a").replace("{b}", "b"))


def test_duplicate_ids_and_empty_files_are_refused(tmp_path):
    row = {"id": "x", "query": "a", "choices": ["b", "c"], "gold": 0}
    path = tmp_path / "rows.jsonl"
    path.write_text(2 * (json.dumps(row) + "\n"))
    with pytest.raises(UserError, match=r"rows.jsonl, line 2: id 'x' occurs a second time"):
        read_examples([path], "choices")
    path.write_text("\n")
    with pytest.raises(UserError, match="no rows"):
        read_examples([path], "choices")


def test_the_state_depends_on_contents_and_settings_only(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "rows.jsonl").write_text('{"text": "a b"}\n')
    suite = LocalSuite(paths=(str(tmp_path / "a"),), format="cloze")
    assert suite.state() == LocalSuite(paths=(str(tmp_path / "b/*.jsonl"),), format="cloze").state()
    assert suite.state() != LocalSuite(paths=suite.paths, format="cloze", limit=3).state()
    state = suite.state()
    (tmp_path / "a/rows.jsonl").write_text('{"text": "a c"}\n')
    assert suite.state() != state
    (tmp_path / "a/rows.jsonl").unlink()
    assert suite.state() is None
    with pytest.raises(UserError, match=r"suites.words_local.paths: no file at "):
        load_suites({"words_local": suite})


def test_an_answer_that_merges_with_its_context_is_refused(tokenizer, tmp_path):
    words = LocalSuite(paths=(str(tmp_path / "rows.jsonl"),), delimiter="")
    merged = Tokenizer(models.BPE(vocab={"a": 0, "b": 1, "ab": 2, "c": 3, " ": 4}, merges=[("a", "b")]))
    (tmp_path / "rows.jsonl").write_text('{"query": "c a", "choices": ["b", "c"], "gold": 1}\n')
    with pytest.raises(UserError, match=r"'b' adds no token to its context, because .* end of the context \('c a'\);"):
        Questions(load_suites({"words_local": words}), merged, end_of_text=3)


def test_nan_logits_are_refused(model, tokenizer, suites):
    damaged = copy.deepcopy(model)
    next(damaged.final_norm.parameters()).data.fill_(float("nan"))
    with pytest.raises(UserError, match="logits are not finite"):
        list(Questions(load_suites(suites), tokenizer).scores(damaged))
    with pytest.raises(UserError, match="logits are not finite"):
        generate(damaged, tokenizer, "the cat", temperature=0)


def test_only_names_of_local_suites_end_in_local(tmp_path):
    adapter = TypeAdapter(Suite)
    local, official = adapter.validate_python({"kind": "files", "paths": ["x"]}), HarnessSuite(task="piqa")
    assert check_names({"piqa_local": local, "piqa": official})
    for name, suite in (("piqa", local), ("piqa_local", official)):
        with pytest.raises(ValueError, match="_local"):
            check_names({name: suite})
    with pytest.raises(ValidationError):
        adapter.validate_python({"kind": "files", "paths": []})


OPENBOOK = {
    "question_stem": "the cat",
    "choices": {"text": ["a", "b", "c", "sat"], "label": ["A", "B", "C", "D"]},
    "answerKey": "D",
}


def harness_questions(folder, tokenizer, rows):
    """Load a harness task that reads local rows instead of its data set on the Hub."""
    (folder / "rows.jsonl").write_text(
        rows if isinstance(rows, str) else "".join(f"{json.dumps(row)}\n" for row in rows)
    )
    path = Path(HarnessSuite(task="openbookqa", shots=1).config("openbookqa", folder))
    files = dict.fromkeys(("train", "validation", "test"), str(folder / "rows.jsonl"))
    local = {"dataset_path": "json", "dataset_name": None}
    local["dataset_kwargs"] = {"data_files": files, "cache_dir": str(folder), "keep_in_memory": True}
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | local))
    return Questions(load_tasks([str(path)]), tokenizer)


def test_a_harness_task_keeps_its_metrics_and_few_shot_examples(model, tokenizer, tmp_path):
    questions = harness_questions(tmp_path, tokenizer, [OPENBOOK, OPENBOOK | {"question_stem": "the dog"}] * 2)
    rows = list(questions.scores(model))
    assert {row.metric for row in rows} == {"acc", "acc_norm"}
    assert len(rows) == 2 * 4
    assert questions.questions[0].task.instances[0].args[0].count("\n\n") == 1  # one few-shot example
    with pytest.raises(UserError, match="no task 'openbookqqa'"):
        load_suites({"x": HarnessSuite(task="openbookqqa")})


@pytest.mark.parametrize("rows", ["{not json\n", "\n", [OPENBOOK, OPENBOOK | {"answerKey": "E"}]])
def test_damaged_rows_of_the_harness_give_a_one_line_error(tokenizer, tmp_path, rows):
    with pytest.raises(UserError, match=r"suite openbookqa: (the questions cannot be loaded|a row is invalid) \("):
        harness_questions(tmp_path, tokenizer, rows)


@pytest.mark.parametrize("form", ["choices", "contexts", "cloze"])
def test_few_shot_examples_precede_the_question(model, tokenizer, tmp_path, form):
    # blank lines separate few-shot examples
    examples = [row for row in ROWS[form] if "\n\n" not in row.get("text", "")]
    rows = [json.dumps(row | {"id": f"{form}-{index}"}) + "\n" for index, row in enumerate(examples * 4)]
    (tmp_path / "asked.jsonl").write_text("".join(rows[: len(examples)]))
    (tmp_path / "solved.jsonl").write_text("".join(rows[len(examples) :]))
    prompt = "{goal}" if form == "choices" else "{query}"
    plain = LocalSuite(paths=(str(tmp_path / "asked.jsonl"),), format=form, prompt=prompt)
    shots = plain.model_copy(update={"shots": 2, "shots_from": (str(tmp_path / "solved.jsonl"),)})

    def requests(suite):
        return [request for request, *_ in Questions(load_suites({"a_local": suite}), tokenizer).encoded]

    plain_requests = requests(plain)
    for (context, ending), (context_with_shots, same_ending) in zip(plain_requests, requests(shots), strict=True):
        assert same_ending == ending
        assert "  " not in context_with_shots
        if context:  # skip requests with an empty context, which acc_mutual_info adds
            assert context_with_shots.endswith(f"\n\n{context}")
            assert context_with_shots.count("\n\n") == 2
    assert plain.state() != shots.state()
    one_shot = plain.model_copy(update={"shots": 1})
    if len(plain_requests) == 1:
        with pytest.raises(UserError, match=r"suites.a_local.shots: 1 must be less than the 1 examples of the suite's"):
            load_suites({"a_local": one_shot})
        return
    for context in {context for context, _ in requests(one_shot) if context}:
        first, second = context.split("\n\n")
        assert not first.startswith(second), "a question is not its own few-shot example"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"limit": 5}, "limit: not supported for a task"),
        ({"paths": {"test": "x"}}, "paths: .* has no local copies; use"),
    ],
)
def test_settings_that_a_task_of_the_harness_does_not_have_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        HarnessSuite(task="piqa", **settings)
