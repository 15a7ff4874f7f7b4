"""From what a source holds to pixels, in worker processes."""

import io
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from formerlab.data.images.source import Picture, Pixels
from formerlab.data.splitting import Split

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
    """Return the whole decoded image. Raises OSError, ValueError or SyntaxError where it is damaged."""
    if isinstance(content, np.ndarray):
        image = Image.fromarray(content[:, :, 0] if content.shape[2] == 1 else content)
    else:
        image = Image.open(io.BytesIO(content) if isinstance(content, bytes) else content)
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


def decode_all(work: tuple[Form, list[tuple[Split, Picture]]]) -> list[Decoded | str]:
    """Decode pictures; in place of one that cannot be stand its name and the reason."""
    form, pictures = work
    done: list[Decoded | str] = []
    for split, picture in pictures:
        try:
            done.append(_decoded(split, picture, form))
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            done.append(f"{picture.name}: {reason}")
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
