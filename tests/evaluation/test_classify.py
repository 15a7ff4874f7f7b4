"""Any image model on the same images: a finished run gives its test rows again, timm's models give theirs."""

import csv
import json

import numpy as np
import pytest
import torch

from formerlab.__main__ import main
from formerlab.data.images import ImageData, load_images
from formerlab.data.images.prepare import prepare
from formerlab.errors import UserError
from formerlab.evaluation.classify import COLUMNS, classify_by_name, timm_classifier
from formerlab.models.vision import VisionTransformer
from formerlab.run import Run
from formerlab.tasks import Classification
from formerlab.training.settings import Settings
from formerlab.training.stage import train_stage

RUN = Run(
    study="vision",
    name="run",
    model=VisionTransformer(image=8, channels=1, classes=10, patch=4, layers=1, width=8, heads=2),
    task=Classification(batch=16, valid_images=8, augmentation=None),
    steps=2,
)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Return a folder with prepared digits and a finished run."""
    place = tmp_path_factory.mktemp("classify")
    prepare("digits", ImageData(keep=0.05, keep_held_out=0.3), place / "data", processes=1)
    train_stage(RUN, place / "data", place / "run", parent=None, settings=Settings())
    return place


def test_a_finished_run_gives_its_test_rows_again(place, tmp_path, capsys):
    words = ["classify", str(place / "run"), str(place / "data"), "--out", str(tmp_path / "rows.csv"), "--batch", "16"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert (tmp_path / "rows.csv").read_text() == (place / "run" / "test.csv").read_text()
    with open(tmp_path / "rows.csv", newline="") as file:
        ranks = [int(row["rank"]) for row in csv.DictReader(file)]
    assert f"top-1             {np.mean([rank == 0 for rank in ranks]):.4f}" in said
    assert f"images            {len(ranks)}" in said
    assert "calibration error" in said


@pytest.mark.parametrize("name", ["test_vit", "test_resnet"])
def test_a_model_of_timm_is_shown_the_same_images(name, place, tmp_path):
    prepare("large", ImageData(keep=0.02, keep_held_out=0.1, side=32, channels=3), tmp_path / "data", processes=1)
    images = load_images(tmp_path / "data", "test")
    model = timm_classifier(name, images, checkpoint=None, pretrained=False).model
    torch.save(model.state_dict(), tmp_path / "weights.pth")
    said = classify_by_name(
        name, tmp_path / "data", checkpoint=tmp_path / "weights.pth", out=tmp_path / "rows.csv", batch=7
    )
    assert f"images            {len(images)}" in said
    with open(tmp_path / "rows.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    pixels = torch.from_numpy(images.pixels(range(len(images)))).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        wanted = model((pixels - mean) / std).argmax(-1)
    assert [int(row["prediction"]) for row in rows] == wanted.tolist()


def test_what_timm_cannot_build_is_one_line(place):
    with pytest.raises(UserError, match="timm cannot build 'no_such_model'"):
        classify_by_name("no_such_model", place / "data")


def test_a_run_of_another_kind_is_refused(place, tmp_path):
    record = json.loads((place / "run" / "run.json").read_text())
    assert record["spec"]["task"]["kind"] == "classification"
    with pytest.raises(UserError, match="no images 'other'"):
        classify_by_name(str(place / "run"), place / "data", split="other")
