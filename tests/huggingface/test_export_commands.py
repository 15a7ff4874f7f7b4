"""The commands export-huggingface and import-tokenformer."""

import json
from types import SimpleNamespace

import pytest
import tiny_models
import torch
from released import random_checkpoint, write_checkpoint
from safetensors.torch import load_file

from formerlab.__main__ import main
from formerlab.errors import EXIT_USER_ERROR, UserError
from formerlab.evaluation.language.harness import load_tasks
from formerlab.evaluation.language.questions import Questions
from formerlab.integrations.huggingface import load
from formerlab.integrations.huggingface.export import model_card
from formerlab.integrations.huggingface.load import load_any
from formerlab.integrations.huggingface.neox import load_released
from formerlab.released import Folder


def error_of(capsys, *words):
    assert main([*map(str, words)]) == EXIT_USER_ERROR
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]  # other lines are progress
    return error


def test_a_finished_run_is_exported_with_its_tokenizer(finished, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["export-huggingface", str(finished), "--out", str(tmp_path / "out"), "--licence", "MIT"]) == 0
    assert "trust_remote_code=True (modeling_formerlab.py)" in capsys.readouterr().out
    card = (tmp_path / "out/README.md").read_text()
    assert 'license_name: "MIT"' in card
    assert "Data: `text`, fingerprint 0123; licence: not stated" in card
    assert "valid 2.5000, test 2.7500" in card
    assert "formerlab, commit abc" in card
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    tokens = model.generate(**tokenizer("the cat sat", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(tokens[0]).startswith("the cat sat")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 0
    assert torch.isfinite(model(tokens).logits).all()


def test_a_card_without_a_commit_states_it():
    assert "formerlab, unknown commit" in model_card({"id": "study/run/seed0", "git": {"commit": None}}, "MIT", "MIT")


def test_a_run_is_exported_by_its_name_in_the_plan(finished, tmp_path, capsys):
    plan = {"scale": "smoke", "results": str(finished.parents[2]), "train": {"study/run/seed0": {}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ("--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out"))
    assert main(["export-huggingface", "study/run/seed0", *words]) == 0
    state = load_file(finished / "weights.safetensors")
    loaded = load_any(Folder(path=str(tmp_path / "out"))).model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in loaded.items())
    assert "no job 'study/run/seed1'" in error_of(capsys, "export-huggingface", "study/run/seed1", *words)


def test_runs_are_exported_by_id_at_any_scale(finished, tmp_path, monkeypatch, capsys):
    """The configured scale (here laptop) does not affect the export, as in the command `generate`."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("scale: laptop\n")
    (tmp_path / "results/live").mkdir(parents=True)
    (tmp_path / "results/live/smoke").symlink_to(finished.parents[2])
    assert main(["export-huggingface", "study/run/seed0", "--out", "out"]) == 0
    assert (tmp_path / "out/model.safetensors").is_file()
    assert "no finished run" in error_of(capsys, "export-huggingface", "study/run/seed1", "--out", "out")
    (tmp_path / "results/live/laptop").symlink_to(finished.parents[2])
    line = error_of(capsys, "export-huggingface", "study/run/seed0", "--out", "out")
    assert "give the folder results/live/laptop/study/run/seed0 or results/live/smoke/study/run/seed0" in line


def test_a_released_checkpoint_becomes_a_folder(tokenizer, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_checkpoint(vocabulary=320))
    words = ("import-tokenformer", checkpoint, "--out", tmp_path / "out")
    assert "no such tokenizer file" in error_of(capsys, *words)
    tokenizer.save(str(tmp_path / "20B.json"))
    assert main([*map(str, words), "--tokenizer", str(tmp_path / "20B.json")]) == 0
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    assert f"{sum(p.numel() for p in model.parameters()):,} parameters" in capsys.readouterr().out
    loaded = load_released(checkpoint)
    ids = AutoTokenizer.from_pretrained(tmp_path / "out")("the cat sat", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        assert torch.equal(model(ids).logits, loaded(ids))
    checkpoint = write_checkpoint(tmp_path / "checkpoint", random_checkpoint(vocabulary=280))
    assert "needs 290 tokens, more than" in error_of(capsys, *words, "--tokenizer", tmp_path / "20B.json")


@pytest.fixture(scope="module")
def folders(finished, tokenizer, tmp_path_factory):
    """Return a folder with a model folder of every kind."""
    root = tmp_path_factory.mktemp("models")
    for kind in ("opt", "llama"):
        tiny_models.save(kind, root / kind, tokenizer)
    main(["export-huggingface", str(finished), "--out", str(root / "ours")])
    write_checkpoint(root / "released", random_checkpoint(vocabulary=320))
    (root / "released/150M_eval.yml").write_text((root / "released/150M_eval.yml").read_text().replace("16,", "48,"))
    tokenizer.save(str(root / "released/tokenizer.json"))
    return root


def test_answers_match_the_harness(folders, task):
    """The reference is the Hugging Face model of lm-evaluation-harness, in batches of one."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_any(Folder(path=str(folders / "llama")))
    tasks = load_tasks([task])
    rows = list(Questions(tasks, loaded.tokenizer, end_of_text=loaded.prefix_token).scores(loaded.model))
    lm = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(folders / "llama"),
        tokenizer=AutoTokenizer.from_pretrained(folders / "llama"),
        batch_size=1,
        add_bos_token=False,
    )
    reference = lm_eval.evaluate(lm=lm, task_dict=tasks, bootstrap_iters=0, log_samples=True)["samples"]["birds_local"]
    for metric in ("acc", "acc_norm", "acc_mutual_info"):
        assert [row.value for row in rows if row.metric == metric] == [float(sample[metric]) for sample in reference]


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        ("nowhere", {}, "nowhere: no such folder"),
        ("opt", {"context": 100}, "context 100 exceeds the model's 64 positions"),
        ("ours", {"context": 16}, "context 16: a formerlab model has a fixed context"),
        ("strange", {}, "strange: not a causal language model of transformers"),
        ("released", {}, "released: not a causal language model of transformers"),
    ],
)
def test_mistakes_give_a_one_line_error(model, settings, message, folders):
    (folders / "strange").mkdir(exist_ok=True)
    (folders / "strange/config.json").write_text('{"model_type": "t5"}')
    with pytest.raises(UserError, match=message) as error:
        load_any(Folder(path=str(folders / model), **settings))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("model", ["opt", "ours"])
def test_a_model_larger_than_the_memory_is_refused(model, folders, monkeypatch):
    monkeypatch.setattr(load.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    message = r"parameters in float32 need .* but cpu has 10kB free; use a smaller dtype"
    with pytest.raises(UserError, match=message):
        load_any(Folder(path=str(folders / model)))
