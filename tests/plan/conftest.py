import pytest
from fixtures.project import Project


@pytest.fixture
def project(tmp_path):
    """A small project in an empty folder."""
    return Project(tmp_path)
