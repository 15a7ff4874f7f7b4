"""What every source answers, whatever it holds: text, sentence pairs, images."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path

from formerlab.data.text.shards import Shares
from formerlab.spec import Spec


class Origin(Spec, ABC):
    """Where the items of a data set come from."""

    @abstractmethod
    def state(self, cache: Path | None = None) -> str | None:
        """Return 16 hexadecimal digits that change when the content would; None where the source cannot be seen now.

        Reads no network. `cache` names a file that remembers the contents of unchanged files.
        """

    def search(self) -> None:
        """Raise UserError where a name or pattern of files has none; what is not in files is not looked up."""

    @abstractmethod
    def recipe(self) -> dict[str, object]:
        """Return the settings that shape the content, without the places it lies at."""

    @abstractmethod
    def split_rule(self, shares: Shares) -> str:
        """Say in one sentence how the items are divided."""

    @abstractmethod
    def licence_notice(self) -> str:
        """Return the licence of the content, as its owner or the config states it."""

    def versions(self) -> dict[str, str]:
        """Return the versions of packages whose own content is read."""
        return {}


def rule_of(named: Mapping[str, str | None], shares: Shares, otherwise: str) -> str:
    """Say of each held-out split how the source names it, or that items fall into it `otherwise`, in which share."""
    rules = []
    for split, share in (("test", shares.test), ("valid", shares.valid)):
        theirs = named.get(split)
        rules.append(f"{split}: {theirs}" if theirs else f"{split} {otherwise}, {share:g}")
    return "; ".join(rules)
