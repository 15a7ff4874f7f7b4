"""Results with their weights in one zip that proves itself: manifest.json names every file with size and SHA-256.

Names, sizes and times are judged before anything is unpacked; an archive is then unpacked beside its place, verified as
a whole, and only then moved there: a damaged or hostile one changes nothing.
"""

import os
import re
import shutil
import stat
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from pydantic import NonNegativeInt, ValidationError

from formerlab import __version__
from formerlab.errors import UserError
from formerlab.files import beside, remove_abandoned, replacing, sha256
from formerlab.progress import Progress
from formerlab.spec import Spec

SCHEMA = 1
MANIFEST = "manifest.json"
BLOCK = 1 << 20
MOST_FILES = 200_000
MOST_MANIFEST_BYTES = 500 * MOST_FILES
MOST_GROWTH = 100
"""Content of more than SMALL_BYTES is at most so many times as large as its archive: rows shrink to a twentieth."""
SMALL_BYTES = 100_000_000
LONGEST_PART, LONGEST_NAME = 200, 1000
"""Bytes of a name, so that the folders of any results have room beside it."""
DAY_NS = 24 * 3600 * 10**9
_LEFT_OUT = ("checkpoint", "plans")
"""Folders that are of use only where they are; of data sets, manifest and tokenizer go along, streams do not."""
_OF_DATA = ("manifest.json", "tokenizer.json")
_FORMS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


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
    with replacing(out) as temporary, zipfile.ZipFile(temporary, "w", _FORMS[1], strict_timestamps=False) as package:
        with Progress(len(paths), "archive", unit="file") as progress:
            for path in paths:
                name, state = path.relative_to(root).as_posix(), path.stat()
                # Weights are noise to a compressor, and by far the largest files.
                package.write(path, name, compress_type=_FORMS[path.suffix != ".safetensors"])
                files[name] = Entry(sha256=sha256(path), bytes=state.st_size, modified_ns=max(0, state.st_mtime_ns))
                progress.advance()
        manifest = Manifest(schema_version=SCHEMA, formerlab=__version__, scale=root.resolve().name, files=files)
        package.writestr(MANIFEST, manifest.model_dump_json(indent=1))
    return manifest


def _finished_files(root: Path) -> Iterator[Path]:
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file() or not _is_plain(path.relative_to(root).as_posix()):
            continue
        run = next((parent for parent in path.parents if re.fullmatch(r"seed\d+", parent.name)), None)
        if run is None or (run / "run.json").exists():
            yield path


def _is_plain(name: str) -> bool:
    """Say whether an archive takes a file of that name: one below its folder, on any system, and worth taking."""
    parts = PurePosixPath(name).parts
    if not name.isprintable() or set("\\:") & set(name) or "/".join(parts) != name or len(name) > LONGEST_NAME:
        return False
    if any(part.startswith(".") or part in _LEFT_OUT or len(part.encode()) > LONGEST_PART for part in parts):
        return False
    return bool(parts) and not name.startswith("/") and (parts[0] != "data" or parts[-1] in _OF_DATA)


def import_archive(path: Path, live: Path) -> tuple[Manifest, list[str]]:
    """Verify an archive and unpack it into `live`/<scale>; return its manifest and the files that were new.

    Raises UserError in one line, and changes nothing, where the archive is not whole, holds what its manifest does not
    say, names a place outside, or would replace a file by another.
    """
    try:
        with zipfile.ZipFile(path) as package:
            manifest = _manifest(path, package)
            _check_names(path, package, manifest)
            _check_sizes(path, package, manifest)
            return manifest, _unpack(path, package, manifest, live)
    except OSError as error:
        if not path.exists():
            raise UserError(f"{path}: no such file") from None
        raise UserError(f"{path}: not unpacked as a whole ({error}); mend that and import again") from None
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError, ValueError, zlib.error) as error:
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
        raise UserError(f"{path}: {MANIFEST}: {place!r}: {first['msg']}; it was not written by this project") from None
    if manifest.schema_version != SCHEMA:
        raise UserError(f"{path}: schema {manifest.schema_version}, but this version reads schema {SCHEMA}")
    if not re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,99}", manifest.scale):
        raise UserError(f"{path}: scale {manifest.scale[:100]!r} is no name of a scale; the archive was tampered with")
    return manifest


def _check_names(path: Path, package: zipfile.ZipFile, manifest: Manifest) -> None:
    members = package.infolist()
    if len(members) > MOST_FILES:
        raise UserError(f"{path}: holds {len(members)} files, more than {MOST_FILES}; archive fewer runs at a time")
    for member in members:
        kind = stat.S_IFMT(member.external_attr >> 16)
        if not _is_plain(member.filename) or kind not in (0, stat.S_IFREG) or member.compress_type not in _FORMS:
            raise UserError(
                f"{path}: {member.filename[:LONGEST_NAME]!r} is no plain file below its folder; "
                "the archive was tampered with"
            )
    names = [member.filename for member in members]
    folders = {str(parent) for name in names for parent in PurePosixPath(name).parents}
    if len(set(names)) < len(names) or folders & set(names):
        raise UserError(f"{path}: holds a name twice; the archive was tampered with")
    if odd := sorted(set(names) ^ {*manifest.files, MANIFEST}):
        raise UserError(f"{path}: {odd[0]!r} is in the archive or in its manifest alone; copy it again")


def _check_sizes(path: Path, package: zipfile.ZipFile, manifest: Manifest) -> None:
    """Refuse sizes that are not those of the manifest, and what no results shrink to; times that are yet to come."""
    for name, entry in manifest.files.items():
        if package.getinfo(name).file_size != entry.bytes:
            raise UserError(f"{path}: {name!r} has not the size in its manifest; copy it again")
        if entry.modified_ns > time.time_ns() + DAY_NS:
            raise UserError(f"{path}: {name!r} is of a time that is yet to come; set the clock and archive again")
    total, packed = sum(entry.bytes for entry in manifest.files.values()), path.stat().st_size
    if total > max(SMALL_BYTES, MOST_GROWTH * packed):
        raise UserError(
            f"{path}: {packed / 1e6:.1f} MB would become {total / 1e9:.1f} GB, as no results do; get another"
        )


def _unpack(path: Path, package: zipfile.ZipFile, manifest: Manifest, live: Path) -> list[str]:
    target = live / manifest.scale
    fresh = beside(target, "new")
    needed = sum(entry.bytes for entry in manifest.files.values())
    live.mkdir(parents=True, exist_ok=True)
    remove_abandoned(live)
    if shutil.disk_usage(live).free < needed:
        raise UserError(f"{live}: the archive needs {needed / 1e9:.1f} GB, and there is less room")
    try:
        with Progress(len(manifest.files), "import", unit="file") as progress:
            for name, entry in manifest.files.items():
                _extract(path, package, name, entry, fresh / name)
                progress.advance()
        new = [name for name, entry in manifest.files.items() if not _is_there(target / name, entry)]
        # A run counts as finished once its run.json is there, so that comes after the files it speaks of.
        for name in sorted(new, key=lambda name: name.endswith("run.json")):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(fresh / name, target / name)
        return new
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _extract(path: Path, package: zipfile.ZipFile, name: str, entry: Entry, out: Path) -> None:
    """Write one file and compare it with its hash; reading stops at the size that was checked."""
    out.parent.mkdir(parents=True, exist_ok=True)
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
