"""`PrunedLM`, the transformers model of lm-evaluation-harness with a pruned cache, for generative tasks.

Import this module only inside functions, because it imports lm_eval.
"""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import lm_eval
from lm_eval.api.instance import Instance
from lm_eval.models.huggingface import HFLM

from formerlab.cache import Full, resolve_budget
from formerlab.cache.budget import AnyBudget
from formerlab.cache.policies.policy import Policy, Protecting
from formerlab.errors import UserError
from formerlab.evaluation.language.harness import FEWSHOT_SEED, quiet
from formerlab.integrations.huggingface.pruning import prune
from formerlab.progress import Progress

LENGTH_KEYS = "max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens"
"""The harness's names for the maximum length of an answer, by priority."""


class PrunedLM(HFLM):  # type: ignore[misc]
    """Answers `generate_until` requests with a cache that `policy` prunes to `budget`.

    The harness handles prompts, batches (padded on the left), stop strings, `max_gen_toks` and the chat template.
    `model` and `tokenizer` are transformers objects. `context` is the model's context in tokens, by default from its
    config. A prompt that exceeds the context together with `max_gen_toks` raises UserError (HFLM would truncate it).
    `progress` counts answers.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        policy: Policy | None = None,
        budget: AnyBudget = 1.0,
        *,
        context: int | None = None,
        batch: int = 1,
        progress: Progress | None = None,
    ) -> None:
        with quiet():
            super().__init__(pretrained=model, tokenizer=tokenizer, batch_size=batch, max_length=context)
        self.policy, self.budget, self.progress = policy or Full(), budget, progress

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = True) -> list[str]:
        """Return the answer to each request. Raises UserError for a request that the model cannot answer."""
        for request in requests:
            self.check_request(*request.args)
        with prune(self.model, self.policy, self.budget):
            answers: list[str] = super().generate_until(requests, disable_tqdm=True)
        return answers

    def _model_generate(self, context: Any, *args: Any, **kwargs: Any) -> Any:
        generated = super()._model_generate(context, *args, **kwargs)
        if self.progress is not None:
            self.progress.advance(len(context))
        return generated

    def check_request(self, prompt: str, options: dict[str, Any]) -> None:
        """Raise UserError if the settings of a request or the length of its prompt are not supported."""
        stops, limit = options.get("until") or [], next((options[key] for key in LENGTH_KEYS if key in options), None)
        if not stops and limit is None:
            raise UserError("until: the stop list is empty and max_gen_toks is not set; give at least one of them")
        if "" in stops:
            raise UserError("until: an empty stop string would empty every answer; remove it")
        limit = self.max_gen_toks if limit is None else int(limit)
        if not 0 < limit < self.max_length:
            remedy = f"give a number from 1 to {self.max_length - 1}"
            raise UserError(
                f"max_gen_toks={limit}: {remedy}, so that a prompt fits into the context of {self.max_length} tokens"
            )
        if (length := len(self.tok_encode(prompt))) + limit > self.max_length:
            excess = f"exceed the context of {self.max_length} tokens"
            remedy = "lower max_gen_toks, or remove the example"
            raise UserError(f"a prompt of {length} tokens and max_gen_toks={limit} {excess}; {remedy}")
        if (count := resolve_budget(self.budget, length)) < 1:
            raise UserError(f"budget {self.budget}: gives fewer than one key for a prompt of {length} tokens; raise it")
        if isinstance(self.policy, Protecting) and self.policy.protect is not None:
            self.policy.with_prompt_length(length).check_budget(count)

    def _refuse(self, *args: Any, **kwargs: Any) -> None:
        raise UserError("PrunedLM supports only generative tasks; use stage prune or zeroshot for log-probabilities")

    loglikelihood = loglikelihood_rolling = _refuse


def check_requests(
    lms: Sequence[PrunedLM], tasks: dict[str, Any], *, limit: int | None = None, chat_template: bool = False
) -> None:
    """Raise UserError if a model cannot answer one of the first `limit` requests of each task.

    `tasks` is {"tasks": {name: task}}, a result of `load_suites`.
    """
    _check_template(lms[0], chat_template)
    template = {"apply_chat_template": True, "chat_template": lms[0].apply_chat_template} if chat_template else {}
    with quiet():
        for task in tasks["tasks"].values():
            task.set_fewshot_seed(FEWSHOT_SEED)
            task.build_all_requests(limit=limit, **template)
    for task, lm in product(tasks["tasks"].values(), lms):
        for request in task.instances:
            lm.check_request(*request.args)


def _check_template(lm: HFLM, chat_template: bool) -> None:
    if chat_template and not getattr(lm.tokenizer, "chat_template", None):
        raise UserError("the tokenizer has no chat template; leave out chat_template")


def task_scores(
    lm: HFLM, tasks: dict[str, Any], *, limit: int | None = None, chat_template: bool = False
) -> Iterator[tuple[str, str, int, str, float]]:
    """Run tasks; yield (task, version, example, metric, value) for the first `limit` examples of each task.

    `tasks` is {"tasks": {name: task}}, a result of `load_suites`. `chat_template` wraps each prompt in the chat
    template of the tokenizer.
    """
    _check_template(lm, chat_template)
    options = {"limit": limit, "apply_chat_template": chat_template, "bootstrap_iters": 0, "log_samples": True}
    with quiet():
        for task in tasks["tasks"].values():
            task.set_fewshot_seed(FEWSHOT_SEED)
        results = lm_eval.evaluate(lm=lm, task_dict=tasks, **options)
    for name, samples in results["samples"].items():
        for sample in samples:
            for metric in sample["metrics"]:
                if metric.isdigit() and sample[metric] == -1:
                    continue  # `ruler` has a metric for each length, and -1 for an example of another length
                if isinstance(sample[metric], int | float):  # corpus metrics have no values per example
                    label = metric if sample["filter"] == "none" else f"{metric},{sample['filter']}"
                    version = str(results["versions"][name])
                    yield name, version, sample["doc_id"], label, float(sample[metric])
