"""Results with their weights in one zip that proves itself: manifest.json names every file with size and SHA-256.

An archive is unpacked beside its place, verified as a whole, and only then moved there: a damaged one changes nothing.
"""

import os
import re
import shutil
import stat
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import NonNegativeInt, ValidationError

from formerlab import __version__
from formerlab.errors import UserError
from formerlab.files import replacing, sha256
from formerlab.progress import Progress
from formerlab.spec import Spec

SCHEMA = 1
MANIFEST = "manifest.json"
MOST_MANIFEST_BYTES = 100_000_000
BLOCK = 1 << 20
_LEFT_OUT = ("checkpoint", "plans")
"""Folders that are of use only where they are; of data sets, manifest and tokenizer go along, streams do not."""
_OF_DATA = ("manifest.json", "tokenizer.json")


class Entry(Spec):
    """A file of an archive."""

    sha256: str
    """Hash of its content."""
    bytes: NonNegativeInt
    """Its size."""
    modified_ns: NonNegativeInt
    """When it was written, ns since 1970: the DAG compares these."""


class Manifest(Spec):
    """What an archive says it holds."""

    schema_version: int
    """Version of this format."""
    formerlab: str
    """Version that wrote it."""
    scale: str
    """Folder below results/live that the files belong to."""
    files: dict[str, Entry]
    """Files by their path below that folder."""

    @property
    def runs(self) -> int:
        """Number of finished runs."""
        return sum(name.endswith("/run.json") for name in self.files)


def archive(root: Path, out: Path) -> Manifest:
    """Write the finished results below `root` (results/live/<scale>) into the zip `out`; return its manifest.

    A folder of a run goes along when it has a run.json. Raises UserError where there is none.
    """
    paths = sorted(_finished_files(root))
    if not any(path.name == "run.json" for path in paths):
        raise UserError(f"{root}: no finished run to archive; run the DAG for this scale first")
    files = {}
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w", zipfile.ZIP_DEFLATED) as package:
        with Progress(len(paths), "archive", unit="file") as progress:
            for path in paths:
                name, state = path.relative_to(root).as_posix(), path.stat()
                # Weights are noise to a compressor, and by far the largest files.
                form = zipfile.ZIP_STORED if path.suffix == ".safetensors" else zipfile.ZIP_DEFLATED
                package.write(path, name, compress_type=form)
                files[name] = Entry(sha256=sha256(path), bytes=state.st_size, modified_ns=state.st_mtime_ns)
                progress.advance()
        manifest = Manifest(schema_version=SCHEMA, formerlab=__version__, scale=root.resolve().name, files=files)
        package.writestr(MANIFEST, manifest.model_dump_json(indent=1))
    return manifest


def _finished_files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        parts = path.relative_to(root).parts
        hidden = any(part.startswith(".") or part in _LEFT_OUT for part in parts)
        if hidden or not path.is_file() or path.is_symlink():
            continue
        if parts[0] == "data" and path.name not in _OF_DATA:
            continue
        run = next((parent for parent in path.parents if re.fullmatch(r"seed\d+", parent.name)), None)
        if run is None or (run / "run.json").exists():
            yield path


def import_archive(path: Path, live: Path) -> tuple[Manifest, list[str]]:
    """Verify an archive and unpack it into `live`/<scale>; return its manifest and the files that were new.

    Raises UserError in one line, and changes nothing, where the archive is not whole, holds what its manifest does not
    say, names a place outside, or would replace a file by another.
    """
    try:
        with zipfile.ZipFile(path) as package:
            manifest = _manifest(path, package)
            _check_names(path, package, manifest)
            return manifest, _unpack(path, package, manifest, live)
    except FileNotFoundError:
        raise UserError(f"{path}: no such file") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error) as error:
        raise UserError(f"{path}: not a whole archive ({error}); copy it again") from None


def _manifest(path: Path, package: zipfile.ZipFile) -> Manifest:
    try:
        information = package.getinfo(MANIFEST)
        if information.file_size > MOST_MANIFEST_BYTES:
            raise UserError(f"{path}: its {MANIFEST} is too large to be one")
        manifest = Manifest.model_validate_json(package.read(information))
    except KeyError:
        raise UserError(f"{path}: has no {MANIFEST}; it was not written by make results-archive") from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise UserError(f"{path}: {MANIFEST}: {place}: {first['msg']}; it was not written by this project") from None
    if manifest.schema_version != SCHEMA:
        raise UserError(f"{path}: schema {manifest.schema_version}, but this version reads schema {SCHEMA}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]*", manifest.scale):
        raise UserError(f"{path}: scale {manifest.scale!r} is no name of a scale; the archive was tampered with")
    return manifest


def _check_names(path: Path, package: zipfile.ZipFile, manifest: Manifest) -> None:
    names = [information.filename for information in package.infolist()]
    for information in package.infolist():
        name, place = information.filename, PurePosixPath(information.filename)
        outside = (
            not place.parts or place.is_absolute() or ".." in place.parts or "\\" in name or ":" in name or "\0" in name
        )
        kind = stat.S_IFMT(information.external_attr >> 16)
        if outside or information.is_dir() or kind not in (0, stat.S_IFREG):
            raise UserError(f"{path}: {name!r} is no plain file below its folder; the archive was tampered with")
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    if len(set(names)) < len(names) or folders & set(names):
        raise UserError(f"{path}: holds a name twice; the archive was tampered with")
    if odd := sorted(set(names) ^ {*manifest.files, MANIFEST}):
        raise UserError(f"{path}: {odd[0]!r} is in the archive or in its manifest alone; copy it again")


def _unpack(path: Path, package: zipfile.ZipFile, manifest: Manifest, live: Path) -> list[str]:
    target, beside = live / manifest.scale, live / f".{manifest.scale}.{os.getpid()}.import"
    needed = sum(entry.bytes for entry in manifest.files.values())
    live.mkdir(parents=True, exist_ok=True)
    if shutil.disk_usage(live).free < needed:
        raise UserError(f"{live}: the archive needs {needed / 1e9:.1f} GB, and there is less room")
    try:
        with Progress(len(manifest.files), "import", unit="file") as progress:
            for name, entry in manifest.files.items():
                _extract(path, package, name, entry, beside / name)
                progress.advance()
        new = [name for name, entry in manifest.files.items() if not _is_there(target / name, entry)]
        # A run counts as finished once its run.json is there, so that comes after the files it speaks of.
        for name in sorted(new, key=lambda name: name.endswith("run.json")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(beside / name, target / name)
        return new
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _extract(path: Path, package: zipfile.ZipFile, name: str, entry: Entry, out: Path) -> None:
    """Write one file, never more than its manifest says, and compare it with its hash."""
    out.parent.mkdir(parents=True, exist_ok=True)
    if package.getinfo(name).file_size != entry.bytes:
        raise UserError(f"{path}: {name!r} has not the size in its manifest; copy it again")
    with package.open(name) as source, open(out, "wb") as file:
        shutil.copyfileobj(source, file, BLOCK)
    if sha256(out) != entry.sha256:
        raise UserError(f"{path}: {name!r} has not the hash in its manifest; copy it again")
    os.utime(out, ns=(entry.modified_ns, entry.modified_ns))


def _is_there(path: Path, entry: Entry) -> bool:
    """Return whether the very file is there; another one in its place is not replaced."""
    if not path.exists():
        return False
    if path.stat().st_size != entry.bytes or sha256(path) != entry.sha256:
        raise UserError(f"{path}: exists and differs from the archive; move it away, then import again")
    return True
