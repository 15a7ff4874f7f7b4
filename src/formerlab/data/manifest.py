"""What the manifests of all kinds of data sets have in common, and whether prepared data are still what they say."""

import platform
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from formerlab import __version__
from formerlab.data.dataset import DataSpec
from formerlab.data.splitting import SPLITS, Split
from formerlab.data.text.streams import SCHEMA, load_stream, load_tokenizer, read_manifest
from formerlab.errors import UserError
from formerlab.files import write_json
from formerlab.spec import fingerprint


def made_from(data: DataSpec, source: str | None, code_hash: str) -> dict[str, Any]:
    """Return what data are made from; where a manifest says the same, they need not be prepared again."""
    return {"recipe": fingerprint(data.recipe()), "source_fingerprint": source, "code_hash": code_hash}


def current_manifest(
    out: Path, provenance: dict[str, Any], load: Callable[[Path, Split], object]
) -> dict[str, Any] | None:
    """Return the manifest in `out` where it says the same provenance and all splits can be loaded, else nothing.

    A source that cannot be seen now counts as unchanged.
    """
    seen = {key: value for key, value in provenance.items() if key != "source_fingerprint" or value is not None}
    try:
        manifest = read_manifest(out)
        for split in SPLITS if manifest.items() >= seen.items() else ():
            load(out, split)
    except UserError:
        return None
    return manifest if manifest.items() >= seen.items() else None


def load_all(out: Path, split: Split) -> None:
    """Load the token stream of a split and its tokenizer. Raises UserError where one of them cannot be."""
    load_stream(out, split)
    load_tokenizer(out)


def tell(name: str, notes: Iterable[str]) -> None:
    """Say what limits leave out of a data set, and what else is not as its settings read; the manifest repeats it."""
    for note in notes:
        print(f"{name}: {note}", file=sys.stderr)


def write_manifest(
    out: Path, name: str, data: DataSpec, provenance: dict[str, Any], content: dict[str, Any], packages: Iterable[str]
) -> None:
    """Write the manifest, which stands for finished data, and so comes last.

    `content` is what this kind of data says of its files, with a `fingerprint` of them all; `packages` are those whose
    version may matter.
    """
    versions = {"python": platform.python_version(), "formerlab": __version__}
    manifest = {
        "schema": SCHEMA,
        "name": name,
        "spec": data.to_dict(),
        **provenance,
        **content,
        "split_rule": data.source.split_rule(data.shares),
        "licence": data.source.licence_notice(),
        "questions": content.get("questions", []),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | {package: version(package) for package in packages} | data.source.versions(),
    }
    write_json(out / "manifest.json", manifest)
