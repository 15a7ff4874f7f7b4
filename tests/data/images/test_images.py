"""Images of every source: preparation, splits, reading, and messages about damaged images."""

import io
import tarfile

import numpy as np
import pyarrow
import pytest
from PIL import Image
from pyarrow import parquet

from formerlab.data import prepare
from formerlab.data.dataset import source_fingerprint
from formerlab.data.images import ImageData, ImageFolders, ImageHub, load_images
from formerlab.data.images.store import centre_crop, decode
from formerlab.data.manifest import read_manifest
from formerlab.errors import UserError


def picture(number, size=(12, 10), blue=7):
    """Return an image whose colour identifies it."""
    return Image.new("RGB", size, (number * 20, 255 - number * 20, blue))


@pytest.fixture
def folders(tmp_path):
    """A folder with two classes, each with six training images and three held-out images."""
    for split, count, blue in (("train", 6, 7), ("val", 3, 99)):
        for label, name in enumerate(("cat", "dog")):
            folder = tmp_path / split / name / "deep"
            folder.mkdir(parents=True)
            for number in range(count):
                picture(label * 6 + number, blue=blue).save(folder / f"{number}.png")
    return ImageFolders(train=str(tmp_path / "train"), test=str(tmp_path / "val"))


def settings(source, **options):
    return ImageData(source=source, **{"side": 8, "channels": 3, "classes": 2, "valid_share": 0.3} | options)


def prepared(data, out):
    prepare("pictures", data, out)
    return {split: load_images(out, split) for split in ("train", "valid", "test")}


def test_digits_are_complete_without_duplicates(tmp_path):
    sets = prepared(ImageData(), tmp_path)
    assert {split: len(images) for split, images in sets.items()} == {"train": 1516, "valid": 93, "test": 188}
    assert sets["train"].classes == tuple("0123456789")
    pixels = np.concatenate([images.pixels(range(len(images))) for images in sets.values()])
    assert pixels.shape == (1797, 8, 8, 1)
    assert (pixels.min(), pixels.max()) == (0, 255)
    train = sets["train"].pixels(range(1516)) / 255
    assert (sets["train"].mean, sets["train"].std) == (pytest.approx((train.mean(),)), pytest.approx((train.std(),)))
    labels = np.concatenate([images.labels for images in sets.values()])
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_images_of_folders_do_not_depend_on_threads(folders, tmp_path, monkeypatch):
    sets = prepared(settings(folders), tmp_path / "many")
    monkeypatch.setenv("RAYON_NUM_THREADS", "1")
    prepared(settings(folders), tmp_path / "one")
    first, second = (read_manifest(tmp_path / name)["fingerprint"] for name in ("many", "one"))
    assert first == second
    assert sets["train"].classes == ("cat", "dog")
    assert len(sets["train"]) + len(sets["valid"]) == 12
    assert len(sets["valid"]) > 0
    assert sets["test"].labels.tolist() == [0, 0, 0, 1, 1, 1]
    colours = sets["test"].pixels(range(6))[:, 4, 4]
    assert colours.tolist() == [[n * 20, 255 - n * 20, 99] for n in (0, 1, 2, 6, 7, 8)]


def test_encoded_files_are_stored_unchanged(folders, tmp_path):
    pixels = prepared(settings(folders), tmp_path / "pixels")
    encoded = prepared(settings(folders, storage="encoded"), tmp_path / "encoded")
    for split, images in encoded.items():
        assert images.labels.tolist() == pixels[split].labels.tolist()
        assert (images.mean, images.std) == (pixels[split].mean, pixels[split].std)
        for index in range(len(images)):
            assert images.image(index).size == (12, 10)
            assert np.array_equal(centre_crop(images.image(index), 8), pixels[split].pixels([index])[0])


def test_a_centre_crop_is_the_centre_of_the_resized_image():
    gradient = np.tile(np.arange(40, dtype=np.uint8), (20, 1))
    image = Image.fromarray(gradient)
    assert centre_crop(image, 20)[0, :, 0].tolist() == list(range(10, 30))
    assert centre_crop(image, 10, 0.5)[5, :, 0].tolist() == list(range(15, 25))


def saved(image, format="PNG", **options):
    file = io.BytesIO()
    image.save(file, format, **options)
    return file.getvalue()


@pytest.mark.parametrize("format", ["PNG", "TIFF", "PPM"])
def test_sixteen_bits_of_grey_are_scaled(format):
    grey = np.linspace(0, 65535, 120).astype(np.uint16).reshape(10, 12)
    decoded = np.asarray(decode(saved(Image.fromarray(grey), format), 1))
    assert np.abs(decoded - grey / 257).max() <= 0.5
    with pytest.raises(ValueError, match="unknown range"):
        decode(saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"), 1)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photos_are_rotated_by_exif(orientation):
    upright = np.zeros((10, 14), np.uint8)
    upright[:5, :7] = 255
    stored = [upright, upright[:, ::-1], upright[::-1, ::-1], upright[::-1]]
    stored += [upright.T, np.rot90(upright), np.rot90(upright.T, 2), np.rot90(upright, -1)]  # EXIF 2.3, tag 0x0112
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(Image.fromarray(np.ascontiguousarray(stored[orientation - 1])), exif=exif)
    assert np.array_equal(np.asarray(decode(content, 1)), upright)


def test_transparent_pixels_become_white():
    strokes = np.eye(12, dtype=np.uint8) * 255
    strokes_with_alpha = Image.merge("LA", (Image.new("L", (12, 12)), Image.fromarray(strokes)))
    for image in (strokes_with_alpha, strokes_with_alpha.convert("RGBA")):
        assert np.array_equal(np.asarray(decode(saved(image), 1)), 255 - strokes)
    colours = picture(3).convert("RGBA")
    assert np.array_equal(np.asarray(decode(saved(colours), 3)), np.asarray(picture(3)))


@pytest.mark.parametrize("damage", [lambda content: content[:40], lambda content: b"no image at all"])
@pytest.mark.parametrize("storage", ["pixels", "encoded"])
def test_a_damaged_image_is_refused_and_files_are_removed(damage, storage, folders, tmp_path):
    bad = tmp_path / "train" / "cat" / "deep" / "3.png"
    bad.write_bytes(damage(bad.read_bytes()))
    with pytest.raises(UserError, match=f"^data: pictures: {bad}: .*; repair or remove it$"):
        prepared(settings(folders, storage=storage), tmp_path / "out")
    assert not list((tmp_path / "out").glob("*.bin")) + list((tmp_path / "out").glob("manifest.json"))


@pytest.mark.parametrize(
    ("change", "wrong", "message"),
    [
        (None, {"classes": 3}, r"pictures: classes: 3, but the source has 2 \(cat, dog"),
        (None, {"valid_share": 0.0}, "no image is left for 'valid'"),
        (None, {"source": ImageFolders(train="/nowhere")}, r"source.train: /nowhere is not a folder"),
        ("val/bird/x.png", {}, "no class 'bird' among the training images"),
        ("train/cat/gone.png", {}, r"train/cat/gone\.png: a link to a missing file"),
    ],
)
def test_inconsistent_settings_are_refused(folders, tmp_path, change, wrong, message):
    if change:
        (tmp_path / change).parent.mkdir(exist_ok=True)
        picture(1).save(tmp_path / change) if "bird" in change else (tmp_path / change).symlink_to("/nowhere")
    with pytest.raises(UserError, match=message):
        prepared(settings(folders).model_copy(update=wrong), tmp_path / "out")


@pytest.mark.parametrize("storage", ["pixels", "encoded"])
def test_a_training_image_equal_to_a_held_out_image_is_dropped(storage, folders, tmp_path, capsys):
    picture(7, blue=99).save(tmp_path / "train" / "dog" / "deep" / "held out.bmp")  # a file with the same pixels
    # the image is dropped even if its class differs
    picture(8, blue=99).save(tmp_path / "train" / "cat" / "deep" / "wrong.png")
    picture(7, blue=98).save(tmp_path / "train" / "dog" / "deep" / "other.png")
    sets = prepared(settings(folders, storage=storage), tmp_path / "out")
    assert len(sets["test"]) == 6
    assert len(sets["train"]) + len(sets["valid"]) == 13
    assert read_manifest(tmp_path / "out")["duplicates_removed"] == 2
    assert "pictures: identical to another image, left out: 2\n" in capsys.readouterr().err


def test_no_image_is_in_two_splits_or_twice_in_one(tmp_path):
    for number in range(12):
        for copy in range(4):
            folder = tmp_path / "train" / ("cat" if number < 6 else "dog")
            folder.mkdir(parents=True, exist_ok=True)
            picture(number).save(folder / f"{copy} of {number}.png")
    data = settings(ImageFolders(train=str(tmp_path / "train")), valid_share=0.3, test_share=0.3)
    sets = prepared(data, tmp_path / "out")
    colours = [pixels[4, 4, 0] for images in sets.values() for pixels in images.pixels(range(len(images)))]
    assert sorted(colours) == [20 * number for number in range(12)]
    assert read_manifest(tmp_path / "out")["duplicates_removed"] == 36
    pixels = sets["train"].pixels(range(len(sets["train"]))) / 255
    assert sets["train"].mean == pytest.approx(pixels.mean(axis=(0, 1, 2)))


def test_prepared_images_are_not_prepared_again(folders, tmp_path, capsys):
    data, out = settings(folders), tmp_path / "out"
    prepared(data, out)
    prepared(data, out)
    assert capsys.readouterr().err.count("already prepared") == 1
    fingerprint_before = source_fingerprint(data)
    picture(3, (20, 20), blue=50).save(tmp_path / "train" / "cat" / "deep" / "9.png")
    assert source_fingerprint(data) != fingerprint_before
    prepared(data, out)
    assert len(load_images(out, "train")) + len(load_images(out, "valid")) == 13


def test_a_truncated_file_is_refused(folders, tmp_path):
    prepared(settings(folders), tmp_path / "out")
    path = tmp_path / "out" / "train.bin"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"train.bin: \d+ bytes, but the manifest says \d+"):
        load_images(tmp_path / "out", "train")


def test_keep_selects_a_fraction_of_the_training_images(tmp_path, capsys):
    complete = prepared(ImageData(), tmp_path / "complete")
    reduced = prepared(ImageData(keep=0.25), tmp_path / "reduced")
    assert 0.2 < len(reduced["train"]) / len(complete["train"]) < 0.3
    assert len(reduced["test"]) == len(complete["test"])
    assert np.bincount(reduced["train"].labels).min() > 20
    left_out = len(complete["train"]) - len(reduced["train"])
    notes = [read_manifest(tmp_path / name)["notes"] for name in ("complete", "reduced")]
    assert notes == [[], [f"keep=0.25 leaves out {left_out} training images"]]
    assert f"pictures: keep=0.25 leaves out {left_out} training images\n" in capsys.readouterr().err


def encoded(number):
    return saved(picture(number))


def check_rows(sets):
    assert len(sets["train"]) + len(sets["valid"]) + len(sets["test"]) == 12
    for images in sets.values():
        for pixels, label in zip(images.pixels(range(len(images))), images.labels, strict=True):
            assert (pixels[4, 4, 0] // 20 >= 6) == bool(label)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({}, None),
        ({"picture": None}, "image 3: no image"),
        ({"picture": {"bytes": None, "path": None}}, "image 3: no image"),
        ({"what": None}, "image 3 has label None"),
        ({"what": float("nan")}, "image 3 has label nan"),
    ],
)
def test_parquet_is_read_and_a_missing_image_or_label_is_refused(tmp_path, row, message):
    rows = [{"picture": {"bytes": encoded(n), "path": None}, "what": float(n // 6)} for n in range(12)]
    rows[3] |= row
    (tmp_path / "rows").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows" / "train.parquet")
    source = ImageHub(name=str(tmp_path / "rows"), image="picture", label="what")
    data = settings(source, test_share=0.3)
    if message is None:
        check_rows(prepared(data, tmp_path / "out"))
    else:
        with pytest.raises(UserError, match=message):
            prepared(data, tmp_path / "out")


def test_files_that_are_not_read_as_images_are_counted(tmp_path):
    formats = {"a/1.png": "PNG", "a/2.JFIF": "JPEG", "a/3.jpe": "JPEG", "b/4.avif": "AVIF", "b/5.jp2": "JPEG2000"}
    for number, (name, format) in enumerate(formats.items()):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture(number).save(tmp_path / name, format)
    for name in ("a/6.heic", "b/7", "b/8.HEIC", "9.png"):
        (tmp_path / name).write_bytes(b"x")
    gallery = ImageFolders(train=str(tmp_path)).open()
    assert {image.name for image in gallery.splits["train"]} == set(formats)
    ignored_endings = ".heic 2, in no class 1, no ending 1"
    assert gallery.notes == (f"train: 4 files are not read as images ({ignored_endings}); remove or convert them",)


def labelled(path, names, labels, count=12):
    """Write a Parquet file of images whose labels are indices into `names`."""
    from datasets import ClassLabel, Dataset, Features, Image

    images = [{"bytes": encoded(number), "path": None} for number in range(count)]
    features = Features({"image": Image(), "label": ClassLabel(names=names)})
    table = {"image": images, "label": [labels[number % len(labels)] for number in range(count)]}
    Dataset.from_dict(table, features=features).to_parquet(str(path))


def test_files_that_number_their_classes_differently_are_refused(tmp_path):
    labelled(tmp_path / "a.parquet", ["cat", "dog"], [0, 1])
    labelled(tmp_path / "b.parquet", ["dog", "cat"], [0])
    with pytest.raises(UserError, match=r"classes cat, dog in .*a\.parquet, but dog, cat in .*b\.parquet"):
        prepared(settings(ImageHub(name=str(tmp_path))), tmp_path / "out")


def test_an_unread_split_is_noted(tmp_path):
    (tmp_path / "data").mkdir()
    for split in ("train", "validation"):
        labelled(tmp_path / f"data/{split}.parquet", ["cat", "dog"], [0, 1])
    notes = ImageHub(name=str(tmp_path / "data")).open().notes
    assert [note for note in notes if note.startswith("not read: split validation of ")]
    assert not ImageHub(name=str(tmp_path / "data"), valid="validation").open().notes


@pytest.mark.parametrize("label", [[0], {"class": 0}])
def test_labels_other_than_one_class_are_refused(label, tmp_path):
    rows = [{"image": {"bytes": encoded(number), "path": None}, "label": label} for number in range(12)]
    (tmp_path / "rows").mkdir()
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "rows" / "train.parquet")
    source = ImageHub(name=str(tmp_path / "rows"))
    with pytest.raises(UserError, match=r"source\.label: column 'label' has type .*, not one class per image"):
        prepared(settings(source), tmp_path / "out")


def test_webdataset_archives_are_read_through_datasets(tmp_path):
    (tmp_path / "rows").mkdir()
    with tarfile.open(tmp_path / "rows/train-000.tar", "w") as archive:
        for number in range(12):
            for ending, content in (("png", encoded(number)), ("cls", str(number // 6).encode())):
                member = tarfile.TarInfo(f"{number:04}.{ending}")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    source = ImageHub(name=str(tmp_path / "rows"), image="png", label="cls")
    check_rows(prepared(settings(source, test_share=0.3), tmp_path / "out"))
    with pytest.raises(UserError, match=r"has no column 'jpg'; it has"):
        prepared(settings(source.model_copy(update={"image": "jpg"})), tmp_path / "other")
