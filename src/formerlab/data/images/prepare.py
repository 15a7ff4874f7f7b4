"""The data stage of images: from a source to one file of bytes per split, labels and, last, the manifest."""

import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from formerlab.data.images.decode import Decoded, Form, decode_all
from formerlab.data.images.source import Gallery, Picture
from formerlab.data.images.spec import ImageData
from formerlab.data.images.store import load_images
from formerlab.data.manifest import current_manifest, made_from, write_manifest
from formerlab.data.shards import SPLITS, Split, digest
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.files import replacing, sha256
from formerlab.progress import short
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


def source_fingerprint(data: ImageData, cache: Path | None = None) -> str | None:
    """Return 16 hexadecimal digits that change when the source does; None where it cannot be seen now."""
    return data.source.state(cache)


def prepare(name: str, data: ImageData, out: Path, *, code_hash: str = "", processes: int | None = None) -> None:
    """Write the images of all splits below `out`; do nothing where they are current.

    Images are decoded in `processes` processes (default: one per core available); the result does not depend on it.
    Raises UserError for a missing source, for another number of classes than the config says, for a split without
    images, and where more images than `most_corrupt` cannot be decoded.
    """
    origin = made_from(data, data.source.state(), code_hash)
    if current_manifest(out, origin) is not None and _are_whole(out):
        print(f"{out}: already prepared", file=sys.stderr)
        return
    gallery = data.source.open()
    if len(gallery.classes) != data.classes:
        found = f"{len(gallery.classes)} ({', '.join(gallery.classes[:5])}, ...)"
        raise UserError(f"data: {name}.classes: {data.classes}, but the source has {found}; correct the config")
    (out / "manifest.json").unlink(missing_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    with Workers(processes) as workers:
        splits, corrupt, sums = _write(data, gallery, out, workers)
    mean, square = sums / splits["train"]["images"]
    content = {
        "fingerprint": fingerprint([[entry["sha256"], entry["labels_sha256"]] for entry in splits.values()]),
        "classes": gallery.classes,
        "mean": mean.tolist(),
        "std": np.sqrt(square - mean**2).tolist(),
        "splits": splits,
        "corrupt": corrupt,
    }
    write_manifest(out, name, data, origin, content, ("pillow", "numpy"))


def _are_whole(out: Path) -> bool:
    try:
        for split in SPLITS:
            load_images(out, split)
    except UserError:
        return False
    return True


def _write(
    data: ImageData, gallery: Gallery, out: Path, workers: Workers
) -> tuple[dict[str, dict[str, Any]], list[str], Any]:
    """Write all splits; return what the manifest says of them, the corrupt images, and sums over training pixels."""
    form = Form(data.side, data.channels, data.storage)
    corrupt: list[str] = []
    sums = np.zeros((2, data.channels))
    began, done = time.monotonic(), 0
    with ExitStack() as stack:
        growing = {}
        for split in SPLITS:
            temporary = stack.enter_context(replacing(out / f"{split}.bin"))
            growing[split] = Growing(stack.enter_context(open(temporary, "wb")))
        for split, decoded in _decoded(data, gallery, form, workers):
            corrupt += decoded.corrupt
            _check_corrupt(corrupt, data.most_corrupt)
            for content, label in zip(decoded.contents, decoded.labels, strict=True):
                growing[split].add(content, label)
            sums += decoded.sums if split == "train" else 0.0
            done += len(decoded.labels)
        for split, files in growing.items():
            if not files.labels:
                raise UserError(
                    f"data: no image is left for '{split}': name a split of the source, or raise {split}_share"
                )
    rate = done / max(1e-9, time.monotonic() - began)
    print(
        f"{out.name}: {done} images, {short(rate)} images/s decoded in {workers.processes} processes", file=sys.stderr
    )
    for line in corrupt:
        print(f"left out, cannot be decoded: {line}", file=sys.stderr)
    return {split: _entry(out, split, files, data) for split, files in growing.items()}, corrupt, sums


def _check_corrupt(corrupt: list[str], most: int) -> None:
    if len(corrupt) > most:
        raise UserError(
            f"data: more than most_corrupt={most} images cannot be decoded, the last one {corrupt[-1]}; "
            "mend or remove them, or raise most_corrupt"
        )


def _decoded(data: ImageData, gallery: Gallery, form: Form, workers: Workers) -> Iterator[tuple[Split, Decoded]]:
    """Yield what became of the pictures, with the split they belong to, in the order of the source."""
    tasks = ((split, (form, pictures)) for split, pictures in _chunks(data, gallery))
    splits: list[Split] = []

    def work() -> Iterator[tuple[Form, list[Picture]]]:
        for split, task in tasks:
            splits.append(split)
            yield task

    for index, decoded in enumerate(workers.map(decode_all, work())):
        yield splits[index], decoded


def _chunks(data: ImageData, gallery: Gallery) -> Iterator[tuple[Split, list[Picture]]]:
    """Yield pictures of one split at a time, at most `AT_ONCE`."""
    candidates = tuple(split for split in SPLITS if split == "train" or split not in gallery.splits)
    for theirs, pictures in gallery.splits.items():
        waiting: dict[Split, list[Picture]] = {split: [] for split in SPLITS}
        for picture in pictures:
            split = data.shares.split(digest(picture.name), candidates) if theirs == "train" else theirs
            share = data.keep if split == "train" else data.keep_held_out
            if digest(f"keep {picture.name}") / SPREAD >= share:
                continue
            waiting[split].append(picture)
            if len(waiting[split]) == AT_ONCE:
                yield split, waiting[split]
                waiting[split] = []
        yield from ((split, rest) for split, rest in waiting.items() if rest)


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
