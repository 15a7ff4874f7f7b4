"""The commands and examples of docs/existing_models.md run on small models that have the names used on the page."""

import re
import shlex
from pathlib import Path

import pytest
import tiny_models
from released import random_checkpoint, write_checkpoint

from formerlab.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"
MODELS = (DOCS / "existing_models.md").read_text()
COMMANDS = re.findall(r"^python -m formerlab [ei].*", MODELS, re.M)  # export and import
EXAMPLES = [block for block in re.findall(r"^```python\n(.*?)^```", MODELS, re.M | re.S) if "timm" not in block]


@pytest.fixture(scope="module")
def folder(finished, tokenizer, tmp_path_factory):
    """Return a folder with small models that have the names of the page."""
    root = tmp_path_factory.mktemp("page")
    run = root / "results/live/laptop/denseformer/plain-4/seed0"
    run.parent.mkdir(parents=True)
    run.symlink_to(finished)
    tiny_models.save("opt", root / "opt-2.7b", tokenizer)
    write_checkpoint(root / "TokenFormer-150M", random_checkpoint(vocabulary=320))
    tokenizer.save(str(root / "TokenFormer-150M/tokenizer.json"))
    return root


def test_the_page_runs(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    assert len(COMMANDS) == 2
    assert len(EXAMPLES) == 4
    for command in COMMANDS:
        assert main(shlex.split(command)[3:]) == 0, capsys.readouterr().err
    capsys.readouterr()
    names = {}
    for example in EXAMPLES:
        exec(example, names)
    assert "the dog ran to" in capsys.readouterr().out
    assert names["larger"][0].keys.shape == (512, 64)
    assert names["pruned"].shape[1] == names["tokens"].shape[1]
