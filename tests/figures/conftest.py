"""Fixtures of the tests of figures and tables."""

import pytest

from formerlab.files import write_text
from formerlab.report import write


@pytest.fixture
def unsaved(monkeypatch):
    """Render figures without saving them, for tests of rows, because saving takes longer than rendering."""

    def save(figure, *paths):
        for path in paths:
            write_text(path, "rendered without saving")

    monkeypatch.setattr(write, "save", save)
