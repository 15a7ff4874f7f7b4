import math
import subprocess
import sys

import huggingface_hub.constants
import numpy as np
import pytest
import torch
from lm_eval.api.instance import Instance

from formerlab.cache import Decay, Full, Simulation
from formerlab.errors import UserError
from formerlab.evaluation.language.generate import sample
from formerlab.evaluation.language.harness import HarnessModel
from formerlab.evaluation.language.questions import Questions
from formerlab.evaluation.language.zeroshot import evaluate_tasks, harness_version, load_tasks, zeroshot

METRICS = ("acc", "acc_norm", "acc_mutual_info")


def request(*arguments, task="t", example=0):
    return Instance("loglikelihood", {}, arguments, 0, (task, example, 1))


def naive_log_prob(model, context, continuation, attend=None):
    """Sum log-probabilities of one continuation, each token from its own forward pass."""
    total = 0.0
    for count in range(len(continuation)):
        tokens = torch.tensor([context + continuation[:count]])
        with torch.no_grad():
            logits = model(tokens) if attend is None else model(tokens, attend=attend())
        total += logits[0, -1].double().log_softmax(0)[continuation[count]].item()
    return total


def naive_answers(model, tokenizer, tasks, budget=None):
    """Answer every question by the metrics' definitions."""
    answers = {}
    for example, doc in enumerate(tasks["tasks"]["next_words"].eval_docs):
        context = tokenizer.encode(doc["query"]).ids
        targets = [tokenizer.encode(" " + choice).ids for choice in doc["choices"]]
        given = np.array([naive_log_prob(model, context, target) for target in targets])
        alone = np.array([naive_log_prob(model, [0], target) for target in targets])
        lengths = np.array([len(choice) for choice in doc["choices"]])
        for metric, scores in zip(METRICS, (given, given / lengths, given - alone), strict=True):
            answers[example, metric] = float(scores.argmax() == doc["gold"])
    return answers


def test_metrics_equal_a_naive_scoring_at_every_batch_size(model, tokenizer, configs):
    tasks = load_tasks(configs)
    naive = naive_answers(model, tokenizer, tasks)
    assert 0 < sum(naive.values()) < len(naive)
    for batch in (1, 16):
        rows = evaluate_tasks(model, tokenizer, tasks, batch=batch)
        assert {(row.example, row.metric): row.value for row in rows} == naive
        assert {(row.task, row.task_version, row.realised_budget) for row in rows} == {("next_words", "1.0", 1.0)}


@pytest.mark.parametrize("policy", [None, Decay()], ids=["full", "decay"])
def test_log_probabilities_do_not_depend_on_the_batch(model, tokenizer, policy):
    texts = [
        ("the cat", " sat on a mat"),
        ("", " the"),
        ("where many birds sing by the old river", " dog ran"),
        ("a cat", " sat by"),
    ]
    requests = [request(*text, example=index) for index, text in enumerate(texts)]
    attend_for = None if policy is None else lambda lengths: Simulation(policy, 0.5, lengths)
    answers = []
    for batch in (1, 4):
        adapter = HarnessModel(model, tokenizer, batch=batch, attend_for=attend_for)
        answers.append((adapter.loglikelihood(requests), adapter.realised_budgets()))
    (alone, held_alone), (together, held_together) = answers
    assert [log_prob for log_prob, _ in together] == pytest.approx([log_prob for log_prob, _ in alone], abs=1e-5)
    assert [greedy for _, greedy in together] == [greedy for _, greedy in alone]
    assert held_together == held_alone  # a ratio is taken of the true length, not of the padded one
    lengths = [len(tokenizer.encode("".join(text)).ids) + (text[0] == "") - 1 for text in texts]
    if policy is None:
        expected = [naive_log_prob(model, tokenizer.encode(a).ids or [0], tokenizer.encode(b).ids) for a, b in texts]
        assert [log_prob for log_prob, _ in alone] == pytest.approx(expected, abs=1e-5)
    else:
        rounded = [math.floor(0.5 * length + 0.5) / length for length in lengths]
        assert [held_alone["t", index] for index in range(len(texts))] == pytest.approx(rounded)


def test_greedy_says_whether_the_model_would_have_written_it(model, tokenizer):
    context = tokenizer.encode("the cat").ids
    written = list(sample(model, context, tokens=3, temperature=0.0))
    adapter = HarnessModel(model, tokenizer)
    other = [*written[:2], (written[2] + 1) % 290]
    pairs = [(None, context, written), (None, context, other)]
    assert [answer.greedy for answer in adapter._loglikelihood_tokens(pairs)] == [True, False]


def test_the_leading_token_is_an_option(model, tokenizer):
    text = request("the cat", " sat")
    context, target = tokenizer.encode("the cat").ids, tokenizer.encode(" sat").ids
    for leading, prefix in ((False, []), (True, [0])):
        adapter = HarnessModel(model, tokenizer, leading_token=leading)
        ((log_prob, _),) = adapter.loglikelihood([text])
        assert log_prob == pytest.approx(naive_log_prob(model, prefix + context, target), abs=1e-5)
        ((empty, _),) = adapter.loglikelihood([request("", " sat")])
        assert empty == pytest.approx(naive_log_prob(model, [0], target), abs=1e-5)
    ((other, _),) = HarnessModel(model, tokenizer, end_of_text=7).loglikelihood([request("", " sat")])
    assert other == pytest.approx(naive_log_prob(model, [7], target), abs=1e-5)


def test_what_exceeds_the_context_is_cut_from_the_left(model, tokenizer):
    ids = [3 + index % 200 for index in range(60)]
    adapter = HarnessModel(model, tokenizer)
    ((log_prob, _, _),) = adapter._loglikelihood_tokens([(None, ids[:50], ids[50:])])
    assert log_prob == pytest.approx(naive_log_prob(model, ids[11:50], ids[50:]), abs=1e-4)
    assert adapter.cut == 0
    ((log_prob, _, _),) = adapter._loglikelihood_tokens([(None, ids[:2], ids[2:])])
    assert log_prob == pytest.approx(naive_log_prob(model, ids[11:12], ids[12:]), abs=1e-4)
    assert adapter.cut == 1


def test_rolling_predicts_every_token_of_a_long_text(model, tokenizer):
    text = "the cat sat on a mat and the dog ran to an old house by the river " * 8
    ids = tokenizer.encode(text).ids
    assert len(ids) > 2 * 48
    long, short = HarnessModel(model, tokenizer).loglikelihood_rolling([request(text), request("the cat")])
    expected = naive_log_prob(model, [0], ids[:48])
    for begin in range(48, len(ids), 48):  # as much context as fits in front of each further window
        end = min(begin + 48, len(ids))
        expected += naive_log_prob(model, ids[end - 49 : begin], ids[begin:end])
    assert long == pytest.approx(expected, rel=1e-5)
    assert short == pytest.approx(naive_log_prob(model, [0], tokenizer.encode("the cat").ids), abs=1e-5)


def test_generation_stops_at_the_first_stop_string(model, tokenizer):
    adapter = HarnessModel(model, tokenizer)
    (text,) = adapter.generate_until([request("the cat", {"max_gen_toks": 12})])
    assert len(text) > 4
    (cut,) = adapter.generate_until([request("the cat", {"max_gen_toks": 12, "until": [text[3], text[2]]})])
    assert cut == text[: min(text.index(text[2]), text.index(text[3]))]
    (long,) = adapter.generate_until([request("the cat sat " * 40, {"until": []})])
    assert isinstance(long, str)
    pruned = HarnessModel(model, tokenizer, attend_for=lambda lengths: Simulation(Decay(), 0.4, lengths))
    with pytest.raises(UserError, match="generate_until"):
        pruned.generate_until([request("the cat", {})])


def test_tasks_are_loaded_once_for_many_policies(model, tokenizer, configs, capfd):
    tasks = load_tasks(configs)
    before = evaluate_tasks(model, tokenizer, tasks, limit=5)
    full = evaluate_tasks(model, tokenizer, tasks, limit=5, attend_for=lambda lengths: Simulation(Full(), 1.0, lengths))
    tight = evaluate_tasks(model, tokenizer, tasks, limit=5, attend_for=lambda lengths: Simulation(Decay(), 1, lengths))
    assert full == before == evaluate_tasks(model, tokenizer, tasks, limit=5)
    assert {row.example for row in before} == set(range(5))
    assert all(row.realised_budget < 0.5 for row in tight)
    assert capfd.readouterr() == ("", "")  # neither bars nor log lines


def test_few_shot_prompts_are_the_same_for_every_policy(model, tokenizer, configs):
    tasks = load_tasks([{**configs[0], "num_fewshot": 2, "fewshot_split": "test"}])
    (task,) = tasks["tasks"].values()
    prompts = []
    for attend_for in (None, lambda lengths: Simulation(Decay(), 0.4, lengths)):
        evaluate_tasks(model, tokenizer, tasks, attend_for=attend_for, limit=3)
        prompts.append([instance.args for instance in task.instances])
    assert prompts[0] == prompts[1]
    assert all(prompt.count("\n\n") == 2 for prompt, _ in prompts[0] if prompt)


@pytest.mark.parametrize("missing", [{"dataset_kwargs": {"data_files": {"test": "/nowhere/x.jsonl"}}}, "no_such_task"])
def test_missing_questions_are_named(configs, missing):
    with pytest.raises(UserError, match=r"x\.jsonl|no_such_task"):
        load_tasks([missing if isinstance(missing, str) else {**configs[0], **missing}])


def test_a_hub_library_that_is_imported_already_hears_that_it_may_not_ask(configs, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    load_tasks(configs)
    assert huggingface_hub.constants.HF_HUB_OFFLINE


def test_the_harness_is_imported_only_where_it_is_used():
    code = "import sys, formerlab.evaluation.pruning.prune; print({'lm_eval', 'datasets', 'pandas'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_rows_are_written_and_progress_counts_requests(model, tokenizer, configs, tmp_path, capfd):
    questions = Questions(load_tasks(configs), tokenizer, limit=3)
    rows = zeroshot(model, questions, tmp_path / "zeroshot.csv", label="zeroshot x")
    lines = (tmp_path / "zeroshot.csv").read_text().splitlines()
    assert lines[0] == "task,task_version,example,metric,value,choices"
    assert lines[1] == f"next_words,1.0,0,acc,{rows[0].value!r},4"
    assert len(lines) == 1 + 3 * len(METRICS)
    assert len(questions) == 3 * 4 * 2
    assert "zeroshot x  request 24/24" in capfd.readouterr().err


def test_answers_longer_than_the_context_are_reported(tokenizer, configs, capsys):
    from formerlab.models.decoder import Decoder

    tiny = Decoder(vocabulary=290, layers=1, width=8, heads=1, context=2).build()
    evaluate_tasks(tiny, tokenizer, load_tasks(configs), limit=4)
    assert "context of 2 tokens" in capsys.readouterr().err


def test_the_harness_version_is_known():
    import lm_eval

    assert harness_version() == lm_eval.__version__
