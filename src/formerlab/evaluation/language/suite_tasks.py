"""Tasks of lm-evaluation-harness made of suites."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from formerlab.errors import UserError
from formerlab.evaluation.language.examples import Example, read_examples
from formerlab.evaluation.language.prepared import Tasks
from formerlab.evaluation.language.suites import Form, HarnessSuite, LocalSuite, Suite
from formerlab.evaluation.language.zeroshot import load_tasks

METRICS: dict[Form, tuple[str, ...]] = {
    "choices": ("acc", "acc_norm", "acc_mutual_info"),
    "contexts": ("acc",),
    "pairs": ("acc",),
    "cloze": ("acc", "perplexity"),
}


def load_suites(suites: Mapping[str, Suite], embedded: Sequence[dict[str, Any]] = ()) -> Tasks:
    """Load the tasks of all suites, behind those of the `embedded` configurations.

    Nothing is fetched unless a suite of the harness names no local copies. Raises UserError for files that are missing
    or damaged, and for a task that the harness does not have.
    """
    fetched = any(isinstance(suite, HarnessSuite) and not suite.paths for suite in suites.values())
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return load_tasks([*embedded, *suite_configs(suites, Path(folder))], offline=not fetched)


def suite_configs(suites: Mapping[str, Suite], folder: Path) -> list[dict[str, Any] | str]:
    """Return what `load_tasks` takes for each suite; `folder` is for files that it needs until tasks are loaded."""
    return [
        local_task(name, suite) if isinstance(suite, LocalSuite) else harness_task(name, suite, folder)
        for name, suite in suites.items()
    ]


def local_task(name: str, suite: LocalSuite) -> dict[str, Any]:
    """Return a task of local questions as the harness's configuration, with the examples in it."""
    from datasets import Dataset

    examples = read_examples(suite.files(name), suite.format, suite.prompt)[: suite.limit]
    metrics = [
        {"metric": metric, "aggregation": "perplexity" if metric == "perplexity" else "mean"}
        for metric in METRICS[suite.format]
    ]
    return {
        "task": name,
        "custom_dataset": lambda **_: {"test": Dataset.from_list(examples)},
        "test_split": "test",
        "num_fewshot": 0,
        "metric_list": [metric | {"higher_is_better": metric["metric"] != "perplexity"} for metric in metrics],
        "metadata": {"version": suite.version},
        **_wording(suite),
    }


def _wording(suite: LocalSuite) -> dict[str, Any]:
    """Return how an example is asked, as the harness's own tasks of the kind do."""
    delimiter = suite.delimiter
    if suite.format == "cloze":  # as lambada_openai
        return {
            "output_type": "loglikelihood",
            "doc_to_text": "query",
            "doc_to_target": lambda example: f"{delimiter}{example['ending']}",
        }
    wording: dict[str, Any] = {"output_type": "multiple_choice", "doc_to_choice": "choices"}
    if suite.format == "contexts":  # as winogrande: the text is the index of the right context
        return wording | {"doc_to_text": _gold, "doc_to_target": "ending", "target_delimiter": delimiter}
    if suite.format == "pairs":  # as blimp, but sentences begin a document, with no space in front
        return wording | {"doc_to_text": "", "doc_to_target": _gold, "target_delimiter": ""}
    return wording | {"doc_to_text": "query", "doc_to_target": _gold, "target_delimiter": delimiter}


def _gold(example: Example) -> int:
    return int(example["gold"])


def harness_task(name: str, suite: HarnessSuite, folder: Path) -> str:
    """Write a file that says what differs from the harness's own definition; return its path."""
    import yaml

    own: dict[str, Any] = {"include": str(_definition(name, suite.task)), "task": name, "num_fewshot": suite.shots}
    if files := suite.files(name):
        kinds = {"parquet" if path.suffix == ".parquet" else "json" for path in files.values()}
        if len(kinds) > 1:
            raise UserError(f"suites.{name}.paths: give all splits as JSON lines, or all as Parquet")
        data = {"data_files": {split: str(path) for split, path in files.items()}}
        own |= {"dataset_path": kinds.pop(), "dataset_name": None}
        own["dataset_kwargs"] = {**data, "cache_dir": str(folder), "keep_in_memory": True}
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(own), encoding="utf-8")
    return str(path)


def _definition(name: str, task: str) -> Path:
    """Return the file in which the harness defines a task; its own index of 14 000 files takes far longer."""
    import lm_eval.tasks

    wanted = re.compile(rf"^task: *[\"']?{re.escape(task)}[\"']? *$", re.MULTILINE)
    for path in sorted(Path(lm_eval.tasks.__file__).parent.rglob("*.yaml")):
        if wanted.search(path.read_text(encoding="utf-8", errors="replace")):
            return path
    raise UserError(f"suites.{name}.task: lm-evaluation-harness has no task '{task}'; see `lm_eval ls tasks`")
