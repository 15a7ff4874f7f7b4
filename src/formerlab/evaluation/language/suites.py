"""Question suites in addition to the embedded questions: local files, or tasks of lm-evaluation-harness.

A suite of local files has its own prompts, so its accuracy is not comparable with the accuracy of the harness's task.
Its name therefore ends in `_local`, and it has its own version.
"""

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from formerlab.data.manifest import file_hashes, read_manifest
from formerlab.data.text.questions import TASKS
from formerlab.data.text.readers import json_lines
from formerlab.errors import UserError
from formerlab.evaluation.language.examples import FORMATS, Example, Format, check_prompt, read_examples
from formerlab.file_search import files_named
from formerlab.spec import AnyCount, Count, Spec, fingerprint

LOCAL = "_local"
"""Suffix of the names of suites from files; other suites must not have it."""


def task_config(
    name: str, splits: dict[str, list[Example]], form: Format, delimiter: str, version: float, shots: int = 0
) -> dict[str, Any]:
    """Return a task configuration of lm-evaluation-harness that asks the examples of the split `test`.

    `shots` solved examples precede each question, from the split `train` if it exists, otherwise from `test`.
    """
    from datasets import Dataset

    metrics, fields = FORMATS[form]
    if form == "cloze":  # the target includes the delimiter, so that solved examples have it too
        fields = fields | {"doc_to_target": lambda example: f"{delimiter}{example['ending']}"}
    return {
        "task": name,
        "custom_dataset": lambda **_: {split: Dataset.from_list(rows) for split, rows in splits.items()},
        "test_split": "test",
        "num_fewshot": shots,
        "fewshot_split": "train" if "train" in splits else "test",
        "metric_list": metrics,
        "metadata": {"version": version},
        "output_type": "multiple_choice",
        "doc_to_choice": "choices",
        "target_delimiter": delimiter,
        **fields,
    }


def embedded_tasks(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the embedded questions of prepared data as tasks of lm-evaluation-harness."""
    delimiters = {task.name: task.delimiter for task in TASKS}
    for entry in read_manifest(data)["questions"]:
        name, rows = entry["task"], [row for _, row in json_lines(data / entry["file"])]
        yield task_config(name, {"test": rows}, "choices", delimiters[name], entry["version"])


class _Suite(Spec):
    """Settings common to all suites."""

    shots: AnyCount = 0
    """Number of solved examples before each question; the same examples for all models and policies."""
    limit: Count | None = None
    """Maximum number of examples of a suite from files, a fixed random sample; null means all."""
    leading_token: bool = False
    """Begin every context with the token that ends documents; published accuracies are measured without this token."""

    def files(self, name: str = "<name>") -> dict[str, list[Path]]:
        """Return the files by settings key. Raises UserError for missing files."""
        raise NotImplementedError

    def config(self, name: str, folder: Path) -> dict[str, Any] | str:
        """Return a configuration for `load_tasks`: a mapping, or the path of a YAML file that it writes to `folder`."""
        raise NotImplementedError

    def state(self) -> str | None:
        """Return the fingerprint of the settings, file names and contents; None if a file is missing."""
        try:
            hashes = file_hashes((path for paths in self.files().values() for path in paths), None)
        except (UserError, OSError):
            return None
        by_name = sorted([path.name, digest] for path, digest in hashes.items())
        return fingerprint([self.model_dump(mode="json", exclude={"paths", "shots_from"}), by_name])


class LocalSuite(_Suite):
    """Questions from your JSON lines files; docs/data.md lists the fields of each format."""

    kind: Literal["files"] = "files"
    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files, folders or globs; `~` and `$NAME` are expanded, and paths may be relative to the working directory."""
    format: Format = "choices"
    """choices: endings of one query. contexts: beginnings of one ending (WinoGrande, WSC). cloze: the last word of a
    text (LAMBADA). pairs: a good and a bad sentence; the good one should be more probable (BLiMP)."""
    prompt: str = "{query}"
    """Text before the choices, with field names in braces; only for the format `choices`."""
    delimiter: str = " "
    """Text between context and ending; not for pairs."""
    shots_from: tuple[str, ...] = ()
    """Files, folders or globs of solved examples in the same format (default: other questions of the suite)."""
    version: float = Field(default=1.0, gt=0.0, le=1e6)
    """Version of the task; increase it when files or prompt change."""

    @model_validator(mode="after")
    def _check(self) -> "LocalSuite":
        if self.shots_from and not self.shots:
            raise ValueError("shots_from without shots; set shots to the number of examples before each question")
        if self.shots and self.format == "pairs":
            raise ValueError("shots: format=pairs has no questions to show examples for; remove shots")
        check_prompt(self.prompt)
        if self.format != "choices" and self.prompt != "{query}":
            raise ValueError(f"prompt: format={self.format} has no prompt; remove it")
        if self.format == "pairs" and self.delimiter != " ":
            raise ValueError("delimiter: format=pairs has complete sentences without a delimiter; remove delimiter")
        return self

    def files(self, name: str = "<name>") -> dict[str, list[Path]]:
        keys = "paths", "shots_from"
        return {key: files_named(getattr(self, key), f"suites.{name}.{key}", ".jsonl") for key in keys}

    def config(self, name: str, folder: Path) -> dict[str, Any]:
        files = self.files(name)
        splits = {"test": read_examples(files["paths"], self.format, self.prompt)[: self.limit]}
        if self.shots_from:
            splits["train"] = read_examples(files["shots_from"], self.format, self.prompt)
        if self.shots >= (pool := len(splits.get("train", splits["test"]))):
            source = "shots_from" if self.shots_from else "the suite's questions"
            raise UserError(f"suites.{name}.shots: {self.shots} must be less than the {pool} examples of {source}")
        return task_config(name, splits, self.format, self.delimiter, self.version, self.shots)


class HarnessSuite(_Suite):
    """A task of lm-evaluation-harness; its data set is read from the hub, with HF_HUB_OFFLINE from the hub's cache."""

    kind: Literal["harness"] = "harness"
    task: str
    """Name in the harness: hellaswag, lambada_openai, arc_easy, arc_challenge, winogrande, piqa, openbookqa, ..."""

    @model_validator(mode="before")
    @classmethod
    def _refuse_paths(cls, values: Any) -> Any:
        if isinstance(values, dict) and "paths" in values:
            raise ValueError("paths: a task of the harness has no local copies; use the hub's cache, or kind: files")
        return values

    @model_validator(mode="after")
    def _check_limit(self) -> "HarnessSuite":
        if self.limit is not None:
            raise ValueError("limit: not supported for a task of the harness; set question_limit of the stage")
        return self

    def files(self, name: str = "<name>") -> dict[str, list[Path]]:
        return {}

    def config(self, name: str, folder: Path) -> str:
        """Write a YAML file that includes the harness's definition and overrides it; return the path of the file."""
        try:
            kind, definition = find_definition(self.task)
        except UserError as error:
            raise UserError(f"suites.{name}.task: {error}") from None
        if kind == "group":
            problem = f"'{self.task}' is a group of lm-evaluation-harness; name one of its tasks"
            raise UserError(f"suites.{name}.task: {problem}")
        task = {"include": str(definition), "task": name, "num_fewshot": self.shots}
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(task), encoding="utf-8")
        return str(path)


@cache
def find_definition(name: str) -> tuple[str, Path]:
    """Return "task" or "group" and the file that defines it, without building the harness's slow index of all tasks.

    Raises UserError if the harness has no task or group of this name.
    """
    import lm_eval.tasks

    definition = re.compile(rf"^(task|group): *[\"']?{re.escape(name)}[\"']? *$", re.MULTILINE)
    for path in sorted(Path(lm_eval.tasks.__file__).parent.rglob("*.yaml")):
        if match := definition.search(path.read_text(encoding="utf-8", errors="replace")):
            return match[1], path
    raise UserError(f"lm-evaluation-harness has no task '{name}'; see `lm_eval ls tasks`")


Suite = Annotated[LocalSuite | HarnessSuite, Field(discriminator="kind")]


def check_names(suites: dict[str, Suite]) -> dict[str, Suite]:
    """Return the suites. Raises ValueError unless the names of local suites, and only these, end in `_local`."""
    for name, suite in suites.items():
        if name.endswith(LOCAL) != (suite.kind == "files"):
            rule = f"name a suite of files '<suite>{LOCAL}', because it is not the published benchmark"
            raise ValueError(f"{name}: {rule if suite.kind == 'files' else f'only suites of files end in {LOCAL}'}")
    return suites
