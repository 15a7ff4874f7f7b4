"""Images on disk, the bytes of a whole split in one memory-mapped file, and from bytes to pixels."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from formerlab.data.manifest import REMEDY, read_manifest
from formerlab.errors import UserError

MODES = {1: "L", 3: "RGB"}

Pixels = NDArray[np.uint8]
"""An image: rows, columns, channels."""


def decode(content: Path | bytes | Pixels, channels: int) -> Image.Image:
    """Return the whole decoded image as a person sees it: upright, on white where it is transparent.

    Raises OSError, ValueError or SyntaxError where it is damaged, or where its values have no known white.
    """
    if isinstance(content, np.ndarray):
        return Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content).convert(MODES[channels])
    if content == b"":
        raise ValueError("no image")
    opened = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
    image, scaled = ImageOps.exif_transpose(opened), opened.format in ("PNG", "PPM")  # whose grey reaches 65535
    if image.mode.startswith("I;16") or (image.mode == "I" and scaled):  # Pillow's own conversion cuts off above 255
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"values of 32 bits (mode {image.mode}) have no known white; convert it to 8 or 16 bits")
    if image.has_transparency_data:
        seen = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)
    return image.convert(MODES[channels])


def cut(image: Image.Image, side: int, share: float = 1.0) -> Pixels:
    """Return the centre of an image as side x side pixels: its shorter side is first resized to side / share, bicubic.

    `share` is what test crops are called by: 224 of 256 pixels is 0.875.
    """
    shorter = round(side / share)
    scale = shorter / min(image.size)
    if scale != 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    pixels = np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


@dataclass(frozen=True)
class ImageSet:
    """A split of prepared images. It holds paths and sizes only, so it passes cheaply to worker processes."""

    folder: Path
    entry: dict[str, Any]
    """The manifest's entry on the split."""
    form: dict[str, Any]
    """side, channels and storage."""
    mean: tuple[float, ...]
    """Mean of the training pixels per channel, on a scale from 0 to 1."""
    std: tuple[float, ...]
    """Their standard deviation."""
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.entry["images"])

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The class of every image."""
        labels: NDArray[np.int64] = np.load(self.folder / self.entry["labels"], allow_pickle=False)
        return labels

    @property
    def whole(self) -> bool:
        """Whether the images are stored as pixels."""
        return bool(self.form["storage"] == "pixels")

    def pixels(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return images as `count side side channels`; only where they are stored as pixels."""
        side, channels = self.form["side"], self.form["channels"]
        return np.asarray(self._bytes.reshape(len(self), side, side, channels)[np.asarray(indices)])

    def image(self, index: int) -> Image.Image:
        """Return one decoded image, in its own size where the files are stored as they are."""
        if self.whole:
            return decode(self.pixels([index])[0], self.form["channels"])
        first, end = self._offsets[index : index + 2]
        return decode(self._bytes[first:end].tobytes(), self.form["channels"])

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.memmap(self.folder / self.entry["file"], dtype=np.uint8, mode="r")

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        offsets: NDArray[np.int64] = np.load(self.folder / self.entry["offsets"], mmap_mode="r", allow_pickle=False)
        return offsets

    def __getstate__(self) -> dict[str, Any]:
        """Drop the open files when pickled: another process opens its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def load_images(out: Path, split: str) -> ImageSet:
    """Return a split of prepared images: train, valid or test."""
    manifest = read_manifest(out)
    splits = manifest["splits"]
    if split not in splits or "images" not in splits[split]:
        raise UserError(f"{out}: no images '{split}'; choose from {', '.join(splits)}, or name a data set of images")
    entry = splits[split]
    for path in (out / entry[key] for key in ("file", "labels", "offsets") if key in entry):
        if not path.is_file():
            raise UserError(f"{path}: no such file; {REMEDY}")
    path, size = out / entry["file"], (out / entry["file"]).stat().st_size
    if size != entry["bytes"]:
        raise UserError(f"{path}: holds {size} bytes, the manifest says {entry['bytes']}; {REMEDY}")
    form = {key: manifest["spec"][key] for key in ("side", "channels", "storage")}
    return ImageSet(out, entry, form, tuple(manifest["mean"]), tuple(manifest["std"]), tuple(manifest["classes"]))
