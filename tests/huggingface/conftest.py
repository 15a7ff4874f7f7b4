"""A small tokenizer, a finished run and a task of the harness."""

import json

import pytest
import yaml
from safetensors.torch import save_file

from formerlab.data import BytePairs, Files, TextData, prepare
from formerlab.evaluation.language.suites import find_definition, task_config
from formerlab.files import sha256
from formerlab.layers import Learned
from formerlab.models import Decoder
from formerlab.tasks import LanguageModeling
from formerlab.training.run import Run
from tests.evaluation.conftest import WORDS, tokenizer  # noqa: F401


@pytest.fixture(scope="session")
def finished(tmp_path_factory):
    """Return the folder of a run with untrained weights and a record of a finished run; the data are beside it."""
    root = tmp_path_factory.mktemp("results")
    (root / "lines.txt").write_text("\n".join(" ".join(WORDS[i % 7 : i % 7 + 9]) + f" {i}" for i in range(200)))
    source = Files(paths=(str(root / "lines.txt"),), documents="line")
    spec = TextData(source=source, tokenizer=BytePairs(vocabulary=270), valid_share=0.1, test_share=0.1)
    prepare("text", spec, root / "data/text")
    model = Decoder(vocabulary=270, layers=2, width=16, heads=2, context=32, position=Learned())
    run = Run(study="study", name="run", model=model, task=LanguageModeling(context=32))
    folder = root / "study/run/seed0"
    folder.mkdir(parents=True)
    save_file(run.model.build(seed=0).state_dict(), folder / "weights.safetensors")
    record = {"id": run.id, "spec": run.to_dict(), "weights_sha256": sha256(folder / "weights.safetensors")}
    losses = {"train_loss_nats": None, "valid_loss_nats": 2.5, "test_loss_nats": 2.75}
    record |= {"final": losses, "data": {"name": "text", "fingerprint": "0123"}, "git": {"commit": "abc"}}
    (folder / "run.json").write_text(json.dumps(record | {"status": "finished"}))
    return folder


@pytest.fixture(scope="session")
def task():
    """Return a task of ten questions of three choices."""
    rows = [
        {
            "query": " ".join(WORDS[i : i + 3 + i % 4]),
            "choices": [" ".join(WORDS[i + j : i + j + 1 + j]) for j in (3, 5, 8)],
            "gold": i % 3,
        }
        for i in range(10)
    ]
    return task_config("birds_local", {"test": rows}, "choices", " ", 1.0)


@pytest.fixture(scope="module")
def birds(tmp_path_factory):
    """Replace the task definitions of the harness with a group `birds` of two generative tasks.

    Yields the folder of the definitions.
    """
    import lm_eval.tasks

    folder = tmp_path_factory.mktemp("tasks") / "birds"
    folder.mkdir()
    questions = folder / "questions.jsonl"
    questions.write_text("".join(json.dumps({"text": f"the {name} sat on"}) + "\n" for name in ("cat", "dog", "birds")))
    for name, tokens in (("birds_short", 3), ("birds_long", 6)):
        task = {"task": name, "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(questions)}}}
        task |= {"test_split": "test", "output_type": "generate_until", "doc_to_text": "{{text}}"}
        task |= {"doc_to_target": "a mat", "metric_list": [{"metric": "exact_match"}]}
        task |= {"generation_kwargs": {"until": ["q"], "max_gen_toks": tokens}}
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(task))
    (folder / "birds.yaml").write_text("group: birds\ntask: [birds_short, birds_long]\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_eval.tasks, "__file__", str(folder.parent / "__init__.py"))
        find_definition.cache_clear()
        yield folder
    find_definition.cache_clear()
