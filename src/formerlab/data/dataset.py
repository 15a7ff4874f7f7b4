"""What every kind of data set answers."""

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from formerlab.spec import Spec


class DataSpec(Spec, ABC):
    """Where data come from and what becomes of them, until a task loads them."""

    stage: ClassVar[str]
    """Module with `prepare(name, data, out, *, code_hash, processes)`, which writes everything below `out` and the
    manifest last, and `source_fingerprint(data, cache)`, which says what state the source is in."""

    @property
    def has_questions(self) -> bool:
        """Whether zero-shot questions are made of the held-out data."""
        return False

    @abstractmethod
    def recipe(self) -> dict[str, Any]:
        """Return what shapes the data, without the places they lie at."""

    @abstractmethod
    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the keys of a run that follow from these data and the keys of its task, where the run is silent."""
