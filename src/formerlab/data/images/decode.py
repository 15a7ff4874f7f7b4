"""From what a source holds to pixels, in worker processes."""

import io
import struct
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from formerlab.data.images.source import Picture, Pixels
from formerlab.data.splitting import Split
from formerlab.errors import reason

MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Form:
    """What images become."""

    side: int
    channels: int
    storage: Literal["pixels", "encoded"]


class Decoded(NamedTuple):
    """What became of a picture."""

    split: Split
    label: int
    content: bytes
    """The bytes to store."""
    mark: int
    """64 bits that identify the pixels as a model would see them."""
    moments: NDArray[np.float64]
    """Mean and mean of squares of these pixels, per channel, on a scale from 0 to 1."""


def decode(content: Path | bytes | Pixels, channels: int) -> Image.Image:
    """Return the whole decoded image as a person sees it: upright, and what is transparent on white.

    Raises OSError, ValueError or SyntaxError where it is damaged, or where its values have no known white.
    """
    if isinstance(content, np.ndarray):
        return Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content).convert(MODES[channels])
    if content == b"":
        raise ValueError("no image")
    image = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
    return _on_white(_in_eight_bits(ImageOps.exif_transpose(image), image.format)).convert(MODES[channels])


def _in_eight_bits(image: Image.Image, format: str | None) -> Image.Image:
    """Scale 16 bits of grey to 8; Pillow's own conversion cuts off what is above 255."""
    if image.mode.startswith("I;16") or (image.mode == "I" and format in ("PNG", "PPM")):  # both scaled to 65535
        return Image.fromarray(np.rint(np.asarray(image) / 257).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"values of 32 bits (mode {image.mode}) have no known white; convert it to 8 or 16 bits")
    return image


def _on_white(image: Image.Image) -> Image.Image:
    if not image.has_transparency_data:
        return image
    seen = image.convert("RGBA")
    return Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen)


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


def decode_all(work: tuple[Form, list[tuple[Split, Picture]]]) -> list[Decoded | str]:
    """Decode pictures; in place of one that cannot be stand its name and the reason."""
    form, pictures = work
    done: list[Decoded | str] = []
    for split, picture in pictures:
        try:
            done.append(_decoded(split, picture, form))
        except (OSError, ValueError, SyntaxError, struct.error, Image.DecompressionBombError) as error:
            done.append(f"{picture.name}: {reason(error)}")
    return done


def _decoded(split: Split, picture: Picture, form: Form) -> Decoded:
    content = picture.content
    if isinstance(content, Path) and form.storage == "encoded":
        content = content.read_bytes()
    pixels = cut(decode(content, form.channels), form.side)
    mark = int.from_bytes(blake2b(pixels.tobytes(), digest_size=8).digest(), "big")
    values = pixels.reshape(-1, form.channels) / 255
    moments = np.stack((values.mean(axis=0), np.square(values).mean(axis=0)))
    if form.storage == "pixels":
        content = pixels.tobytes()
    if not isinstance(content, bytes):
        raise ValueError("pixels cannot be stored as an encoded file; use storage: pixels")
    return Decoded(split, picture.label, content, mark, moments)
