"""The verbs of interoperation."""

import json

import pytest
import torch
from released import made_up, written
from safetensors.torch import save_file

from formerlab.__main__ import main
from formerlab.data import BytePairs, Files, TextData, prepare
from formerlab.errors import EXIT_USER_ERROR
from formerlab.files import sha256
from formerlab.huggingface.neox import load_released
from formerlab.models import Decoder
from formerlab.run import Run
from formerlab.tasks import LanguageModeling

TEXT = "the cat sat on a mat and the dog ran to an old house by the river where many birds sing"
WORDS = TEXT.split()


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Return the folder of a run as training leaves it, with its data."""
    root = tmp_path_factory.mktemp("results")
    (root / "lines.txt").write_text("\n".join(" ".join(WORDS[i % 7 : i % 7 + 9]) + f" {i}" for i in range(200)))
    source = Files(paths=(str(root / "lines.txt"),), documents="line")
    spec = TextData(source=source, tokenizer=BytePairs(vocabulary=270), valid_share=0.1, test_share=0.1)
    prepare("text", spec, root / "data/text", processes=1)
    model = Decoder(vocabulary=270, layers=2, width=16, heads=2, context=32)
    run = Run(study="study", name="run", model=model, task=LanguageModeling(context=32))
    folder = root / "study/run/seed0"
    folder.mkdir(parents=True)
    save_file(run.model.build(seed=0).state_dict(), folder / "weights.safetensors")
    record = {"id": run.id, "spec": run.plain(), "weights_sha256": sha256(folder / "weights.safetensors")}
    (folder / "run.json").write_text(json.dumps(record | {"status": "finished"}))
    return folder


def refused(capsys, *words):
    assert main([*map(str, words)]) == EXIT_USER_ERROR
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    return error


def test_a_finished_run_is_exported_with_its_tokenizer(finished, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["export-huggingface", str(finished), "--out", str(tmp_path / "out")]) == 0
    assert str(tmp_path / "out") in capsys.readouterr().out
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    made = model.generate(**tokenizer("the cat sat", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(made[0]).startswith("the cat sat")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 0
    assert torch.isfinite(model(made).logits).all()


def test_export_refuses_what_is_not_there(finished, tmp_path, capsys):
    (finished / "weights.safetensors").rename(finished / "gone")
    assert "train study/run/seed0 again" in refused(capsys, "export-huggingface", finished, "--out", tmp_path / "out")
    (finished / "gone").rename(finished / "weights.safetensors")


def test_a_released_checkpoint_becomes_a_folder(tokenizer, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = written(tmp_path / "checkpoint", made_up(vocabulary=320))
    words = ("import-tokenformer", checkpoint, "--out", tmp_path / "out")
    assert "no such tokenizer file" in refused(capsys, *words)
    tokenizer.save(str(tmp_path / "20B.json"))
    assert main([*map(str, words), "--tokenizer", str(tmp_path / "20B.json")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in capsys.readouterr().out
    loaded = load_released(checkpoint)
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("the cat sat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids))
    checkpoint = written(tmp_path / "checkpoint", made_up(vocabulary=280))
    assert "has 290 tokens, more than" in refused(capsys, *words, "--tokenizer", tmp_path / "20B.json")
