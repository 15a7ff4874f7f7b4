"""The command `classify` reproduces the test rows of a run, and evaluates other images."""

import csv

import numpy as np
import pytest
import torch

from formerlab.__main__ import main
from formerlab.data import prepare
from formerlab.data.images import ImageData, load_images
from formerlab.data.images.augmentation import Preprocessing, channels_first
from formerlab.data.images.store import centre_crop
from formerlab.errors import UserError
from formerlab.evaluation.vision import classify
from formerlab.models.vision import VisionTransformer
from formerlab.tasks import Classification
from formerlab.training.load import load_model
from formerlab.training.run import Run
from formerlab.training.runtime import RuntimeConfig
from formerlab.training.stage import train_stage

RUN = Run(
    study="vision",
    name="run",
    data="images",
    model=VisionTransformer(image=8, channels=1, classes=10, patch=4, layers=1, width=8, heads=2),
    task=Classification(batch=16, valid_images=8, augmentation=None),
    steps=2,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder of prepared digits and a finished run, in the layout of results."""
    place = tmp_path_factory.mktemp("classify")
    prepare("digits", ImageData(keep=0.05), place / "data" / "images")
    train_stage(RUN, place / "data" / "images", place / RUN.id, parent=None, runtime=RuntimeConfig())
    (place / "run").symlink_to(place / RUN.id)
    return place


def test_a_finished_run_gives_its_test_rows_again(place, tmp_path, capsys):
    words = ["classify", place / "run", place / "data/images", "--out", tmp_path / "rows.csv", "--batch", 16]
    assert main(list(map(str, words))) == 0
    output = capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text() == (place / "run" / "test.csv").read_text()
    with open(tmp_path / "rows.csv", newline="") as file:
        ranks = [int(row["rank"]) for row in csv.DictReader(file)]
    assert f"top-1             {np.mean([rank == 0 for rank in ranks]):.4f}" in output
    assert f"images            {len(ranks)}" in output
    assert "calibration error" in output


@pytest.mark.parametrize("side", [5, 16])
def test_images_of_another_size_are_resized_as_when_they_are_prepared(side, place, tmp_path, capsys):
    data = ImageData(keep=0.05, side=side)
    prepare("other", data, tmp_path / "other")
    output = classify(place / "run", tmp_path / "other", out=tmp_path / "rows.csv")
    images, own = load_images(tmp_path / "other", "test"), load_images(place / "data" / "images", "train")
    assert f"images            {len(images)}" in output
    assert f"images of {side} x {side} pixels are resized to 8 x 8" in capsys.readouterr().err
    model, _ = load_model(place / "run")
    cuts = np.stack([centre_crop(images.image(index), 8) for index in range(len(images))])
    preprocessing = Preprocessing(side=8, mean=own.mean, std=own.std)
    with torch.no_grad():
        expected = model(preprocessing.normalised(channels_first(cuts))).argmax(-1)
    with open(tmp_path / "rows.csv", newline="") as file:
        assert [int(row["prediction"]) for row in csv.DictReader(file)] == expected.tolist()


def test_images_that_no_resizing_makes_fit_are_refused_in_one_line(place, tmp_path):
    prepare("colour", ImageData(keep=0.02, channels=3), tmp_path / "colour")
    with pytest.raises(UserError, match=r"colour: images have channels=3, but .*run was trained with channels=1; prep"):
        classify(place / "run", tmp_path / "colour")
    with pytest.raises(UserError, match="batch=0: give at least 1"):
        classify(place / "run", place / "data/images", batch=0)
