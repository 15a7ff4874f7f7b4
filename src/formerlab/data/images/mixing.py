"""Images that are blended or pasted into one another, with their targets, as timm's Mixup does it."""

from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from formerlab.data.images.augmentation import Pictures, own_randomness
from formerlab.torchvision_shim import ensure_torchvision_imports


class Mix(NamedTuple):
    """How the images of a part are mixed with those of the part reversed, as timm's Mixup does it."""

    share: float
    """Weight of an image's own class in its target; without a box, also of its own pixels."""
    box: tuple[int, int, int, int] | None
    """First and last (exclusive) rows and columns that come from the other image."""
    smoothing: float
    classes: int

    def __call__(self, images: Pictures, labels: Int[Tensor, " count"]) -> tuple[Pictures, Tensor]:
        """Return mixed images, in their memory, and a weight for each class."""
        from timm.data.mixup import mixup_target

        if self.box is not None:
            first, last, left, right = self.box
            images[:, :, first:last, left:right] = images.flip(0)[:, :, first:last, left:right]
        elif self.share != 1:
            other = images.flip(0).mul_(1 - self.share)
            images.mul_(self.share).add_(other)
        targets: Tensor = mixup_target(labels, self.classes, self.share, self.smoothing)  # type: ignore[no-untyped-call]
        return images, targets


def drawn_mix(mixup: float, cutmix: float, smoothing: float, classes: int, side: int, seed: int) -> Mix:
    """Draw one mix, from what timm's Mixup draws from and in its order."""
    ensure_torchvision_imports()
    from timm.data.mixup import Mixup, cutmix_bbox_and_lam

    with own_randomness() as reseed:
        reseed(seed)
        share, pastes = Mixup(mixup, cutmix)._params_per_batch()  # type: ignore[no-untyped-call]
        box = None
        if pastes and share != 1:
            (first, last, left, right), share = cutmix_bbox_and_lam((side, side), share)  # type: ignore[no-untyped-call]
            box = int(first), int(last), int(left), int(right)
    return Mix(float(share), box, smoothing, classes)
