"""Commands and examples of two pages run, on small models under the names that the pages use."""

import re
import shlex
from pathlib import Path

import foreign
import pytest
from released import made_up, written

from formerlab.__main__ import main

DOCS = Path(__file__).parents[2] / "docs"
MODELS, PRUNING = (DOCS / "existing_models.md").read_text(), (DOCS / "pruning.md").read_text()
COMMANDS = [
    line for block in re.findall(r"^```sh\n(.*?)^```", MODELS + PRUNING, re.M | re.S) for line in block.splitlines()
]
EXAMPLES = [block for block in re.findall(r"^```python\n(.*?)^```", MODELS, re.M | re.S) if "timm" not in block]
(SWEEP,) = re.findall(r"^```yaml\n# sweep.yaml\n(.*?)^```", PRUNING, re.M | re.S)


@pytest.fixture(scope="module")
def place(finished, tokenizer, task, tmp_path_factory):
    """Return a folder with small models under the page's names."""
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("page")
    run = root / "results/live/laptop/denseformer/plain-4/seed0"
    run.parent.mkdir(parents=True)
    run.symlink_to(finished)
    end = "<|endoftext|>"
    for name, kind in (("opt-2.7b", "opt"), ("llama-2-7b-chat", "llama")):
        foreign.build(kind).float().save_pretrained(root / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end).save_pretrained(root / name)
    settings = written(root / "TokenFormer-150M", made_up(vocabulary=320)) / "150M_eval.yml"
    settings.write_text(settings.read_text().replace("16,", "48,"))  # room for the questions
    tokenizer.save(str(root / "TokenFormer-150M/tokenizer.json"))
    (root / "sweep.yaml").write_text(SWEEP)
    return root


def on_this_machine(command, task):
    """Return the words of a command with what a test has not replaced: a GPU, the hub."""
    words = shlex.split(command)
    assert words[:3] == ["python", "-m", "formerlab"]
    given = [word for word in words[3:] if word not in ("--device", "cuda", "--dtype", "float16", "--online")]
    if words[3].endswith("-folder"):
        given = [*given, "--tasks", str(task), "--limit", "2"]  # the last one counts
    return given


def test_the_page_runs(place, task, monkeypatch, capsys):
    monkeypatch.chdir(place)
    assert len(COMMANDS) == 5
    assert len(EXAMPLES) == 4
    for command in COMMANDS:
        assert main(on_this_machine(command, task)) == 0, capsys.readouterr().err
    policies = (place / "results/huggingface/llama/prune_questions.csv").read_text()
    assert "streaming_llm positions=reindexed" in policies
    assert (place / "results/huggingface/tokenformer-150m/zeroshot.csv").is_file()
    capsys.readouterr()
    names = {}
    for example in EXAMPLES:
        exec(example, names)
    assert "the dog ran to" in capsys.readouterr().out
    assert names["larger"][0].keys.shape == (512, 64)
    assert names["pruned"].shape[1] == names["tokens"].shape[1]
