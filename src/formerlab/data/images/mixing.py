"""mixup and cutmix of images and targets, equivalent to timm's Mixup."""

from typing import NamedTuple

from jaxtyping import Int
from torch import Tensor

from formerlab.data.images.augmentation import ImageTensor, isolated_randomness
from formerlab.torchvision_shim import ensure_torchvision_imports


class Mix(NamedTuple):
    """Parameters of mixing a micro-batch with the same micro-batch in reverse order, as timm's Mixup does."""

    weight: float
    """Weight of an image's class in its target; for mixup (no box), also the weight of its pixels."""
    box: tuple[int, int, int, int] | None
    """Rectangle that cutmix copies from the other image: first row, end row, first column, end column."""
    smoothing: float
    """Label smoothing of the targets, from 0 to 1."""
    classes: int

    def __call__(self, images: ImageTensor, labels: Int[Tensor, " count"]) -> tuple[ImageTensor, Tensor]:
        """Mix the images in place; return them with targets of shape (count, classes)."""
        from timm.data.mixup import mixup_target

        if self.box is not None:
            first, last, left, right = self.box
            images[:, :, first:last, left:right] = images.flip(0)[:, :, first:last, left:right]
        elif self.weight != 1:
            partners = images.flip(0).mul_(1 - self.weight)
            images.mul_(self.weight).add_(partners)
        targets: Tensor = mixup_target(labels, self.classes, self.weight, self.smoothing)  # type: ignore[no-untyped-call]
        return images, targets


def sample_mix(mixup: float, cutmix: float, smoothing: float, classes: int, side: int, seed: int) -> Mix:
    """Return random parameters of a step, as timm's Mixup samples them with this seed."""
    ensure_torchvision_imports()
    from timm.data.mixup import Mixup, cutmix_bbox_and_lam

    with isolated_randomness() as reseed:
        reseed(seed)
        weight, pastes = Mixup(mixup, cutmix)._params_per_batch()  # type: ignore[no-untyped-call]
        box = None
        if pastes and weight != 1:
            (first, last, left, right), weight = cutmix_bbox_and_lam((side, side), weight)  # type: ignore[no-untyped-call]
            box = int(first), int(last), int(left), int(right)
    return Mix(float(weight), box, smoothing, classes)
