"""Saving figures: the pixels and the bytes are those of matplotlib where they should be."""

import io
import re
import zlib

import matplotlib
import numpy as np
from fontTools.subset import Options
from fontTools.ttLib import TTFont
from matplotlib.figure import Figure
from PIL import Image

from formerlab.report import pictures
from formerlab.report.style import SETTINGS


def figure():
    made = Figure(figsize=(4, 3))
    made.add_subplot().plot([1, 2, 4], label="a line")
    made.axes[0].set_ylabel("AVATAR, $x^2$")
    return made


def test_pixels_are_those_that_matplotlib_saves():
    saved = io.BytesIO()
    figure().savefig(saved, format="png", dpi=150)
    with Image.open(saved) as picture:
        assert np.array_equal(np.asarray(picture.convert("RGB")), np.asarray(pictures.pixels(figure())))


def test_a_pdf_keeps_its_fonts_without_tables_for_shaping(tmp_path):
    settings = list(Options._drop_tables_default)
    with matplotlib.rc_context(SETTINGS):
        pictures.save(figure(), tmp_path / "a.pdf", tmp_path / "a.png")
        pictures.save(figure(), tmp_path / "b.pdf", tmp_path / "b.png")
    assert Options._drop_tables_default == settings
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    fonts = []
    for stream in re.findall(rb"stream\r?\n(.*?)\r?\nendstream", (tmp_path / "a.pdf").read_bytes(), re.DOTALL):
        try:
            font = zlib.decompress(stream)
        except zlib.error:
            continue
        if font[:4] == b"\0\1\0\0":
            fonts.append(TTFont(io.BytesIO(font)))
    assert fonts
    for font in fonts:
        assert {"glyf", "head", "hmtx"} <= set(font.keys())
        assert not {"GSUB", "GPOS", "GDEF"} & set(font.keys())


def test_a_picture_keeps_the_colours_that_cover_little():
    picture = np.full((400, 400, 3), [246, 242, 231], np.uint8)
    row, column = np.indices((400, 360)) // 20  # a map of many shades, on a ground
    picture[:, :360] = np.stack((150 + 5 * row % 100, 5 * row + 3 * column, 4 * column + 2 * row), axis=-1)
    bar = np.linspace(0, 1, 200)  # and a colour bar of blues that the map lacks
    picture[100:300, -4:] = np.stack((5 + 200 * bar, 48 + 180 * bar, 97 + 150 * bar), axis=-1)[:, None]
    kept = np.asarray(pictures.fewer_colours(Image.fromarray(picture)).convert("RGB")).astype(int)
    assert np.abs(kept - picture).max() < 16
    assert (kept[-1, -1] == picture[-1, -1]).all()
