"""Former names of data/images/augmentation.py, kept for code that imports them."""

from formerlab.data.images.augmentation import Preprocessing as Look
from formerlab.data.images.augmentation import Shift, TimmAugmentation
from formerlab.data.images.augmentation import augment_by_timm as drawn_by_timm

__all__ = ["Look", "Shift", "TimmAugmentation", "drawn_by_timm"]
