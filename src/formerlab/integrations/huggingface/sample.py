"""Questions and text that everybody has: the documentation of Python's standard library (PSF-2.0)."""

import json
import platform
from pathlib import Path
from typing import NamedTuple

import yaml

from formerlab.data.splitting import Seen
from formerlab.data.text.embedded import Embedded, read_modules
from formerlab.data.text.questions import TASKS, make_questions
from formerlab.data.workers import Workers
from formerlab.files import write_text
from formerlab.spec import fingerprint

CHARACTERS = 400_000
"""Of the text, at most."""


class Sample(NamedTuple):
    """Files of a sample."""

    name: str
    """With the version of Python, whose documentation changes with every release."""
    tasks: tuple[str, ...]
    """Tasks of lm-evaluation-harness, one a kind of question, with four choices each."""
    text: str


def write_sample(folder: Path, questions: int) -> Sample:
    """Write so many questions of each kind, and the text for windows, the same on every machine with this Python.

    A model that read the documentation while it was trained has seen it: that is no matter for a comparison of caches,
    but these numbers are not those of a benchmark.
    """
    with Workers(1) as workers:
        modules = list(read_modules(Embedded(packages=()).located(), Seen(), workers))
    paths = []
    for task in TASKS:
        rows = make_questions(task, modules, questions)
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        file = (folder / f"{task.name}.jsonl").absolute()
        write_text(file, lines)
        metrics = [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}]
        # The harness caches data by the names of files: the name of the task tells one text from another.
        config = task.config(str(file)) | {"metric_list": metrics, "metadata": {"version": fingerprint(lines)[:8]}}
        path = file.with_suffix(".yaml")
        write_text(path, yaml.safe_dump(config, sort_keys=False))
        paths.append(str(path))
    text = folder / "python_docs.txt"
    write_text(text, "\n\n".join(module.render() for module in modules)[:CHARACTERS])
    return Sample(f"python-docs-{platform.python_version()}", tuple(paths), str(text))
