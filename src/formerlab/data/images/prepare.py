"""A data set of images: where they come from, how they are divided, cut and stored, and the stage that does so.

A split is one file of bytes and one of labels; the manifest is written last.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal

import numpy as np
from pydantic import Field

from formerlab.data.dataset import DataSpec
from formerlab.data.images.decode import Decoded, Form, decode_all
from formerlab.data.images.hub import ImageHub
from formerlab.data.images.source import Digits, Gallery, ImageFolders, Picture
from formerlab.data.images.store import ImageSet, load_images
from formerlab.data.manifest import prepared
from formerlab.data.splitting import SPLITS, Seen, Split, digest
from formerlab.data.workers import Workers
from formerlab.errors import UserError
from formerlab.files import replacing, sha256
from formerlab.progress import Progress
from formerlab.spec import AnyCount, Size, fingerprint

ImageOrigin = Annotated[Digits | ImageFolders | ImageHub, Field(discriminator="kind")]

Share = Annotated[float, Field(ge=0, lt=0.5)]
Part = Annotated[float, Field(gt=0, le=1)]


class ImageData(DataSpec):
    """Labelled images for training, validation and test."""

    outside_recipe: ClassVar[dict[str, Any]] = {"source": True, "most_corrupt": True}

    kind: Literal["images"] = "images"
    source: ImageOrigin = Digits()
    """Where the images come from."""
    side: Size = 8
    """Side of the square images that a model sees, pixels."""
    channels: Literal[1, 3] = 1
    """1 for grey, 3 for colour; images are converted."""
    classes: Size = 10
    """Number of classes; known before anything is read, checked when the data are prepared."""
    storage: Literal["pixels", "encoded"] = "pixels"
    """pixels: every image cut to `side` once and kept as bytes, for small images. encoded: the files as they are,
    packed into one and decoded again for every batch in worker processes, for images that are cropped at random."""
    valid_share: Share = 0.05
    """Share of the training images that become validation images, where the source has none."""
    test_share: Share = 0.1
    """Share of the training images that become test images, where the source has none."""
    keep: Part = 1.0
    """Share of the training images that is kept, by a hash of their names."""
    keep_held_out: Part = 1.0
    """Share of the validation and test images that is kept, by a hash of their names."""
    most_corrupt: AnyCount = 10
    """Images that cannot be decoded are named and left out, up to this number; one more and the data are refused."""

    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return what a model must be to see these images."""
        del task
        model = {"kind": "vision_transformer", "image": self.side, "channels": self.channels, "classes": self.classes}
        return {"model": model, "task": {"kind": "classification"}}


AT_ONCE = 64
"""Pictures that a worker decodes in one go."""

SPREAD = 2.0**64


class Writer:
    """Puts images into the files of their splits, of identical ones only the first, and counts what it leaves out."""

    def __init__(self, files: dict[Split, BinaryIO], data: ImageData) -> None:
        self.data = data
        self.labels: dict[Split, list[int]] = {split: [] for split in SPLITS}
        self.offsets: dict[Split, list[int]] = {split: [0] for split in SPLITS}
        self.corrupt: list[str] = []
        self.duplicates = 0
        self.passed_over = {"keep": 0, "keep_held_out": 0}
        """Images that these shares leave out."""
        self.sums = np.zeros((2, data.channels))
        """Sums of the means and of the mean squares of the training images."""
        self._files = files
        self._seen = Seen()

    def add(self, image: Decoded | str) -> None:
        """Take an image, or the name of one that is corrupt. Raises UserError where there are too many of those."""
        if isinstance(image, str):
            self.corrupt.append(image)
            if len(self.corrupt) > self.data.most_corrupt:
                raise UserError(
                    f"data: more than most_corrupt={self.data.most_corrupt} images cannot be decoded, the last one "
                    f"{image}; mend or remove them, or raise most_corrupt"
                )
        elif not self._seen.add(image.mark):
            self.duplicates += 1
        else:
            self._files[image.split].write(image.content)
            self.labels[image.split].append(image.label)
            self.offsets[image.split].append(self.offsets[image.split][-1] + len(image.content))
            if image.split == "train":
                self.sums += image.moments

    def check(self) -> None:
        """Raise UserError for a split without images."""
        for split in (split for split, labels in self.labels.items() if not labels):
            repeated = f" ({self.duplicates} are identical to others)" if self.duplicates else ""
            raise UserError(
                f"data: no image is left for '{split}'{repeated}: name a split of the source, or raise {split}_share"
            )

    def notes(self) -> list[str]:
        """Say what was left out."""
        shares = {key: count for key, count in self.passed_over.items() if count}
        notes = [f"{key}={getattr(self.data, key):g} leaves out {count}" for key, count in shares.items()]
        if self.duplicates:
            notes.append(f"identical to another image, left out: {self.duplicates}")
        return notes + [f"cannot be decoded, left out: {line}" for line in self.corrupt]

    def entry(self, split: Split, out: Path) -> dict[str, Any]:
        """Write labels and offsets; return what the manifest says of the split."""
        arrays = {"labels": self.labels[split]}
        if self.data.storage == "encoded":
            arrays["offsets"] = self.offsets[split]
        about: dict[str, Any] = {"file": f"{split}.bin", "images": len(self.labels[split])}
        about["bytes"] = self.offsets[split][-1]
        for name, values in arrays.items():
            about[name] = f"{split}_{name}.npy"
            with replacing(out / about[name]) as temporary, open(temporary, "wb") as file:
                np.save(file, np.asarray(values, dtype=np.int64))
        return about | {"sha256": sha256(out / about["file"]), "labels_sha256": sha256(out / about["labels"])}


def prepare(name: str, data: ImageData, out: Path, *, code_hash: str = "", processes: int | None = None) -> None:
    """Write the images of all splits below `out`; do nothing where they are current.

    Images are decoded in `processes` processes (default: one per core available); the result does not depend on it.
    Raises UserError for a missing source, for another number of classes than the config says, for a split without
    images, and where more images than `most_corrupt` cannot be decoded.
    """
    write = partial(_written, name, data, out, processes)
    prepared(name, data, out, code_hash, write, is_current=lambda _: _load(out), packages=("pillow", "numpy"))


def _load(out: Path) -> list[ImageSet]:
    return [load_images(out, split) for split in SPLITS]


def _written(name: str, data: ImageData, out: Path, processes: int | None) -> dict[str, Any]:
    """Write all files but the manifest; return what it says of them."""
    gallery = data.source.open()
    if len(gallery.classes) != data.classes:
        found = f"{len(gallery.classes)} ({', '.join(gallery.classes[:5])}, ...)"
        raise UserError(f"data: {name}.classes: {data.classes}, but the source has {found}; correct the config")
    (out / "manifest.json").unlink(missing_ok=True)
    with ExitStack() as stack:
        workers = stack.enter_context(Workers(processes))
        temporary = {split: stack.enter_context(replacing(out / f"{split}.bin")) for split in SPLITS}
        writer = Writer({split: stack.enter_context(open(path, "wb")) for split, path in temporary.items()}, data)
        bar = stack.enter_context(Progress(None, f"decode {out.name}, {workers.processes} processes", unit="image"))
        for decoded in workers.map(decode_all, _chunks(data, gallery, writer.passed_over)):
            for image in decoded:
                writer.add(image)
            bar.advance(len(decoded))
        writer.check()
    splits = {split: writer.entry(split, out) for split in SPLITS}
    mean, square = writer.sums / splits["train"]["images"]
    return {
        "fingerprint": fingerprint([[entry["sha256"], entry["labels_sha256"]] for entry in splits.values()]),
        "classes": gallery.classes,
        "mean": mean.tolist(),
        "std": np.sqrt(square - mean**2).tolist(),
        "splits": splits,
        "duplicates_removed": writer.duplicates,
        "corrupt": writer.corrupt,
        "notes": writer.notes(),
    }


def _chunks(
    data: ImageData, gallery: Gallery, passed_over: dict[str, int]
) -> Iterator[tuple[Form, list[tuple[Split, Picture]]]]:
    """Yield the pictures with their splits, in the order of the source, at most `AT_ONCE` at a time.

    What the source holds out comes first, so that of identical images a training image is the one that is left out.
    """
    form = Form(data.side, data.channels, data.storage)
    pictures = _divided(data, gallery, passed_over)
    while some := list(islice(pictures, AT_ONCE)):
        yield form, some


def _divided(data: ImageData, gallery: Gallery, passed_over: dict[str, int]) -> Iterator[tuple[Split, Picture]]:
    candidates = tuple(split for split in SPLITS if split == "train" or split not in gallery.splits)
    for theirs in reversed([split for split in SPLITS if split in gallery.splits]):
        for picture in gallery.splits[theirs]:
            split = data.shares.split(digest(picture.name), candidates) if theirs == "train" else theirs
            key = "keep" if split == "train" else "keep_held_out"
            if digest(f"keep {picture.name}") / SPREAD < getattr(data, key):
                yield split, picture
            else:
                passed_over[key] += 1
