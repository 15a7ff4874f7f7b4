"""What tests of figures and tables share."""

import pytest
from matplotlib.figure import Figure

from formerlab.report import write


@pytest.fixture
def unsaved(monkeypatch):
    """Draw figures and save none, for tests that look at rows: to save a picture takes longer than to draw it."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **form: path.write_bytes(b"drawn, and not saved"))
    monkeypatch.setattr(write, "_fewer_colours", lambda path: None)
