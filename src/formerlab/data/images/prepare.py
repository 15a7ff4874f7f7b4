"""Prepare a data set of images: split, decode, crop and store them."""

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
from formerlab.data.images.gallery import Digits, LabelledImage, OpenedImages
from formerlab.data.images.source import ImageFolders, ImageHub
from formerlab.data.images.store import Pixels, centre_crop, decode
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
    """Source of the images."""
    side: Size = 8
    """Side of the square images that a model sees, pixels."""
    channels: Literal[1, 3] = 1
    """Number of channels, to which all images are converted: 1 for greyscale, 3 for colour."""
    classes: Size = 10
    """Number of classes; the preparation raises an error if the source has another number."""
    storage: Literal["pixels", "encoded"] = "pixels"
    """pixels: images are cropped to `side` once and stored as bytes. encoded: unchanged image files are packed into one
    file, and worker processes decode them for every batch, which allows random crops."""
    valid_share: Fraction = 0.05
    """Fraction of the training images that become validation images if the source has no validation split."""
    test_share: Fraction = 0.1
    """Fraction of the training images that become test images if the source has no test split."""
    keep: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Fraction of the training images to keep; a hash of their names selects them."""

    def run_defaults(self, task: dict[str, Any]) -> dict[str, Any]:
        """Return the fields of model and task that these images determine."""
        model = {"kind": "vision_transformer", "image": self.side, "channels": self.channels, "classes": self.classes}
        return {"model": model, "task": {"kind": "classification"}}

    def write(self, out: Path) -> dict[str, Any]:
        """Write the images of all splits. Raises UserError for wrong `classes`, unreadable images or an empty split."""
        source = self.source.open()
        if len(source.classes) != self.classes:
            actual = f"{len(source.classes)} ({', '.join(source.classes[:5])}, ...)"
            raise UserError(f"classes: {self.classes}, but the source has {actual}; correct the config")
        (out / MANIFEST).unlink(missing_ok=True)
        with ExitStack() as stack:
            temporary = {split: stack.enter_context(replacing(out / f"{split}.bin")) for split in SPLITS}
            files = {split: stack.enter_context(open(path, "wb")) for split, path in temporary.items()}
            bar = stack.enter_context(Progress(None, f"decode {out.name}", unit="image"))
            writer = SplitWriter(files, self)
            for image in in_threads(partial(decode_image, self), self._assign_splits(source, writer)):
                writer.add(image)
                bar.advance()
            for split in (split for split in SPLITS if not writer.labels[split]):
                repeated = f" ({writer.duplicates} are identical to others)" if writer.duplicates else ""
                remedy = f"raise {split}_share" + (f" or set source.{split}" if hasattr(self.source, split) else "")
                raise UserError(f"no image is left for '{split}'{repeated}: {remedy}")
        splits = {split: writer.entry(split, out) for split in SPLITS}
        mean, square = writer.sums / splits["train"]["images"]
        return {
            "fingerprint": fingerprint([[entry["sha256"], entry["labels_sha256"]] for entry in splits.values()]),
            "classes": source.classes,
            "mean": mean.tolist(),
            "std": np.sqrt(square - mean**2).tolist(),
            "splits": splits,
            "duplicates_removed": writer.duplicates,
            "notes": [*source.notes, *writer.notes()],
        }

    def _assign_splits(self, source: OpenedImages, writer: "SplitWriter") -> Iterator[tuple[Split, LabelledImage]]:
        """Yield the images with their splits, held-out splits first; count the images that `keep` leaves out."""
        candidates = self.source.hashed_splits()
        for source_split in reversed([split for split in SPLITS if split in source.splits]):
            for image in source.splits[source_split]:
                split = source_split
                if source_split == "train":
                    split = self.fractions.split(digest(image.name), candidates)
                if split != "train" or digest(f"keep {image.name}") / 2.0**64 < self.keep:
                    yield split, image
                else:
                    writer.left_out += 1


class Decoded(NamedTuple):
    """A decoded image."""

    split: Split
    label: int
    content: bytes  # bytes to store
    digest: int  # 64-bit hash of the pixels that a model sees
    moments: NDArray[np.float64]  # mean and mean square of the pixels per channel, on a scale from 0 to 1


def decode_image(data: ImageData, item: tuple[Split, LabelledImage]) -> Decoded:
    """Decode an image. Raises UserError with its name if it cannot be decoded."""
    split, image = item
    try:
        content, pixels = _read(image.content, data)
    except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
        name = image.content if isinstance(image.content, Path) else image.name
        unidentified = isinstance(error, UnidentifiedImageError)  # its message has the address of an object
        problem = "not an image that Pillow can read" if unidentified else reason(error)
        raise UserError(f"{name}: {problem}; repair or remove it") from None
    pixel_hash = int.from_bytes(blake2b(pixels.tobytes(), digest_size=8).digest(), "big")
    values = pixels.reshape(-1, data.channels) / 255
    moments = np.stack((values.mean(axis=0), np.square(values).mean(axis=0)))
    return Decoded(split, image.label, content, pixel_hash, moments)


def _read(content: Path | bytes | Pixels, data: ImageData) -> tuple[bytes, Pixels]:
    """Return the bytes to store for an image, and the pixels that a model sees."""
    if isinstance(content, Path) and data.storage == "encoded":
        content = content.read_bytes()
    pixels = centre_crop(decode(content, data.channels), data.side)
    if data.storage == "pixels":
        content = pixels.tobytes()
    if not isinstance(content, bytes):
        raise ValueError("pixels cannot be stored as an encoded file; use storage: pixels")
    return content, pixels


class SplitWriter:
    """Writes images to the files of their splits; duplicates are dropped and counted."""

    def __init__(self, files: Mapping[Split, BinaryIO], data: ImageData) -> None:
        self.data, self._files, self._seen = data, files, Digests()
        self.labels: dict[Split, list[int]] = {split: [] for split in SPLITS}
        self.sizes: dict[Split, list[int]] = {split: [] for split in SPLITS}
        self.duplicates = self.left_out = 0
        self.sums = np.zeros((2, data.channels))
        """Sums of the means and of the mean squares of the training images, per channel."""

    def add(self, image: Decoded) -> None:
        """Write an image to its split, or count it as a duplicate."""
        if not self._seen.add(image.digest):
            self.duplicates += 1
        else:
            self._files[image.split].write(image.content)
            self.labels[image.split].append(image.label)
            self.sizes[image.split].append(len(image.content))
            if image.split == "train":
                self.sums += image.moments

    def notes(self) -> list[str]:
        notes = [f"keep={self.data.keep:g} leaves out {self.left_out} training images"] if self.left_out else []
        if self.duplicates:
            notes.append(f"identical to another image, left out: {self.duplicates}")
        return notes

    def entry(self, split: Split, out: Path) -> dict[str, Any]:
        """Write labels and offsets of a split; return its entry for the manifest."""
        labels, sizes = self.labels[split], self.sizes[split]
        arrays = {"labels": labels}
        if self.data.storage == "encoded":
            arrays["offsets"] = np.cumsum([0, *sizes]).tolist()
        entry: dict[str, Any] = {"file": f"{split}.bin", "images": len(labels), "bytes": sum(sizes)}
        for name, values in arrays.items():
            entry[name] = f"{split}_{name}.npy"
            with replacing(out / entry[name]) as temporary, open(temporary, "wb") as file:
                np.save(file, np.asarray(values, dtype=np.int64))
        return entry | {"sha256": sha256(out / entry["file"]), "labels_sha256": sha256(out / entry["labels"])}
