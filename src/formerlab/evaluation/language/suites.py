"""Suites of questions beside the embedded ones: local files, or tasks that lm-evaluation-harness comes with.

A suite made of other files than the harness's own is another test, even where the questions are the same: prompts and
rows differ. Its name therefore ends in `_local`, it has a version of its own, and its numbers stand in no column of
published ones. `suite_tasks.py` makes tasks of suites.
"""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from formerlab.data.file_hashes import file_hashes
from formerlab.errors import UserError
from formerlab.file_search import expanded, files_named
from formerlab.spec import AnyCount, Count, Spec, fingerprint

LOCAL = "_local"
"""How the names of suites from files end, and no others."""

Form = Literal["choices", "contexts", "cloze", "pairs"]


class _Suite(Spec):
    """What suites share."""

    shots: AnyCount = 0
    """Solved examples in front of each question, the same for every model and policy."""
    limit: Count | None = None
    """Examples at most; none means all."""
    leading_token: bool = False
    """Put the token that ends documents in front of every context; the published accuracies have none."""

    def all_files(self) -> list[Path]:
        """Return all files that the suite reads. Raises UserError where one is missing."""
        raise NotImplementedError

    def state(self) -> str | None:
        """Return the fingerprint of settings and contents, not of where files lie; none where a file is missing.

        What the hub holds is not looked up.
        """
        try:
            known = file_hashes(self.all_files(), None)
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
    """What stands before the choices, with the names of fields in braces; for the format `choices` only."""
    delimiter: str = " "
    """What stands between context and ending; pairs have neither."""
    shots_from: tuple[str, ...] = ()
    """Files, folders or globs that they are drawn from, in the same format; none: the other questions."""
    version: float = Field(default=1.0, gt=0.0, le=1e6)
    """Version of the task; raise it when files or prompt change what is asked."""

    @model_validator(mode="after")
    def _shots_need_examples(self) -> "LocalSuite":
        if self.shots_from and not self.shots:
            raise ValueError("shots_from without shots; say how many examples stand in front of a question")
        if self.shots and self.format == "pairs":
            raise ValueError("format=pairs has no question that examples could stand in front of; leave shots out")
        return self

    def all_files(self) -> list[Path]:
        """Return questions and solved examples."""
        return [*self.files(), *self.files(of="shots_from")]

    def files(self, name: str = "<name>", of: Literal["paths", "shots_from"] = "paths") -> list[Path]:
        """Return the files, sorted. Raises UserError for a pattern without any; `name` is that of the suite."""
        return files_named(getattr(self, of), f"suites.{name}.{of}", ".jsonl")


class HarnessSuite(_Suite):
    """A task that lm-evaluation-harness defines, from local copies of its data set, from the hub or the hub's cache."""

    kind: Literal["harness"] = "harness"
    task: str
    """Its name there: hellaswag, lambada_openai, arc_easy, arc_challenge, winogrande, piqa, openbookqa, ..."""
    paths: dict[Literal["train", "validation", "test"], str] = {}
    """Local copies of the data set by split, in JSON lines or Parquet, with the fields that it has on the hub; every
    split that the task names must be there. Empty: the hub, or its cache where HF_HUB_OFFLINE is set."""

    def all_files(self) -> list[Path]:
        """Return the local copies."""
        return list(self.files().values())

    def files(self, name: str = "<name>") -> dict[str, Path]:
        """Return the local copies by split. Raises UserError for one that is missing; `name` is that of the suite."""
        files: dict[str, Path] = {split: expanded(path).absolute() for split, path in self.paths.items()}
        for split, path in files.items():
            if not path.is_file():
                raise UserError(f"suites.{name}.paths.{split}: no file at '{path}'")
        return files


Suite = Annotated[LocalSuite | HarnessSuite, Field(discriminator="kind")]


def check_names(suites: dict[str, Suite]) -> dict[str, Suite]:
    """Return the suites. Raises ValueError where a name hides what a suite is made of."""
    for name, suite in suites.items():
        if name.endswith(LOCAL) != (suite.kind == "files"):
            of_files = f"a suite of files is named '<suite>{LOCAL}', since it is not the published one"
            raise ValueError(f"{name}: {of_files if suite.kind == 'files' else f'only suites of files end in {LOCAL}'}")
    return suites
