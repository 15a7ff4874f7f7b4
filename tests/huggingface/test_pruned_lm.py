"""Generative tasks of lm-evaluation-harness under a policy and a budget."""

import pytest
import tiny_models
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM
from transformers import PreTrainedTokenizerFast

from formerlab.cache import H2O, Decay, Full, Local
from formerlab.errors import UserError
from formerlab.evaluation.language.harness import load_tasks
from formerlab.integrations.huggingface.pruned_lm import PrunedLM, task_scores

PROMPTS = ("the cat sat on a mat", "birds", "the dog ran to an old house by the river", "many birds sing by the")
TEMPLATE = "{% for message in messages %}the {{ message.content }} sing{% endfor %}"


@pytest.fixture(scope="module")
def model():
    return tiny_models.build("llama").float()


@pytest.fixture
def fast(tokenizer):
    end = "<|endoftext|>"
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=end, pad_token=end, padding_side="left", chat_template=TEMPLATE
    )


def requests(*prompts, **options):
    options = {"until": ["q", "birds"], "max_gen_toks": 20, **options}
    return [Instance("generate_until", {}, (prompt, options), index) for index, prompt in enumerate(prompts)]


@pytest.mark.parametrize("batch", [1, 4])
def test_answers_of_the_full_cache_match_the_harness(model, fast, batch):
    instances = requests(*PROMPTS)
    expected = HFLM(pretrained=model, tokenizer=fast, batch_size=batch).generate_until(instances, disable_tqdm=True)
    assert PrunedLM(model, fast, batch=batch).generate_until(instances) == expected
    assert len({*expected}) == len(PROMPTS)
    assert PrunedLM(model, fast, Local(), 4, batch=batch).generate_until(instances) != expected


@pytest.mark.parametrize("policy", [H2O(), Decay()], ids=["h2o", "decay"])
def test_answers_do_not_depend_on_the_batch(model, fast, policy):
    instances = requests(*PROMPTS, until=["q"])
    single, batched = (PrunedLM(model, fast, policy, 5, batch=batch).generate_until(instances) for batch in (1, 4))
    assert single == batched


def test_a_protected_prompt_is_answered_in_batches_and_needs_a_large_enough_budget(model, fast):
    instances, policy = requests(*PROMPTS, until=["q"]), Local(protect="prompt")
    lengths = [len(fast(prompt)["input_ids"]) for prompt in PROMPTS]
    assert len({*lengths}) > 1
    answers = {
        name: PrunedLM(model, fast, *arguments).generate_until(instances)
        for name, arguments in {"protected": (policy, 25), "local": (Local(), 25), "full": ()}.items()
    }
    assert len({*map(tuple, answers.values())}) == 3
    assert PrunedLM(model, fast, policy, 25, batch=4).generate_until(instances) == answers["protected"]
    for budget, count in ((max(lengths) - 1, max(lengths) - 1), (0.5, round(lengths[0] / 2 + 0.01))):
        message = rf"budget {count}: Local retains a prompt of \d+ tokens; give a count"
        with pytest.raises(UserError, match=message) as error:
            PrunedLM(model, fast, policy, budget).generate_until(instances)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("prompt", "options", "budget", "message"),
    [
        ("the cat", {"until": [], "max_gen_toks": None}, 1.0, "until: the stop list is empty"),
        ("the cat", {"until": ["", "q"]}, 1.0, "until: an empty stop string"),
        ("the cat", {"max_gen_toks": tiny_models.CONTEXT}, 1.0, "max_gen_toks=64: give a number from 1 to 63"),
        ("the cat", {"max_gen_toks": 0}, 1.0, "max_gen_toks=0: give a number from 1 to 63, so that a prompt fits"),
        ("the cat sat " * 30, {}, 1.0, "a prompt of .* tokens and max_gen_toks=20 exceed the context of 64"),
        ("the cat", {}, 0, "budget 0: give a count of keys"),
        ("the cat", {}, 0.01, "budget 0.01: gives fewer than one key for a prompt"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(model, fast, prompt, options, budget, message):
    instances = requests(prompt, **options)
    if options.get("max_gen_toks", 1) is None:
        del instances[0].args[1]["max_gen_toks"]
    with pytest.raises(UserError, match=message):
        PrunedLM(model, fast, Local(), budget).generate_until(instances)


def test_an_empty_stop_list_with_a_length_is_supported(model, fast):
    instances = requests("the cat", until=[], max_gen_toks=3)
    expected = HFLM(pretrained=model, tokenizer=fast).generate_until(instances, disable_tqdm=True)
    assert PrunedLM(model, fast).generate_until(instances) == expected


@pytest.fixture
def echo():
    """Return a generative task whose score is the length of the answer."""
    from datasets import Dataset

    return {
        "task": "echo_local",
        "custom_dataset": lambda **_: {"test": Dataset.from_list([{"text": text} for text in PROMPTS])},
        "test_split": "test",
        "output_type": "generate_until",
        "doc_to_text": "{{text}}",
        "doc_to_target": "{{text}}",
        "generation_kwargs": {"until": ["q"], "max_gen_toks": 8},
        "process_results": lambda doc, results: {"length": len(results[0])},
        "metric_list": [{"metric": "length", "aggregation": "mean", "higher_is_better": True}],
        "metadata": {"version": 2.0},
    }


def test_a_task_is_scored_with_and_without_a_chat_template(model, fast, echo, capfd):
    tasks = load_tasks([echo])
    plain, chat = (
        list(task_scores(PrunedLM(model, fast, Full()), tasks, limit=3, chat_template=wrapped))
        for wrapped in (False, True)
    )
    assert [score[:4] for score in plain] == [("echo_local", "2.0", index, "length") for index in range(3)]
    wrapped = PrunedLM(model, fast).generate_until(
        requests(*(f"the {text} sing" for text in PROMPTS[:3]), until=["q"], max_gen_toks=8)
    )
    assert [score[4] for score in chat] == [len(answer) for answer in wrapped]
    assert [score[4] for score in plain] != [score[4] for score in chat]
    assert capfd.readouterr() == ("", "")
    fast.chat_template = None
    with pytest.raises(UserError, match="no chat template"):
        next(task_scores(PrunedLM(model, fast), tasks, chat_template=True))


def test_tasks_of_log_probabilities_are_refused(model, fast, task):
    with pytest.raises(UserError, match="supports only generative tasks"):
        list(task_scores(PrunedLM(model, fast), load_tasks([task])))
