"""Read prepared images, and decode and crop images."""

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
    """Return the decoded image, rotated according to its EXIF data, with transparent parts on white.

    `channels` is 1 (grey) or 3 (RGB). Raises OSError, ValueError or SyntaxError if the image is damaged or has 32-bit
    values, whose range is unknown.
    """
    if isinstance(content, np.ndarray):
        return Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content).convert(MODES[channels])
    if content == b"":
        raise ValueError("no image")
    opened = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
    image, is_16_bit = ImageOps.exif_transpose(opened), opened.format in ("PNG", "PPM")  # mode I: grey up to 65535
    if image.mode.startswith("I;16") or (image.mode == "I" and is_16_bit):  # Pillow's conversion would clip at 255
        image = Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"32-bit values (mode {image.mode}) have an unknown range; convert it to 8 or 16 bits")
    if image.has_transparency_data:
        transparent = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", transparent.size, "white"), transparent)
    return image.convert(MODES[channels])


def centre_crop(image: Image.Image, side: int, crop: float = 1.0) -> Pixels:
    """Return the centre crop of an image, (side, side, channels), after resizing its shorter side to side / crop.

    Resizing is bicubic. A crop of 224 from 256 pixels has `crop` 0.875.
    """
    shorter = round(side / crop)
    scale = shorter / min(image.size)
    if scale != 1:
        image = image.resize((round(image.width * scale), round(image.height * scale)), Image.Resampling.BICUBIC)
    left, top = (image.width - side) // 2, (image.height - side) // 2
    pixels = np.asarray(image.crop((left, top, left + side, top + side)), dtype=np.uint8)
    return pixels[:, :, None] if pixels.ndim == 2 else pixels


@dataclass(frozen=True)
class ImageSet:
    """A split of prepared images, which is pickled without pixels."""

    folder: Path
    entry: dict[str, Any]
    """The manifest's entry for the split."""
    layout: dict[str, Any]
    """`side`, `channels` and `storage` of the data set."""
    mean: tuple[float, ...]
    """Mean of the training pixels per channel, on a scale from 0 to 1."""
    std: tuple[float, ...]
    """Standard deviation of the training pixels per channel, on a scale from 0 to 1."""
    classes: tuple[str, ...]

    def __len__(self) -> int:
        return int(self.entry["images"])

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        labels: NDArray[np.int64] = np.load(self.folder / self.entry["labels"], allow_pickle=False)
        return labels

    @property
    def stores_pixels(self) -> bool:
        return bool(self.layout["storage"] == "pixels")

    def pixels(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return images of shape (count, side, side, channels); requires `stores_pixels`."""
        side, channels = self.layout["side"], self.layout["channels"]
        return np.asarray(self._bytes.reshape(len(self), side, side, channels)[np.asarray(indices)])

    def image(self, index: int) -> Image.Image:
        """Return one decoded image; encoded files keep their original size."""
        if self.stores_pixels:
            return decode(self.pixels([index])[0], self.layout["channels"])
        first, end = self._offsets[index : index + 2]
        return decode(self._bytes[first:end].tobytes(), self.layout["channels"])

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.memmap(self.folder / self.entry["file"], dtype=np.uint8, mode="r")

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        offsets: NDArray[np.int64] = np.load(self.folder / self.entry["offsets"], mmap_mode="r", allow_pickle=False)
        return offsets

    def __getstate__(self) -> dict[str, Any]:
        """Return the fields without open files."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def load_images(out: Path, split: str) -> ImageSet:
    """Return a split of prepared images. Raises UserError if it is missing or a file is truncated."""
    manifest = read_manifest(out)
    splits = manifest["splits"]
    if split not in splits or "images" not in splits[split]:
        raise UserError(f"{out}: no images '{split}'; choose from {', '.join(splits)}, or a data set of images")
    entry = splits[split]
    for path in (out / entry[key] for key in ("file", "labels", "offsets") if key in entry):
        if not path.is_file():
            raise UserError(f"{path}: no such file; {REMEDY}")
    path, size = out / entry["file"], (out / entry["file"]).stat().st_size
    if size != entry["bytes"]:
        raise UserError(f"{path}: {size} bytes, but the manifest says {entry['bytes']}; {REMEDY}")
    layout = {key: manifest["spec"][key] for key in ("side", "channels", "storage")}
    return ImageSet(out, entry, layout, tuple(manifest["mean"]), tuple(manifest["std"]), tuple(manifest["classes"]))
