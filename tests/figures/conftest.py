"""What tests of figures and tables share."""

import pytest

from formerlab.files import write_text
from formerlab.report import write


@pytest.fixture
def unsaved(monkeypatch):
    """Draw figures and save none, for tests that look at rows: to save a picture takes longer than to draw it."""

    def save(figure, *paths):
        for path in paths:
            write_text(path, "drawn, and not saved")

    monkeypatch.setattr(write, "save", save)
