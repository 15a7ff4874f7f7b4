"""Classification: deterministic batches, augmentation equal to timm's, and test rows."""

import math
import random

import numpy as np
import pytest
import torch
from fixtures.rows import held_out_rows
from PIL import Image
from pydantic import ValidationError
from torch.nn import functional as F

from formerlab.data import prepare
from formerlab.data.images import Digits, ImageData, load_images
from formerlab.data.images.augmentation import (
    Shift,
    TimmAugmentation,
    channels_first,
    isolated_randomness,
    posterized,
    timm_transform,
)
from formerlab.data.images.batches import image_seeds, step_indices
from formerlab.data.images.store import MODES
from formerlab.errors import UserError
from formerlab.models.vision import VisionTransformer
from formerlab.seeding import mixed_seed
from formerlab.tasks import Classification
from formerlab.tasks.task import START
from formerlab.training.run import Run

MODEL = VisionTransformer(image=8, channels=1, classes=10, patch=4, layers=1, width=8, heads=2)


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    out = tmp_path_factory.mktemp("digits")
    prepare("digits", ImageData(source=Digits(), keep=0.1), out)
    return out


TIMM = TimmAugmentation(smallest_crop=0.5)
TASKS = [
    Classification(batch=8, augmentation=None),
    Classification(batch=8, augmentation=Shift(pixels=2)),
    Classification(batch=8, augmentation=TIMM, smoothing=0.1, mixup=0.8, cutmix=1.0),
]


def on_cpu(batch):
    return batch.to(torch.device("cpu"))


def same(first, second):
    first, second = on_cpu(first), on_cpu(second)
    return torch.equal(first.images, second.images) and torch.equal(first.targets, second.targets)


@pytest.mark.parametrize("task", TASKS, ids=["plain", "shift", "timm"])
def test_a_batch_depends_only_on_seed_and_step(task, digits):
    first, second = task.load(digits, "train"), task.load(digits, "train")
    for step in (0, 1):
        task.step_batches(second, 0, step)  # earlier steps have no effect on later batches
    random.seed(5), np.random.seed(6), torch.manual_seed(7)  # noqa: NPY002
    late = task.step_batches(second, 3, 2)[0]
    assert same(task.step_batches(first, 3, 2)[0], late)
    assert not same(task.step_batches(first, 3, 3)[0], late)
    assert not same(task.step_batches(first, 4, 2)[0], late)
    assert on_cpu(late).images.shape == (8, 1, 8, 8)


def test_worker_processes_make_the_same_batches(digits):
    task = TASKS[2]
    alone = task.load(digits, "train")
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        shared = task.load(digits, "train")
    finally:
        torch.set_num_threads(threads)
    assert (alone.workers, shared.workers) == (0, 2)
    indices = [np.array([1, 2, 6, 3]), np.arange(4, 8)]
    for step, position in ((5, 40), (6, 48)):  # start at step 5, as after resuming from a checkpoint
        pairs = zip(*(data.batches_of(1, step, position, indices, None) for data in (alone, shared)), strict=True)
        assert all(same(*pair) for pair in pairs)


@pytest.mark.parametrize(
    "policy", ["rand-m9-mstd0.5-inc1", "rand-m9-t3a", "augmix-m5-w4-d2-a1.0-b1", "original-mstd0.5", "3a"]
)
def test_timm_reads_the_policies_that_are_accepted(policy):
    timm_transform(TimmAugmentation(policy=policy), 8, (0.5,), (0.5,))
    wrong = ("autoaugment", "RandAugment", "rand-m9-foo", "rand-m9.5", "rand-mstd.5", "rand-n20-tweights", "rand-tfoo")
    for refused in (*wrong, "augmix-w0", "augmix-a0", f"{policy}-"):
        with pytest.raises(ValidationError, match="policy"):
            TimmAugmentation(policy=refused)


FULL_MAGNITUDE = ["rand-m10-inc1-n9", "rand-m20-mmax20-inc1", "rand-m0-t3aw", "rand-m9-n9-tweights-mstd101-inc1"]
FULL_MAGNITUDE += ["augmix-m10-mstd1-w9", "augmix-m99-b1", "original-mstd9", "originalr-mstd9", "v0-mstd9", "v0r-mstd9"]


@pytest.mark.parametrize("channels", [1, 3])
def test_every_sample_of_a_policy_is_an_image(channels):
    pixels = np.random.Generator(np.random.Philox(key=0)).integers(0, 256, (10, 12, 3), dtype=np.uint8)
    picture = Image.fromarray(pixels).convert(MODES[channels])
    for policy, draws in {TimmAugmentation().policy: 2000, **dict.fromkeys(FULL_MAGNITUDE, 200)}.items():
        transform = timm_transform(TimmAugmentation(policy=policy), 8, (0.5,) * channels, (0.5,) * channels)
        with isolated_randomness() as reseed:
            for seed in range(draws):
                reseed(seed)
                assert transform(picture).shape == (channels, 8, 8), f"{policy}, seed {seed}"


def test_zero_bits_give_a_black_image():
    picture = Image.new("RGB", (2, 2), "white")
    assert [posterized(picture, bits).getpixel((0, 0))[0] for bits in (-4, 0, 1, 4, 8)] == [0, 0, 128, 240, 255]


def test_augmented_images_equal_timm_bit_for_bit(digits):
    """Images equal the output of timm's transform and Mixup for the step.

    Two images that are mixed are in one micro-batch.
    """
    from timm.data.mixup import Mixup

    task = TASKS[2].model_copy(update={"accumulate": 2, "augmentation": TIMM.model_copy(update={"erase": 0.9})})
    data = task.load(digits, "train")
    transform = timm_transform(task.augmentation, 8, data.preprocessing.mean, data.preprocessing.std)
    pasted = 0
    for step in range(4):
        indices, micro_batches = step_indices(0, 8 * step, 8, len(data)), task.step_batches(data, 0, step)
        with isolated_randomness() as reseed:
            transformed = []
            for index, seed in zip(indices, image_seeds(0, step, np.arange(8)), strict=True):
                reseed(seed)
                transformed.append(transform(data.images.image(int(index))))
            reseed(mixed_seed(0, step, "mix"))
            labels = torch.from_numpy(data.images.labels[indices])
            images, targets = Mixup(0.8, 1.0, label_smoothing=0.1, num_classes=10)(torch.stack(transformed), labels)
        for micro_batch, rows in zip(micro_batches, ([0, 1, 6, 7], [2, 3, 4, 5]), strict=True):
            assert micro_batch.augmented.pixels.dtype == torch.uint8
            assert torch.equal(on_cpu(micro_batch).images, images[rows])
            assert torch.equal(on_cpu(micro_batch).targets, targets[rows])
            assert len(micro_batch.augmented.noise) > 0
        pasted += micro_batches[0].mix.box is not None
    assert 0 < pasted < 4


@pytest.mark.parametrize("task", TASKS, ids=["plain", "shift", "timm"])
def test_a_run_continues_at_the_end_of_its_ancestors(task, digits):
    """The run reads the batches that its ancestors would read next, or, with another batch size, the next images."""
    data = task.load(digits, "train")
    start = task.position_after(data, task.position_after(data, START, 30), 20)
    assert (start.chain_steps, start.steps, start.position) == (50, 50, 400)
    assert same(task.step_batches(data, 0, 3, start)[0], task.step_batches(data, 0, 53)[0])
    larger = task.model_copy(update={"batch": 12})
    batch = on_cpu(larger.step_batches(larger.load(digits, "train"), 0, 3, start)[0])
    if task.augmentation is None:
        labels = [label for step in range(60) for label in on_cpu(task.step_batches(data, 0, step)[0]).targets.tolist()]
        assert batch.targets.tolist() == labels[400 + 36 : 400 + 48]
    assert larger.position_after(data, start, 3).position == 400 + 36


@pytest.mark.parametrize("batch", [8, 16])
def test_no_random_augmentation_repeats_in_a_chain(batch, digits, monkeypatch):
    """Random numbers of a stage never repeat the random numbers of its ancestors.

    This also holds if the stage has a larger batch and so reaches a position in fewer steps.
    """
    numbers = []
    monkeypatch.setattr("formerlab.data.images.batches.shifted", lambda *key: numbers.append(key[-1]) or key[0])
    task = TASKS[1].model_copy(update={"batch": batch})
    parent = TASKS[1].load(digits, "train")
    start = TASKS[1].position_after(parent, START, 6)
    for step in range(6):
        TASKS[1].step_batches(parent, 0, step)
    data = task.load(digits, "train")
    for step in range(6):
        task.step_batches(data, 0, step, start)
    assert len(set(numbers)) == 12


def test_the_published_recipe_equals_the_arguments_of_mae():
    """MAE calls create_transform with these arguments (arXiv:2111.06377, official code, util/datasets.py)."""
    from timm.data.transforms_factory import create_transform

    mean, std = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    erasing = {"re_prob": 0.25, "re_mode": "pixel", "re_count": 1}
    changes = {"color_jitter": None, "auto_augment": "rand-m9-mstd0.5-inc1", "interpolation": "bicubic", **erasing}
    expected = create_transform(input_size=224, is_training=True, **changes, mean=mean, std=std)
    assert str(timm_transform(TimmAugmentation(), 224, mean, std)) == str(expected)


def test_rows_of_test_images_contain_predictions(digits):
    task, model = TASKS[0], MODEL.build()
    rows = [dict(zip(task.test_columns, row, strict=True)) for row in held_out_rows(task, model, digits)]
    images = load_images(digits, "test")
    assert [row["window"] for row in rows] == list(range(len(images)))
    assert [row["label"] for row in rows] == images.labels.tolist()
    preprocessing = task.preprocessing(images, 1.0)
    with torch.no_grad():
        probabilities = (
            model(preprocessing.normalised(channels_first(images.pixels(range(len(images)))))).double().softmax(-1)
        )
    for row, p in zip(rows, probabilities, strict=True):
        assert row["loss_nats"] == pytest.approx(-math.log(p[row["label"]]))
        assert row["prediction"] == p.argmax()
        assert row["confidence"] == pytest.approx(p.max().item())
        assert row["rank"] == (p > p[row["label"]]).sum()
    guessed = task.guessed_rows(MODEL, task.held_out(digits))
    assert {(len(row), row[2]) for row in guessed} == {(len(task.test_columns), math.log(10))}
    assert np.mean([row[5] == 0 for row in guessed]) < 0.25


def test_validation_measures_match_their_columns(digits):
    task, model = TASKS[0], MODEL.build()
    batches = task.model_copy(update={"valid_images": 12}).valid_batches(load_images(digits, "valid"))
    batches = list(map(on_cpu, batches))
    assert sum(len(batch.targets) for batch in batches) == 12
    with torch.no_grad():
        tokens, loss, top1, top5 = task.measure(model, batches[0])
        logits = model(batches[0].images)
    assert tokens == len(batches[0].targets)
    assert loss == pytest.approx(F.cross_entropy(logits, batches[0].targets).item(), rel=1e-5)
    assert top1 == pytest.approx((logits.argmax(-1) == batches[0].targets).float().mean().item())
    assert top1 <= top5 <= 1


def test_the_ema_of_weights_equals_timm():
    from timm.utils import ModelEmaV3

    task, model, averaging = Classification(average=0.9), MODEL.build(), {}
    task.after_step(model, 0, 3, averaging)
    oracle = ModelEmaV3(model, decay=0.9)
    for step in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        task.after_step(model, step, 3, averaging)
        oracle.update(model)
    task.finish(model, averaging)
    torch.testing.assert_close(list(model.parameters()), list(oracle.module.parameters()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"batch": 8, "accumulate": 3}, "accumulate=3 does not divide task.batch=8"),
        ({"batch": 12, "accumulate": 4, "mixup": 0.8}, "task.accumulate=4 gives micro-batches of 3 images"),
        ({"normalise": "imagenet"}, "normalise=imagenet needs colour"),
    ],
)
def test_inconsistent_settings_are_refused(wrong, message):
    with pytest.raises(ValueError, match=message):
        Run(study="s", name="r", model=MODEL, task=Classification(**wrong))


def test_shifts_need_pixels(tmp_path):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / "in" / name).mkdir(parents=True)
        for number in range(12):
            Image.new("L", (9, 9), number).save(tmp_path / "in" / name / f"{number}.png")
    source = {"kind": "folders", "train": str(tmp_path / "in")}
    fractions = {"valid_share": 0.3, "test_share": 0.3}
    data = ImageData(source=source, side=8, channels=1, classes=2, storage="encoded", **fractions)
    prepare("x", data, tmp_path / "out")
    with pytest.raises(UserError, match="kind=shift needs images stored as pixels"):
        Classification(augmentation=Shift()).load(tmp_path / "out", "train")
    task = Classification(batch=4, augmentation=None)
    assert task.step_batches(task.load(tmp_path / "out", "train"), 0, 0)[0].augmented.pixels.shape == (4, 1, 8, 8)
