"""Files that a configuration names itself have to be there when it is planned; those that a scale names may come later.

What was prepared or asked before counts as it is, although its files may be out of sight now.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from formerlab.data import TokenizerFile
from formerlab.data.text.released_tokenizer import ReleasedTokenizer
from formerlab.errors import UserError
from formerlab.plan.sources import Sources
from formerlab.results.stages import MEASURED


def check_files(data: dict[str, Any], plan: dict[str, Any], sources: Sources) -> None:
    """Refuse names and patterns, given by the user, that no file has: of data sets, released models and suites.

    `data` are the jobs of all data sets of the scale.
    """
    for name, job in data.items():
        if job["source"] is None:
            spec: Any = sources.scale.data[name]
            _search(("data", name, "source"), spec.search, f"data.{name}: ", sources)
            if isinstance(tokenizer := getattr(spec, "tokenizer", None), TokenizerFile):
                _search(("data", name, "tokenizer"), tokenizer.load, f"data.{name}.tokenizer: ", sources)
            if isinstance(tokenizer, ReleasedTokenizer):
                model = sources.scale.released[tokenizer.model]
                _search(("released", tokenizer.model), model.files, f"released.{tokenizer.model}: ", sources)
    asking = [job["suites"] for stage in MEASURED for job in plan[stage].values()]
    for name, suite in sources.scale.suites.items():
        if not any(suites.get(name) for suites in asking):
            _search(("suites", name), partial(suite.files, name), "", sources)


def _search(path: tuple[str, ...], search: Callable[[], object], key: str, sources: Sources) -> None:
    file = sources.scale_tree.file_of(*path)
    if file != sources.scale_file:
        try:
            search()
        except UserError as error:
            raise UserError(f"{file}: {key}{error}") from None
