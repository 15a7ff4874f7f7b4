"""README and docs mention only make targets, commands, options, Snakemake targets, files and links that exist."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import yaml

from formerlab.__main__ import build_parser
from formerlab.plan.build import build_plan
from formerlab.report.catalogue import catalogue

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
STUDIES = sorted(path.stem for path in (ROOT / "workflow/studies").glob("*.yaml"))
STUDY_PAGES = [page for study in STUDIES for page in sorted((ROOT / "docs").glob(f"{study}*.md"))]
"""The page of each study, and pages of further questions such as `tokenformer_new_text.md`."""
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
BASE_FOLDERS = tuple(
    ROOT / name for name in ("", "src", "src/formerlab", "docs", "workflow", "src/formerlab/layers", "tests")
)
"""Base folders of paths in the text."""
GENERATED_PREFIXES = (
    *("results/", "figures/", "logs/", "data/", "models/", "checkpoint/", "plans/", "live/"),
    *("questions/", "piqa/", "path/to/"),
)
"""Prefixes of paths of generated files and of files that the user provides."""
ENDINGS = (".py", ".md", ".yaml", ".yml", ".smk", ".sh", ".cff", ".lock", ".toml", ".rst")
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def code(page):
    """Return the lines of all code blocks and inline code of a page."""
    text = page.read_text(encoding="utf-8")
    lines = []
    for block, inline in CODE.findall(text):
        lines += [inline] if inline else block.replace("\\\n", " ").splitlines()
    return lines


def commands(page, name):
    """Yield the words after each call of `name` in a page."""
    for line in code(page):
        for command in re.split(r"&&|\||;| > ", line.partition(" #")[0]):
            call = re.search(rf"(?:^|(?<!from)\s){re.escape(name)}(?:\s+(.*))?$", command.strip())
            if call and not command.strip().startswith("#"):
                yield shlex.split(call[1].replace("...", "") if call[1] else "", posix=True)


@EVERY_PAGE
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page, "make"):
        named = [word for word in words if "=" not in word]
        assert set(named) <= targets, named


@EVERY_PAGE
def test_commands_and_their_options_exist(page):
    existing = next(action for action in build_parser()._actions if action.dest != "help").choices
    for words in [*commands(page, "python -m formerlab"), *commands(page, "formerlab")]:
        command = words[0] if words else "<command>"
        if command.startswith("<"):
            continue
        assert command in existing, words
        options = {option for action in existing[command]._actions for option in action.option_strings}
        assert {word.partition("=")[0] for word in words[1:] if word.startswith("--")} <= options, words


@EVERY_PAGE
def test_snakemake_targets_and_profiles_exist(page):
    rules = set(
        re.findall(r"^rule (\w+):", "".join(p.read_text() for p in (ROOT / "workflow/rules").glob("*.smk")), re.M)
    )
    targets = rules | {path.stem for path in (ROOT / "workflow/studies").glob("*.yaml")}
    valued_options = {
        "--quiet",
        "--cores",
        "--config",
        "--profile",
        "--report",
        "--jobs",
        "--omit-from",
        "--configfile",
    }
    for words in commands(page, "snakemake"):
        values = {index + 1 for index, word in enumerate(words) if word in valued_options}
        values |= {index for index, word in enumerate(words) if "=" in word}
        for index, word in enumerate(words):
            if words[index - 1] == "--profile" and index in values:
                assert (ROOT / word / "config.yaml").exists(), words
            if not word.startswith("-") and index not in values and "/" not in word:
                assert word in targets, words


@EVERY_PAGE
def test_files_exist(page):
    missing = []
    for line in code(page):
        for word in re.findall(r"[\w./-]+", line):
            if (
                not word.endswith(ENDINGS)
                or "/" not in word
                or word.startswith(("/", "../", *GENERATED_PREFIXES))
                or "http" in line
            ):
                continue
            if not any((folder / word).exists() for folder in BASE_FOLDERS):
                missing.append(word)
    assert set(missing) <= set(re.findall(r"^# (\S+\.py)$", page.read_text(), re.MULTILINE))


def test_pages_are_short():
    lines = {str(page.relative_to(ROOT)): page.read_text().count("\n") for page in PAGES if page.name != "CHANGELOG.md"}
    assert lines.pop("README.md") <= 120
    assert len(lines) <= 29
    assert {name: count for name, count in lines.items() if count > 130} == {}


def test_the_configuration_of_docs_own_text_makes_a_plan(tmp_path, monkeypatch):
    """docs/own_text.md configures two runs, a suite of questions and a figure."""
    page = (ROOT / "docs/own_text.md").read_text()
    settings, questions = ("".join(re.findall(rf"```{kind}\n(.*?)```", page, re.DOTALL)) for kind in ("yaml", "json"))
    assert settings.startswith("studies: [denseformer]")
    monkeypatch.chdir(tmp_path)
    shutil.copy(ROOT / "config.yaml", tmp_path)
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    shutil.copytree(ROOT / "docs", tmp_path / "text", ignore=lambda _, names: [n for n in names if n[-3:] != ".md"])
    (tmp_path / "questions.jsonl").write_text(questions)
    (tmp_path / "mine.yaml").write_text(settings)
    with open("config.yaml", "a") as config:
        config.write(re.search(r"echo '(.*)' >> config.yaml", page)[1])
    plan = build_plan(tmp_path, {})
    runs = {f"denseformer/{run}/seed0" for run in ("plain-4", "dwa-1x1-4")}
    assert set(plan["train"]) == set(plan["zeroshot"]) == runs
    assert all("mine_local" in job["suites"] for job in plan["zeroshot"].values())
    spec, text = plan["train"]["denseformer/plain-4/seed0"]["spec"], plan["data"]["text"]["spec"]
    assert f"for {spec['steps']} steps" in page
    assert f"denseformer.steps: {10 * spec['steps']}` trains each run ten times as long" in page
    assert f"trains on at most {text['max_bytes'] / 1e6:.0f} MB" in page
    figures = {file for job in plan["draw"].values() for file in job["outputs"]}
    assert set(re.findall(r"snakemake --cores 2 (figures/\S+)", page)) <= figures


def test_the_overview_shows_the_numbers_of_the_readme():
    intervals = re.findall(r"\S+ \[[^]]+\]", (ROOT / "docs/overview.svg").read_text())
    assert len(intervals) == 3
    assert [text for text in intervals if text.partition(">")[2] not in (ROOT / "README.md").read_text()] == []


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "CHANGELOG.md"], ids=lambda page: page.stem)
def test_figures_and_tables_exist(page):
    """The changelog is left out, because it mentions figures that were removed."""
    pattern = re.compile(rf"^(?:{'|'.join(STUDIES)})_[a-z_]+$")
    named = {line for line in code(page) if pattern.match(line)}
    assert named <= set(catalogue()) | {"denseformer_pace"}, "denseformer_pace is the example of docs/extending.md"


def test_every_study_has_a_page_and_a_link_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for path in (ROOT / "workflow/studies").glob("*.yaml"):
        study = yaml.safe_load(path.read_text())
        assert f"docs/{path.stem}.md" in readme
        assert (ROOT / "docs" / f"{path.stem}.md").exists()
        assert study["question"].endswith("?")


@pytest.mark.parametrize("page", STUDY_PAGES, ids=lambda page: page.stem)
def test_a_study_page_begins_with_its_figure_and_mentions_no_hyphenated_run_name(page):
    """The figure that answers the question comes first. Readers do not know the names of runs.

    Names without a hyphen, such as `decoder`, are also words of the text.
    """
    text = page.read_text()
    title, _, figure = text.splitlines()[:3]
    assert re.fullmatch(r"# .+\?", title)
    assert (page.parent / re.fullmatch(r"!\[.+\]\((\S+\.png)\)", figure)[1]).exists()
    study = page.stem.partition("_")[0]
    records = "".join(path.read_text() for path in (ROOT / "results/cached").glob(f"*/{study}/records.jsonl"))
    runs = {run for run in re.findall(rf'"{study}/([^/"]+)/seed', records) if "-" in run}
    assert runs
    assert not {run for run in runs if re.search(rf"(?<![\w-]){re.escape(run)}(?![\w-])", text)}
