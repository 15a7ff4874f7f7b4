"""What the manifests of all kinds of data sets have in common, and whether prepared data are still what they say."""

import platform
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from formerlab import __version__
from formerlab.data.dataset import DataSpec, source_fingerprint
from formerlab.data.splitting import SPLITS
from formerlab.data.text.streams import SCHEMA, load_stream, load_tokenizer, read_manifest
from formerlab.errors import UserError
from formerlab.files import write_json
from formerlab.spec import fingerprint


def prepared(
    name: str,
    data: DataSpec,
    out: Path,
    code_hash: str,
    write: Callable[[], dict[str, Any]],
    *,
    is_current: Callable[[dict[str, Any]], object],
    packages: Iterable[str],
    cache: Path | None = None,
) -> None:
    """Have `write` make the files of a data set below `out`, then write its manifest, which stands for finished data.

    Nothing is done where a manifest says the same settings, source and code, and `is_current` finds, without a
    UserError, that its files can be loaded. A source that cannot be seen now counts as unchanged. `write` returns what
    this kind of data says of its files: `fingerprint` of them all, `splits`, `notes` on what limits left out, which are
    said. `packages` are those whose version may matter; `cache` remembers hashes of the source's files.
    """
    seen = {"recipe": fingerprint(data.recipe()), "code_hash": code_hash}
    if (source := source_fingerprint(data, cache)) is not None:
        seen["source_fingerprint"] = source
    with suppress(UserError):
        manifest = read_manifest(out)
        if manifest.items() >= seen.items() and is_current(manifest):
            print(f"{out}: already prepared", file=sys.stderr)
            return
    content = write()
    for note in content["notes"]:
        print(f"{name}: {note}", file=sys.stderr)
    versions = {"python": platform.python_version(), "formerlab": __version__}
    manifest = {
        "schema": SCHEMA,
        "name": name,
        "spec": data.to_dict(),
        "source_fingerprint": None,
        **seen,
        **content,
        "licence": data.source.licence_notice(),
        "questions": content.get("questions", []),
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions | {package: version(package) for package in packages} | data.source.versions(),
    }
    write_json(out / "manifest.json", manifest)


def streams_load(out: Path) -> bool:
    """Load the token streams of all splits and their tokenizer. Raises UserError where one of them cannot be."""
    for split in SPLITS:
        load_stream(out, split)
    load_tokenizer(out)
    return True
