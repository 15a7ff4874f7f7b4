"""The spec of a data set of images: where they come from, how they are divided, cut and kept."""

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from formerlab.data.dataset import DataSpec
from formerlab.data.images.hub import ImageHub
from formerlab.data.images.source import Digits, ImageFolders
from formerlab.spec import AnyCount, Size

ImageOrigin = Annotated[Digits | ImageFolders | ImageHub, Field(discriminator="kind")]

Share = Annotated[float, Field(ge=0, lt=0.5)]
Part = Annotated[float, Field(gt=0, le=1)]


class ImageData(DataSpec):
    """Labelled images for training, validation and test."""

    stage: ClassVar[str] = "formerlab.data.images.prepare"
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
