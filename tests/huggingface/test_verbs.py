"""The verbs of interoperation."""

import csv
import json
from types import SimpleNamespace

import foreign
import pytest
import torch
import yaml
from released import made_up, written
from safetensors.torch import load_file

from formerlab.__main__ import main
from formerlab.errors import EXIT_USER_ERROR
from formerlab.evaluation.language.questions import Questions, load_tasks
from formerlab.integrations.huggingface import load
from formerlab.integrations.huggingface.load import load_any
from formerlab.integrations.huggingface.neox import load_released
from formerlab.released import Folder


def refused(capsys, *words):
    assert main([*map(str, words)]) == EXIT_USER_ERROR
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]  # beside progress
    return error


def test_a_finished_run_is_exported_with_its_tokenizer(finished, tmp_path, capsys):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    assert main(["export-huggingface", str(finished), "--out", str(tmp_path / "out"), "--licence", "MIT"]) == 0
    assert "trust_remote_code (modeling_formerlab.py)" in capsys.readouterr().out
    card = (tmp_path / "out/README.md").read_text()
    assert 'license_name: "MIT"' in card
    assert "Data: `text`, fingerprint 0123; licence: not stated" in card
    assert "valid 2.5000, test 2.7500" in card
    assert "formerlab, commit abc" in card
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "out")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    made = model.generate(**tokenizer("the cat sat", return_tensors="pt"), max_new_tokens=5, do_sample=False)
    assert tokenizer.decode(made[0]).startswith("the cat sat")
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id == 0
    assert torch.isfinite(model(made).logits).all()


def test_a_run_is_exported_by_its_name_in_the_plan(finished, tmp_path, capsys):
    plan = {"scale": "smoke", "results": str(finished.parents[2]), "train": {"study/run/seed0": {}}}
    (tmp_path / "plan.json").write_text(json.dumps(plan))
    words = ("--plan", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out"))
    assert main(["export-huggingface", "study/run/seed0", *words]) == 0
    state = load_file(finished / "weights.safetensors")
    made = load_any(Folder(path=str(tmp_path / "out"))).model.state_dict()
    assert all(torch.equal(state[name], tensor) for name, tensor in made.items())
    assert "no job 'study/run/seed1'" in refused(capsys, "export-huggingface", "study/run/seed1", *words)


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
    assert "needs 290 tokens, more than" in refused(capsys, *words, "--tokenizer", tmp_path / "20B.json")


@pytest.fixture(scope="module")
def folders(finished, tokenizer, tmp_path_factory):
    """Return a model folder of every kind."""
    from transformers import PreTrainedTokenizerFast

    root = tmp_path_factory.mktemp("models")
    for kind in ("opt", "llama"):
        foreign.build(kind).float().save_pretrained(root / kind)
        end = "<|endoftext|>"
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end).save_pretrained(root / kind)
    main(["export-huggingface", str(finished), "--out", str(root / "ours")])
    written(root / "released", made_up(vocabulary=320))
    (root / "released/150M_eval.yml").write_text((root / "released/150M_eval.yml").read_text().replace("16,", "48,"))
    tokenizer.save(str(root / "released/tokenizer.json"))
    return root


def read(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("kind", ["opt", "ours", "released"])
def test_the_published_experiment_is_one_command(kind, folders, task, tmp_path, capsys):
    words = ["prune-folder", folders / kind, "--out", tmp_path, "--tasks", task, "--batch", "4"]
    alphas = [n / 10 for n in range(10)]  # the default, for one of the models
    if kind != "opt":
        alphas = [0.2, 0.8]
        (tmp_path / "sweep.yaml").write_text("{alphas: [0.2, 0.8]}")
        words[1:1] = ["--sweep", tmp_path / "sweep.yaml"]
    assert main([*map(str, words)]) == 0
    printed = capsys.readouterr().out.splitlines()
    rows = read(tmp_path / "prune_questions.csv")
    configurations = {(row["policy"], row["alpha"]) for row in rows}
    assert configurations == {("full", ""), ("h2o", "")} | {("decay", repr(alpha)) for alpha in alphas}
    assert len(rows) == len(configurations) * 10 * 2
    assert {row["budget"] for row in rows if row["policy"] != "full"} == {"0.4"}
    assert all(float(row["realised_budget"]) < 0.7 for row in rows if row["policy"] == "decay")
    assert printed[0].split("\t") == ["policy", "alpha", "budget", "realised", "birds_local acc"]
    acc = [float(row["value"]) for row in rows if row["metric"] == "acc" and row["policy"] == "full"]
    assert printed[1].split("\t") == ["full", "", "1.0000", "1.0000", f"{sum(acc) / 10:.4f}"]
    before = (tmp_path / "prune_questions.csv").read_bytes()
    (tmp_path / "prune_questions.csv").unlink()
    sorted((tmp_path / "configurations").iterdir())[
        0
    ].unlink()  # as if the sweep had been stopped before its last policy
    assert main([*map(str, words[:-1]), "7"]) == 0
    assert (tmp_path / "prune_questions.csv").read_bytes() == before


def test_answers_of_a_foreign_model_are_those_of_the_harness_itself(folders, task):
    """Against lm-evaluation-harness's own Hugging Face model, in batches of one."""
    import lm_eval
    from lm_eval.models.huggingface import HFLM
    from transformers import AutoModelForCausalLM, AutoTokenizer

    loaded = load_any(Folder(path=str(folders / "llama")))
    tasks = load_tasks([yaml.safe_load(task.read_text())])
    ours = list(Questions(tasks, loaded.tokenizer, end_of_text=loaded.prefix).answers(loaded.model))
    own = HFLM(
        pretrained=AutoModelForCausalLM.from_pretrained(folders / "llama"),
        tokenizer=AutoTokenizer.from_pretrained(folders / "llama"),
        batch_size=1,
        add_bos_token=False,
    )
    theirs = lm_eval.evaluate(lm=own, task_dict=tasks, bootstrap_iters=0, log_samples=True)["samples"]["birds_local"]
    for metric in ("acc", "acc_norm"):
        assert [row.value for row in ours if row.metric == metric] == [float(sample[metric]) for sample in theirs]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["empty"], "empty: holds no Tokenformer checkpoint"),
        (["opt", "--dtype", "int8"], "dtype 'int8': Input should be 'float32', 'float16', 'bfloat16' or 'float64'"),
        (["opt", "--context", "100"], "context 100 exceeds the model's 64 positions"),
        (["ours", "--context", "16"], "context 16: only models of transformers take one"),
        (["opt", "--tasks", "missing.yaml"], "missing.yaml: no such file"),
        (["opt", "--batch", "0"], "command line: batch: Input should be greater than 0"),
        (["strange"], "strange: no causal model of transformers"),
    ],
)
def test_mistakes_are_one_line(words, message, folders, task, tmp_path, capsys):
    (folders / "empty").mkdir(exist_ok=True)
    (folders / "strange").mkdir(exist_ok=True)
    (folders / "strange/config.json").write_text('{"model_type": "t5"}')
    first = ["zeroshot-folder", folders / words[0], "--out", tmp_path, "--tasks", task, *words[1:]]
    assert message in refused(capsys, *first)


def test_a_model_larger_than_the_memory_is_refused(folders, task, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(load.psutil, "virtual_memory", lambda: SimpleNamespace(available=10_000))
    for kind in ("opt", "ours", "released"):
        error = refused(capsys, "prune-folder", folders / kind, "--out", tmp_path, "--tasks", task)
        assert "parameters as float32 take" in error
        assert "but cpu has 10kB free; choose a smaller --dtype" in error
