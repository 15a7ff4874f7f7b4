"""Check the public data files of the shipped scales below $FORMERLAB_DATA against workflow/data.yaml.

Planning fails at the first difference, so runs use exactly the data from which the committed rows were computed.
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

DATA_VARIABLE = "FORMERLAB_DATA"
"""Environment variable with the folder of the public data files."""
PUBLIC_MANIFEST = "workflow/data.yaml"
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


class HashedFolder(Spec):
    """A folder with too many files to list."""

    files: Count
    """Number of files, at any depth."""
    sha256: Sha256
    """SHA-256 of the output of this command in the folder: find * -type f | LC_ALL=C sort | xargs -d '\\n'
    sha256sum."""


class PublicData(Spec):
    """One public data set; paths are relative to $FORMERLAB_DATA."""

    title: str
    """Name of the data set, and how it was processed."""
    source: str
    """Where to download the files."""
    licence: str
    """The licence that the source states."""
    files: dict[str, Sha256] = {}
    """SHA-256 by file."""
    folders: dict[str, HashedFolder] = Field(default={})


def read_manifest(root: Path) -> dict[str, PublicData]:
    """Return the public data sets by name. Raises UserError if the manifest is invalid."""
    tree = Tree(read_yaml(root, PUBLIC_MANIFEST), PUBLIC_MANIFEST)
    return {name: parse(PublicData, tree.subtree(name), name) for name in tree}


def check_public_data(name: str, data: DataSpec, root: Path, *, prepared: bool) -> str | None:
    """Raise UserError if files of a data set below $FORMERLAB_DATA are missing or differ from the manifest.

    Files are hashed once and then identified by size and modification time. If the variable is not set and the data are
    not prepared, the function returns a message, because a plan needs no data. Otherwise it returns None.
    """
    paths = sorted(re.findall(rf'"\${DATA_VARIABLE}/([^"]*)"', json.dumps(data.source.to_dict())))
    folder = variable(DATA_VARIABLE)
    if not paths or (prepared and folder is None):
        return None
    manifest = read_manifest(root)
    if folder is None:
        owners = [data_set for data_set in manifest.values() if any(_listed_paths(data_set, path) for path in paths)]
        sources = "; ".join(f"{owner.title}: {owner.source}" for owner in owners)
        return (
            f"data.{name}: ${DATA_VARIABLE} is not set; set it to the folder that contains {', '.join(paths)} "
            f"as {PUBLIC_MANIFEST} lists them ({sources}), or set your own data in config.yaml"
        )
    for path in paths:
        cache = root / ".formerlab" / "public_data" / f"{name}.{path.replace('/', '.')}.json"
        if problem := _difference(path, Path(folder), manifest, cache):
            raise UserError(f"data.{name}: {problem}, or set your own data in config.yaml")
    return None


def _listed_paths(data_set: PublicData, parent: str) -> list[str]:
    return [path for path in (*data_set.files, *data_set.folders) if path == parent or path.startswith(f"{parent}/")]


def _difference(path: str, data_folder: Path, manifest: dict[str, PublicData], cache: Path) -> str | None:
    """Return an error message with remedy if files are missing or differ from the manifest, otherwise None."""
    owner = next((data_set for data_set in manifest.values() if _listed_paths(data_set, path)), None)
    if owner is None:
        return f"{data_folder / path}: not listed in {PUBLIC_MANIFEST}; add it there"
    remedy = f"get it from {owner.source}"
    if not (data_folder / path).exists():
        return f"{data_folder / path}: missing; {remedy}"
    files = [Path(file) for file, _ in files_below(str(data_folder / path))]
    hashes = {file.relative_to(data_folder).as_posix(): sha for file, sha in file_hashes(files, cache).items()}
    if folder := owner.folders.get(path):
        if (len(hashes), listing_hash(hashes, path)) == (folder.files, folder.sha256):
            return None
        problem = f"its content ({len(hashes)} files) differs from {PUBLIC_MANIFEST} ({folder.files} files)"
        return f"{data_folder / path}: {problem}; {remedy}"
    listed = {file: owner.files[file] for file in _listed_paths(owner, path) if file in owner.files}
    for file in sorted(listed.keys() | hashes.keys()):
        if file not in listed:
            return f"{data_folder / file}: not in {PUBLIC_MANIFEST}; move it elsewhere"
        if hashes.get(file) != listed[file]:
            problem = f"SHA-256 differs from {PUBLIC_MANIFEST}" if file in hashes else "missing"
            return f"{data_folder / file}: {problem}; {remedy}"
    return None


def listing_hash(hashes: dict[str, str], folder: str) -> str:
    """Return the SHA-256 of the lines that sha256sum prints for a folder; `hashes` maps paths of files to SHA-256."""
    lines = sorted((path.removeprefix(f"{folder}/").encode(), sha) for path, sha in hashes.items())
    return hashlib.sha256(b"".join(sha.encode() + b"  " + path + b"\n" for path, sha in lines)).hexdigest()
