"""Save a figure as PDF and as PNG; the same figure gives the same bytes."""

from pathlib import Path

import numpy as np
from fontTools.subset import Options
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from formerlab.files import replacing

DOTS_PER_INCH = 150
"""Of the PNG: sharp on a screen of today at the size that a page shows."""
_SHAPING = ["GDEF", "GPOS", "GSUB"]
"""Tables of a font for programs that lay out text. A PDF says where each glyph stands and needs none of them, and
without them fontTools cuts a font down to the glyphs of a figure in a third of the time."""


def save(figure: Figure, pdf: Path, png: Path) -> None:
    """Save a figure in both forms, each whole or not at all."""
    with replacing(pdf) as temporary:
        save_pdf(figure, temporary)
    with replacing(png) as temporary:
        fewer_colours(pixels(figure)).save(temporary, "PNG")


def save_pdf(figure: Figure, path: Path) -> None:
    """Save the drawing itself, with the glyphs that it shows."""
    whole = Options._drop_tables_default
    Options._drop_tables_default = [*whole, *_SHAPING]  # what matplotlib asks of fontTools has no setting for it
    try:
        figure.savefig(path, format="pdf", metadata={"CreationDate": None})
    finally:
        Options._drop_tables_default = whole


def pixels(figure: Figure) -> Image.Image:
    """Return the picture, as `savefig` would write it, without the detour over a compressed file."""
    canvas = FigureCanvasAgg(figure)
    figure.set_dpi(DOTS_PER_INCH)
    canvas.draw()  # type: ignore[no-untyped-call]
    return Image.fromarray(np.asarray(canvas.buffer_rgba())).convert("RGB")  # type: ignore[no-untyped-call]


def fewer_colours(colours: Image.Image) -> Image.Image:
    """Return a picture with 256 colours: its file takes a third of the room, and looks alike.

    They are spread over all colours of the picture, so that one that covers little, as in a colour bar, stays itself;
    then each moves to the mean of those that it stands for, which keeps the ground as it was.
    """
    small = colours.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    of_pixel = np.asarray(small).ravel()
    sums = [np.bincount(of_pixel, np.asarray(channel).ravel(), minlength=256) for channel in colours.split()]
    means = np.stack(sums, axis=1) / np.maximum(np.bincount(of_pixel, minlength=256), 1)[:, None]
    small.putpalette(means.round().astype(np.uint8).tobytes())
    return small
