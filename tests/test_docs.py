"""README and docs name what exists: make targets, verbs and their options, Snakemake targets, files, links."""

import argparse
import re
import shlex
import shutil
import subprocess
from contextlib import chdir, contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from fixtures.checkout import Checkout

from formerlab.__main__ import build_parser, main
from formerlab.commands.context import VARIABLE
from formerlab.plan import locate
from formerlab.report.drawings import catalogue

ROOT = Path(__file__).parents[1]
PAGES = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
PLACES = tuple(
    ROOT / name for name in ("", "src", "src/formerlab", "docs", "workflow", "src/formerlab/layers", "tests")
)
"""Folders that a path in the text may be relative to."""
MADE = (
    "results/",
    "figures/",
    "logs/",
    "data/",
    "models/",
    "checkpoint/",
    "plans/",
    "live/",
    "questions/",
    "piqa/",
    "path/to/",
)
"""Beginnings of what is made or brought by the user."""
ENDINGS = (".py", ".md", ".yaml", ".yml", ".smk", ".sh", ".cff", ".lock", ".toml", ".rst", ".smk")
CODE = re.compile(r"```[a-z]*\n(.*?)```|`([^`\n]+)`", re.DOTALL)


def code(page):
    """Return every code block and every word in code of a page, as lines."""
    text = page.read_text(encoding="utf-8")
    lines = []
    for block, inline in CODE.findall(text):
        lines += [inline] if inline else block.replace("\\\n", " ").splitlines()
    return lines


def commands(page, name):
    """Return the words after `name` wherever a page calls it."""
    for line in code(page):
        for part in re.split(r"&&|\||;| > ", line.partition(" #")[0]):
            found = re.search(rf"(?:^|\s){re.escape(name)}(?:\s+(.*))?$", part.strip())
            if found and not part.strip().startswith("#"):
                yield shlex.split(found[1].replace("...", "") if found[1] else "", posix=True)


def verbs():
    parser = build_parser()
    (choices,) = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return choices.choices


@EVERY_PAGE
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([a-z-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for words in commands(page, "make"):
        named = [word for word in words if "=" not in word]
        assert set(named) <= targets, named


@EVERY_PAGE
def test_verbs_and_their_options_exist(page):
    known = verbs()
    for words in [*commands(page, "python -m formerlab"), *commands(page, "formerlab")]:
        verb = words[0] if words else "<verb>"
        if verb.startswith("<"):
            continue
        assert verb in known, words
        options = {option for action in known[verb]._actions for option in action.option_strings}
        assert {word.partition("=")[0] for word in words[1:] if word.startswith("--")} <= options, words


@EVERY_PAGE
def test_snakemake_is_given_targets_and_profiles_that_exist(page):
    rules = set(
        re.findall(r"^rule (\w+):", "".join(p.read_text() for p in (ROOT / "workflow/rules").glob("*.smk")), re.M)
    )
    known = rules | {path.stem for path in (ROOT / "workflow/studies").glob("*.yaml")}
    taking = {"--cores", "--config", "--profile", "--report", "--jobs", "--omit-from", "--configfile"}
    for words in commands(page, "snakemake"):
        values = {index + 1 for index, word in enumerate(words) if word in taking}
        values |= {index for index, word in enumerate(words) if "=" in word}
        for index, word in enumerate(words):
            if words[index - 1] == "--profile" and index in values:
                assert (ROOT / word / "config.yaml").exists(), words
            if not word.startswith("-") and index not in values and "/" not in word:
                assert word in known, words


@EVERY_PAGE
def test_files_exist(page):
    missing = []
    for line in code(page):
        for word in re.findall(r"[\w./-]+", line):
            if not word.endswith(ENDINGS) or "/" not in word or word.startswith(("/", "../", *MADE)) or "http" in line:
                continue
            if not any((place / word).exists() for place in PLACES):
                missing.append(word)
    assert set(missing) <= set(re.findall(r"^# (\S+\.py)$", page.read_text(), re.MULTILINE))


def test_pages_can_be_read_at_one_sitting():
    lines = {str(page.relative_to(ROOT)): page.read_text().count("\n") for page in PAGES if page.name != "CHANGELOG.md"}
    assert lines.pop("README.md") <= 110
    assert len(lines) <= 24
    assert {name: count for name, count in lines.items() if count > 120} == {}


def test_the_overview_shows_numbers_of_the_readme():
    intervals = re.findall(r"\S+ \[[^]]+\]", (ROOT / "docs/overview.svg").read_text())
    assert len(intervals) == 3
    assert [text for text in intervals if text.partition(">")[2] not in (ROOT / "README.md").read_text()] == []


@EVERY_PAGE
def test_figures_and_tables_exist(page):
    studies = [path.stem for path in (ROOT / "workflow/studies").glob("*.yaml")]
    pattern = re.compile(rf"^(?:{'|'.join(studies)})_[a-z_]+$")
    named = {line for line in code(page) if pattern.match(line)}
    assert named <= set(catalogue()) | {"denseformer_pace"}


def test_every_study_has_a_page_and_is_named_in_the_readme():
    readme = (ROOT / "README.md").read_text()
    for path in (ROOT / "workflow/studies").glob("*.yaml"):
        study = yaml.safe_load(path.read_text())
        assert f"docs/{path.stem}.md" in readme
        assert (ROOT / "docs" / f"{path.stem}.md").exists()
        assert study["question"].endswith("?")


NOT_RUN = {
    "make setup": "makes an environment from the lock file, minutes of network; .ci/run begins with it",
    "make demo": "runs the whole DAG, minutes; tests/test_dag_in_earnest.py runs some of its jobs",
    "make evidence": "hours, and public data; tests/test_evidence.py runs the script behind it on a small project",
    "make test": "these tests",
    "make docs": "an environment of its own; .ci/run builds the site",
    "make clean": "the shell alone: it deletes results",
    "make unlock": "Snakemake's own",
    "make test-cluster": "tests of their own, with a private Slurm",
    "make released": "a released model: network once; tests/huggingface/test_released.py runs it on a small one",
    "python -m formerlab released": "see make released",
    "python -m formerlab ui": "see make ui: it runs until it is stopped",
    "make ui": "a server that runs until it is stopped; tests/test_tracking_ui.py opens it",
    "make readme": "writes into README.md what the committed rows say; tests/claims/test_render.py",
    "python -m formerlab exact": "15 core-seconds; tests/claims/test_verdict.py runs some checks of it",
    "python -m formerlab plan --shell > all.sh": "the whole DAG; tests/test_commands.py runs such a script",
    "python -m formerlab reproduce": "tests/test_reproduce.py does it with runs of a small project",
    "python -m formerlab speed denseformer --scale overnight": "times models for minutes on an idle machine",
    "python -m formerlab prune-folder": "OPT and LLaMA: network, a GPU; tests/huggingface runs it on small models",
    "python -m formerlab import-tokenformer": "a released checkpoint: network; tests/huggingface makes a small one",
    "python -m formerlab zeroshot-folder": "see import-tokenformer",
    "python -m formerlab classify vit_base_patch16_224": "published weights: network",
    "python examples/": "tests/test_examples.py runs them",
    "snakemake": "starts jobs; tests/test_dag.py plans with --config and --profile, a test below with all targets",
}
"""Beginnings of commands that are not run as they are written, and why."""


def written_commands():
    """Return every whole command of README and docs, once; what holds <a placeholder> or dots is a pattern."""
    found = {}
    for page in PAGES:
        for line in code(page):
            line = re.split(r"\s+#\s", line.strip())[0].strip()
            command = re.match(r"([A-Z_]+=\S+ )?(make [a-z]|python |snakemake .)", line)
            if command and not re.search(r"<\w|\.\.\.", line):
                found.setdefault(line, page.name)
    return list(found)


COMMANDS = written_commands()
RUN = [line for line in COMMANDS if not line.startswith(tuple(NOT_RUN))]


def test_whatever_is_not_run_is_written_somewhere():
    assert [start for start in NOT_RUN if not any(line.startswith(start) for line in COMMANDS)] == []
    assert len(RUN) > 12


def named_runs():
    """Return the runs that the commands name, as the shell expands them."""
    words = " ".join(word for line in RUN for word in line.split() if "/seed" in word)
    expanded = subprocess.run(["bash", "-c", f"echo {words}"], capture_output=True, text=True, check=True).stdout
    return sorted(set(re.findall(r"[a-z]+/[\w-]+/seed\d", expanded)))


SMALL = {
    **{"steps": 4, "log_every": 2, "evaluate_every": 2, "valid_windows": 8, "lengths": [16]},
    **{"training_bytes": 200_000, "max_held_out_bytes": 20_000, "valid_share": 0.1, "test_share": 0.1},
}


def smaller(tree):
    """Return a scale with few steps and little text, and with the same runs."""
    return {key: smaller(value) if isinstance(value, dict) else SMALL.get(key, value) for key, value in tree.items()}


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Return a checkout with what `make demo` leaves of the runs that the pages name, made small."""
    root = tmp_path_factory.mktemp("left")
    begin(root)
    path = root / "workflow/scales/laptop.yaml"
    scale = smaller(yaml.safe_load(path.read_text()))
    scale["data"]["text"] |= {"source": {"kind": "embedded", "packages": ["networkx"], "standard_library": False}}
    path.write_text(yaml.safe_dump(scale, sort_keys=False))
    with here(root):
        for words in (["data", "text"], ["data", "images"], *(["train", run] for run in named_runs())):
            assert main(words) == 0
    for copy in ("results/cached/laptop", "results/live/overnight"):
        shutil.copytree(root / "results/live/laptop", root / copy)
    return root


def begin(root):
    """Copy what a checkout has, and an environment that make takes for ready: what it prints is run in this process."""
    for name in ("config.yaml", "Makefile", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, root)
    for name in ("workflow", "scripts"):
        shutil.copytree(ROOT / name, root / name)
    (root / ".venv").mkdir()
    (root / ".venv/.ready").write_text(f"{root}\n")


@contextmanager
def here(root):
    """Work in a checkout, where a plan is made in this process: starting one takes seconds."""

    def run_here(words, *, cwd, **_):
        with redirect_stderr(StringIO()) as stderr, chdir(cwd):
            return SimpleNamespace(returncode=main(words[3:]), stderr=stderr.getvalue())

    with pytest.MonkeyPatch.context() as patch:
        patch.delenv(VARIABLE, raising=False)
        patch.setattr(locate, "subprocess", SimpleNamespace(run=run_here))
        patch.chdir(root)
        yield


def calls(line):
    """Return what a command asks of `python -m formerlab`: words as the shell makes them, of make what it would run."""
    if line.startswith("make "):
        printed = subprocess.run(["make", "-n", *shlex.split(line)[1:]], capture_output=True, text=True, check=True)
        lines = [text for text in printed.stdout.splitlines() if " -m formerlab " in text]
    else:
        lines = [line]
    for text in lines:
        words = text.partition(" -m formerlab ")[2]
        expanded = subprocess.run(["bash", "-c", f"printf '%s\\0' {words}"], capture_output=True, text=True, check=True)
        yield expanded.stdout.split("\0")[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("line", RUN)
def test_what_is_written_runs_on_what_the_demo_leaves(line, left, capsys):
    with here(left):
        wanted = list(calls(line))
        assert wanted
        for words in wanted:
            assert main(words) == 0, capsys.readouterr().err


@pytest.mark.slow
def test_snakemake_takes_all_targets_that_are_written(tmp_path):
    words = " ".join(line for line in COMMANDS if line.startswith("snakemake ") and "=" not in line).split()
    targets = sorted({word for word in words if re.fullmatch(r"[a-z]+", word)} - {"snakemake", "slurm"})
    assert len(targets) >= 5
    checkout = Checkout(tmp_path)
    checkout.plan_ahead()
    done = checkout.snakemake(*targets, "--cores", "2", "-n")
    assert done.returncode == 0, done.stderr
