"""The examples run unchanged on small inputs."""

import json
import re
import runpy
import sys
from pathlib import Path

import pytest

from tests.huggingface.tiny_models import save_with_tokenizer

EXAMPLES = Path(__file__).parents[1] / "examples"
PROMPT = runpy.run_path(str(EXAMPLES / "prune_a_model.py"))["PROMPT"]


@pytest.fixture
def run(monkeypatch, capsys, unchecked_shapes):
    """Return a function that runs an example as a script and returns its output."""

    def run(name, *words):
        monkeypatch.syspath_prepend(EXAMPLES)
        monkeypatch.setattr(sys, "argv", [name, *map(str, words)])
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
        return capsys.readouterr().out

    return run


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("the quick brown fox jumps over the lazy dog. " * 200)
    return path


def losses(printed):
    return {name.strip(): float(loss) for name, loss in re.findall(r"^  (\S.*?) +(\d\.\d{4})$", printed, re.M)}


@pytest.mark.slow
def test_one_decoder_learns_grows_without_loss_and_is_pruned_with_little_loss(run, text):
    held_out = losses(run("one_decoder.py", text, "--steps", 12))
    assert held_out["trained"] < 3.5
    assert held_out["grown, not trained further"] == pytest.approx(held_out["trained"], abs=2e-4)
    assert held_out["grown, trained further"] < held_out["trained"]
    assert len(held_out) == 7


@pytest.mark.slow
def test_a_custom_mixer_trains(run, text):
    held_out = losses(run("own_mixer.py", text, "--steps", 6))
    assert len(held_out) == len(set(held_out.values())) == 3
    assert max(held_out.values()) < 5.5


@pytest.fixture
def folder(tmp_path):
    """Return the folder of a tiny model of transformers with a tokenizer of single characters."""
    return save_with_tokenizer(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(("prompt", "length"), [(["once upon a time"], 16), ([], len(PROMPT))])
def test_the_example_prunes_a_model_of_transformers(run, folder, prompt, length):
    """Without a prompt the example uses its built-in prompt. The tokenizer splits text into characters."""
    printed = run("prune_a_model.py", folder, "--tokens", 5, *prompt)
    lines = re.findall(r"^(\w+), (\d+)% of (\d+) prompt tokens, [\d.]+ MiB: '.*'$", printed, re.M)
    assert lines == [("Full", "100", str(length)), *((name, "40", str(length)) for name in ("Local", "H2O", "Decay"))]


def test_the_notebook_prunes_measures_and_plots(folder, capsys, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    cells = json.loads((EXAMPLES / "prune_a_model.ipynb").read_text())["cells"]
    settings, *code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    namespace = {}
    exec(settings, namespace)
    namespace |= {"MODEL": str(folder), "TOKENS": 40}
    for source in code:
        exec(source, namespace)
    printed = capsys.readouterr().out
    sizes = [int(size.replace(",", "")) for size in re.findall(r"([\d,]+) bytes", printed)]
    assert sizes[1:] == 3 * [sizes[0] * 16 // 59], "the full cache stores 40 + 19 tokens, a pruned cache 16 keys"
    assert len(re.findall(r"-?\d\.\d{3} nats above the full cache", printed)) == 9
    assert [len(line.get_xdata()) for line in namespace["axes"].lines] == [3, 3, 3]
    namespace["plt"].close("all")


@pytest.mark.parametrize(("projection", "depth"), [("linear", "plain"), ("pattention", "dwa")])
def test_a_training_script_with_only_torch_and_our_layers_learns(run, text, projection, depth):
    printed = run("train.py", text, "--steps", 30, "--projection", projection, "--depth", depth)
    # an untrained model has a loss of ln 256 = 5.5
    assert float(re.search(r"held-out loss (\d\.\d+)", printed)[1]) < 3.3
    assert len((EXAMPLES / "train.py").read_text().splitlines()) <= 120
