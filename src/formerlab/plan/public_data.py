"""The public data that shipped scales read: which files lie below $FORMERLAB_DATA, what they hold, where to get them.

workflow/data.yaml lists them. A scale names its files as `$FORMERLAB_DATA/...`, so it holds no paths of one machine.
Whoever runs it has exactly the data of the committed rows, or reads in one line what differs.
"""

import hashlib
import json
import re
from pathlib import Path
from typing import Annotated

from pydantic import Field, StringConstraints

from formerlab.data.dataset import DataSpec
from formerlab.data.manifest import file_hashes
from formerlab.errors import UserError
from formerlab.file_search import files_below
from formerlab.files import variable
from formerlab.plan.merging import Tree, parse
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
    """Return the public data sets by name. Raises UserError where the file is no manifest."""
    tree = Tree(read_yaml(root, MANIFEST), MANIFEST)
    return {name: parse(PublicData, tree.part(name), name) for name in tree}


def check_public_data(name: str, data: DataSpec, root: Path, *, prepared: bool) -> str | None:
    """Refuse a data set below $FORMERLAB_DATA whose files are missing or are not those of the manifest.

    Files are hashed once and then known by size and time of change. Where the variable is not set, `prepared` data stay
    valid; for others the line that says what to do is returned, since their runs can be planned, not made.
    """
    named = sorted(re.findall(rf'"\${VARIABLE}/([^"]*)"', json.dumps(data.source.to_dict())))
    folder = variable(VARIABLE)
    if not named or (prepared and folder is None):
        return None
    manifest = read_manifest(root)
    if folder is None:
        owners = [one for one in manifest.values() if any(_listed(one, path) for path in named)]
        sources = "; ".join(f"{one.title}: {one.source}" for one in owners)
        return (
            f"data.{name}: ${VARIABLE} is not set; give it the folder that holds {', '.join(named)} "
            f"as {MANIFEST} lists them ({sources}), or name data of your own in config.yaml"
        )
    for path in named:
        cache = root / ".formerlab" / "public_data" / f"{name}.{path.replace('/', '.')}.json"
        if problem := _problem(path, Path(folder), manifest, cache):
            raise UserError(f"data.{name}: {problem}, or name data of your own in config.yaml")
    return None


def _listed(one: PublicData, named: str) -> list[str]:
    """Return the files and folders of a public data set that a name stands for: itself, or what is below it."""
    return [path for path in (*one.files, *one.folders) if path == named or path.startswith(f"{named}/")]


def _problem(named: str, below: Path, manifest: dict[str, PublicData], cache: Path) -> str | None:
    """Return what is wrong with files below the folder, and what to do."""
    owner = next((one for one in manifest.values() if _listed(one, named)), None)
    if owner is None:
        return f"{below / named}: {MANIFEST} lists no such file; add it there"
    remedy = f"get it from {owner.source}"
    if not (below / named).exists():
        return f"{below / named}: missing; {remedy}"
    paths = [Path(path) for path, _ in files_below(str(below / named))]
    hashes = {path.relative_to(below).as_posix(): sha for path, sha in file_hashes(paths, cache).items()}
    wanted = {path: owner.files[path] for path in _listed(owner, named) if path in owner.files}
    if many := owner.folders.get(named):
        if (len(hashes), listing_hash(hashes, named)) == (many.files, many.sha256):
            return None
        return f"{below / named}: {len(hashes)} files, not the {many.files} of {MANIFEST} by their SHA-256; {remedy}"
    for path in sorted(wanted.keys() | hashes.keys()):
        if path not in wanted:
            return f"{below / path}: not in {MANIFEST}; move it elsewhere"
        if hashes.get(path) != wanted[path]:
            what = f"not the file of {MANIFEST} (another SHA-256)" if path in hashes else "missing"
            return f"{below / path}: {what}; {remedy}"
    return None


def listing_hash(hashes: dict[str, str], folder: str) -> str:
    """Return the SHA-256 of the lines that sha256sum prints of the files of a folder, given theirs by path."""
    lines = sorted((path.removeprefix(f"{folder}/").encode(), sha) for path, sha in hashes.items())
    return hashlib.sha256(b"".join(sha.encode() + b"  " + path + b"\n" for path, sha in lines)).hexdigest()
