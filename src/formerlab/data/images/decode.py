"""From what a source holds to pixels, in worker processes."""

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from formerlab.data.images.source import Picture, Pixels

MODES = {1: "L", 3: "RGB"}


@dataclass(frozen=True)
class Form:
    """What images become."""

    side: int
    channels: int
    storage: Literal["pixels", "encoded"]


@dataclass(frozen=True)
class Decoded:
    """What became of some pictures."""

    contents: list[bytes]
    """The bytes to store."""
    labels: list[int]
    corrupt: list[str]
    """Names of those that cannot be decoded, with the reason."""
    sums: NDArray[np.float64]
    """Sum and sum of squares over all pixels, per channel, on a scale from 0 to 1."""


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


def decode_all(work: tuple[Form, list[Picture]]) -> Decoded:
    """Decode pictures; those that cannot be are named."""
    form, pictures = work
    done = Decoded([], [], [], np.zeros((2, form.channels)))
    for picture in pictures:
        try:
            content, pixels = _stored(picture.content, form)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            reason = (str(error) or type(error).__name__).partition("\n")[0]
            done.corrupt.append(f"{picture.name}: {reason}")
            continue
        done.contents.append(content)
        done.labels.append(picture.label)
        values = pixels.reshape(-1, form.channels) / 255
        done.sums[:] += values.mean(axis=0), np.square(values).mean(axis=0)
    return done


def _stored(content: Path | bytes | Pixels, form: Form) -> tuple[bytes, Pixels]:
    """Return what to store of a picture, and its pixels as a model would see them."""
    if isinstance(content, Path) and form.storage == "encoded":
        content = content.read_bytes()
    pixels = cut(decode(content, form.channels), form.side)
    if form.storage == "pixels":
        return pixels.tobytes(), pixels
    if isinstance(content, np.ndarray):
        raise ValueError("pixels cannot be stored as an encoded file; use storage: pixels")
    assert isinstance(content, bytes)
    return content, pixels
