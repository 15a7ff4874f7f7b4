"""Suites of questions beside the embedded ones: local files, or tasks that lm-evaluation-harness comes with.

A suite made of other files than the harness's own is another test, even where the questions are the same: prompts and
rows differ. So its name ends in `_local`, it has its own version, and its numbers never stand among published ones.
"""

import glob
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import Field, model_validator

from formerlab.data.manifest import file_hashes, read_manifest
from formerlab.data.text.questions import TASKS
from formerlab.data.text.readers import json_lines
from formerlab.errors import UserError
from formerlab.evaluation.language.examples import FORMATS, Example, Form, check_prompt, read_examples
from formerlab.file_search import expanded, files_named
from formerlab.spec import AnyCount, Count, Spec, fingerprint

LOCAL = "_local"
"""The ending of the names of suites from files, and of no others."""


def task_of(
    name: str, splits: dict[str, list[Example]], form: Form, delimiter: str, version: float, shots: int = 0
) -> dict[str, Any]:
    """Return a task of lm-evaluation-harness that asks the examples of `test`, in front of which solved ones stand."""
    from datasets import Dataset

    metrics, wording = FORMATS[form]
    if form == "cloze":  # the delimiter stands with the answer, since answers of solved examples have one
        wording = wording | {"doc_to_target": lambda example: f"{delimiter}{example['ending']}"}
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
        **wording,
    }


def embedded_tasks(data: Path) -> Iterator[dict[str, Any]]:
    """Yield the embedded questions of prepared data as tasks of lm-evaluation-harness."""
    delimiters = {task.name: task.delimiter for task in TASKS}
    for entry in read_manifest(data)["questions"]:
        name, rows = entry["task"], [row for _, row in json_lines(data / entry["file"])]
        yield task_of(name, {"test": rows}, "choices", delimiters[name], entry["version"])


class _Suite(Spec):
    """The settings of all suites."""

    shots: AnyCount = 0
    """Solved examples in front of each question, the same for every model and policy."""
    limit: Count | None = None
    """Examples at most, of files of your own; by default all."""
    leading_token: bool = False
    """Put the token that ends documents in front of every context; the published accuracies have none."""

    def files(self, name: str = "<name>") -> dict[str, list[Path]]:
        """Return the files by setting. Raises UserError, with the suite's `name`, where one is missing."""
        raise NotImplementedError

    def config(self, name: str, folder: Path) -> dict[str, Any] | str:
        """Return what `load_tasks` takes; `folder` is for files that it needs until tasks are loaded."""
        raise NotImplementedError

    def state(self) -> str | None:
        """Return the fingerprint of settings and contents, whatever the folder; None where a file is missing."""
        try:
            known = file_hashes((path for named in self.files().values() for path in named), None)
        except (UserError, OSError):
            return None
        named = sorted([path.name, digest] for path, digest in known.items())
        return fingerprint([self.model_dump(mode="json", exclude={"paths", "shots_from"}), named])


class LocalSuite(_Suite):
    """Questions in JSON lines of your own, one per line; docs/data.md lists the fields of each format."""

    kind: Literal["files"] = "files"
    paths: Annotated[tuple[str, ...], Field(min_length=1)]
    """Files, folders or globs; `~`, `$NAME` and paths relative to the working directory are understood."""
    format: Form = "choices"
    """choices: endings of one query. contexts: beginnings of one ending (WinoGrande, WSC). cloze: the last word of a
    text (LAMBADA). pairs: two sentences, of which the good one should be the more probable (BLiMP)."""
    prompt: str = "{query}"
    """Text before the choices, with the names of fields in braces; for the format `choices` only."""
    delimiter: str = " "
    """Text between context and ending; pairs have neither."""
    shots_from: tuple[str, ...] = ()
    """Files, folders or globs of solved examples, in the same format; by default they are the other questions."""
    version: float = Field(default=1.0, gt=0.0, le=1e6)
    """Version of the task; raise it when files or prompt change the questions."""

    @model_validator(mode="after")
    def _shots_need_examples(self) -> "LocalSuite":
        if self.shots_from and not self.shots:
            raise ValueError("shots_from without shots; say how many examples stand in front of a question")
        if self.shots and self.format == "pairs":
            raise ValueError("format=pairs has no question that examples could stand in front of; leave shots out")
        return self

    @model_validator(mode="after")
    def _asks_what_is_written(self) -> "LocalSuite":
        check_prompt(self.prompt)
        if self.format != "choices" and self.prompt != "{query}":
            raise ValueError(f"prompt: format={self.format} has none, its fields are the text; leave prompt out")
        if self.format == "pairs" and self.delimiter != " ":
            raise ValueError("delimiter: format=pairs has whole sentences, which nothing divides; leave delimiter out")
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
            where = "shots_from" if self.shots_from else "its own questions"
            raise UserError(f"suites.{name}.shots: {self.shots} examples need more than {pool} in {where}; give fewer")
        return task_of(name, splits, self.format, self.delimiter, self.version, self.shots)


class HarnessSuite(_Suite):
    """A task that lm-evaluation-harness defines, from local copies of its data set, from the hub or the hub's cache."""

    kind: Literal["harness"] = "harness"
    task: str
    """Its name there: hellaswag, lambada_openai, arc_easy, arc_challenge, winogrande, piqa, openbookqa, ..."""
    paths: dict[Literal["train", "validation", "test"], str] = {}
    """Local copies of the data set by split, in JSON lines or Parquet, with the fields that it has on the hub; every
    split that the task names must be there. Empty: the hub, or its cache where HF_HUB_OFFLINE is set."""

    @model_validator(mode="after")
    def _asks_all(self) -> "HarnessSuite":
        if self.limit is not None:
            raise ValueError("limit: a task of the harness asks all its examples; set question_limit of the stage")
        return self

    def files(self, name: str = "<name>") -> dict[str, list[Path]]:
        for split, path in self.paths.items():
            if not expanded(path).is_file():
                raise UserError(f"suites.{name}.paths.{split}: no file at '{path}'")
            if expanded(path).stat().st_size == 0:
                raise UserError(f"suites.{name}.paths.{split}: {path}: empty file; name a whole copy")
        return {split: [expanded(path).absolute()] for split, path in self.paths.items()}

    def config(self, name: str, folder: Path) -> str:
        """Write a file of the differences from the harness's own definition; return its path."""
        own: dict[str, Any] = {"include": str(_definition(name, self.task)), "task": name}
        own["num_fewshot"] = self.shots
        if files := self.files(name):
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


Suite = Annotated[LocalSuite | HarnessSuite, Field(discriminator="kind")]


def check_names(suites: dict[str, Suite]) -> dict[str, Suite]:
    """Return the suites. Raises ValueError where a name does not show whether a suite comes from files."""
    for name, suite in suites.items():
        if name.endswith(LOCAL) != (suite.kind == "files"):
            of_files = f"a suite of files is named '<suite>{LOCAL}', since it is not the published one"
            raise ValueError(f"{name}: {of_files if suite.kind == 'files' else f'only suites of files end in {LOCAL}'}")
    return suites
