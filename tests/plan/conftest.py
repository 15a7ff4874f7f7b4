import pytest
from fixtures.project import Project, write_records


@pytest.fixture
def project(tmp_path):
    """Return a small project in an empty folder."""
    return Project(tmp_path)


@pytest.fixture(scope="session")
def _planned(tmp_path_factory):
    root = tmp_path_factory.mktemp("planned")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        project = Project(root)
        project.merge_into(project.config, "seeds: [0]")
        return root, project.plan()


@pytest.fixture
def finished_plan(_planned, monkeypatch):
    """Return the plan of a small project with one seed, whose outputs all have records."""
    root, plan = _planned
    monkeypatch.chdir(root)
    write_records(plan)
    return plan
