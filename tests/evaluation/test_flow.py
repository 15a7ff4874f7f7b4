"""What the stage `flow` says of models whose answer is known."""

import csv

import numpy as np
import pytest
import torch

from formerlab.evaluation.language.flow import Flow, flow
from formerlab.layers import DepthWeightedAverage
from formerlab.models import Decoder
from formerlab.results.schema import COSINE, PRUNED
from formerlab.tasks import LanguageModeling
from formerlab.training.run import Run

MODEL = Decoder(vocabulary=64, layers=3, width=16, heads=2, context=8, embedding_std=1.0)
STREAM = np.random.default_rng(0).integers(0, 64, 200)
SETTINGS = Flow(windows=6, shares=(0.0, 0.5))


def found(model, tmp_path):
    run = Run(study="study", name="run", model=model.spec, task=LanguageModeling(context=8, batch=4))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    mixer = model.mixer
    flow(model, run, STREAM, SETTINGS, tmp_path / "flow.csv")
    assert model.mixer is mixer
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with open(tmp_path / "flow.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return {(row["measure"], float(row["place"])): (row["kept"], float(row["value"])) for row in rows}


def test_what_only_reads_the_embedding_has_cosine_one(tmp_path):
    model = MODEL.model_copy(update={"depth": DepthWeightedAverage()}).build(0)
    with torch.no_grad():
        for alpha in model.mixer.alphas.values():
            alpha.zero_()
            alpha[0] = 2.0
    rows = found(model, tmp_path)
    assert [rows[COSINE, i][1] for i in (1, 2, 3)] == pytest.approx([1.0] * 3)


def test_zero_weights_are_dropped_for_nothing_and_others_are_not(tmp_path):
    model = MODEL.model_copy(update={"depth": DepthWeightedAverage()}).build(0)
    rows = found(model, tmp_path)  # 9 weights, three of them 1
    assert rows[PRUNED, 0.5] == ("5", rows[PRUNED, 0.0][1])
    with torch.no_grad():
        for alpha in model.mixer.alphas.values():
            alpha.fill_(1.0)
    rows = found(model, tmp_path)
    assert rows[PRUNED, 0.5][1] != rows[PRUNED, 0.0][1]


def test_a_transformer_has_cosines_alone(tmp_path):
    rows = found(MODEL.build(0), tmp_path)
    assert {measure for measure, _ in rows} == {COSINE}
    assert len(rows) == 3
