"""The data stage of images: from a source to one file of bytes per split, labels and, last, the manifest."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from formerlab.data.dataset import source_fingerprint
from formerlab.data.images.decode import Decoded, Form, decode_all
from formerlab.data.images.source import Gallery, Picture
from formerlab.data.images.spec import ImageData
from formerlab.data.images.store import load_images
from formerlab.data.manifest import current_manifest, made_from, tell, write_manifest
from formerlab.data.splitting import SPLITS, Seen, Split, digest
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.files import replacing, sha256
from formerlab.progress import Progress
from formerlab.spec import fingerprint

AT_ONCE = 64
"""Pictures that a worker decodes in one go."""

SPREAD = 2.0**64


class Growing:
    """The files of a split while images are added."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.labels: list[int] = []
        self.offsets = [0]

    def add(self, content: bytes, label: int) -> None:
        """Add an image."""
        self._file.write(content)
        self.labels.append(label)
        self.offsets.append(self.offsets[-1] + len(content))


class Deduplicator:
    """Puts images into the files of their splits, of identical ones only the first, and counts what it leaves out."""

    def __init__(self, files: dict[Split, Growing], data: ImageData) -> None:
        self.files = files
        self.corrupt: list[str] = []
        self.duplicates = 0
        self.passed_over = {"keep": 0, "keep_held_out": 0}
        """Images that these shares leave out."""
        self.sums = np.zeros((2, data.channels))
        """Sums of the means and of the mean squares of the training images."""
        self._most_corrupt = data.most_corrupt
        self._seen = Seen()

    def add(self, image: Decoded | str) -> None:
        """Take an image, or the name of one that is corrupt. Raises UserError where there are too many of those."""
        if isinstance(image, str):
            self.corrupt.append(image)
            if len(self.corrupt) > self._most_corrupt:
                raise UserError(
                    f"data: more than most_corrupt={self._most_corrupt} images cannot be decoded, the last one "
                    f"{image}; mend or remove them, or raise most_corrupt"
                )
        elif not self._seen.add(image.mark):
            self.duplicates += 1
        else:
            self.files[image.split].add(image.content, image.label)
            if image.split == "train":
                self.sums += image.moments

    def check(self) -> None:
        """Raise UserError for a split without images."""
        for split, files in self.files.items():
            if not files.labels:
                repeated = f" ({self.duplicates} are identical to others)" if self.duplicates else ""
                raise UserError(
                    f"data: no image is left for '{split}'{repeated}: name a split of the source, "
                    f"or raise {split}_share"
                )

    def notes(self, data: ImageData) -> list[str]:
        """Say what was left out."""
        notes = [f"{key}={getattr(data, key):g} leaves out {count}" for key, count in self.passed_over.items() if count]
        if self.duplicates:
            notes.append(f"identical to another image, left out: {self.duplicates}")
        return notes + [f"cannot be decoded, left out: {line}" for line in self.corrupt]


def prepare(name: str, data: ImageData, out: Path, *, code_hash: str = "", processes: int | None = None) -> None:
    """Write the images of all splits below `out`; do nothing where they are current.

    Images are decoded in `processes` processes (default: one per core available); the result does not depend on it.
    Raises UserError for a missing source, for another number of classes than the config says, for a split without
    images, and where more images than `most_corrupt` cannot be decoded.
    """
    provenance = made_from(data, source_fingerprint(data), code_hash)
    if current_manifest(out, provenance, load_images) is not None:
        print(f"{out}: already prepared", file=sys.stderr)
        return
    gallery = data.source.open()
    if len(gallery.classes) != data.classes:
        found = f"{len(gallery.classes)} ({', '.join(gallery.classes[:5])}, ...)"
        raise UserError(f"data: {name}.classes: {data.classes}, but the source has {found}; correct the config")
    (out / "manifest.json").unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    with Workers(processes) as workers:
        splits, deduplicator = _write(data, gallery, out, workers)
    tell(name, notes := deduplicator.notes(data))
    mean, square = deduplicator.sums / splits["train"]["images"]
    content = {
        "fingerprint": fingerprint([[entry["sha256"], entry["labels_sha256"]] for entry in splits.values()]),
        "classes": gallery.classes,
        "mean": mean.tolist(),
        "std": np.sqrt(square - mean**2).tolist(),
        "splits": splits,
        "duplicates_removed": deduplicator.duplicates,
        "corrupt": deduplicator.corrupt,
        "notes": notes,
    }
    write_manifest(out, name, data, provenance, content, ("pillow", "numpy"))


def _write(
    data: ImageData, gallery: Gallery, out: Path, workers: Workers
) -> tuple[dict[str, dict[str, Any]], Deduplicator]:
    """Write all splits; return what the manifest says of them, and what was met on the way."""
    with ExitStack() as stack:
        files = {}
        for split in SPLITS:
            temporary = stack.enter_context(replacing(out / f"{split}.bin"))
            files[split] = Growing(stack.enter_context(open(temporary, "wb")))
        deduplicator = Deduplicator(files, data)
        bar = stack.enter_context(Progress(None, f"decode {out.name}, {workers.processes} processes", unit="image"))
        for decoded in workers.map(decode_all, _chunks(data, gallery, deduplicator)):
            for image in decoded:
                deduplicator.add(image)
            bar.advance(len(decoded))
        deduplicator.check()
    return {split: _entry(out, split, growing, data) for split, growing in files.items()}, deduplicator


def _chunks(
    data: ImageData, gallery: Gallery, deduplicator: Deduplicator
) -> Iterator[tuple[Form, list[tuple[Split, Picture]]]]:
    """Yield the pictures with their splits, in the order of the source, at most `AT_ONCE` at a time.

    What the source holds out comes first, so that of identical images a training image is the one that is left out.
    """
    form = Form(data.side, data.channels, data.storage)
    pictures = _divided(data, gallery, deduplicator)
    while some := list(islice(pictures, AT_ONCE)):
        yield form, some


def _divided(data: ImageData, gallery: Gallery, deduplicator: Deduplicator) -> Iterator[tuple[Split, Picture]]:
    candidates = tuple(split for split in SPLITS if split == "train" or split not in gallery.splits)
    for theirs in reversed([split for split in SPLITS if split in gallery.splits]):
        for picture in gallery.splits[theirs]:
            split = data.shares.split(digest(picture.name), candidates) if theirs == "train" else theirs
            key = "keep" if split == "train" else "keep_held_out"
            if digest(f"keep {picture.name}") / SPREAD < getattr(data, key):
                yield split, picture
            else:
                deduplicator.passed_over[key] += 1


def _entry(out: Path, split: str, files: Growing, data: ImageData) -> dict[str, Any]:
    """Write labels and offsets; return what the manifest says of the split."""
    arrays: Iterable[tuple[str, list[int]]] = [("labels", files.labels)]
    if data.storage == "encoded":
        arrays = [*arrays, ("offsets", files.offsets)]
    entry: dict[str, Any] = {"file": f"{split}.bin", "images": len(files.labels), "bytes": files.offsets[-1]}
    for name, values in arrays:
        entry[name] = f"{split}_{name}.npy"
        with replacing(out / entry[name]) as temporary, open(temporary, "wb") as file:
            np.save(file, np.asarray(values, dtype=np.int64))
    return entry | {"sha256": sha256(out / entry["file"]), "labels_sha256": sha256(out / entry["labels"])}
