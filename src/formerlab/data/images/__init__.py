"""Images: from a source of labelled pictures to arrays on disk that any step can be read from.

`ImageData` is the spec, `prepare` writes the files, `load_images` reads them.
"""

from formerlab.data.images.spec import Digits, ImageData, ImageFolders, ImageHub
from formerlab.data.images.store import ImageSet, load_images

__all__ = ["Digits", "ImageData", "ImageFolders", "ImageHub", "ImageSet", "load_images"]
