"""Data sets of images: `ImageData` is the spec, `load_images` reads a prepared split."""

from formerlab.data.images.gallery import Digits as Digits
from formerlab.data.images.prepare import ImageData as ImageData
from formerlab.data.images.source import ImageFolders as ImageFolders
from formerlab.data.images.source import ImageHub as ImageHub
from formerlab.data.images.store import load_images as load_images
