"""Load the model of a finished run from its folder."""

import pytest
import torch
from safetensors.torch import save_file

import formerlab
from formerlab.errors import UserError
from formerlab.files import sha256, write_json
from formerlab.layers import DepthWeightedAverage, Pattention
from formerlab.models import Decoder
from formerlab.training.load import load_model
from formerlab.training.record import load_record
from formerlab.training.run import Run

MODELS = {
    "plain": Decoder(vocabulary=11, layers=2, width=8, heads=2, context=6, dropout=0.5),
    "mixed": Decoder(vocabulary=11, layers=2, width=8, heads=2, context=6, depth=DepthWeightedAverage()),
    "grown, old tau": Decoder(
        vocabulary=11, layers=1, width=8, heads=2, context=6, projection=Pattention(tokens=9, tau=2)
    ),
}


def write_run(folder, spec, seed=7):
    """Write the files of a finished run that `load` needs; return its model."""
    model = spec.build(seed + 1)
    save_file(model.state_dict(), folder / "weights.safetensors")
    run = Run(study="study", name="run", seed=seed, model=spec, task={"context": 6})
    digest = sha256(folder / "weights.safetensors")
    write_json(
        folder / "run.json", {"id": run.id, "status": "finished", "spec": run.to_dict(), "weights_sha256": digest}
    )
    return model


@pytest.mark.parametrize("spec", MODELS.values(), ids=MODELS)
def test_a_loaded_model_is_bit_identical_and_in_eval_mode(spec, tmp_path):
    written = write_run(tmp_path, spec).eval()
    model, run = load_model(tmp_path)
    assert run.model == spec
    assert not model.training
    tokens = torch.arange(6).reshape(1, 6)
    assert torch.equal(model(tokens), written(tokens))


def test_a_run_is_loaded_by_folder_or_by_an_id_that_exists_at_one_scale(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "results/live/smoke/study/run/seed7"
    folder.mkdir(parents=True)
    written = write_run(folder, MODELS["plain"]).eval()
    tokens = torch.arange(6).reshape(1, 6)
    for name in (folder, str(folder), "results/live/smoke/study/run/seed7", "study/run/seed7"):
        assert torch.equal(formerlab.load(name)(tokens), written(tokens))
    with pytest.raises(UserError, match=r"study/run/seed8: no finished run; python -m formerlab runs"):
        formerlab.load("study/run/seed8")
    other = tmp_path / "results/live/laptop/study/run/seed7"
    other.mkdir(parents=True)
    write_run(other, MODELS["plain"])
    with pytest.raises(UserError, match=r"several scales have this run; give the folder results/live/laptop/.* or"):
        formerlab.load("study/run/seed7")


def test_a_missing_record_or_missing_weights_are_refused(tmp_path):
    with pytest.raises(UserError, match=r"run.json: no such file"):
        load_model(tmp_path)
    write_run(tmp_path, MODELS["plain"])
    (tmp_path / "weights.safetensors").unlink()
    with pytest.raises(UserError, match=r"weights.safetensors: no such file; train study/run/seed7 again"):
        load_record(tmp_path)


@pytest.mark.parametrize(
    "damage", [lambda content: content[:-9], lambda content: content[:-1] + b"\x01", lambda _: b""]
)
def test_weights_that_differ_from_the_record_are_refused(damage, tmp_path):
    write_run(tmp_path, MODELS["plain"])
    path = tmp_path / "weights.safetensors"
    path.write_bytes(damage(path.read_bytes()))
    message = "differs from weights_sha256 in run.json; delete this file and train study/run/seed7 again"
    with pytest.raises(UserError, match=message):
        load_model(tmp_path)
