"""A data set of images: its source, how images are divided, cut and stored, and its files.

A split is one file of bytes and one of labels.
"""

import struct
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, BinaryIO, ClassVar, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError
from pydantic import Field

from formerlab.data.dataset import DataSpec
from formerlab.data.images.gallery import Digits, Gallery, Picture
from formerlab.data.images.source import ImageFolders, ImageHub
from formerlab.data.images.store import Pixels, cut, decode
from formerlab.data.manifest import MANIFEST
from formerlab.data.splitting import SPLITS, Digests, Split, digest
from formerlab.data.threads import in_threads
from formerlab.errors import UserError, reason
from formerlab.files import replacing, sha256
from formerlab.progress import Progress
from formerlab.spec import Size, fingerprint

ImageOrigin = Annotated[Digits | ImageFolders | ImageHub, Field(discriminator="kind")]

Fraction = Annotated[float, Field(ge=0, lt=0.5)]


class ImageData(DataSpec):
    """Labelled images for training, validation and test."""

    packages: ClassVar[tuple[str, ...]] = ("pillow", "numpy")

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
    """pixels: every image cut to `side` once and stored as bytes, for small images. encoded: the files as they are,
    packed into one and decoded again for every batch in worker processes, for images that are cropped at random."""
    valid_share: Fraction = 0.05
    """Share of the training images that become validation images, where the source has no validation split."""
    test_share: Fraction = 0.1
    """Share of the training images that become test images, where the source has no test split."""
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the training images that is kept, by a hash of their names."""

    def known(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of a model's spec that these images decide."""
        model = {"kind": "vision_transformer", "image": self.side, "channels": self.channels, "classes": self.classes}
        return {"model": model, "task": {"kind": "classification"}}

    def write(self, out: Path) -> dict[str, Any]:
        """Write the images of all splits."""
        gallery = self.source.open()
        if len(gallery.classes) != self.classes:
            found = f"{len(gallery.classes)} ({', '.join(gallery.classes[:5])}, ...)"
            raise UserError(f"classes: {self.classes}, but the source has {found}; correct the config")
        (out / MANIFEST).unlink(missing_ok=True)
        with ExitStack() as stack:
            temporary = {split: stack.enter_context(replacing(out / f"{split}.bin")) for split in SPLITS}
            files = {split: stack.enter_context(open(path, "wb")) for split, path in temporary.items()}
            bar = stack.enter_context(Progress(None, f"decode {out.name}", unit="image"))
            written = Written(files, self)
            for image in in_threads(partial(decoded, self), self._divided(gallery, written)):
                written.add(image)
                bar.advance()
            for split in (split for split in SPLITS if not written.labels[split]):
                repeated = f" ({written.duplicates} are identical to others)" if written.duplicates else ""
                raise UserError(f"no image is left for '{split}'{repeated}: name source.{split} or raise {split}_share")
        splits = {split: written.entry(split, out) for split in SPLITS}
        mean, square = written.sums / splits["train"]["images"]
        return {
            "fingerprint": fingerprint([[entry["sha256"], entry["labels_sha256"]] for entry in splits.values()]),
            "classes": gallery.classes,
            "mean": mean.tolist(),
            "std": np.sqrt(square - mean**2).tolist(),
            "splits": splits,
            "duplicates_removed": written.duplicates,
            "notes": [*gallery.notes, *written.notes()],
        }

    def _divided(self, gallery: Gallery, written: "Written") -> Iterator[tuple[Split, Picture]]:
        """Yield the pictures with their splits, in the order of the source; count those that `keep` leaves out.

        Held-out images come first, so that of identical images the training image is left out.
        """
        candidates = self.source.divided()
        for theirs in reversed([split for split in SPLITS if split in gallery.splits]):
            for picture in gallery.splits[theirs]:
                split = self.shares.split(digest(picture.name), candidates) if theirs == "train" else theirs
                if split != "train" or digest(f"keep {picture.name}") / 2.0**64 < self.keep:
                    yield split, picture
                else:
                    written.passed_over += 1


class Decoded(NamedTuple):
    """A decoded picture."""

    split: Split
    label: int
    content: bytes  # to be stored
    mark: int  # 64 bits that identify the pixels as a model would see them
    moments: NDArray[np.float64]  # their mean and mean of squares, per channel, on a scale from 0 to 1


def decoded(data: ImageData, found: tuple[Split, Picture]) -> Decoded:
    """Decode a picture. Raises UserError naming it where that cannot be done."""
    split, picture = found
    try:
        content, pixels = _read(picture.content, data)
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
        where = picture.content if isinstance(picture.content, Path) else picture.name
        unknown = isinstance(error, UnidentifiedImageError)  # whose message holds the address of an object
        why = "not an image that Pillow knows" if unknown else reason(error)
        raise UserError(f"{where}: {why}; mend or remove it") from None
    mark = int.from_bytes(blake2b(pixels.tobytes(), digest_size=8).digest(), "big")
    values = pixels.reshape(-1, data.channels) / 255
    moments = np.stack((values.mean(axis=0), np.square(values).mean(axis=0)))
    return Decoded(split, picture.label, content, mark, moments)


def _read(content: Path | bytes | Pixels, data: ImageData) -> tuple[bytes, Pixels]:
    """Return what is stored of a picture, and its pixels as a model would see them."""
    if isinstance(content, Path) and data.storage == "encoded":
        content = content.read_bytes()
    pixels = cut(decode(content, data.channels), data.side)
    if data.storage == "pixels":
        content = pixels.tobytes()
    if not isinstance(content, bytes):
        raise ValueError("pixels cannot be stored as an encoded file; use storage: pixels")
    return content, pixels


class Written:
    """The images in the files of their splits, of identical ones only the first, and counts of what is left out."""

    def __init__(self, files: Mapping[Split, BinaryIO], data: ImageData) -> None:
        self.data, self._files, self._seen = data, files, Digests()
        self.labels: dict[Split, list[int]] = {split: [] for split in SPLITS}
        self.sizes: dict[Split, list[int]] = {split: [] for split in SPLITS}
        self.duplicates = self.passed_over = 0
        self.sums = np.zeros((2, data.channels))
        """Sums of the means and of the mean squares of the training images."""

    def add(self, image: Decoded) -> None:
        """Take an image."""
        if not self._seen.add(image.mark):
            self.duplicates += 1
        else:
            self._files[image.split].write(image.content)
            self.labels[image.split].append(image.label)
            self.sizes[image.split].append(len(image.content))
            if image.split == "train":
                self.sums += image.moments

    def notes(self) -> list[str]:
        """Return notes on what was left out."""
        notes = [f"keep={self.data.keep:g} leaves out {self.passed_over}"] if self.passed_over else []
        if self.duplicates:
            notes.append(f"identical to another image, left out: {self.duplicates}")
        return notes

    def entry(self, split: Split, out: Path) -> dict[str, Any]:
        """Write labels and offsets; return what the manifest says of the split."""
        labels, sizes = self.labels[split], self.sizes[split]
        arrays = {"labels": labels}
        if self.data.storage == "encoded":
            arrays["offsets"] = np.cumsum([0, *sizes]).tolist()
        about: dict[str, Any] = {"file": f"{split}.bin", "images": len(labels), "bytes": sum(sizes)}
        for name, values in arrays.items():
            about[name] = f"{split}_{name}.npy"
            with replacing(out / about[name]) as temporary, open(temporary, "wb") as file:
                np.save(file, np.asarray(values, dtype=np.int64))
        return about | {"sha256": sha256(out / about["file"]), "labels_sha256": sha256(out / about["labels"])}
