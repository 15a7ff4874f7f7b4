"""Tasks of lm-evaluation-harness made of suites."""

import glob
import hashlib
import math
import re
import string
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from formerlab.data import load_tokenizer, task_configs
from formerlab.data.text.questions import METRICS
from formerlab.data.text.readers import json_lines
from formerlab.errors import UserError
from formerlab.evaluation.language.questions import Questions
from formerlab.evaluation.language.suites import Form, HarnessSuite, LocalSuite, Suite
from formerlab.evaluation.measurement import Measured
from formerlab.files import read_json

Row = dict[str, Any]
Example = dict[str, Any]


def questions_of(run: Measured, limit: int | None = None) -> Questions:
    """Load the embedded questions of a run's data set and the suites that are asked."""
    for name, (suite, planned) in run.suites.items():
        if suite.state() not in (None, planned):
            raise UserError(f"{run.label}: suite {name} has changed since it was planned; plan and start it again")
    suites = {name: suite for name, (suite, _) in run.suites.items()}
    tasks = load_suites(suites, task_configs(run.data))
    leading = [name for name, suite in suites.items() if suite.leading_token]
    end_of_text = int(read_json(run.data / "manifest.json")["tokenizer"]["end_of_text"])
    return Questions(tasks, load_tokenizer(run.data), end_of_text=end_of_text, limit=limit, leading=leading)


def load_suites(suites: Mapping[str, Suite], embedded: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """Load the tasks of all suites, behind those of the `embedded` configurations.

    Nothing is fetched unless a suite of the harness names no local copies. Raises UserError for files that are missing
    or damaged, and for a task that the harness does not have.
    """
    from formerlab.evaluation.language.harness import load_tasks

    fetched = any(isinstance(suite, HarnessSuite) and not suite.paths for suite in suites.values())
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        return load_tasks([*embedded, *suite_configs(suites, Path(folder))], offline=not fetched)


def suite_configs(suites: Mapping[str, Suite], folder: Path) -> Iterator[dict[str, Any] | str]:
    """Yield what `load_tasks` takes for each suite; `folder` is for files that it needs until tasks are loaded."""
    for name, suite in suites.items():
        yield local_task(name, suite) if isinstance(suite, LocalSuite) else harness_task(name, suite, folder)


def local_task(name: str, suite: LocalSuite) -> dict[str, Any]:
    """Return a task of local questions as the harness's configuration, with the examples in it."""
    from datasets import Dataset

    (metrics, wording), files = FORMATS[suite.format], suite.files(name)
    splits = {"test": read_examples(files["paths"], suite.format, suite.prompt)[: suite.limit]}
    if suite.shots_from:
        splits["train"] = read_examples(files["shots_from"], suite.format, suite.prompt)
    if suite.shots >= (pool := len(splits.get("train", splits["test"]))):
        where = "shots_from" if suite.shots_from else "its own questions"
        raise UserError(f"suites.{name}.shots: {suite.shots} examples need more than {pool} in {where}; give fewer")
    if suite.format == "cloze":  # the delimiter stands with the answer, since answers of solved examples have one
        wording = wording | {"doc_to_target": lambda example: f"{suite.delimiter}{example['ending']}"}
    return {
        "task": name,
        "custom_dataset": lambda **_: {split: Dataset.from_list(rows) for split, rows in splits.items()},
        "test_split": "test",
        "num_fewshot": suite.shots,
        "fewshot_split": "train" if suite.shots_from else "test",
        "metric_list": [
            {
                "metric": metric,
                "aggregation": "perplexity" if metric == "perplexity" else "mean",
                "higher_is_better": metric != "perplexity",
            }
            for metric in metrics
        ],
        "metadata": {"version": suite.version},
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "target_delimiter": suite.delimiter,
        **wording,
    }


def _gold(example: Example) -> int:
    return int(example["gold"])


def harness_task(name: str, suite: HarnessSuite, folder: Path) -> str:
    """Write a file of the differences from the harness's own definition; return its path."""
    import yaml

    own: dict[str, Any] = {"include": str(_definition(name, suite.task)), "task": name, "num_fewshot": suite.shots}
    if files := suite.files(name):
        kinds = {"parquet" if path.suffix == ".parquet" else "json" for (path,) in files.values()}
        if len(kinds) > 1:
            raise UserError(f"suites.{name}.paths: give all splits as JSON lines, or all as Parquet")
        data = {"data_files": {split: glob.escape(str(path)) for split, (path,) in files.items()}}
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


def read_examples(paths: Sequence[Path], form: Form, prompt: str = "{query}") -> list[Example]:
    """Return the examples of all files, each with its `id`, in the order of a hash of their ids.

    So the first n are a sample of all, from all files, and the same on every machine. An id is the row's `id`, the
    `UID` and `pairID` of BLiMP, or file and line; it must be unique. Raises UserError with file and line for a row that
    does not fit the format.
    """
    examples: dict[str, Example] = {}
    for path in paths:
        for number, row in json_lines(path):
            try:
                own = row.get("id", f"{path.name.split('.')[0]}-{number:05d}")
                name = _fill("{UID}-{pairID}", row) if {"UID", "pairID"} <= set(row) else _fill("{id}", {"id": own})
                if name in examples:
                    raise ValueError(f"id '{name}' stands here a second time")
                examples[name] = {"id": name, **make_example(form, row, prompt)}
            except ValueError as error:
                remedy = f"correct the row, or the suite's format ({form})"
                raise UserError(f"{path}, line {number}: {error}; {remedy}") from None
    if not examples:
        raise UserError(f"{', '.join(map(str, paths))}: no rows; name other files")
    return sorted(examples.values(), key=lambda example: hashlib.blake2b(example["id"].encode()).digest())


def _fill(prompt: str, row: Row) -> str:
    """Fill a prompt; refuse a null, a list or NaN, which Python would write as a word."""
    for _, key, _, _ in string.Formatter().parse(prompt):
        if key is not None:
            if key not in row:
                raise ValueError(f"the prompt asks for the field '{key}', which the row lacks")
            value = row[key]
            number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
            if not (isinstance(value, str) or number):
                raise ValueError(f"field '{key}' holds {value!r}, neither a text nor a number")
    return prompt.format(**row)


def make_example(form: Form, row: Row, prompt: str) -> Example:
    """Return the question of a row.

    Of `contexts` these are beginnings and the ending they share: a `sentence` with `_` for the choice, or a
    `continuation`.
    """
    if form == "pairs":
        return {"choices": [_text(row, "sentence_good"), _text(row, "sentence_bad")], "gold": 0}
    if form == "cloze":
        before, _, last = _text(row, "text").strip().rpartition(" ")
        if not before:
            raise ValueError(f"text {row['text']!r} has no last word")
        return {"query": before, "ending": last}
    answers = _answers(row)
    if form == "choices":
        return {"query": _fill(prompt, row).strip(), **answers}
    if "continuation" in row:
        return {"ending": _text(row, "continuation").strip(), **answers}
    before, _, after = _text(row, "sentence").partition("_")
    if not after.strip():
        raise ValueError(f"sentence {row['sentence']!r} has no '_' with words behind it")
    return {"ending": after.strip(), **answers, "choices": [before + choice for choice in answers["choices"]]}


def _answers(row: Row) -> Example:
    choices, gold = row.get("choices"), row.get("gold")
    if not isinstance(choices, list) or len(choices) < 2 or not all(isinstance(c, str) and c.strip() for c in choices):
        raise ValueError(f"choices {choices!r} are not two or more texts")
    if not isinstance(gold, int) or isinstance(gold, bool) or not 0 <= gold < len(choices):
        raise ValueError(f"gold {gold!r} is not the index of one of {len(choices)} choices")
    return {"choices": choices, "gold": gold}


def _text(row: Row, key: str) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"field '{key}' holds {value!r}, not a text")
    return value


LAST_WORD = {"output_type": "loglikelihood", "doc_to_choice": None, "doc_to_text": "query", "target_delimiter": ""}
FORMATS: dict[Form, tuple[tuple[str, ...], dict[str, Any]]] = {
    "choices": (METRICS, {"doc_to_text": "query", "doc_to_target": _gold}),
    # as winogrande: the text is the index of the right context
    "contexts": (("acc",), {"doc_to_text": _gold, "doc_to_target": "ending"}),
    # as lambada_openai
    "cloze": (("acc", "perplexity"), LAST_WORD),
    # as blimp, but sentences begin a document, with no space in front
    "pairs": (("acc",), {"doc_to_text": "", "doc_to_target": _gold, "target_delimiter": ""}),
}
"""Metrics and form of questions by format, as in the harness's own tasks."""
