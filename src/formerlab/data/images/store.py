"""Images on disk: the bytes of a whole split in one file, read memory-mapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from formerlab.data.images.decode import decode
from formerlab.data.text.streams import REMEDY, read_manifest
from formerlab.errors import UserError


@dataclass(frozen=True)
class ImageSet:
    """A split of prepared images. It holds paths and sizes only, so it passes cheaply to worker processes."""

    folder: Path
    entry: dict[str, Any]
    """What the manifest says of the split."""
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
        """Whether the images are kept as pixels."""
        return bool(self.form["storage"] == "pixels")

    def pixels(self, indices: Sequence[int] | NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return images as `count side side channels`; only where they are kept as pixels."""
        chosen: NDArray[np.uint8] = self._array[np.asarray(indices)]
        return chosen

    def image(self, index: int) -> Image.Image:
        """Return one decoded image, in its own size where the files are kept as they are."""
        if self.whole:
            return decode(self._array[index], self.form["channels"])
        first, end = self._offsets[index : index + 2]
        return decode(self._bytes[first:end].tobytes(), self.form["channels"])

    @cached_property
    def _bytes(self) -> NDArray[np.uint8]:
        return np.memmap(self.folder / self.entry["file"], dtype=np.uint8, mode="r")

    @cached_property
    def _array(self) -> NDArray[np.uint8]:
        side, channels = self.form["side"], self.form["channels"]
        array: NDArray[np.uint8] = self._bytes.reshape(len(self), side, side, channels)
        return array

    @cached_property
    def _offsets(self) -> NDArray[np.int64]:
        offsets: NDArray[np.int64] = np.load(self.folder / self.entry["offsets"], mmap_mode="r", allow_pickle=False)
        return offsets

    def __getstate__(self) -> dict[str, Any]:
        """Leave the open files behind: another process opens its own."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


def load_images(out: Path, split: str) -> ImageSet:
    """Return a split of prepared images: train, valid or test.

    Raises UserError naming the file that is missing or has another size than the manifest says.
    """
    manifest = read_manifest(out)
    splits = manifest["splits"]
    if split not in splits or "images" not in splits[split]:
        raise UserError(f"{out}: no images '{split}'; choose from {', '.join(splits)}, or name a data set of images")
    entry = splits[split]
    for key, size in (("file", entry["bytes"]), ("labels", None), ("offsets", None)):
        path = out / entry[key] if entry.get(key) else None
        if path is not None and not path.is_file():
            raise UserError(f"{path}: no such file; {REMEDY}")
        if path is not None and size not in (None, path.stat().st_size):
            raise UserError(f"{path}: holds {path.stat().st_size} bytes, the manifest says {size}; {REMEDY}")
    form = {key: manifest["spec"][key] for key in ("side", "channels", "storage")}
    return ImageSet(out, entry, form, tuple(manifest["mean"]), tuple(manifest["std"]), tuple(manifest["classes"]))
