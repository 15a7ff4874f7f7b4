"""Any image model on the same images: a finished run gives its test rows again, timm's models give theirs."""

import csv
import json
import shutil

import numpy as np
import pytest
import torch

from formerlab.__main__ import main
from formerlab.data import prepare
from formerlab.data.images import ImageData, load_images
from formerlab.data.images.store import cut
from formerlab.errors import UserError
from formerlab.evaluation.vision import classify_by_name, timm_classifier
from formerlab.models.vision import VisionTransformer
from formerlab.tasks import Classification
from formerlab.tasks.augmentation import Look, channels_first
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
    """Return a folder with prepared digits and a finished run, which lie as in a tree of results."""
    place = tmp_path_factory.mktemp("classify")
    prepare("digits", ImageData(keep=0.05, keep_held_out=0.3), place / "data" / "images", processes=1)
    train_stage(RUN, place / "data" / "images", place / RUN.id, parent=None, runtime=RuntimeConfig())
    (place / "run").symlink_to(place / RUN.id)
    return place


def test_a_finished_run_gives_its_test_rows_again(place, tmp_path, capsys):
    words = [
        "classify",
        str(place / "run"),
        str(place / "data" / "images"),
        "--out",
        str(tmp_path / "rows.csv"),
        "--batch",
        "16",
    ]
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
    assert tuple(rows[0]) == Classification.test_columns
    pixels = torch.from_numpy(images.pixels(range(len(images)))).permute(0, 3, 1, 2) / 255
    mean, std = (torch.tensor(model.pretrained_cfg[key]).view(1, 3, 1, 1) for key in ("mean", "std"))
    with torch.no_grad():
        wanted = model((pixels - mean) / std).argmax(-1)
    assert [int(row["prediction"]) for row in rows] == wanted.tolist()


def test_what_timm_cannot_build_is_one_line(place, tmp_path):
    with pytest.raises(UserError, match="timm cannot build 'no_such_model'"):
        classify_by_name("no_such_model", place / "data" / "images")
    torch.save({}, tmp_path / "weights.pth")
    with pytest.raises(UserError, match=r"timm cannot build 'test_vit' for these images: [^\n]+$"):
        classify_by_name("test_vit", place / "data" / "images", checkpoint=tmp_path / "weights.pth")


def test_images_too_small_for_a_model_of_timm_get_its_own_size(place, capsys):
    assert "images            53" in classify_by_name("test_vit", place / "data" / "images")
    assert "test_vit: images of 8 x 8 pixels are resized to 160 x 160" in capsys.readouterr().err


@pytest.mark.parametrize("side", [5, 16])
def test_images_of_another_size_are_resized_as_when_they_are_prepared(side, place, tmp_path, capsys):
    data = ImageData(keep=0.05, keep_held_out=0.3, side=side)
    prepare("other", data, tmp_path / "other", processes=1)
    said = classify_by_name(str(place / "run"), tmp_path / "other", out=tmp_path / "rows.csv")
    images, own = load_images(tmp_path / "other", "test"), load_images(place / "data" / "images", "train")
    assert f"images            {len(images)}" in said
    assert f"images of {side} x {side} pixels are resized to 8 x 8" in capsys.readouterr().err
    model, _ = load_model(place / "run")
    cuts = np.stack([cut(images.image(index), 8) for index in range(len(images))])
    look = Look(side=8, mean=own.mean, std=own.std)
    with torch.no_grad():
        wanted = model(look.normalised(channels_first(cuts))).argmax(-1)
    with open(tmp_path / "rows.csv", newline="") as file:
        assert [int(row["prediction"]) for row in csv.DictReader(file)] == wanted.tolist()


def test_images_that_no_resizing_makes_fit_are_refused_in_one_line(place, tmp_path):
    prepare("colour", ImageData(keep=0.02, keep_held_out=0.1, channels=3), tmp_path / "colour", processes=1)
    with pytest.raises(
        UserError, match=r"colour: images of channels=3, but .*run was trained with channels=1; prepare"
    ):
        classify_by_name(str(place / "run"), tmp_path / "colour")
    manifest = json.loads((place / "data" / "images" / "manifest.json").read_text())
    few = tmp_path / "few"
    shutil.copytree(place / "data" / "images", few)
    (few / "manifest.json").write_text(json.dumps(manifest | {"classes": ["even", "odd"]}))
    with pytest.raises(UserError, match=r"few: images of classes=2, but .*run was trained with classes=10; prepare"):
        classify_by_name(str(place / "run"), few)


def test_a_run_of_another_kind_is_refused(place, tmp_path):
    record = json.loads((place / "run" / "run.json").read_text())
    assert record["spec"]["task"]["kind"] == "classification"
    with pytest.raises(UserError, match="no images 'other'"):
        classify_by_name(str(place / "run"), place / "data" / "images", split="other")
