"""What comes from outside can neither run code, nor write elsewhere, nor carry secrets into what is kept."""

import re

import pytest
from fixtures.checkout import ROOT
from fixtures.project import Project

from formerlab.errors import UserError

SOURCES = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "src").rglob("*.py")}
FORBIDDEN = {
    "code from a model hub": r"trust_remote_code\s*=\s*True",
    "YAML that builds objects": r"yaml\.(unsafe_load|full_load|UnsafeLoader|FullLoader|Loader\b)",
    "pickles": r"(?:\bpickle\.loads?|joblib\.load|weights_only\s*=\s*False|allow_pickle\s*=\s*True)",
    "a torch.load that may run code": r"torch\.load\((?![^)]*weights_only\s*=\s*True)",
    "shell words from data": r"shell\s*=\s*True",
}
ESCAPES = ("../elsewhere", "/etc/elsewhere", "a/b", "..")


@pytest.mark.parametrize("what", FORBIDDEN)
def test_nothing_reads_files_in_a_way_that_runs_code(what):
    assert [str(path) for path, text in SOURCES.items() if re.search(FORBIDDEN[what], text)] == []


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_yaml_that_asks_for_an_object_is_refused(project):
    project.write("config.yaml", "scale: smoke\nstudies: !!python/object/apply:os.system [touch pwned]\n")
    assert "config.yaml: not valid YAML" in project.mistake()
    assert not (project.root / "pwned").exists()


@pytest.mark.parametrize("name", ESCAPES)
def test_a_name_cannot_lead_out_of_the_results(name, project):
    """Results lie at <results>/<scale>/<study>/<run>/seed<n> and data/<name>: every part is a plain name."""
    with pytest.raises(UserError):
        project.plan(studies=[name])
    assert project.mistake(set={f"scale.data.{name}": {"source": {"kind": "embedded"}}})
    assert project.mistake(scale=name)
    project.lay_over(project.study, f"runs: {{{name!r}: {{model: {{projection: {{kind: linear}}}}}}}}")
    assert project.mistake()


def test_a_template_cannot_either(project):
    project.lay_over(project.study, "runs: {'x-{data}': {data: '{data}', grid: {data: ['../../elsewhere']}}}")
    assert project.mistake()


@pytest.mark.parametrize("uri", ["https://someone:s3cret@host/", "https://host/?token=s3cret"])
def test_credentials_have_no_place_in_the_configuration(uri, project):
    message = project.mistake(tracking_uri=uri)
    assert "MLFLOW_TRACKING_PASSWORD in the environment" in message
    assert not list(project.root.rglob("plans/*"))
