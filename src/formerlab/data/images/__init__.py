"""Images: from a source of labelled pictures to arrays on disk that any step can be read from.

`ImageData` is the spec, `prepare` writes the files, `load_images` reads them.
"""

from formerlab.data.images.hub import ImageHub as ImageHub
from formerlab.data.images.prepare import ImageData as ImageData
from formerlab.data.images.source import Digits as Digits
from formerlab.data.images.source import ImageFolders as ImageFolders
from formerlab.data.images.store import load_images as load_images
