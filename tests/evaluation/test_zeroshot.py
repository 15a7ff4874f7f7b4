"""Answers of questions: with the full cache they match a naive scorer; they never depend on the batch size."""

import json
import math
from types import SimpleNamespace

import huggingface_hub.constants
import numpy as np
import pytest
from lm_eval.api.instance import Instance

from formerlab.cache import Decay, Full, Simulation
from formerlab.errors import UserError
from formerlab.evaluation.language import zeroshot
from formerlab.evaluation.language.generate import sample
from formerlab.evaluation.language.harness import Encoder, load_tasks
from formerlab.evaluation.language.questions import Questions, answer_requests
from formerlab.evaluation.measurement import MeasuredRun
from tests.evaluation.conftest import naive_log_prob

METRICS = ("acc", "acc_norm", "acc_mutual_info")


def encoded(tokenizer, *texts, end=0, leading=False):
    requests = [Instance("loglikelihood", {}, text, 0, ("t", index, 1)) for index, text in enumerate(texts)]
    return Encoder(tokenizer, end, leading_token=leading).encode(requests)


def naive_answers(model, tokenizer, tasks):
    """Answer every question by the definitions of the metrics."""
    by_metric = {}
    for example, doc in enumerate(tasks["tasks"]["next_words"].eval_docs):
        context = tokenizer.encode(doc["query"]).ids
        targets = [tokenizer.encode(" " + choice).ids for choice in doc["choices"]]
        conditional = np.array([naive_log_prob(model, context, target)[0] for target in targets])
        alone = np.array([naive_log_prob(model, [0], target)[0] for target in targets])
        lengths = np.array([len(choice) for choice in doc["choices"]])
        for metric, scores in zip(METRICS, (conditional, conditional / lengths, conditional - alone), strict=True):
            by_metric[example, metric] = float(scores.argmax() == doc["gold"])
    return by_metric


def test_metrics_equal_a_naive_scoring_at_every_batch_size(model, tokenizer, configs, capfd):
    tasks = load_tasks(configs)
    naive = naive_answers(model, tokenizer, tasks)
    assert 0 < sum(naive.values()) < len(naive)
    questions = Questions(tasks, tokenizer)
    for batch in (1, 16):
        rows = list(questions.scores(model, batch=batch))
        assert {(row.example, row.metric): row.value for row in rows} == naive
        assert {(row.task, row.task_version, row.realised_budget) for row in rows} == {("next_words", "1.0", 1.0)}
    assert list(questions.scores(model, attend_for=lambda lengths: Simulation(Full(), 1.0, lengths))) == rows
    tight = questions.scores(model, attend_for=lambda lengths: Simulation(Decay(), 1, lengths))
    assert all(row.realised_budget < 0.5 for row in tight)
    assert capfd.readouterr() == ("", ""), "no progress bars and no log lines"


@pytest.mark.parametrize("policy", [None, Decay()], ids=["full", "decay"])
def test_log_probabilities_do_not_depend_on_the_batch(model, tokenizer, policy):
    texts = [
        ("the cat", " sat on a mat"),
        ("", " the"),
        ("where many birds sing by the old river", " dog ran"),
        ("a cat", " sat by"),
    ]
    attend_for = None if policy is None else lambda lengths: Simulation(policy, 0.5, lengths)
    requests = encoded(tokenizer, *texts)
    alone, together = (answer_requests(model, requests, batch=batch, attend_for=attend_for) for batch in (1, 4))
    log_probs = [answer.log_prob for answer in alone]
    assert [answer.log_prob for answer in together] == pytest.approx(log_probs, abs=1e-5)
    # cache sizes are fractions of the lengths without padding
    assert [answer[1:] for answer in together] == [answer[1:] for answer in alone]
    lengths = [len(tokenizer.encode("".join(text)).ids) + (text[0] == "") - 1 for text in texts]
    if policy is None:
        expected = [naive_log_prob(model, tokenizer.encode(a).ids or [0], tokenizer.encode(b).ids) for a, b in texts]
        assert log_probs == pytest.approx([value for value, _ in expected], abs=1e-5)
    else:
        rounded = [math.floor(0.5 * length + 0.5) / length for length in lengths]
        assert [answer.realised_budget for answer in alone] == pytest.approx(rounded)


def test_greedy_is_true_if_the_model_would_generate_the_answer(model, tokenizer):
    context = tokenizer.encode("the cat").ids
    written = list(sample(model, context, tokens=3, temperature=0.0))
    changed = [*written[:2], (written[2] + 1) % 290]
    answers = answer_requests(model, [(None, context, written), (None, context, changed)])
    assert [answer.greedy for answer in answers] == [True, False]


def test_the_leading_token_is_an_option(model, tokenizer):
    context, target = tokenizer.encode("the cat").ids, tokenizer.encode(" sat").ids
    for leading, prefix in ((False, []), (True, [0])):
        after_context, after_nothing = answer_requests(
            model, encoded(tokenizer, ("the cat", " sat"), ("", " sat"), leading=leading)
        )
        assert after_context.log_prob == pytest.approx(naive_log_prob(model, prefix + context, target)[0], abs=1e-5)
        assert after_nothing.log_prob == pytest.approx(naive_log_prob(model, [0], target)[0], abs=1e-5)
    (answer,) = answer_requests(model, encoded(tokenizer, ("", " sat"), end=7))
    assert answer.log_prob == pytest.approx(naive_log_prob(model, [7], target)[0], abs=1e-5)


@pytest.mark.parametrize("context", [50, 2])
def test_long_contexts_are_truncated_on_the_left(model, context):
    ids = [3 + index % 200 for index in range(60)]
    (answer,) = answer_requests(model, [(None, ids[:context], ids[context:])])
    scored = max(context, 12)  # index of the first scored token
    assert answer.log_prob == pytest.approx(naive_log_prob(model, ids[11:scored], ids[scored:])[0], abs=1e-4)


def test_generative_tasks_are_refused(tokenizer, configs):
    with pytest.raises(UserError, match="'next_words' has type generate_until"):
        Questions(load_tasks([{**configs[0], "output_type": "generate_until", "metric_list": []}]), tokenizer)


def test_an_imported_hub_library_is_set_offline(configs, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    load_tasks(configs)
    assert huggingface_hub.constants.HF_HUB_OFFLINE


def test_rows_are_written_and_progress_counts_questions(model, tokenizer, configs, tmp_path, capfd, monkeypatch):
    questions = Questions(load_tasks(configs), tokenizer, limit=3)
    monkeypatch.setattr(zeroshot, "load_questions", lambda run, limit: questions)
    run = MeasuredRun(SimpleNamespace(), model, "cpu", tmp_path, tmp_path, "zeroshot x")
    zeroshot.measure(run, zeroshot.Zeroshot(batch=5))
    lines = (tmp_path / "zeroshot.csv").read_text().splitlines()
    assert lines[0] == "task,task_version,example,metric,value,choices"
    value = next(questions.scores(model)).value
    assert lines[1] == f"next_words,1.0,0,acc,{json.dumps(value)},4"
    assert len(lines) == 1 + 3 * len(METRICS)
    assert len(questions.encoded) == 3 * 4 * 2
    assert "zeroshot x  answer 24/24" in capfd.readouterr().err
