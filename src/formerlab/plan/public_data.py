"""The public data that shipped scales read: which files lie below $FORMERLAB_DATA, what they hold, where to get them.

workflow/data.yaml lists them. A scale names its files as `$FORMERLAB_DATA/...`, so no machine's paths stand in it, and
whoever runs it has the very data that the committed rows were made from, or hears in one line what differs.
"""

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from formerlab.data.dataset import DataSpec
from formerlab.data.file_hashes import file_hashes
from formerlab.errors import UserError
from formerlab.file_search import files_below
from formerlab.plan.layers import Tree
from formerlab.plan.read import parse
from formerlab.spec import Count, Spec
from formerlab.yaml_files import read_yaml

VARIABLE = "FORMERLAB_DATA"
"""The environment variable that says in which folder the files lie."""
MANIFEST = "workflow/data.yaml"
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class ManyFiles(Spec):
    """A folder of too many files to list."""

    files: Count
    """How many there are, at any depth."""
    sha256: Sha256
    """SHA-256 of what this prints in the folder: find * -type f | LC_ALL=C sort | xargs -d '\\n' sha256sum."""


class PublicData(Spec):
    """One public data set: its files, named as they lie below the folder."""

    title: str
    """What it is, and what was made of it."""
    source: str
    """Where to get it."""
    licence: str
    """The licence, as its source states it."""
    files: dict[str, Sha256] = {}
    """SHA-256 by file."""
    folders: dict[str, ManyFiles] = Field(default={})
    """Folders of many files."""


def read_manifest(root: Path) -> dict[str, PublicData]:
    """Return the public data sets by name. Raises UserError for what is no manifest."""
    tree = Tree(read_yaml(root, MANIFEST), MANIFEST)
    return {name: parse(PublicData, tree.part(name), name) for name in tree}


def check_public_data(name: str, data: DataSpec, root: Path, *, prepared: bool) -> str | None:
    """Refuse a data set below $FORMERLAB_DATA whose files are missing or are not those of the manifest.

    Files are hashed once and then known by size and time of change. Where the variable is not set, what was `prepared`
    counts as it is, and for what was not the line is returned that says what to do: its runs can be planned, not made.
    """
    places = sorted(_places(data.source.to_dict()))
    if not places or (prepared and VARIABLE not in os.environ):
        return None
    manifest = read_manifest(root)
    if VARIABLE not in os.environ:
        owners = [one for one in manifest.values() if any(_lists(one, place) for place in places)]
        named = "; ".join(f"{one.title}: {one.source}" for one in owners)
        return (
            f"data.{name}: ${VARIABLE} is not set; give it the folder that holds {', '.join(places)} "
            f"as {MANIFEST} lists them ({named}), or name data of your own in config.yaml"
        )
    cache = root / ".formerlab" / "public_data" / f"{name}.json"
    for place in places:
        _check(name, place, Path(os.environ[VARIABLE]), manifest, cache.with_stem(f"{name}.{place.replace('/', '.')}"))
    return None


def _places(value: Any) -> Iterator[str]:
    """Yield what a data source names below the variable's folder."""
    if isinstance(value, str) and value.startswith(f"${VARIABLE}/"):
        yield value.removeprefix(f"${VARIABLE}/")
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _places(item)


def _lists(one: PublicData, place: str) -> bool:
    return any(path == place or path.startswith(f"{place}/") for path in (*one.files, *one.folders))


def _check(name: str, place: str, below: Path, manifest: dict[str, PublicData], cache: Path) -> None:
    subject = f"data.{name}: {below / place}"
    owner = next((one for one in manifest.values() if _lists(one, place)), None)
    if owner is None:
        raise UserError(f"{subject}: {MANIFEST} lists no such file; add it there")
    remedy = f"get it from {owner.source}, or name data of your own in config.yaml"
    if not (below / place).exists():
        raise UserError(f"{subject}: missing; {remedy}")
    files = (Path(path) for path, _ in files_below(str(below / place)))
    found = {path.relative_to(below).as_posix(): path for path in files}
    hashes = file_hashes(found.values(), cache)
    if place in owner.folders:
        _check_folder(subject, owner.folders[place], {path: hashes[found[path]] for path in found}, place, remedy)
        return
    listed = {path: sha for path, sha in owner.files.items() if path == place or path.startswith(f"{place}/")}
    for path in sorted(listed.keys() | found.keys()):
        if path not in found:
            raise UserError(f"data.{name}: {below / path}: missing; {remedy}")
        if path not in listed:
            raise UserError(f"data.{name}: {below / path}: not in {MANIFEST}; move it elsewhere")
        if hashes[found[path]] != listed[path]:
            raise UserError(f"data.{name}: {below / path}: not the file of {MANIFEST} (another SHA-256); {remedy}")


def _check_folder(subject: str, many: ManyFiles, hashes: dict[str, str], place: str, remedy: str) -> None:
    if len(hashes) != many.files:
        raise UserError(f"{subject}: {len(hashes)} files, where {MANIFEST} says {many.files}; {remedy}")
    if listing_hash(hashes, place) != many.sha256:
        raise UserError(f"{subject}: not the files of {MANIFEST} (another SHA-256 of their list); {remedy}")


def listing_hash(hashes: dict[str, str], place: str) -> str:
    """Return the SHA-256 of the lines that sha256sum prints of the files of a folder, given theirs by path."""
    lines = sorted((path.removeprefix(f"{place}/").encode(), sha) for path, sha in hashes.items())
    return hashlib.sha256(b"".join(sha.encode() + b"  " + path + b"\n" for path, sha in lines)).hexdigest()
