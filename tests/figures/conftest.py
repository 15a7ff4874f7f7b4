"""What tests of figures and tables share."""

import pytest
from matplotlib.figure import Figure


@pytest.fixture
def unsaved(monkeypatch):
    """Draw figures and save none, for tests that look at rows: to save a picture takes longer than to draw it."""
    monkeypatch.setattr(Figure, "savefig", lambda figure, path, **form: path.write_bytes(b"drawn, and not saved"))
