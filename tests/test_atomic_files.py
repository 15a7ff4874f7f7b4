"""Files are written completely or not at all."""

import os

import pytest

from formerlab.errors import UserError
from formerlab.files import RECORD_HASH, read_json, read_record, replacing, write_json, write_record


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    return path


def test_the_old_file_stays_until_the_new_file_is_complete(path):
    with replacing(path) as temporary:
        temporary.write_text("half ")
        assert path.read_text() == "old"
        with open(temporary, "a") as file:
            file.write("and half")
    assert path.read_text() == "half and half"
    assert list(path.parent.iterdir()) == [path]


def write_half(path, error):
    with replacing(path) as temporary:
        temporary.write_text("half")
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_failed_write_keeps_only_the_old_file(error, path):
    for goal in (path, path.parent / "new"):
        with pytest.raises(error):
            write_half(goal, error)
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("umask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
@pytest.mark.parametrize("created_mode", [0o600, 0o666])
def test_file_permissions_follow_the_umask(umask, mode, created_mode, tmp_path):
    """Files get the usual permissions, although safetensors creates files that only the owner can read."""
    original_umask = os.umask(umask)
    try:
        with replacing(tmp_path / "file") as temporary:
            os.close(os.open(temporary, os.O_CREAT | os.O_WRONLY, created_mode))
        assert os.umask(umask) == umask
    finally:
        os.umask(original_umask)
    assert (tmp_path / "file").stat().st_mode & 0o777 == mode


def test_json_round_trip_is_exact_and_readable(tmp_path):
    value = {"name": "Müller", "loss": 0.1 + 0.2, "rows": [1, None, True]}
    write_json(tmp_path / "value.json", value)
    assert read_json(tmp_path / "value.json") == value
    assert "Müller" in (tmp_path / "value.json").read_text(encoding="utf-8")
    assert (tmp_path / "value.json").read_text().endswith("}\n")


@pytest.mark.parametrize("content", [b"", b'{"a": 1', b"\xff\xfe"])
def test_a_broken_json_file_gives_one_line_with_a_remedy(content, tmp_path):
    with pytest.raises(UserError, match=r"broken.json: no such file"):
        read_json(tmp_path / "broken.json")
    (tmp_path / "broken.json").write_bytes(content)
    with pytest.raises(UserError, match=r"broken.json: cannot be read \(.+\); delete it and run the stage") as caught:
        read_json(tmp_path / "broken.json")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' is given twice"),
        ('{"a": [1, Infinity]}', "Infinity is not a finite number"),
        ('{"a": NaN}', "NaN is not a finite number"),
        ('{"a": -1e999}', "-1e999 is not a finite number"),
        ('{"a": 2, "record_sha256": "0123"}', "changed since its stage wrote it"),
    ],
)
def test_json_with_duplicate_keys_non_finite_numbers_or_edits_is_refused(text, reason, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(text)
    with pytest.raises(UserError, match=rf"run.json: cannot be read \({reason}\); delete it and run the stage"):
        read_json(path)
    assert text.startswith('{"a": 2') or "twice" in reason or "a" in read_json(path, finite=False)


def test_the_hash_of_a_record_detects_edits_for_any_order_of_keys(tmp_path):
    path = tmp_path / "run.json"
    write_record(path, {"flops": 1e12, "name": "Müller", "sizes": {2: (1.0, float("inf"))}, "loss": float("nan")})
    record = read_record(path, "flops")
    values = {"flops": 1e12, "name": "Müller", "sizes": {"2": [1.0, None]}, "loss": None}
    assert record == values | {RECORD_HASH: record[RECORD_HASH]}
    write_json(path, dict(reversed(record.items())))
    assert read_record(path) == record
    write_json(path, record | {"flops": 2e12})
    with pytest.raises(UserError, match="changed since its stage wrote it"):
        read_record(path)
    write_json(path, values)  # records of older versions have no hash
    assert read_record(path) == values
    with pytest.raises(UserError, match=r"run.json: has no key tokens; delete it"):
        read_record(path, "tokens")
    path.write_text("[]")
    with pytest.raises(UserError, match=r"run.json: is not a record; delete it"):
        read_record(path)
