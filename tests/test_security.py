"""What comes from outside can neither run code, nor write elsewhere, nor carry secrets into what is kept."""

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


@pytest.mark.parametrize("uri", ["https://someone:s3cret@host/", "https://host/?token=s3cret"])
def test_credentials_have_no_place_in_the_configuration(uri, project):
    message = project.mistake(tracking_uri=uri)
    assert "MLFLOW_TRACKING_PASSWORD in the environment" in message
    assert not list(project.root.rglob("plans/*"))


EVIL = '<script>alert(1)</script>|\n<img src=x onerror=alert(1)>![x](https://evil/x.png)"\\|$\\frac$'
TAGS = {
    *("html", "head", "meta", "title", "style", "body", "h1", "h2", "p", "b", "br"),
    *("table", "thead", "tbody", "tr", "th", "td"),
}
ATTRIBUTES = {"lang", "charset", "name", "content", "class", "style", "border"}


@pytest.fixture(scope="module")
def hostile(tmp_path_factory):
    """Results of somebody else in which what may be any text is what its maker wants to run here."""
    place = tmp_path_factory.mktemp("hostile")
    root = place / "there" / "overnight"
    make_decay(root, (0,))
    for path in root.rglob("run.json"):
        record = json.loads(path.read_text())
        record |= {key: EVIL for key in ("device", "host", "code_hash", "spec_hash", "weights_sha256")}
        record |= {"data": {"name": EVIL, "fingerprint": EVIL}, "git": {"commit": EVIL, "dirty_hash": EVIL}}
        record |= {"versions": {EVIL: EVIL, "torch": EVIL}}
        record["spec"][EVIL] = EVIL
        path.write_text(json.dumps(record))
    for path in root.rglob("prune_questions.csv"):
        rows = pd.read_csv(path)
        rows = rows.assign(task=rows["task"].replace(rows["task"].iloc[0], EVIL.replace("\n", "")))
        rows.to_csv(path, index=False, lineterminator="\n")
    return Results(root)


class Page(HTMLParser):
    """The tags of a page and the names of their attributes."""

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


def test_a_text_in_any_place_of_a_page_is_text():
    frame = pd.DataFrame({EVIL: [EVIL, None]})
    page = pages.html_page(EVIL, [pages.heading(EVIL), pages.paragraph(EVIL), pages.html_table(frame)])
    assert is_inert(page)
    assert page.count("&lt;script&gt;alert(1)") == 6


def test_a_text_in_a_table_of_markdown_is_one_cell_of_text():
    text = compact_markdown_table(pd.DataFrame({EVIL: [EVIL], "other": ["x"]}))
    assert [len(re.findall(r"(?<!\\)\|", line)) for line in text.splitlines()] == [3, 3, 3]
    assert not re.search(r"<(?!br>)|\]\(|\\(?!\|)", text)


def test_what_foreign_results_hold_stands_on_pages_as_text(hostile, tmp_path):
    paths = write_run_table(hostile, tmp_path)
    paths += draw("decay_tasks_table", hostile, tmp_path)
    shown = {path.name: path.read_text() for path in paths if path.suffix not in (".csv", ".rst")}
    assert len(shown) == 3
    for name, text in shown.items():
        assert "alert(1)" in text, name
        assert is_inert(text), name


def test_what_foreign_results_hold_is_drawn_as_text(hostile, tmp_path):
    assert EVIL.replace("\n", "") in set(pd.read_csv(draw("decay_accuracy", hostile, tmp_path)[-2])["task"])


def test_what_foreign_results_hold_can_be_said_to_mlflow(hostile):
    for record in hostile.records():
        entry = seed_entry(hostile, record)
        assert all(re.fullmatch(r"[\w\-. /:]{1,250}", name) for name in (*entry.tags, *entry.params))


def test_a_message_is_one_line_whatever_a_name_brings_along():
    said = str(UserError("run 'a\nerror: all is well\x1b[2J\r': no such run"))
    assert said == "run 'a error: all is well [2J ': no such run"


@pytest.mark.parametrize("key", ["study", "run", "seed"])
def test_a_record_that_points_elsewhere_is_refused(key, tmp_path):
    make_decay(tmp_path, (0,))
    path = next(tmp_path.rglob("run.json"))
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: "../../elsewhere"}))
    with pytest.raises(UserError, match="does not match its study, run, seed and folder"):
        Results(tmp_path).records()


@pytest.mark.parametrize("key", ["attn_implementation", "experts_implementation"])
def test_a_model_folder_cannot_have_code_of_the_hub_fetched(key, tmp_path, monkeypatch):
    from transformers import AutoModelForCausalLM

    from formerlab.integrations.huggingface.load import load_causal_lm

    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", key: "owner/kernel"} | sizes))
    monkeypatch.setattr(AutoModelForCausalLM, "from_config", lambda *_, **__: pytest.fail("the kernel is fetched here"))
    folder = Folder(path=str(tmp_path))
    for look in (folder.load_sizes, lambda: load_causal_lm(folder.arguments())):
        with pytest.raises(UserError, match=f"config.json names 'owner/kernel' as {key}, which is code of the hub"):
            look()
