"""What all sources on the Hugging Face hub share: how splits are named, and what is said when one is unreadable."""

from collections.abc import Iterator
from contextlib import contextmanager

from formerlab.data.text.shards import SPLITS
from formerlab.errors import UserError
from formerlab.spec import Spec


def named_splits(source: Spec) -> dict[str, str | None]:
    """Return, by our name of a split, the one that the manifest gives for it; none where the source has no such."""
    named = {split: getattr(source, split) for split in SPLITS}
    return {split: f"the data set's split '{name}'" if name else None for split, name in named.items()}


@contextmanager
def reading(name: str, split: str) -> Iterator[None]:
    """Turn whatever goes wrong while a split is read into a UserError of one line."""
    import datasets

    try:
        yield
    except UserError:
        raise
    except Exception as error:  # the libraries below raise errors of many families
        offline = datasets.config.HF_HUB_OFFLINE
        remedy = "offline mode is on, so run this once where there is network" if offline else "check the name"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"hub {name}, split '{split}': {reason}; {remedy}") from None
