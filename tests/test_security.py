"""External files cannot run code, write outside the project folder, or put secrets into results."""

import json
import re
from html.parser import HTMLParser

import pandas as pd
import pytest
from fixtures.checkout import ROOT
from fixtures.project import Project
from fixtures.rows import make_decay

from formerlab.errors import UserError
from formerlab.released import Folder
from formerlab.report import pages
from formerlab.report.claims.render import compact_markdown_table
from formerlab.report.run_table import write_run_table
from formerlab.report.write import draw
from formerlab.results.read import Results
from formerlab.tracking.rows import seed_entry

SOURCES = {path.relative_to(ROOT): path.read_text() for path in (ROOT / "src").rglob("*.py")}
FORBIDDEN = {
    "code from a model hub": r"[(,]\s*trust_remote_code\s*=\s*True",
    "YAML that builds objects": r"yaml\.(unsafe_load|full_load|UnsafeLoader|FullLoader|Loader\b)",
    "pickles": r"(?:\bpickle\.loads?|joblib\.load|weights_only\s*=\s*False|allow_pickle\s*=\s*True)",
    "a torch.load that may run code": r"torch\.load\((?![^)]*weights_only\s*=\s*True)",
    "shell words from data": r"shell\s*=\s*True",
}
ESCAPES = ("../elsewhere", "/etc/elsewhere", "a/b", "..")


@pytest.mark.parametrize("danger", FORBIDDEN)
def test_no_source_file_uses_a_reader_that_can_run_code(danger):
    assert [str(path) for path, text in SOURCES.items() if re.search(FORBIDDEN[danger], text)] == []


@pytest.fixture
def project(tmp_path):
    return Project(tmp_path)


def test_yaml_that_creates_an_object_is_refused(project):
    project.write("config.yaml", "scale: smoke\nstudies: !!python/object/apply:os.system [touch pwned]\n")
    assert "config.yaml: not valid YAML" in project.mistake()
    assert not (project.root / "pwned").exists()


@pytest.mark.parametrize("name", ESCAPES)
def test_names_cannot_be_paths_outside_the_results(name, project):
    """Every component of these paths must be a plain name.

    Results are in <results>/live/<scale>/<study>/<run>/seed<n>, and prepared data in
    <results>/live/<scale>/data/<name>.
    """
    with pytest.raises(UserError):
        project.plan(studies=[name])
    assert project.mistake(set={f"scale.data.{name}": {"source": {"kind": "embedded"}}})
    assert project.mistake(scale=name)
    project.merge_into(project.study, f"runs: {{{name!r}: {{model: {{projection: {{kind: linear}}}}}}}}")
    assert project.mistake()


@pytest.mark.parametrize("uri", ["https://someone:s3cret@host/", "https://host/?token=s3cret"])
def test_credentials_in_the_configuration_are_refused(uri, project):
    message = project.mistake(tracking_uri=uri)
    assert "MLFLOW_TRACKING_PASSWORD in the environment" in message
    assert not list(project.root.rglob("plans/*"))


ATTACK = '<script>alert(1)</script>|\n<img src=x onerror=alert(1)>![x](https://evil/x.png)"\\|$\\frac$'
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "br"),
    *("table", "thead", "tbody", "tr", "th", "td", "ul", "li"),
}
ATTRIBUTES = {"lang", "charset", "name", "content", "class", "style", "border"}


@pytest.fixture(scope="module")
def untrusted_results(tmp_path_factory):
    """Results from an untrusted source: every free-text field contains an attack."""
    folder = tmp_path_factory.mktemp("hostile")
    root = folder / "there" / "overnight"
    make_decay(root, (0,))
    for path in root.rglob("run.json"):
        record = json.loads(path.read_text())
        record |= {key: ATTACK for key in ("device", "host", "code_hash", "spec_hash", "weights_sha256")}
        record |= {"data": {"name": ATTACK, "fingerprint": ATTACK}, "git": {"commit": ATTACK, "dirty_hash": ATTACK}}
        record |= {"versions": {ATTACK: ATTACK, "torch": ATTACK}}
        record["spec"][ATTACK] = ATTACK
        path.write_text(json.dumps(record))
    for path in root.rglob("prune_questions.csv"):
        rows = pd.read_csv(path)
        rows = rows.assign(task=rows["task"].replace(rows["task"].iloc[0], ATTACK.replace("\n", "")))
        rows.to_csv(path, index=False, lineterminator="\n")
    return Results(root)


class Page(HTMLParser):
    """The tags of a page, and the names of their attributes."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.attributes = set(), set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attributes}


def is_inert(page):
    parsed = Page(page)
    return parsed.tags <= TAGS and parsed.attributes <= ATTRIBUTES


def test_texts_are_escaped_everywhere_on_a_page():
    frame = pd.DataFrame({ATTACK: [ATTACK, None]})
    page = pages.html_page(ATTACK, [pages.heading(ATTACK), pages.paragraph(ATTACK), pages.html_table(frame)])
    assert is_inert(page)
    assert page.count("&lt;script&gt;alert(1)") == 6


def test_texts_in_markdown_tables_are_escaped_within_one_cell():
    text = compact_markdown_table(pd.DataFrame({ATTACK: [ATTACK], "other": ["x"]}))
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()] == [3, 3, 3]
    assert not re.search(r"<(?!br>)|\]\(|\\(?!\|)", text)


def test_fields_of_untrusted_results_are_escaped_on_pages(untrusted_results, tmp_path):
    paths = write_run_table(untrusted_results, tmp_path)
    paths += draw("decay_tasks_table", untrusted_results, tmp_path)
    texts = {path.name: path.read_text() for path in paths if path.suffix not in (".csv", ".rst")}
    assert len(texts) == 3
    for name, text in texts.items():
        assert "alert(1)" in text, name
        assert is_inert(text), name


def test_fields_of_untrusted_results_are_rendered_as_text(untrusted_results, tmp_path):
    assert ATTACK.replace("\n", "") in set(pd.read_csv(draw("decay_accuracy", untrusted_results, tmp_path)[-2])["task"])


def test_fields_of_untrusted_results_become_valid_mlflow_names(untrusted_results):
    for record in untrusted_results.records():
        entry = seed_entry(untrusted_results, record)
        assert all(re.fullmatch(r"[\w\-. /:]{1,250}", name) for name in (*entry.tags, *entry.params))


def test_error_messages_are_one_line_without_control_characters():
    message = str(UserError("run 'a\nerror: all is well\x1b[2J\r': no such run"))
    assert message == "run 'a error: all is well [2J ': no such run"


@pytest.mark.parametrize("key", ["study", "run", "seed"])
def test_a_record_with_a_path_as_name_is_refused(key, tmp_path):
    make_decay(tmp_path, (0,))
    path = next(tmp_path.rglob("run.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "../../elsewhere"}))
    with pytest.raises(UserError, match="does not match its study, run, seed and folder"):
        Results(tmp_path).records()


@pytest.mark.parametrize("key", ["attn_implementation", "experts_implementation"])
def test_a_model_folder_that_requests_code_of_the_hub_is_refused(key, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    from formerlab.integrations.huggingface.load import load_causal_lm

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", key: "owner/kernel"} | sizes))
    monkeypatch.setattr(
        AutoModelForCausalLM, "from_config", lambda *_, **__: pytest.fail("the kernel would be downloaded")
    )
    folder = Folder(path=str(tmp_path))
    for load in (folder.load_sizes, lambda: load_causal_lm(folder.arguments())):
        with pytest.raises(UserError, match=f"config.json names 'owner/kernel' as {key}, which is code of the hub"):
            load()
