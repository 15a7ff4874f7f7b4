"""Saved figures equal matplotlib's image reduced to 256 colours, and their bytes are reproducible."""

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from formerlab.report import write


def figure():
    # 449.99999999999994 pixels high, which matplotlib rounds to 450
    small_figure = Figure(figsize=(4, np.nextafter(3, 0)))
    small_figure.add_subplot().plot([1, 2, 4], label="a line")
    small_figure.axes[0].set_ylabel("AVATAR, $x^2$")
    return small_figure


def test_pixels_match_matplotlib(tmp_path):
    figure().savefig(tmp_path / "matplotlib.png", dpi=150)
    write.save(figure(), tmp_path / "saved.pdf", tmp_path / "saved.png")
    matplotlib_image, saved_image = (
        Image.open(tmp_path / f"{name}.png").convert("RGB") for name in ("matplotlib", "saved")
    )
    assert np.array_equal(np.asarray(write.fewer_colours(matplotlib_image).convert("RGB")), np.asarray(saved_image))


def test_a_figure_saved_twice_has_the_same_bytes(tmp_path):
    for name in "ab":
        write.save(figure(), tmp_path / f"{name}.pdf", tmp_path / f"{name}.png")
    assert (tmp_path / "a.pdf").read_bytes() == (tmp_path / "b.pdf").read_bytes()
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()


def test_rare_colours_are_kept():
    picture = np.full((400, 400, 3), [246, 242, 231], np.uint8)
    row, column = np.indices((400, 360)) // 20  # a map of many shades on a background
    picture[:, :360] = np.stack((150 + 5 * row % 100, 5 * row + 3 * column, 4 * column + 2 * row), axis=-1)
    bar = np.linspace(0, 1, 200)  # a colour bar of blues that do not occur in the map
    picture[100:300, -4:] = np.stack((5 + 200 * bar, 48 + 180 * bar, 97 + 150 * bar), axis=-1)[:, None]
    reduced = np.asarray(write.fewer_colours(Image.fromarray(picture)).convert("RGB")).astype(int)
    assert np.abs(reduced - picture).max() < 16
    assert (reduced[-1, -1] == picture[-1, -1]).all()
